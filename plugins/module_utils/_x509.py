# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""X.509 certificates, as far as a kernel uses them: who they are of, which key they hold, and what they are called by.

Chains, dates and extensions other than the key's id are not looked at: a certificate that is compiled into a kernel is
trusted by that kernel because it is there, and the kernel does not look at the dates either.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import hashlib
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _der, _ecdsa
from ansible_collections.gb10.fleet.plugins.module_utils._der import DerError, Element

_COMMON_NAME: t.Final = "2.5.4.3"
_SUBJECT_KEY_ID: t.Final = "2.5.29.14"
_RSA: t.Final = "1.2.840.113549.1.1.1"
_EC: t.Final = "1.2.840.10045.2.1"
# What a certificate of version 3 looks like: [0] { 2 }, and then the serial number.
_VERSION_3: t.Final = b"\xa0\x03\x02\x01\x02\x02"
# Before it stand the headers of Certificate and TBSCertificate: with a length of two bytes, and of two or one.
_HEADERS: t.Final = ((8, b"\x30\x82"), (7, b"\x30\x81"))
_STRINGS: t.Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1E: "utf-16-be"}
# A modulus beyond this is no key that anybody signs with; raising to a power of it would only cost time.
_LARGEST_KEY_BITS: t.Final = 16384


@dataclasses.dataclass(frozen=True, slots=True)
class RsaKey:
    """An RSA public key."""

    modulus: int = dataclasses.field(repr=False)
    exponent: int

    @property
    def size(self) -> int:
        """Return the length of a signature in bytes."""
        return (self.modulus.bit_length() + 7) // 8


@dataclasses.dataclass(frozen=True, slots=True)
class EcKey:
    """A public key on an elliptic curve: the point that belongs to it."""

    curve: _ecdsa.Curve
    x: int = dataclasses.field(repr=False)
    y: int = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate: names (as DER and as the common name of the subject), serial number, key id and key.

    ``key`` is None for a key of a kind that is not known here; ``key_kind`` then says what it is.
    """

    subject: str
    subject_der: bytes = dataclasses.field(repr=False)
    issuer_der: bytes = dataclasses.field(repr=False)
    serial: int
    key_id: bytes
    key: RsaKey | EcKey | None
    key_kind: str
    fingerprint: str

    @classmethod
    def from_der(cls, data: bytes) -> Certificate:
        """Parse a certificate; raise DerError where the bytes are none."""
        body, _algorithm, _signature = _fields(_der.whole(data, _der.SEQUENCE, "a certificate"), 3, "a certificate")
        fields = body.expect(_der.SEQUENCE, "the body of a certificate").children()
        if fields and fields[0].tag == 0xA0:
            fields = fields[1:]
        if len(fields) < 6:
            raise DerError("the body of a certificate is incomplete")
        serial, _algorithm, issuer, _validity, subject, key, *optional = fields
        public, kind = _public_key(key)
        return cls(
            subject=common_name(subject),
            subject_der=subject.whole,
            issuer_der=issuer.whole,
            serial=serial.number("the serial number"),
            key_id=_key_id(optional),
            key=public,
            key_kind=kind,
            fingerprint=hashlib.sha256(data).hexdigest(),
        )

    @property
    def serial_text(self) -> str:
        """Return the serial number as modinfo prints it (sig_key): pairs of digits with colons."""
        size = max(1, (self.serial.bit_length() + 8) // 8)
        raw = (self.serial & (1 << 8 * size) - 1).to_bytes(size, "big")
        if len(raw) > 1 and raw[0] == 0:
            raw = raw[1:]
        return raw.hex(":").upper()

    @property
    def key_id_text(self) -> str:
        """Return the subject key id as /proc/keys prints it: digits without anything between them."""
        return self.key_id.hex()


def _fields(element: Element, count: int, what: str) -> tuple[Element, ...]:
    children = element.children()
    if len(children) != count:
        raise DerError(f"{what} has {len(children)} parts instead of {count}")
    return children


def common_name(name: Element) -> str:
    """Return the common name in a distinguished name, or an empty string where there is none."""
    found = ""
    for group in name.expect(_der.SEQUENCE, "a name").children():
        for attribute in group.expect(_der.SET, "a part of a name").children():
            kind, value = _fields(attribute, 2, "an attribute of a name")
            if kind.identifier("the kind of an attribute") == _COMMON_NAME:
                found = value.value.decode(_STRINGS.get(value.tag, "latin-1"), errors="replace")
    return found


def _public_key(info: Element) -> tuple[RsaKey | EcKey | None, str]:
    algorithm, bits = _fields(info.expect(_der.SEQUENCE, "a public key"), 2, "a public key")
    kinds = algorithm.expect(_der.SEQUENCE, "the algorithm of a key").children()
    if not kinds:
        raise DerError("a public key has no algorithm")
    kind = kinds[0].identifier("the algorithm of a key")
    raw = bits.expect(_der.BIT_STRING, "the bits of a key").value
    if raw[:1] != b"\0":
        raise DerError("the bits of a key do not end with a byte")
    if kind == _RSA:
        return _rsa_key(raw[1:])
    if kind == _EC and len(kinds) == 2 and kinds[1].tag == _der.OID:
        return _ec_key(raw[1:], kinds[1].identifier("a curve"))
    return None, kind


def _rsa_key(raw: bytes) -> tuple[RsaKey, str]:
    numbers = _fields(_der.whole(raw, _der.SEQUENCE, "an RSA key"), 2, "an RSA key")
    modulus, exponent = numbers[0].number("a modulus"), numbers[1].number("an exponent")
    bits = modulus.bit_length()
    if modulus <= 0 or not 512 <= bits <= _LARGEST_KEY_BITS or not 2 < exponent < 1 << 64:
        raise DerError("an RSA key has numbers that no key has")
    return RsaKey(modulus, exponent), f"RSA {bits}"


def _ec_key(raw: bytes, name: str) -> tuple[EcKey | None, str]:
    curve = _ecdsa.CURVES.get(name)
    if curve is None:
        return None, f"ECDSA {name}"
    size = curve.size
    if raw[:1] != b"\4" or len(raw) != 1 + 2 * size:
        raise DerError("a key is no point of its curve")
    x, y = int.from_bytes(raw[1 : 1 + size], "big"), int.from_bytes(raw[1 + size :], "big")
    if not curve.holds(x, y):
        raise DerError("a key is no point of its curve")
    return EcKey(curve, x, y), f"ECDSA {curve.name}"


def _key_id(optional: c.Iterable[Element]) -> bytes:
    for field in optional:
        if field.tag != 0xA3:
            continue
        (extensions,) = _fields(field, 1, "the extensions")
        for extension in extensions.expect(_der.SEQUENCE, "the extensions").children():
            parts = extension.children()
            if len(parts) >= 2 and parts[0].identifier("the kind of an extension") == _SUBJECT_KEY_ID:
                value = parts[-1].expect(_der.OCTET_STRING, "an extension").value
                return _der.whole(value, _der.OCTET_STRING, "a key id").value
    return b""


def find(data: bytes) -> tuple[Certificate, ...]:
    """Return the certificates that lie anywhere in a blob, in order and each once.

    A kernel has those that it trusts in one piece, one behind the other, but no header says where.
    """
    found: dict[str, Certificate] = {}
    position = data.find(_VERSION_3)
    while position != -1:
        for size, inner in _HEADERS:
            start = position - size
            if start >= 0 and data[start : start + 2] == b"\x30\x82" and data[start + 4 : start + 6] == inner:
                end = start + 4 + int.from_bytes(data[start + 2 : start + 4], "big")
                try:
                    certificate = Certificate.from_der(data[start:end])
                except DerError:
                    continue
                found.setdefault(certificate.fingerprint, certificate)
        position = data.find(_VERSION_3, position + 1)
    return tuple(found.values())

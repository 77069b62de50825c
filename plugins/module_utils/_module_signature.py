# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The signature at the end of a kernel module, and whether a certificate's key really made it.

A signed module is the module, a PKCS#7 SignedData in DER, twelve bytes that say how long that is, and a line of text.
The kernel hashes everything before the signature and asks a key that it trusts. The name in the signature, which
modinfo prints, only says which key to ask; anybody can write it there. So the key is asked here too: RSA with PKCS#1
v1.5 padding, or ECDSA on a curve of NIST, each with SHA-2. Other kinds of keys are not known here and give "unknown".

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import hashlib
import struct
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _der, _x509
from ansible_collections.gb10.fleet.plugins.module_utils._der import DerError, Element

MAGIC: t.Final = b"~Module signature appended~\n"
_INFO: t.Final = struct.Struct(">5B3xI")
_PKCS7: t.Final = 2
_SIGNED_DATA: t.Final = "1.2.840.113549.1.7.2"
_DATA: t.Final = "1.2.840.113549.1.7.1"
_RSA_ALGORITHMS: t.Final = frozenset(
    f"1.2.840.113549.1.1.{last}"
    for last in (1, 11, 12, 13)  # rsaEncryption, and with SHA-256, SHA-384, SHA-512
)
_ECDSA_ALGORITHMS: t.Final = frozenset(f"1.2.840.10045.4.3.{last}" for last in (2, 3, 4))  # with SHA-256 to SHA-512
# Object identifier and name of a hash, and what stands before the hash in a PKCS#1 v1.5 signature (RFC 8017, 9.2).
_HASHES: t.Final = {
    "2.16.840.1.101.3.4.2.1": ("sha256", bytes.fromhex("3031300d060960864801650304020105000420")),
    "2.16.840.1.101.3.4.2.2": ("sha384", bytes.fromhex("3041300d060960864801650304020205000430")),
    "2.16.840.1.101.3.4.2.3": ("sha512", bytes.fromhex("3051300d060960864801650304020305000440")),
}


class SignatureError(ValueError):
    """What is appended is no signature that a kernel reads. The text says why."""


class UnreadSignatureError(SignatureError):
    """What is appended may be a good signature, of a form that is not read here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """A module's signature: who it says it is of (by issuer and serial number, or by key id) and the numbers.

    ``signer`` is what modinfo prints. ``hash_name`` is empty for a hash that is not known here.
    """

    signer: str
    issuer_der: bytes = dataclasses.field(repr=False)
    serial: int | None
    key_id: bytes
    hash_name: str
    algorithm: str
    has_attributes: bool
    value: bytes = dataclasses.field(repr=False)

    @classmethod
    def from_der(cls, data: bytes) -> Signature:
        """Parse a PKCS#7 SignedData with one signer; raise SignatureError where the bytes are none."""
        try:
            return _signature(data)
        except DerError as error:
            raise SignatureError(f"the signature cannot be read: {error}") from error

    def names(self, certificate: _x509.Certificate) -> bool:
        """Return whether the signature says that this certificate made it."""
        if self.serial is not None:
            return (self.issuer_der, self.serial) == (certificate.issuer_der, certificate.serial)
        return bool(self.key_id) and self.key_id == certificate.key_id


def split(module: bytes) -> tuple[memoryview, bytes] | None:
    """Return what was signed and the signature's DER, or None for a module that ends without a signature."""
    if not module.endswith(MAGIC):
        return None
    end = len(module) - len(MAGIC) - _INFO.size
    if end < 0:
        raise SignatureError("the file is shorter than the end of a signature")
    algorithm, hash_, kind, signer_size, key_id_size, size = _INFO.unpack_from(module, end)
    if kind != _PKCS7 or algorithm or hash_ or signer_size or key_id_size:
        raise SignatureError("the end of the signature names another kind than PKCS#7")
    if not 0 < size <= end:
        raise SignatureError(f"the end of the signature gives it {size} bytes, and the file has {end}")
    return memoryview(module)[: end - size], module[end - size : end]


def _signature(data: bytes) -> Signature:
    outer = _der.whole(data, _der.SEQUENCE, "the signature").children()
    if len(outer) != 2 or outer[0].identifier("the kind of the signature") != _SIGNED_DATA or outer[1].tag != 0xA0:
        raise DerError("it is no signed data")
    (signed,) = _exactly(outer[1].children(), 1, "the signed data")
    parts = signed.expect(_der.SEQUENCE, "the signed data").children()
    if len(parts) < 4:
        raise DerError("the signed data is incomplete")
    content = parts[2].expect(_der.SEQUENCE, "the content").children()
    if not content or content[0].identifier("the kind of the content") != _DATA or len(content) != 1:
        raise DerError("the content is not the module before it")
    signers = parts[-1].expect(_der.SET, "the signers").children()
    if len(signers) > 1:
        raise UnreadSignatureError(f"the signature has {len(signers)} signers, and only one is read here")
    (signer,) = _exactly(signers, 1, "the signers")
    return _signer(signer.expect(_der.SEQUENCE, "the signer").children())


def _signer(fields: tuple[Element, ...]) -> Signature:
    if len(fields) < 5:
        raise DerError("the signer is incomplete")
    _version, identity, hash_, *rest = fields
    attributes = bool(rest) and rest[0].tag == 0xA0
    if attributes:
        rest = rest[1:]
    if len(rest) < 2:
        raise DerError("the signer is incomplete")
    algorithm, value = rest[:2]
    signer, issuer, serial, key_id = "", b"", None, b""
    if identity.tag == _der.SEQUENCE:
        name, number = _exactly(identity.children(), 2, "the name of the signer")
        signer, issuer, serial = _x509.common_name(name), name.whole, number.number("the serial number of the signer")
    elif identity.tag == 0x80:
        key_id = identity.value
    else:
        raise DerError("the signer is named neither by serial number nor by key id")
    return Signature(
        signer=signer,
        issuer_der=issuer,
        serial=serial,
        key_id=key_id,
        hash_name=_HASHES.get(_algorithm(hash_, "the hash"), ("", b""))[0],
        algorithm=_algorithm(algorithm, "the algorithm"),
        has_attributes=attributes,
        value=value.expect(_der.OCTET_STRING, "the signature's value").value,
    )


def _algorithm(element: Element, what: str) -> str:
    parts = element.expect(_der.SEQUENCE, what).children()
    if not parts:
        raise DerError(f"{what} is empty")
    return parts[0].identifier(what)


def _exactly(elements: tuple[Element, ...], count: int, what: str) -> tuple[Element, ...]:
    if len(elements) != count:
        raise DerError(f"{what} have {len(elements)} parts instead of {count}")
    return elements


# --- is it of that key? ----------------------------------------------------------------------------------------------

# verified: it is. other_bytes: it is of that key, but for other bytes. other_key: it is not of that key.
# unknown: this key, hash or form is not known here.
Answer = t.Literal["verified", "other_bytes", "other_key", "unknown"]


def check(content: memoryview | bytes, signature: Signature, certificate: _x509.Certificate) -> Answer:
    """Return whether the certificate's key made the signature over the content."""
    if not signature.hash_name or signature.has_attributes:
        return "unknown"
    if isinstance(certificate.key, _x509.RsaKey) and signature.algorithm in _RSA_ALGORITHMS:
        return _check_rsa(content, signature, certificate.key)
    if isinstance(certificate.key, _x509.EcKey) and signature.algorithm in _ECDSA_ALGORITHMS:
        return _check_ecdsa(content, signature, certificate.key)
    return "unknown"


def _check_rsa(content: memoryview | bytes, signature: Signature, key: _x509.RsaKey) -> Answer:
    prefix = next(prefix for name, prefix in _HASHES.values() if name == signature.hash_name)
    number = int.from_bytes(signature.value, "big")
    if len(signature.value) != key.size or number >= key.modulus:
        return "other_key"
    block = pow(number, key.exponent, key.modulus).to_bytes(key.size, "big")
    digest = hashlib.new(signature.hash_name, content).digest()
    padding = key.size - 3 - len(prefix) - len(digest)
    head = b"\0\1" + b"\xff" * padding + b"\0" + prefix
    if padding < 8 or block[: len(head)] != head:
        return "other_key"
    return "verified" if block[len(head) :] == digest else "other_bytes"


def _check_ecdsa(content: memoryview | bytes, signature: Signature, key: _x509.EcKey) -> Answer:
    """An ECDSA signature does not give away for which bytes it was made, so that "other_key" may mean either."""
    try:
        pair = _der.whole(signature.value, _der.SEQUENCE, "an ECDSA signature").children()
        r, s = (number.number("a number of it") for number in _exactly(pair, 2, "the numbers of it"))
    except DerError:
        return "other_key"
    digest = hashlib.new(signature.hash_name, content).digest()
    return "verified" if key.curve.verifies(digest, r, s, key.x, key.y) else "other_key"


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What was found out about one module's signature. ``by`` is the certificate that made it, trusted or not."""

    word: t.Literal["valid", "unsigned", "tampered", "forged", "wrong_key", "broken", "unknown"]
    reason: str
    signer: str = ""
    by: _x509.Certificate | None = None
    accepted: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Trust:
    """Whose signatures count in a kernel.

    ``trusted`` are the certificates of the wanted subjects that are compiled into it, ``accepted`` all others that it
    takes signatures of (compiled in, or an enrolled machine owner key), ``known`` those that are only good for a name.
    ``complete`` is False where the kernel's certificates, and ``owner_complete`` where the enrolled keys, could not be
    read.
    """

    trusted: tuple[_x509.Certificate, ...] = ()
    accepted: tuple[_x509.Certificate, ...] = ()
    known: tuple[_x509.Certificate, ...] = ()
    complete: bool = True
    owner_complete: bool = True
    why_incomplete: str = ""


def judge(module: bytes, trust: Trust, is_wanted: c.Callable[[str], bool]) -> Result:
    """Return what the signature of a module is worth in a kernel. ``is_wanted`` tells a wanted signer by its name."""
    try:
        parts = split(module)
        if parts is None:
            return Result("unsigned", "it carries no signature", accepted=False)
        signature = Signature.from_der(parts[1])
    except UnreadSignatureError as error:
        return Result("unknown", str(error))
    except SignatureError as error:
        return Result("broken", str(error), accepted=False)
    return _judge(parts[0], signature, trust, is_wanted(signature.signer))


def _judge(content: memoryview, signature: Signature, trust: Trust, wanted: bool) -> Result:
    signer = signature.signer
    enrolled_or_not = False if trust.owner_complete else None
    groups = ((trust.trusted, True, True), (trust.accepted, False, True), (trust.known, False, enrolled_or_not))
    for group, trusted, accepted in groups:
        for certificate in filter(signature.names, group):
            answer = check(content, signature, certificate)
            if answer == "verified":
                return _verified(certificate, signer, trusted, accepted)
            if answer != "other_key" or trusted:
                return _not_verified(answer, signature, certificate)
    if not trust.complete:
        return Result("unknown", trust.why_incomplete, signer)
    # No certificate of the kernel is the one that is named; an enrolled key might be, where those could not be read.
    if wanted:
        reason = "it states a trusted name, but no certificate in the kernel is the one that it names"
        return Result("forged", reason, signer, accepted=enrolled_or_not)
    reason = f"it is signed by {signer or 'somebody without a name'}"
    return Result("wrong_key", reason, signer, accepted=enrolled_or_not)


def _not_verified(answer: Answer, signature: Signature, certificate: _x509.Certificate) -> Result:
    signer = signature.signer
    if answer == "other_bytes":
        return Result("tampered", "the file was changed after it was signed", signer, certificate, False)
    if answer == "unknown":
        return Result("unknown", _why_unknown(signature, certificate), signer)
    reason = f"the key of {certificate.subject} did not make the signature of these bytes, though it says so"
    return Result("forged", reason, signer, accepted=False)


def _verified(certificate: _x509.Certificate, signer: str, trusted: bool, accepted: bool | None) -> Result:
    if trusted:
        return Result("valid", f"verified with the certificate of {certificate.subject}", signer, certificate, True)
    return Result("wrong_key", f"it is signed by {certificate.subject}", signer, certificate, accepted)


def _why_unknown(signature: Signature, certificate: _x509.Certificate) -> str:
    if signature.has_attributes:
        return "the signature has signed attributes, which are not read here"
    if not signature.hash_name:
        return "the signature uses a hash that is not known here"
    return f"the key of {certificate.subject} is of a kind ({certificate.key_kind}) that is not checked here"

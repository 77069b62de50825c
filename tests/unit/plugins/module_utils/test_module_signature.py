# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Signatures of modules: whose they are, what is refused, and that no bytes whatever break the reader."""

from __future__ import annotations

import random
import re
import typing as t

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, pkcs7

from ansible_collections.gb10.fleet.plugins.module_utils import _module_signature as signatures
from ansible_collections.gb10.fleet.plugins.module_utils import _x509
from ansible_collections.gb10.fleet.plugins.module_utils._module_signature import Result, Trust
from tests.unit.plugins.module_utils import driver_builder as build
from tests.unit.plugins.module_utils.driver_builder import CANONICAL, Signer

CONTENT = build.module()
REAL = build.signer()
KMOD = build.signer(f"{CANONICAL} 2025 Kmod")
FORGED = build.signer(CANONICAL, 1)
OWNER = build.signer(build.OWNER)
SIGNERS = re.compile(r"^Canonical Ltd\. Kernel Module Signing( \d{4} Kmod)?$")


def certificates(*signers: Signer) -> tuple[_x509.Certificate, ...]:
    return tuple(_x509.Certificate.from_der(one.der) for one in signers)


def judge(module: bytes, trust: Trust | None = None) -> Result:
    return signatures.judge(
        module, trust or Trust(trusted=certificates(KMOD, REAL)), lambda name: bool(SIGNERS.search(name))
    )


@pytest.mark.parametrize("algorithm", [hashes.SHA256(), hashes.SHA384(), hashes.SHA512()])
@pytest.mark.parametrize(
    "by", [REAL, KMOD, build.signer(CANONICAL, 3, kind="p256"), build.signer(CANONICAL, 4, kind="p384")]
)
def test_a_signature_verifies(by: Signer, algorithm: hashes.HashAlgorithm) -> None:
    module = build.signed(CONTENT, by, algorithm)
    found = judge(module, Trust(trusted=certificates(REAL, by)))
    assert (found.word, found.accepted) == ("valid", True)
    assert found.by is not None
    assert found.by.key_id_text == by.key_id
    changed = bytearray(module)
    changed[len(CONTENT) // 2] ^= 0x80
    assert judge(bytes(changed), Trust(trusted=certificates(by))).word in ("tampered", "forged")


@pytest.mark.parametrize(
    ("module", "word", "says"),
    [
        (CONTENT, "unsigned", "it carries no signature"),
        (build.signed(CONTENT, REAL)[:-1], "unsigned", "it carries no signature"),
        (build.signed(CONTENT, FORGED), "forged", "no certificate in the kernel is the one that it names"),
        (build.signed(CONTENT, OWNER), "wrong_key", f"it is signed by {build.OWNER}"),
        (b"x" + build.signed(CONTENT, REAL), "tampered", "the file was changed after it was signed"),
        (build.signed(CONTENT + b"\0", REAL)[1:], "tampered", "the file was changed after it was signed"),
        (build.MAGIC, "broken", "shorter than the end of a signature"),
        (CONTENT + bytes(12) + build.MAGIC, "broken", "another kind than PKCS#7"),
        (build.with_signature(CONTENT, b""), "broken", "gives it 0 bytes"),
        (build.with_signature(CONTENT, b"0"), "broken", "an element is cut off"),
        (build.with_signature(CONTENT, b"\x30\x80\0\0"), "broken", "no length that can be read"),
        (build.with_signature(CONTENT, REAL.der), "broken", "it is no signed data"),
        (build.with_signature(CONTENT, REAL.sign(CONTENT) + b"\0"), "broken", "is followed by 1 bytes"),
    ],
)
def test_what_is_not_valid(module: bytes, word: str, says: str) -> None:
    found = judge(module)
    assert found.word == word
    assert says in found.reason
    assert found.accepted is False


def test_the_same_name_and_the_same_serial_number_do_not_help() -> None:
    twin = build.signer(CANONICAL, 2, serial=REAL.certificate.serial_number)
    found = judge(build.signed(CONTENT, twin))
    assert (found.word, found.signer, found.by) == ("forged", CANONICAL, None)


def test_other_certificates_of_the_kernel_and_enrolled_keys_are_accepted_but_not_trusted() -> None:
    trust = Trust(trusted=certificates(REAL), accepted=certificates(OWNER))
    found = judge(build.signed(CONTENT, OWNER), trust)
    assert (found.word, found.accepted, found.reason) == ("wrong_key", True, f"it is signed by {build.OWNER}")
    assert found.by is not None
    assert found.by.subject == build.OWNER
    known = judge(build.signed(CONTENT, OWNER), Trust(trusted=certificates(REAL), known=certificates(OWNER)))
    assert (known.word, known.accepted) == ("wrong_key", False)


def test_what_could_not_be_read_leaves_it_unknown() -> None:
    incomplete = Trust(complete=False, why_incomplete="/boot/vmlinuz cannot be read")
    assert judge(build.signed(CONTENT, REAL), incomplete) == Result(
        "unknown", "/boot/vmlinuz cannot be read", CANONICAL
    )
    owners = Trust(trusted=certificates(REAL), owner_complete=False)
    assert judge(build.signed(CONTENT, OWNER), owners).accepted is None
    assert judge(build.signed(CONTENT, FORGED), owners).accepted is None


@pytest.mark.parametrize(
    ("kind", "algorithm", "says"),
    [
        ("p521", hashes.SHA512(), "of a kind (ECDSA 1.3.132.0.35) that is not checked"),
        ("rsa", None, "signed attributes"),
    ],
)
def test_what_is_not_checked_is_never_valid(kind: str, algorithm: t.Any, says: str) -> None:
    by = build.signer(CANONICAL, 5, kind=kind)
    if algorithm is None:
        options = [pkcs7.PKCS7Options.DetachedSignature, pkcs7.PKCS7Options.Binary, pkcs7.PKCS7Options.NoCerts]
        builder = pkcs7.PKCS7SignatureBuilder().set_data(CONTENT)
        key: t.Any = by.key
        signature = builder.add_signer(by.certificate, key, hashes.SHA512()).sign(Encoding.DER, options)
        module = build.with_signature(CONTENT, signature)
    else:
        module = build.signed(CONTENT, by, algorithm)
    found = judge(module, Trust(trusted=certificates(by)))
    assert (found.word, found.accepted) == ("unknown", None)
    assert says in found.reason


def test_two_signers_are_unknown() -> None:
    options = [
        pkcs7.PKCS7Options.DetachedSignature,
        pkcs7.PKCS7Options.Binary,
        pkcs7.PKCS7Options.NoAttributes,
        pkcs7.PKCS7Options.NoCerts,
    ]
    builder = pkcs7.PKCS7SignatureBuilder().set_data(CONTENT)
    for one in (REAL, KMOD):
        key: t.Any = one.key
        builder = builder.add_signer(one.certificate, key, hashes.SHA512())
    found = judge(build.with_signature(CONTENT, builder.sign(Encoding.DER, options)))
    assert (found.word, found.reason) == ("unknown", "the signature has 2 signers, and only one is read here")


def _mutated(data: bytes, dice: random.Random) -> bytes:
    """Change, take out, put in or cut off some bytes."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        position = dice.randrange(len(changed))
        kind = dice.randrange(5)
        if kind < 2:
            changed[position] = dice.randrange(256)
        elif kind == 2:
            changed[position] ^= 1 << dice.randrange(8)
        elif kind == 3:
            del changed[position : position + dice.randrange(1, 9)]
        else:
            changed[position:position] = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 9)))
        if len(changed) < 2:
            break
    return bytes(changed)


def test_twenty_thousand_mutations() -> None:
    """Whatever stands at the end of a file: an answer, and "valid" for the same bytes and the same number only."""
    dice = random.Random(20261129)
    signature = REAL.sign(b"abc")
    value = signatures.Signature.from_der(signature).value
    trust = Trust(trusted=certificates(REAL))
    words = set()
    for number in range(20_000):
        if number % 2:
            module = build.with_signature(b"abc", _mutated(signature, dice))
        else:
            module = b"abc" + _mutated(build.with_signature(b"", signature), dice)
        found = judge(module, trust)
        words.add(found.word)
        if found.word == "valid":
            parts = signatures.split(module)
            assert parts is not None
            assert bytes(parts[0]) == b"abc"
            assert signatures.Signature.from_der(parts[1]).value == value
    assert {"unsigned", "broken", "forged", "wrong_key"} <= words


def test_no_mutation_of_what_counts_is_valid() -> None:
    """Bytes that a kernel does not look at may change; the module, the hash and the number of the signature may not."""
    signature = REAL.sign(CONTENT)
    parsed = signatures.Signature.from_der(signature)
    trust = Trust(trusted=certificates(REAL))
    start = signature.index(parsed.value)
    for position in range(start, start + len(parsed.value)):
        changed = bytearray(signature)
        changed[position] ^= 0x10
        assert judge(build.with_signature(CONTENT, bytes(changed)), trust).word == "forged"


def test_mutated_certificates_raise_nothing_but_their_error() -> None:
    dice = random.Random(7)
    for _ in range(3_000):
        data = _mutated(REAL.der, dice)
        try:
            found = _x509.Certificate.from_der(data)
        except _x509.DerError:
            continue
        assert isinstance(found.subject, str)
        signatures.judge(build.signed(b"abc", REAL), Trust(trusted=(found,)), bool)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""EFI variables: Secure Boot and the enrolled keys."""

from __future__ import annotations

import pathlib
import random
import struct

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _efi
from ansible_collections.gb10.fleet.plugins.module_utils._der import DerError
from ansible_collections.gb10.fleet.plugins.module_utils._sysroot import Sysroot
from tests.unit.plugins.module_utils import driver_builder as build

GLOBAL, SHIM = "8be4df61-93ca-11d2-aa0d-00e098032b8c", "605dab50-e046-4300-abb6-3dd810dd8b23"
OWNER, SECOND = build.signer(build.OWNER), build.signer("Second", kind="p256")


def variable(root: pathlib.Path, name: str, guid: str, value: bytes) -> None:
    path = root / "sys/firmware/efi/efivars" / f"{name}-{guid}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\7\0\0\0" + value)


@pytest.mark.parametrize(
    ("secure", "setup", "ignored", "state"),
    [
        (b"\1", b"\0", None, "enabled"),
        (b"\0", b"\0", None, "disabled"),
        (b"\0", b"\1", None, "setup_mode"),
        (b"\1", b"\0", b"\1", "disabled"),
        (b"\1", b"\0", b"\0", "enabled"),
        (b"", b"\0", None, "unknown"),
        (None, b"\0", None, "unknown"),
    ],
)
def test_secure_boot(
    tmp_path: pathlib.Path, secure: bytes | None, setup: bytes, ignored: bytes | None, state: str
) -> None:
    variable(tmp_path, "SetupMode", GLOBAL, setup)
    for name, guid, value in (("SecureBoot", GLOBAL, secure), ("MokSBStateRT", SHIM, ignored)):
        if value is not None:
            variable(tmp_path, name, guid, value)
    assert _efi.secure_boot(Sysroot(tmp_path)) == state


def test_a_machine_without_efi(tmp_path: pathlib.Path) -> None:
    assert _efi.secure_boot(Sysroot(tmp_path)) == "unknown"
    assert _efi.owner_keys(Sysroot(tmp_path)) == _efi.OwnerKeys((), False)
    (tmp_path / "sys/firmware").mkdir(parents=True)
    assert _efi.secure_boot(Sysroot(tmp_path)) == "unsupported"
    assert _efi.owner_keys(Sysroot(tmp_path)) == _efi.OwnerKeys((), True)


def test_enrolled_keys(tmp_path: pathlib.Path) -> None:
    box = build.Box(tmp_path)
    assert _efi.owner_keys(Sysroot(tmp_path)) == _efi.OwnerKeys((), True)
    box.enroll(OWNER, SECOND)
    found = _efi.owner_keys(Sysroot(tmp_path))
    assert ([one.subject for one in found.certificates], found.complete) == ([build.OWNER, "Second"], True)
    plain = box.path(f"/sys/firmware/efi/efivars/MokListRT-{SHIM}").read_bytes()[4:]
    box.write("/sys/firmware/efi/mok-variables/MokListRT", plain)
    box.write(f"/sys/firmware/efi/efivars/MokListRT-{SHIM}", b"rubbish")
    assert len(_efi.owner_keys(Sysroot(tmp_path)).certificates) == 2


@pytest.mark.parametrize(
    "data", [b"\0" * 27, b"\0" * 28, struct.pack("<16sIII", b"", 99, 0, 50), b"\0" * 16 + b"\x1c\0\0\0\xff" + b"\0" * 7]
)
def test_lists_that_are_none(tmp_path: pathlib.Path, data: bytes) -> None:
    with pytest.raises(DerError):
        _efi.signature_lists(data)
    variable(tmp_path, "MokListRT", SHIM, data)
    assert _efi.owner_keys(Sysroot(tmp_path)) == _efi.OwnerKeys((), False)


def test_other_kinds_of_lists_and_broken_certificates_are_left_out() -> None:
    sizes = struct.pack("<III", 28 + 48, 0, 48)
    hashes = bytes.fromhex("2616c4c14c509240aca941f936934328") + sizes + bytes(48)
    broken = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072") + sizes + bytes(48)
    assert _efi.signature_lists(hashes + broken) == ()


def test_mutated_lists_raise_nothing_but_their_error(tmp_path: pathlib.Path) -> None:
    box = build.Box(tmp_path)
    box.enroll(OWNER, SECOND)
    original = box.path(f"/sys/firmware/efi/efivars/MokListRT-{SHIM}").read_bytes()[4:]
    dice = random.Random(5)
    for _ in range(2000):
        data = bytearray(original)
        for _ in range(2):
            data[dice.randrange(60 if dice.random() < 0.5 else len(data))] = dice.randrange(256)
        try:
            _efi.signature_lists(bytes(data))
        except DerError:
            continue

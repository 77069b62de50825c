# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a module says of itself."""

from __future__ import annotations

import random
import struct

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _module_info as info
from ansible_collections.gb10.fleet.plugins.module_utils._module_info import ModuleError, ModuleInfo
from tests.unit.plugins.module_utils import driver_builder as build


@pytest.mark.parametrize("bits", [64, 32])
@pytest.mark.parametrize("order", ["<", ">"])
def test_elf_of_every_kind(order: str, bits: int) -> None:
    note = struct.pack(f"{order}III", 4, 4, 3) + b"GNU\0" + b"\xde\xad\xbe\xef"
    fields = b"version=1.2\0license=GPL\0\0odd\0vermagic=6.1 SMP \0version=9\0"
    data = build.elf({".modinfo": fields, ".note.gnu.build-id": note}, order=order, bits=bits)
    assert ModuleInfo.from_elf(data) == ModuleInfo("", "1.2", "GPL", "6.1 SMP", "", "deadbeef")


def test_a_module_of_the_builder() -> None:
    found = ModuleInfo.from_elf(build.signed(build.module("nvidia-uvm"), build.signer()))
    assert (found.name, found.version, found.release, found.flavour) == (
        "nvidia_uvm",
        build.VERSION,
        build.RELEASE,
        "open",
    )
    assert found.build_id == "11" * 20


@pytest.mark.parametrize(
    ("license_", "flavour"),
    [("Dual MIT/GPL", "open"), ("NVIDIA", "proprietary"), ("", "unknown"), ("Proprietary", "unknown")],
)
def test_flavours(license_: str, flavour: str) -> None:
    assert ModuleInfo(license=license_).flavour == flavour


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is no ELF file"),
        (b"\x7fELF", "its table of sections is damaged"),
        (b"\x7fELF\x07\x01" + bytes(60), "of a kind that is not known"),
        (b"\x7fELF\x02\x01" + bytes(60), "names no table of sections"),
        (build.elf({".text": b""}), "it has no section .modinfo"),
        (build.module()[:2000], "its table of sections is damaged"),
    ],
)
def test_what_is_no_module(data: bytes, says: str) -> None:
    with pytest.raises(ModuleError, match=says):
        ModuleInfo.from_elf(data)


def test_a_note_that_is_none() -> None:
    assert [info.build_id(data) for data in (b"", bytes(40), struct.pack("<III", 4, 99, 3) + b"GNU\0ab")] == [
        "",
        "",
        "",
    ]


def test_mutated_modules_raise_nothing_but_their_error() -> None:
    dice = random.Random(11)
    original = build.module(filling=64)
    for _ in range(5000):
        data = bytearray(original)
        for _ in range(2):
            data[dice.randrange(64 if dice.random() < 0.4 else len(data))] = dice.randrange(256)
        try:
            ModuleInfo.from_elf(bytes(data))
        except ModuleError:
            continue

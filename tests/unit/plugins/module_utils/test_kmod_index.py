# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The index that modprobe reads: one that depmod of kmod 34 has written, and what is left of it after a power loss."""

from __future__ import annotations

import base64

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _kmod_index

WRITTEN = base64.b64decode(
    "sAf0VwACAAEgAAAMbm6gAAASdgBfbcAAAFIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAADgAABwAAAAAAAAAAAAAAAAwAABf3gAAAAAAQAA"
    "AANrZXJuZWwvbmV0L252LXgua286AGRpYQBfXyAAAJoAAAABAAAABXVwZGF0ZXMvZGttcy9udmlkaWEua286AGR1wAAA5AAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAwAABFQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAADAAAFOcm0AAAAAAQAAAAJrZXJuZWwvbnZpZGlhLTU4MC1vcGVuL252aWRpYS1k"
    "cm0ua286AG9kZXNldAAAAAABAAAAAWtlcm5lbC9udmlkaWEtNTgwLW9wZW4vbnZpZGlhLW1vZGVzZXQua286AHZtAAAAAAEAAAAEa2VybmVsL252aWRpYS01"
    "ODAtb3Blbi9udmlkaWEtdXZtLmtvOgBlAAAAAAEAAAAAa2VybmVsL25ldC9udm1lLmtvOgA="
)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nvidia", "updates/dkms/nvidia.ko:"),
        ("nvidia_uvm", "kernel/nvidia-580-open/nvidia-uvm.ko:"),
        ("nvidia_modeset", "kernel/nvidia-580-open/nvidia-modeset.ko:"),
        ("nvidia_drm", "kernel/nvidia-580-open/nvidia-drm.ko:"),
        ("nv_x", "kernel/net/nv-x.ko:"),
        ("nvme", "kernel/net/nvme.ko:"),
        ("nv", ""),
        ("nvidi", ""),
        ("nvidia_", ""),
        ("nvidia_uvmx", ""),
        ("nvidia-uvm", ""),
        ("a", ""),
        ("", ""),
    ],
)
def test_a_name_is_looked_up_as_modprobe_does(name: str, line: str) -> None:
    assert _kmod_index.lookup(WRITTEN, name) == line


@pytest.mark.parametrize("length", [0, 4, 11, 12, 20, 60, 120, 150])
def test_an_index_that_is_cut_off_is_none(length: int) -> None:
    with pytest.raises(_kmod_index.IndexDamagedError):
        _kmod_index.lookup(WRITTEN[:length], "nvidia")


@pytest.mark.parametrize("start", [b"\0" * 12, b"\xb0\x07\xf4\x57\0\3\0\0\x20\0\0\x0c"])
def test_another_kind_of_file_is_no_index(start: bytes) -> None:
    with pytest.raises(_kmod_index.IndexDamagedError):
        _kmod_index.lookup(start + WRITTEN[12:], "nvidia")


def test_no_damage_makes_it_run_for_ever_or_fail_otherwise() -> None:
    for at in range(len(WRITTEN)):
        for bit in range(8):
            spoilt = bytearray(WRITTEN)
            spoilt[at] ^= 1 << bit
            try:
                found = _kmod_index.lookup(bytes(spoilt), "nvidia_uvm")
            except _kmod_index.IndexDamagedError:
                continue
            assert isinstance(found, str)

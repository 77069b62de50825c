# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Damages files in the ways that transfers, disks and people do, and checks that the reader survives."""

from __future__ import annotations

import functools
import random
import struct
import typing as t
from pathlib import Path

from ansible_collections.gb10.fleet.plugins.module_utils import _cubin
from tests.unit.plugins.module_utils import cubin_builder as build

FIXTURES = Path(__file__).parent / "fixtures" / "cubin"
FAMILY = _cubin.Family.from_dict({"id": "any", "match": {"any": [{"all": ["k"]}, {"all": ["s"]}]}})
EDGES = (0, 1, 0x3F, 0x40, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
MAGICS = (_cubin.FATBIN_MAGIC, b"\x7fELF", b"!<arch>\n", b"\x28\xb5\x2f\xfd", b".entry ", b"\0.shstrtab\0")


@functools.cache
def seeds() -> dict[str, bytes]:
    """Return real files (nvcc, ptxas) and made ones."""
    real = [*(FIXTURES / "containers").iterdir(), *(FIXTURES / "load_cc90").glob("fat_*")]
    real += [FIXTURES / "load_cc90/sm_120f.cubin", FIXTURES / "load_cc90/compute_90a.ptx"]
    real += [FIXTURES / "toolkits/cu128_sm_90a.cubin", FIXTURES / "toolkits/cu129_sm_120f.cubin"]
    found = {path.name: path.read_bytes() for path in real}
    names = [f"kernel_{number}" for number in range(40)]
    for codec in ("", "lz4", "zstd"):
        cubin, ptx = build.cubin(120, "f", names), build.ptx(names)
        fatbin = build.fatbin(build.entry(cubin, 120, "f", 2, codec), build.entry(ptx, 80, "", 1, codec))
        found[f"made_{codec or 'stored'}.fatbin"] = fatbin
        found[f"made_{codec or 'stored'}.so"] = build.shared_object(fatbin, fatbin)
    return found


def mutate(seed: bytes, name: str, number: int) -> bytes:
    """Return one of endlessly many damaged versions; the same number gives the same one."""
    source = random.Random(f"{name}/{number}")
    data = bytearray(seed)
    for _step in range(source.choice((1, 1, 1, 2, 4, 16))):
        at = source.randrange(len(data)) if data else 0
        kind = source.randrange(8)
        if kind == 0:
            del data[at:]
        elif kind == 1 and data:
            data[at] ^= 1 << source.randrange(8)
        elif kind == 2 and data:
            data[at] = source.randrange(256)
        elif kind == 3:
            width, form = source.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
            at -= at % width
            value = source.choice(EDGES) & ((1 << 8 * width) - 1)
            data[at : at + width] = struct.pack(form, value)
        elif kind == 4:
            del data[at : at + source.randrange(1, 200)]
        elif kind == 5:
            other = source.randrange(len(data)) if data else 0
            data[at:at] = data[other : other + source.randrange(1, 500)]
        elif kind == 6:
            data[at:at] = source.choice(MAGICS)
        else:
            data[at : at + 64] = source.randbytes(64)
    return bytes(data)


def check(name: str, seed: bytes, number: int) -> str:
    """Return what is wrong with how a mutation was read, or nothing."""
    data = mutate(seed, name, number)
    scan = _cubin.Scan("12.1", [FAMILY])
    facts = scan.inspect(data, name)
    scan.keep(facts)
    result: dict[str, t.Any] = scan.result()
    if result["complete"] != (not result["findings"]):
        return "complete contradicts the findings"
    if seed.startswith(data) and facts.row["complete"]:
        before = _cubin.parse(seed, name)
        if facts.row["entries"] < len(before.entries):
            return f"cut to {len(data)} bytes, it lost entries in silence"
    return ""

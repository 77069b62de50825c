#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure driver_info on a box with one kernel: every form of kernel image, modules of real size, a full /lib/modules.

    benchmarks/driver_info_speed.py [--vmlinuz FILE] [--rounds 5]

The box is made in a temporary folder, with throw-away keys: an image of 64 MiB that compresses to about a quarter,
modules of 14, 3, 2 and 0.3 MiB, and 6000 other files in 900 folders. --vmlinuz measures a real image instead; its
certificates then verify nothing, which takes as long. Seconds of the CPU count, of the programs that were started as
well, and the best of all rounds: other work on the machine only ever adds. The bar is 0.5 s; exits 1 if it is missed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
import typing as t

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]

from ansible_collections.gb10.fleet.plugins.module_utils import _driver_state, _driver_verdict
from ansible_collections.gb10.fleet.plugins.module_utils._sysroot import Sysroot
from tests.unit.plugins.module_utils import driver_builder as build

BAR_S: t.Final = 0.5
SIZES: t.Final = {"nvidia": 14 << 20, "nvidia-uvm": 3 << 20, "nvidia-modeset": 2 << 20, "nvidia-drm": 300 << 10}
WANTED: t.Final = _driver_state.Wanted(signers=(f"^{build.CANONICAL}$",))


def code(size: int) -> bytes:
    """Return bytes that compress about as well as a kernel does, and do not repeat within the reach of gzip."""
    dice = random.Random(1)
    words = [dice.randbytes(12) for _ in range(1 << 9)]
    piece = b"".join(dice.choices(words, k=1 << 19))
    return (piece * (size // len(piece) + 1))[:size]


def furnish(root: pathlib.Path) -> build.Box:
    """Make the box: one kernel, modules of real size, and what else lies in a kernel's folder."""
    box = build.Box(root)
    shutil.rmtree(box.path(f"/lib/modules/{build.OLDER}"))
    box.remove(f"/boot/vmlinuz-{build.OLDER}", f"/boot/initrd.img-{build.OLDER}")
    box.write("/boot/grub/grub.cfg", build.grub_config(build.RELEASE))
    for name, size in SIZES.items():
        module = build.signed(build.module(name, filling=size), box.trusted)
        box.write(f"{box.folder(build.RELEASE)}/{name}.ko", module)
    index = []
    for folder in range(900):
        for number in range(7 if folder % 2 else 6):
            path = f"kernel/drivers/d{folder % 30}/d{folder}/module{number}.ko.zst"
            box.write(f"/lib/modules/{build.RELEASE}/{path}", b"")
            index.append(f"{path}: kernel/lib/crc.ko.zst\n")
    dep = f"/lib/modules/{build.RELEASE}/modules.dep"
    box.write(dep, "".join(index) + box.path(dep).read_text())
    return box


def forms(box: build.Box, vmlinuz: pathlib.Path | None) -> t.Iterator[tuple[str, bytes]]:
    """Return images by name."""
    if vmlinuz:
        yield vmlinuz.name, vmlinuz.read_bytes()
        return
    plain = build.kernel(box.trusted) + code(64 << 20)
    yield "arm64 Image", plain
    yield "arm64 Image in gzip", build.compressed(plain, "gzip")
    if shutil.which("zstd"):
        yield "zboot with zstd", build.zboot(plain, "zstd")
        yield "bzImage with zstd", build.bzimage(plain, "zstd")


def measure(box: build.Box) -> tuple[float, float, str]:
    """Return seconds on the clock, seconds of the CPU, and what was found."""
    before, started = os.times(), time.perf_counter()
    state = _driver_state.observe(Sysroot(box.root), WANTED)
    verdict = _driver_verdict.report(state, WANTED)["verdict"]
    wall, after = time.perf_counter() - started, os.times()
    return wall, sum(after[:4]) - sum(before[:4]), verdict


def main() -> int:
    """Measure all forms and print a table."""
    parser = argparse.ArgumentParser(description="Measure driver_info on a box with one kernel.")
    parser.add_argument("--vmlinuz", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    missed = False
    print(f"{'image':32} {'packed MiB':>10} {'wall s':>8} {'CPU s':>8}  verdict")
    with tempfile.TemporaryDirectory() as folder:
        box = furnish(pathlib.Path(folder))
        for name, image in forms(box, arguments.vmlinuz):
            box.kernel(build.RELEASE, image)
            rounds = [measure(box) for _ in range(arguments.rounds)]
            wall, cpu = min(one[0] for one in rounds), min(one[1] for one in rounds)
            missed |= cpu > BAR_S
            print(f"{name:32} {len(image) / 2**20:10.1f} {wall:8.3f} {cpu:8.3f}  {rounds[0][2]}")
    print(f"bar: {BAR_S} s; {'missed' if missed else 'held'}")
    return missed


if __name__ == "__main__":
    sys.exit(main())

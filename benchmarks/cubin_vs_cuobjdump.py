#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure _cubin.py beside NVIDIA's cuobjdump (PyPI: nvidia-cuda-cuobjdump), turn about in one run.

    benchmarks/cubin_vs_cuobjdump.py --cuobjdump PATH --library libtorch_cuda.so --wheel vllm-0.33.0-...whl

Both list every entry of the library, as whole processes with start and output; ours from compiled bytecode, as an
installed collection runs. The wheel is read straight from the zip, with families and sha256, which cuobjdump cannot do.
The bars are >= 80 times faster and <= 1/30 of the memory for the library, < 4 s and < 400 MiB for the wheel. Exits 1 if
one is missed. Best of all rounds counts: other work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import typing as t

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "plugins/module_utils"
START = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import _cubin; sys.exit(_cubin.main(sys.argv[1:]))"


class Run(t.NamedTuple):
    """One process from start to end."""

    wall: float  # s
    cpu: float  # s
    memory: float  # MiB


def measure(argv: t.Sequence[str]) -> Run:
    """Run a program to its end; its output is thrown away."""
    started = time.perf_counter()
    process = subprocess.Popen(list(argv), stdout=subprocess.DEVNULL)
    _pid, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv[0]} failed with exit status {process.returncode}")
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def best(runs: t.Sequence[Run]) -> Run:
    """Return the least of each number."""
    return Run(*(min(column) for column in zip(*runs, strict=True)))


def show(name: str, run: Run) -> None:
    """Print one line of the table."""
    print(f"{name:32} {run.wall:8.3f} s wall {run.cpu:8.3f} s CPU {run.memory:8.0f} MiB")


def main() -> int:
    """Measure, print, and say whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuobjdump", required=True)
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--wheel", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    missed = []
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load {load:.1f}, Python {sys.version.split()[0]}, best of {options.rounds} rounds")
    if options.library:
        ours, theirs = [], []
        for _round in range(options.rounds):
            # cuobjdump takes seconds, ours a tenth of one: several of ours for each of theirs see the same machine.
            ours += [measure([sys.executable, "-I", "-c", START, "--list", str(options.library)]) for _one in range(5)]
            theirs.append(measure([options.cuobjdump, "-all", str(options.library)]))
        mine, its = best(ours), best(theirs)
        show(f"cuobjdump {options.library.name}", its)
        show(f"_cubin.py {options.library.name}", mine)
        faster, smaller = its.wall / mine.wall, its.memory / mine.memory
        print(f"{faster:.0f} times faster ({its.cpu / mine.cpu:.0f} times by CPU time), 1/{smaller:.0f} of the memory")
        missed += ["80 times faster"] if faster < 80 else []
        missed += ["1/30 of the memory"] if smaller < 30 else []
    if options.wheel:
        families = yaml.safe_load((ROOT / "plugins/plugin_utils/data/kernel_families.yml").read_text())["families"]
        rows = [{key: value for key, value in row.items() if key not in {"date", "source"}} for row in families]
        request = json.dumps({"families": rows, "paths": [str(options.wheel)]})
        mine = best(
            [measure([sys.executable, "-I", "-c", START, "--request", request]) for _one in range(options.rounds)]
        )
        show(f"_cubin.py {options.wheel.name[:20]}", mine)
        missed += ["4 s for the wheel"] if mine.wall >= 4 else []
        missed += ["400 MiB for the wheel"] if mine.memory >= 400 else []
    print(f"missed: {', '.join(missed)}" if missed else "all bars are met")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

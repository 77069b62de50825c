#!/usr/bin/env python3
# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read very many damaged files with _cubin.py: no exception, no hang, memory bounded.

    tools/cubin_fuzz.py --mutations 100000

Prints what it did and the worst of it. The first mutation that raises, takes longer than a second of CPU time or loses
entries in silence ends the run, with the words that make it again.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]

from tests.unit.plugins.module_utils import cubin_mutations

SLOW = 1.0  # s of CPU time
MEMORY = 400  # MiB


def main() -> int:
    """Run the mutations, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation of every seed")
    options = parser.parse_args()
    seeds = cubin_mutations.seeds()
    each = -(-options.mutations // len(seeds))
    worst, done, started = (0.0, ""), 0, time.process_time()
    for name, seed in seeds.items():
        for number in range(options.first, options.first + each):
            before = time.process_time()
            try:
                trouble = cubin_mutations.check(name, seed, number)
            except Exception:  # noqa: BLE001 - any exception at all is what this looks for
                trouble = traceback.format_exc()
            spent = time.process_time() - before
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            worst, done = max(worst, (spent, f"{name}/{number}")), done + 1
            if spent > SLOW:
                trouble = trouble or f"took {spent:.1f} s"
            if memory > MEMORY:
                trouble = trouble or f"took {memory} MiB"
            if trouble:
                print(f"{name}, mutation {number}: {trouble}")
                return 1
    total = time.process_time() - started
    print(
        f"{done} mutations of {len(seeds)} seeds in {total:.0f} s of CPU time; slowest {worst[0]:.3f} s ({worst[1]});"
    )
    print(f"peak memory {memory} MiB; no exception, no entry lost in silence by truncation")
    return 0


if __name__ == "__main__":
    sys.exit(main())

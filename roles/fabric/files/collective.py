# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measures a collective between boxes with the PyTorch of the engine's own image, and prints lines as nccl-tests do.

What counts is the NCCL that the engine will use: a test on the host proves the host's. Messages are small on purpose;
ones of 16 GB froze a box. Rank, size and address of the group come from the environment (RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT).
"""

from __future__ import annotations

import argparse
import collections.abc as c
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

_SIZES = tuple(size << 20 for size in (64, 128, 256))
_WARM_UP = 3
_ROUNDS = 10


def main() -> None:
    """Run a collective at every size."""
    parser = argparse.ArgumentParser(description="Measure a collective between boxes.")
    parser.add_argument("collective", choices=["all_reduce", "all_gather"])
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo"])
    parser.add_argument("--timeout", type=int, default=120, help="seconds until a rank gives up")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(_SIZES), help="bytes")
    given = parser.parse_args()
    device = torch.device("cuda" if given.backend == "nccl" else "cpu")
    dist.init_process_group(given.backend, timeout=datetime.timedelta(seconds=given.timeout))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # Every rank prints all of it, unlike nccl-tests: each box is judged by its own output.
    if given.backend == "nccl":
        version = torch.cuda.nccl.version()
        number = version[0] * 10000 + version[1] * 100 + version[2]
        tell(f"# nccl-tests version none nccl-headers={number} nccl-library={number}")
    tell(f"#  Rank {rank:2d} Group  0 Pid {os.getpid():6d} on {os.uname().nodename} device  0 [{given.backend}]")
    tell(f"# Collective test starting: {given.collective}_perf")
    for size in given.sizes:
        seconds, wrong = measure(given.collective, size, ranks, device)
        rate = size / seconds / 1e9
        factor = (2 if given.collective == "all_reduce" else 1) * (ranks - 1) / ranks
        row = f"{size:12d} {size // 4:12d}     float    none      -1 {seconds * 1e6:9.1f} {rate:8.2f}"
        tell(f"{row} {rate * factor:8.2f} {wrong:6d}")
    tell(f"# Collective test concluded: {given.collective}_perf")
    dist.destroy_process_group()


def tell(line: str) -> None:
    """Print a line at once: the other rank may be the one that never ends."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def measure(name: str, size: int, ranks: int, device: torch.device) -> tuple[float, int]:
    """Return how long a collective over so many bytes takes on average, and how many elements were wrong."""
    count = size // 4
    mine = torch.ones(count if name == "all_reduce" else count // ranks, device=device)
    every = torch.empty(mine.numel() * ranks, device=device)

    def once() -> None:
        if name == "all_reduce":
            dist.all_reduce(mine, op=dist.ReduceOp.MAX)  # which leaves ones as they are
        else:
            dist.all_gather_into_tensor(every, mine)

    seconds = timed(once, device)
    result = mine if name == "all_reduce" else every
    return seconds, int((result != 1).sum().item())


def timed(once: c.Callable[[], None], device: torch.device) -> float:
    """Return the average time of a call, after some that do not count."""
    for _round in range(_WARM_UP):
        once()
    settle(device)
    began = time.perf_counter()
    for _round in range(_ROUNDS):
        once()
    settle(device)
    return (time.perf_counter() - began) / _ROUNDS


def settle(device: torch.device) -> None:
    """Wait until everything that was begun has ended, here and elsewhere."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


if __name__ == "__main__":
    main()

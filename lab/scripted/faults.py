# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The faults of the scripted engine that are none of its HTTP server: how it dies, and what its boot log says.

Messages have the wording of vLLM 0.28 to 0.33 (read or run on 2026-11-29).
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import os
import pathlib
import time
import typing as t

from tests.unit.support.faults import SetUp, post_all
from tests.unit.support.openai_server import OpenAIServer, slow

Numbers = dict[str, t.Any]
_HOG_BYTES: t.Final = 256 << 20


class BootError(Exception):
    """Why the engine core does not come up, as the last line of its traceback."""


def _end(status: int) -> c.Callable[[], t.NoReturn]:
    """End without a word: no handlers, no flushing, as SIGKILL does it to the first process of a container."""
    return lambda: os._exit(status)


def _fail(message: str) -> c.Callable[[], t.NoReturn]:
    def failing() -> t.NoReturn:
        raise BootError(message)

    return failing


def _never() -> t.NoReturn:
    while True:
        time.sleep(3600)


def _memory_limit() -> int:
    """Return the container's memory limit in bytes, a very large number where it has none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int(pathlib.Path(path).read_text(encoding="ascii"))
    return 1 << 62


def _hog() -> t.NoReturn:
    """Take memory until the kernel ends it; never without a limit, since the lab's boxes share one machine."""
    while _memory_limit() > _HOG_BYTES:
        time.sleep(0.05)
    kept: list[bytearray] = []
    while len(kept) << 20 < 2 * _HOG_BYTES:
        kept.append(bytearray(os.urandom(1 << 10)) * 1024)
    _never()


AT_BOOT: dict[str, c.Callable[[], t.Any]] = {
    "exit_0_at_boot": _end(0),
    "exit_137_at_boot": _end(137),
    "never_ready": _never,
    "memory_hog": _hog,
    "no_room_for_weights": _fail(
        "ValueError: Free memory on device cuda:0 (24.7/121.69 GiB) on startup is less than desired GPU memory "
        "utilization (0.8, 97.35 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    ),
    "kv_too_small": _fail(
        "ValueError: To serve at least one request with the models's max seq len (196608), (23.25 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (20.0 GiB). Based on the available memory, the "
        "estimated maximum model length is 169104. Try increasing `gpu_memory_utilization` or decreasing "
        "`max_model_len` when initializing the engine."
    ),
    "no_kernel_image": _fail(
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"
    ),
}
"""What happens instead of a boot."""

ANSWERS: dict[str, SetUp] = {
    # As after a long prompt: slower than any lesson of the unit tests, and nothing wrong with it.
    "first_token_takes_3_s": post_all(slow(3.0)),
}
"""How it answers, beside the faults of the unit tests."""

WHILE_SERVING: dict[str, c.Callable[[OpenAIServer], t.Any]] = {
    "exit_0": lambda _server: os._exit(0),
    "exit_137": lambda _server: os._exit(137),
    "memory_hog_while_serving": lambda _server: _hog(),
    "port_closes": lambda server: server.stop(),
}
"""What a serving engine does, without being asked anything."""


def _explicit(numbers: Numbers) -> str:
    gib = round(numbers["gib"], 2)
    return f"[cpu_worker.py:258] Explicitly set ({gib}/23.42) GiB for KV cache on node 0."


def _pool(share: float) -> c.Callable[[Numbers], str]:
    def line(numbers: Numbers) -> str:
        tokens, concurrency = int(numbers["tokens"] * share), numbers["concurrency"] * share
        return (
            f"[kv_cache_utils.py:1147] CPU KV cache size: {tokens:,} tokens, "
            f"Maximum concurrency for {numbers['length']:,} tokens per request: {concurrency:.2f}x"
        )

    return line


def _says(text: str) -> c.Callable[[Numbers], str]:
    return lambda _numbers: text


LINES: dict[str, tuple[c.Callable[[Numbers], str], ...]] = {
    "none": (_explicit, _pool(1.0)),
    "pool_is_half": (_explicit, _pool(0.5)),
    "emulated_kernels": (
        _says("[nvfp4.py:239] Using 'EMULATION' NvFp4 MoE backend out of potential backends: ['EMULATION']."),
        _explicit,
        _pool(1.0),
    ),
}
"""What the boot log says between the weights and the open port."""

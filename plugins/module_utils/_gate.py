# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The start gate: an engine starts only when the memory of the one before it is really back.

On a GB10 a stopped engine's memory comes back seconds to minutes after its process is gone, and an engine that is
started too early fails, leaves a little less behind, and is started again: that is how a box freezes. The gate waits
by measurement, and refuses rather than starting into a box that has too little.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _docker
from ansible_collections.gb10.fleet.plugins.module_utils._memory import Holder, MemInfo, gib

_PROGRESS_EVERY_S: t.Final = 10.0
_POLL_S: t.Final = 1.0
_NAMED_HOLDERS: t.Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One look at the box: its memory, its processes and the ids of the containers that run."""

    memory: MemInfo
    processes: tuple[Holder, ...]
    containers: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the engine may start, and the sentence that says why or why not."""

    passed: bool
    reason: str
    waited_s: float


def obstacle(reading: Reading, floor_bytes: int) -> str:
    """Return in one sentence what stands in the way of a start, empty where nothing does.

    ``floor_bytes`` is what has to be available: all that the instance will take, and the reserve of the host.
    """
    strays = [one for one in reading.processes if one.vllm and one.container not in reading.containers]
    if strays:
        names = ", ".join(f"{one.name} (pid {one.pid}, {gib(one.bytes)})" for one in strays[:_NAMED_HOLDERS])
        return f"a vLLM process outside of any running container still holds memory: {names}"
    missing = floor_bytes - reading.memory.available_bytes
    if missing > 0:
        largest = ", ".join(
            f"{one.name} (pid {one.pid}, {gib(one.bytes)})" for one in reading.processes[:_NAMED_HOLDERS]
        )
        return (
            f"{gib(reading.memory.available_bytes)} of {gib(floor_bytes)} are available, {gib(missing)} too little; "
            f"the largest processes are {largest}"
        )
    return ""


def wait(
    read: c.Callable[[], Reading],
    *,
    floor_bytes: int,
    timeout_s: float,
    drop_page_cache: c.Callable[[], None],
    say: c.Callable[[str], None],
    clock: c.Callable[[], float],
    sleep: c.Callable[[float], None],
) -> Verdict:
    """Wait until nothing stands in the way of a start, for at most ``timeout_s`` seconds.

    The page cache is dropped once at the start: what it holds counts as available, but a driver cannot use it at once.
    """
    started = clock()
    said_at = float("-inf")
    drop_page_cache()
    while True:
        waited = clock() - started
        try:
            reading = read()
            reason = obstacle(reading, floor_bytes)
        except _docker.DockerError as error:  # an engine that is being restarted answers again in a moment
            reason = str(error)
        if not reason:
            free = f"{gib(reading.memory.available_bytes)} available, {gib(floor_bytes)} needed"
            return Verdict(True, f"{free}, after {waited:.0f} s", waited)
        if waited >= timeout_s:
            return Verdict(False, f"{reason}, after {waited:.0f} s", waited)
        if clock() - said_at >= _PROGRESS_EVERY_S:
            say(f"waiting ({waited:.0f} of {timeout_s:.0f} s): {reason}")
            said_at = clock()
        sleep(min(_POLL_S, max(0.0, timeout_s - waited)))

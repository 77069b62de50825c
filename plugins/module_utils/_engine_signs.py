# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What counters, log and GPU say of an engine whose completion does not come: busy, wedged or starved of power.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._engine_metrics import KV_USAGE, samples
from ansible_collections.gb10.fleet.plugins.module_utils._process_state import COMMAND_TIMEOUT_S, Run, run_command

# How often counters are read again within one look.
_READS: t.Final = 5
_STATS = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s,?\s+"
    r"Running: (\d+) reqs, Waiting: (\d+) reqs"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Counters:
    """Work done and work at hand, summed over the engines of one server.

    ``kv_usage`` is the share of the KV cache in use, from 0 to 1 an engine. While a long prompt is computed chunk by
    chunk it alone changes: vLLM counts tokens and steps only where a step has an output, and a chunk has none, but it
    publishes the state of its scheduler after every step (EngineCore and AsyncLLM of 0.32.0, read and seen 2026-11-30).
    """

    generation_tokens: int
    prompt_tokens: int
    steps: int
    running: int
    waiting: int
    kv_usage: float = 0.0

    @classmethod
    def from_metrics(cls, text: str) -> Counters | None:
        """Read them from the text of ``/metrics``; None where it is not vLLM's."""
        sums: dict[str, float] = {}
        for name, _labels, value in samples(text):
            sums[name] = sums.get(name, 0.0) + value
        if "num_requests_running" not in sums:
            return None
        return cls(
            generation_tokens=int(sums.get("generation_tokens_total", 0)),
            prompt_tokens=int(sums.get("prompt_tokens_total", 0)),
            steps=int(sums.get("iteration_tokens_total_count", 0)),
            running=int(sums["num_requests_running"]),
            waiting=int(sums.get("num_requests_waiting", 0)),
            kv_usage=next((sums[name] for name in KV_USAGE if name in sums), 0.0),
        )

    @property
    def work(self) -> tuple[float, ...]:
        """What is another after a step than it was before."""
        return self.generation_tokens, self.prompt_tokens, self.steps, self.kv_usage

    def worked_since(self, before: Counters) -> bool:
        """Whether the engine made a step, or a token, between two readings."""
        return self.work != before.work


def works_now(
    before: Counters, read: c.Callable[[], Counters | None], *, within_s: float, sleep: c.Callable[[float], None]
) -> bool:
    """Whether an engine that has requests makes a step while it is looked at.

    That is all that its counters prove: a difference to an earlier look may be of work before the engine's end, and the
    number of running requests stays what it was then.
    """
    for _again in range(_READS):
        sleep(within_s / _READS)
        after = read()
        if after is None:
            return False
        if after.worked_since(before):
            return True
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One reading of the GPU: utilisation in percent, clocks in MHz, power in W; None where it is not told."""

    utilization: float | None
    sm_clock: float | None
    application_clock: float | None
    power: float | None

    QUERY: t.ClassVar[str] = "utilization.gpu,clocks.sm,clocks.applications.gr,power.draw"

    @classmethod
    def from_csv(cls, text: str) -> Gpu | None:
        """Read the first GPU of ``nvidia-smi --query-gpu=... --format=csv`` (its header says which column is which)."""
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            return None
        names = [name.split("[")[0].strip() for name in lines[0].split(",")]
        row = dict(zip(names, lines[1].split(","), strict=False))
        numbers = {name: _number(row.get(name, "")) for name in cls.QUERY.split(",")}
        if all(number is None for number in numbers.values()):
            return None
        return cls(*numbers.values())

    @property
    def is_low_power(self) -> bool:
        """Whether the GPU claims to be busy at a clock that no busy GB10 has: less than half of what is asked of it.

        A healthy one under load runs at 2150 to 2300 of 2418 MHz and draws 45 W or more; the wedged or power-starved
        ones that were reported showed 799 MHz and 19 to 22 W, at 96 % utilisation.
        """
        if self.utilization is None or self.utilization < 90:
            return False
        slow = self.sm_clock is not None and self.sm_clock < 0.5 * (self.application_clock or 2418.0)
        return slow or (self.power is not None and self.power < 30.0)

    def as_dict(self) -> dict[str, float | None]:
        """Return the reading as plain data."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class EngineStats:
    """vLLM's own statistics line, which it logs every 10 s while it has requests."""

    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    running: int
    waiting: int

    @classmethod
    def all_from_log(cls, text: str) -> tuple[EngineStats, ...]:
        """Return every statistics line of a log, oldest first."""
        # Older versions break the line where newer ones do not, and each part may carry a prefix of its own.
        joined = re.sub(r"\n(?:INFO:?\s+)?(?=Running: )", " ", text)
        return tuple(cls(float(p), float(g), int(r), int(w)) for p, g, r, w in _STATS.findall(joined))

    @property
    def is_stuck(self) -> bool:
        """Whether requests wait while none runs and nothing is computed."""
        return (
            self.waiting > 0 and self.running == 0 and not self.prompt_tokens_per_s and not self.generation_tokens_per_s
        )


def read_gpu(run: Run = run_command) -> str | None:
    """Return what Gpu.from_csv() reads, from this machine's nvidia-smi; None where there is none."""
    answer = run(["nvidia-smi", f"--query-gpu={Gpu.QUERY}", "--format=csv"], COMMAND_TIMEOUT_S)
    return answer[1] if answer is not None and answer[0] == 0 else None


def _number(cell: str) -> float | None:
    match = re.match(r"\s*(\d+(?:\.\d+)?)", cell)
    return float(match.group(1)) if match else None

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What vLLM counts of its drafter, its KV cache and its prefix cache, read from the text of ``/metrics``.

Names changed between releases (vllm/v1/metrics/loggers.py of 0.10.2 to 0.33.0): the share of the KV cache in use was
``gpu_cache_usage_perc`` up to 0.11.2. A family that is not there is None, never zero: without speculation nothing was
drafted, which is another thing than that nothing was accepted.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import math
import re
import typing as t

_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{([^}]*)\})?\s+(\S+)\s*$", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')
KV_USAGE: t.Final = ("kv_cache_usage_perc", "gpu_cache_usage_perc")


@dataclasses.dataclass(frozen=True, slots=True)
class Drafts:
    """What the drafter proposed and the model took since the engine started, summed over the engines of a server.

    ``accepted_at`` is the same by position within a draft; releases before 0.10.2 do not tell it.
    """

    drafts: int
    drafted: int
    accepted: int
    accepted_at: tuple[int, ...] = ()

    def since(self, before: Drafts | None) -> Drafts:
        """Return what was counted after an earlier reading of the same engine; of a new engine, all of it."""
        if before is None or self.drafted < before.drafted or self.accepted < before.accepted:
            return self
        earlier = (*before.accepted_at, *([0] * max(0, len(self.accepted_at) - len(before.accepted_at))))
        return Drafts(
            self.drafts - before.drafts,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            tuple(now - then for now, then in zip(self.accepted_at, earlier, strict=False)),
        )

    @property
    def acceptance(self) -> float | None:
        """The share of drafted tokens that were accepted; None where none was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_length(self) -> float | None:
        """The tokens that a step gave on average, the model's own one included."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    def as_dict(self) -> dict[str, t.Any]:
        """Return the counts and what follows from them as plain data."""
        return {
            "drafts": self.drafts,
            "draft_tokens": self.drafted,
            "accepted_tokens": self.accepted,
            "acceptance": None if self.acceptance is None else round(self.acceptance, 4),
            "mean_length": None if self.mean_length is None else round(self.mean_length, 3),
            "acceptance_at": [round(count / self.drafts, 4) for count in self.accepted_at] if self.drafts else [],
        }


@dataclasses.dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One reading. ``kv_usage`` is the fullest engine's share from 0 to 1; everything else is a sum over engines."""

    drafts: Drafts | None
    kv_usage: float | None
    preemptions: int | None
    prefix_queries: int | None
    prefix_hits: int | None
    corrupted_requests: int | None

    @classmethod
    def from_text(cls, text: str) -> EngineMetrics:
        """Read the text of ``/metrics``; what is not in it is None."""
        sums: dict[str, float] = {}
        fullest: dict[str, float] = {}
        positions: dict[int, float] = {}
        for name, labels, value in samples(text):
            sums[name] = sums.get(name, 0.0) + value
            fullest[name] = max(fullest.get(name, 0.0), value)
            position = _POSITION.search(labels)
            if name == "spec_decode_num_accepted_tokens_per_pos_total" and position:
                positions[int(position[1])] = positions.get(int(position[1]), 0.0) + value

        def count(name: str) -> int | None:
            return int(sums[name]) if name in sums else None

        drafted = count("spec_decode_num_draft_tokens_total")
        drafts = None
        if drafted is not None:
            drafts = Drafts(
                count("spec_decode_num_drafts_total") or 0,
                drafted,
                count("spec_decode_num_accepted_tokens_total") or 0,
                tuple(int(positions[at]) for at in sorted(positions)),
            )
        return cls(
            drafts=drafts,
            kv_usage=next((fullest[name] for name in KV_USAGE if name in fullest), None),
            preemptions=count("num_preemptions_total"),
            prefix_queries=count("prefix_cache_queries_total"),
            prefix_hits=count("prefix_cache_hits_total"),
            corrupted_requests=count("corrupted_requests_total"),
        )


def samples(text: str) -> c.Iterator[tuple[str, str, float]]:
    """Name (without ``vllm:``), labels and value of each of vLLM's samples that is a finite number."""
    for name, labels, value in _SAMPLE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            yield name, labels, number

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Does a drafter still hit as it did when its engine was young?

Acceptance follows what clients ask for: code is guessed better than verse. So one poor stretch says nothing. A stretch
is a number of drafted tokens rather than a time, so that a quiet night is none.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._engine_metrics import Drafts

STRETCH_TOKENS: t.Final = 2000
# The first stretches of an engine make the baseline; so many poor ones in a row are a decay.
BASELINE_STRETCHES: t.Final = 3
POOR_STRETCHES: t.Final = 3
# What was seen of DFlash is a fall to a third and less; 86 % for code and 60 % for talk are both healthy.
POOR_SHARE: t.Final = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Trend:
    """The acceptance of one engine over its life, as far as it was looked at."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    baseline: tuple[float, ...] = ()
    last: float | None = None
    poor: int = 0

    @classmethod
    def from_dict(cls, data: c.Mapping[str, t.Any]) -> Trend:
        """Take it from plain data."""
        return cls(**{**data, "baseline": tuple(data.get("baseline", ()))})

    def with_reading(self, now: Drafts | None) -> Trend:
        """Return the trend after a further reading of the same engine."""
        if now is None:
            return self
        stretch = now.since(Drafts(self.drafts, self.drafted, self.accepted))
        if stretch.drafted < STRETCH_TOKENS or stretch.acceptance is None:
            return self
        share = stretch.acceptance
        learning = len(self.baseline) < BASELINE_STRETCHES
        is_poor = not learning and share < POOR_SHARE * self.usual
        return Trend(
            drafts=now.drafts,
            drafted=now.drafted,
            accepted=now.accepted,
            baseline=(*self.baseline, share) if learning else self.baseline,
            last=share,
            poor=self.poor + 1 if is_poor else 0,
        )

    @property
    def usual(self) -> float:
        """The acceptance of the engine's first stretches, 0 before there was one."""
        return sum(self.baseline) / len(self.baseline) if self.baseline else 0.0

    @property
    def decayed(self) -> bool:
        """Whether the drafter hits less than half as often as it did, time and again."""
        return self.poor >= POOR_STRETCHES

    @property
    def never_hit(self) -> bool:
        """Whether nothing at all was accepted since the engine started, although enough was drafted to tell."""
        return self.last == 0 and self.accepted == 0

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a fault of the suite is: what is done, who has to notice it and in which words, and how it has to end."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import enum

from tests.lab.faults.bench import Bench


class When(enum.Enum):
    """What is going on when the fault comes."""

    DEPLOY = "while something new is deployed"
    START = "while an engine starts"
    SERVING = "while an engine serves"
    BOX = "to the box"


class By(enum.Enum):
    """Who has to notice."""

    VALIDATION = "validation"
    PREPARATION = "`site.yml`, preparing"
    SWITCH = "`site.yml`, switching"
    GATE = "start gate"
    READY = "readiness"
    SYSTEMD = "systemd"
    WATCH = "watch"


class End(enum.Enum):
    """How it has to end. Whatever it is: weights, images, records and files of the box are those of before."""

    UNTOUCHED = "what served goes on serving, untouched"
    WARNED = "serves, and the journal warns"
    HEALED = "serves again by itself"
    RESTORED = "what served before is restored, and proven again"
    NEXT_RUN = "`site.yml`, run again, puts it right"
    STOPPED = "stays down, as it was told to, without a word of blame; serves again when it is started"
    DOWN = "stays down with one line that says why; serves again when the cause is gone"


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault. ``inject`` does it, sees it through to its end and returns what was said about it meanwhile."""

    id: str
    what: str
    when: When
    by: By
    says: tuple[str, ...]
    end: End
    inject: c.Callable[[Bench], str]
    bench: str = "one"


Make = c.Callable[[c.Callable[[Bench], str]], c.Callable[[Bench], str]]


# Benches on which whatever concerns one engine alone can be tried, in turn; the first has other things to do as well.
SHARED = ("a", "b", "c", "b", "c")


class Collection:
    """Collects the faults of a module, in the order in which they stand there."""

    def __init__(self, when: When, bench: str = "one") -> None:
        self.when = when
        self.bench = bench
        self.faults: list[Fault] = []

    def add(
        self,
        what: str,
        *,
        by: By,
        says: tuple[str, ...],
        end: End,
        bench: str = "",
        when: When | None = None,
    ) -> Make:
        """Make a fault of a function: its name is the fault's id."""

        def made(inject: c.Callable[[Bench], str]) -> c.Callable[[Bench], str]:
            name = inject.__name__
            self.faults.append(Fault(name, what, when or self.when, by, says, end, inject, bench or self.bench))
            return inject

        return made

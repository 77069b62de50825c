# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Is the engine alive, and what has to be done where it is not? The part that decides; it asks and touches nothing.

``decide(state, look, limits)`` takes what earlier looks left behind and what the present one saw. What is dead beyond
doubt is restarted at once, doubt takes three strikes, and an engine that has requests running gets longer: busy is not
dead. Restarts are bounded. docs/liveness.md holds the same rules for people.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._drafter_trend import Trend
from ansible_collections.gb10.fleet.plugins.module_utils._engine_metrics import Drafts

Strike = t.Literal["dead", "hang", "text"]
# What one look says. "moving": others' tokens were counted during it, so nothing had to be asked; "unknown": it proves
# nothing; "person": the engine is there, and a restart would not cure what is wrong.
Sign = t.Literal["alive", "moving", "busy", "unknown", "person", "dead", "hang", "text"]
Deed = t.Literal["none", "hold", "again", "restart", "stop"]

# What the stages of the readiness ladder mean for an engine that has answered before (see _probe_findings.STAGES).
SIGNS: t.Final[c.Mapping[str, Sign]] = {
    "ready": "alive",
    "degraded": "alive",
    "budget": "alive",  # tokens came, if too few for an answer: a model that cannot be told not to think
    "busy": "busy",
    "capability_failed": "person",
    "request_refused": "person",
    "wrong_model": "person",
    "auth_required": "person",
    "auth_failed": "person",
    "tls_failed": "person",
    "port_squatter": "person",
    "out_of_time": "unknown",
    # The unit is active, so its port was open once. systemd sees to a process that has ended.
    "starting": "dead",
    "unreachable": "person",
    "dead": "unknown",
    "engine_dead": "dead",
    "hung": "hang",
    "bad_reply": "hang",
    "no_answer": "text",
    "garbage": "text",
    "wrong_answer": "text",
}

# How many looks in a row it takes. An engine whose end was noticed ends by itself within 5 s (vLLM's own watchdog): the
# second look at a dead one leaves that to systemd.
_NEEDED: t.Final[c.Mapping[Strike, int]] = {"dead": 2, "hang": 3, "text": 3}
_CONFIRM_S: t.Final = 10.0
# What a look takes beside its wait for a completion: the cheap paths, and finding out why none came.
MARGIN_S: t.Final = 20.0
# Notes that are said again after a sign of life.
_PASSING: t.Final = ("person", "patience", "moves")
# How many looks in a row have to see a GPU in its low-power state before it is said.
_LOW_POWER_LOOKS: t.Final = 3
# Past its hours an engine waits for a quiet moment, but not longer than this share of them.
_OVERDUE: t.Final = 1.1
# A drafter is not called decayed before its engine has run for a while, so that this cannot restart it in a circle.
_DECAY_AGE_S: t.Final = 4 * 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How patient the watch is. All times in seconds; ``restart_after_s`` is 0 where the engine does not age."""

    period_s: float
    answer_s: float
    restarts: int
    window_s: float
    restart_after_s: float = 0.0

    @classmethod
    def from_settings(cls, data: c.Mapping[str, t.Any]) -> Limits:
        """Take them from the settings of an instance."""
        return cls(
            period_s=float(data["period_s"]),
            answer_s=float(data["answer_s"]),
            restarts=int(data["restarts"]),
            window_s=float(data["window_s"]),
            restart_after_s=float(data["restart_after_hours"]) * 3600,
        )

    @property
    def pause_s(self) -> float:
        """The pause between two strikes."""
        return self.answer_s / 4

    @property
    def witness_s(self) -> float:
        """How long a look waits for the tokens of others to move before it asks for some of its own."""
        return min(5.0, self.answer_s / 10)

    @property
    def row_s(self) -> float:
        """How far apart two strikes in a row may be: a period, and what slow looks take beyond it."""
        return self.period_s + 2 * self.answer_s + MARGIN_S


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look saw. ``at`` is in seconds of the box's uptime, ``age_s`` since the unit became active.

    ``away`` says why the engine is none of the watch's business now (stopped, booting, being replaced); it is empty
    while the unit serves. ``replaced`` is the one of these that may last where nobody sees it: the files are of another
    engine than the one that runs. ``loaded`` is whether requests of others are there; None where nobody could tell
    (with --disable-log-stats, or in a moment in which /metrics says nothing).
    ``progress`` is whether others' tokens moved during the look or since the last one, ``replied`` whether the question
    got a reply, if a useless one.
    """

    at: float
    away: str = ""
    replaced: bool = False
    invocation: str = ""
    age_s: float = 0.0
    sign: Sign = "unknown"
    reason: str = ""
    loaded: bool | None = None
    progress: bool = False
    replied: bool = False
    low_power: bool | None = None
    drafts: Drafts | None = None

    @property
    def quiet(self) -> bool:
        """Whether nobody waits for an answer, for certain: load that nobody can tell is load."""
        return self.loaded is False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What looks leave behind for the next one. All but ``restarts`` and ``counts`` is of one start of the engine.

    By kind of strike: ``strikes`` is how many in a row, ``struck_at`` when the first was seen, ``last_at`` the last.
    ``work`` is what was counted at the end of the last look, its own question included; ``moved_at`` is when others'
    tokens were last seen to move.
    """

    invocation: str = ""
    away: str = ""
    strikes: c.Mapping[str, int] = dataclasses.field(default_factory=dict)
    struck_at: c.Mapping[str, float] = dataclasses.field(default_factory=dict)
    last_at: c.Mapping[str, float] = dataclasses.field(default_factory=dict)
    low_power: int = 0
    noted: tuple[str, ...] = ()
    trend: Trend = dataclasses.field(default_factory=Trend)
    work: tuple[float, ...] = ()
    moved_at: float = 0.0
    unasked: int = 0  # looks since a completion was asked for
    restarts: tuple[float, ...] = ()
    counts: c.Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: c.Mapping[str, t.Any]) -> State:
        """Take it from plain data, of another version as well; TypeError where it is none."""
        known = {field.name for field in dataclasses.fields(cls)}
        given = {name: value for name, value in data.items() if name in known}
        given["trend"] = Trend.from_dict(given.get("trend", {}))
        for name in ("strikes", "struck_at", "last_at", "counts"):
            given[name] = dict(given.get(name, {}))
        for name in ("noted", "work", "restarts"):
            given[name] = tuple(given.get(name, ()))
        return cls(**given)

    def of(self, invocation: str) -> State:
        """Return the state at the beginning of another start of the engine."""
        return State(invocation=invocation, restarts=self.restarts, counts=self.counts)

    def counted(self, *names: str) -> State:
        """Return the state with one more of each of the names."""
        counts = dict(self.counts)
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        return dataclasses.replace(self, counts=counts)

    def without(self, *kinds: Strike) -> State:
        """Return the state without the strikes of these kinds."""
        strikes = {kind: count for kind, count in self.strikes.items() if kind not in kinds}
        struck_at = {kind: at for kind, at in self.struck_at.items() if kind not in kinds}
        last_at = {kind: at for kind, at in self.last_at.items() if kind not in kinds}
        return dataclasses.replace(self, strikes=strikes, struck_at=struck_at, last_at=last_at)


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """What to do now. ``lines`` go into the unit's journal; ``again_s`` is the pause until the look that decides."""

    deed: Deed = "none"
    lines: tuple[str, ...] = ()
    again_s: float = 0.0


def decide(state: State, look: Look, limits: Limits) -> tuple[State, Action]:
    """Return what to do after a look, and what to remember of it."""
    if look.away:
        lines = (f"not watched: {look.away}",) if look.replaced and look.away != state.away else ()
        # The engine that was watched may still be there afterwards: a deployment looked at a neighbour of it.
        held = dataclasses.replace(state.without("dead", "hang", "text").counted("looks", "away"), away=look.away)
        return held, Action("hold", lines)
    if look.invocation != state.invocation:
        state = state.of(look.invocation)
    state = dataclasses.replace(
        state.counted("looks", look.sign),
        away="",
        moved_at=look.at if look.progress else state.moved_at,
    )
    if look.sign in {"dead", "hang", "text"}:
        return _struck(state, look, look.sign, limits)
    if look.sign == "person":
        return _noted(state, "person", f"not cured by a restart, so none is made: {look.reason}")
    if look.sign == "unknown":
        return state, Action()
    return _kept(_acquitted(state, look.sign), look, limits)


def _acquitted(state: State, sign: Sign) -> State:
    """Take back the strikes that a sign of life disproves. Tokens that move say nothing about their sense."""
    alive = state.without("dead", "hang", "text") if sign == "alive" else state.without("dead", "hang")
    return dataclasses.replace(alive, noted=tuple(name for name in alive.noted if name not in _PASSING))


def _struck(state: State, look: Look, kind: Strike, limits: Limits) -> tuple[State, Action]:
    needed = _NEEDED[kind]
    if look.at - state.last_at.get(kind, look.at) > limits.row_s:
        state = state.without(kind)
    count = state.strikes.get(kind, 0) + 1
    since = state.struck_at.get(kind, look.at)
    state = dataclasses.replace(
        state.counted("strikes"),
        strikes={**state.strikes, kind: count},
        struck_at={**state.struck_at, kind: since},
        last_at={**state.last_at, kind: look.at},
    )
    confirmed = kind != "dead" or look.at - since >= _CONFIRM_S
    if count < needed or not confirmed:
        pause = limits.pause_s if kind != "dead" else _CONFIRM_S - (look.at - since)
        line = f"strike {min(count, needed)} of {needed}: {look.reason}"
        return state, Action("again", (line,) if count <= needed else (), pause)
    if kind == "hang" and (spared := _spared(state, look, limits)):
        return spared
    return _failed(state, look, limits)


def _spared(state: State, look: Look, limits: Limits) -> tuple[State, Action] | None:
    """Return what to do about an engine that hangs by the strikes and may be healthy: busy, or well for others."""
    since = state.struck_at["hang"]
    moved = state.moved_at > since
    # What keeps a server from telling may be that very load.
    loaded = not look.quiet
    if moved and (look.progress or (look.replied and not loaded)):
        # It answers others, if not the watch. The patience starts anew also where nobody waits for it right now.
        line = f"not restarted, since the tokens of others moved meanwhile; see to it: {look.reason}"
        return _noted(dataclasses.replace(state, moved_at=look.at), "moves", line)
    left = limits.period_s - (look.at - max(since, state.moved_at))
    if left <= 0 or not (loaded or moved):
        return None
    has = "It has requests" if look.loaded else "It may have requests" if loaded else "It worked for others"
    line = f"strike {state.strikes['hang']}: {look.reason} {has}, so it gets {left:.0f} s more."
    state, noted = _noted(state, "patience", line)
    return state, Action("again", noted.lines, min(left, limits.pause_s))


def _failed(state: State, look: Look, limits: Limits) -> tuple[State, Action]:
    """Restart the engine, or leave it down where that was done often enough."""
    recent = tuple(at for at in state.restarts if look.at - at < limits.window_s)
    if len(recent) >= limits.restarts:
        hours = f"{limits.window_s / 3600:g} h"
        line = f"stays down: it was restarted {len(recent)} times within {hours} and fails again: {look.reason}"
        # Whoever starts it again starts with a clean slate.
        return dataclasses.replace(state.of(""), restarts=()).counted("stops"), Action("stop", (line,))
    number = f"restart {len(recent) + 1} of {limits.restarts} within {limits.window_s / 3600:g} h"
    state = dataclasses.replace(state.of(state.invocation), restarts=(*recent, look.at)).counted("restarts")
    return state, Action("restart", (f"restarting it ({number}): {look.reason}",))


def _kept(state: State, look: Look, limits: Limits) -> tuple[State, Action]:
    """See to an engine that lives: its age, its drafter, its GPU."""
    trend = state.trend.with_reading(look.drafts)
    state = dataclasses.replace(state, trend=trend, low_power=state.low_power + 1 if look.low_power else 0)
    if reason := _old_age(look, limits):
        return _planned(state, f"restarting it as planned: {reason}")
    lines: tuple[str, ...] = ()
    if trend.decayed and look.age_s >= _DECAY_AGE_S:
        fell = f"its drafter hits {trend.last or 0:.0%} of the time, and hit {trend.usual:.0%} when it was started"
        if look.quiet:
            return _planned(state, f"restarting it: {fell}")
        state, noted = _noted(state, "decay", f"{fell}; it is restarted as soon as it has no requests")
        lines += noted.lines
    if trend.never_hit:
        state, noted = _noted(
            state, "no_hits", f"none of {trend.drafted} drafted tokens was accepted; run a soak before trusting it"
        )
        lines += noted.lines
    if state.low_power >= _LOW_POWER_LOOKS:
        state, noted = _noted(
            state,
            "low_power",
            "GB10_LOW_POWER_STATE: the GPU is busy at less than half its clock or below 30 W. A restart does not cure "
            "it: shut down and take the power supply off the wall for a minute",
        )
        lines += noted.lines
    return state, Action("none", lines)


def _planned(state: State, line: str) -> tuple[State, Action]:
    """Restart an engine that has not failed: none of the restarts that are bounded."""
    return state.of(state.invocation).counted("planned"), Action("restart", (line,))


def _old_age(look: Look, limits: Limits) -> str:
    """Return why an engine that lives is to be restarted now for its age; empty where it is not."""
    if not limits.restart_after_s or look.age_s < limits.restart_after_s:
        return ""
    if not look.quiet and look.age_s < _OVERDUE * limits.restart_after_s:
        return ""
    hours = f"{limits.restart_after_s / 3600:g}"
    return f"it has run for {look.age_s / 3600:.1f} h, and its model role sets restart_after_hours to {hours}"


def _noted(state: State, name: str, line: str) -> tuple[State, Action]:
    """Say something once in the life of an engine."""
    if name in state.noted:
        return state, Action()
    return dataclasses.replace(state, noted=(*state.noted, name)), Action("none", (line,))

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The part of the watch that decides: looks in, deeds out, on a clock of its own."""

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _liveness
from ansible_collections.gb10.fleet.plugins.module_utils._engine_metrics import Drafts
from ansible_collections.gb10.fleet.plugins.module_utils._liveness import Action, Limits, Look, State, decide
from ansible_collections.gb10.fleet.plugins.module_utils._probe_findings import STAGES

LIMITS = Limits(period_s=300, answer_s=60, restarts=3, window_s=21600)
AGEING = dataclasses.replace(LIMITS, restart_after_s=20 * 3600)


class Engine:
    """One engine under watch: every look comes ``step`` seconds after the one before it."""

    def __init__(self, limits: Limits = LIMITS, *, step: float = 75) -> None:
        self.limits = limits
        self.step = step
        self.at = 10_000.0
        self.state = State()
        self.said: list[str] = []

    def look(self, sign: str = "alive", *, invocation: str = "a", **seen: t.Any) -> Action:
        """Look once; what is said is kept, and the state goes the way of the file that it lies in."""
        self.at += self.step
        given: dict[str, t.Any] = {"age_s": 600.0, "reason": f"it is {sign}.", "loaded": False, **seen}
        look = Look(at=self.at, invocation=invocation, sign=t.cast("t.Any", sign), **given)
        state, action = decide(self.state, look, self.limits)
        self.state = State.from_dict(json.loads(json.dumps(dataclasses.asdict(state))))
        assert self.state == state
        self.said += action.lines
        return action

    def deeds(self, *signs: str, **seen: t.Any) -> list[str]:
        """Look several times and return what was done."""
        return [self.look(sign, **seen).deed for sign in signs]


def test_every_stage_of_the_ladder_means_something_for_a_living_engine() -> None:
    assert set(_liveness.SIGNS) == set(STAGES)


# three strikes, and what takes them back


@pytest.mark.parametrize(
    ("signs", "deeds"),
    [
        # dead beyond doubt: seen twice, 10 s apart, within one run of the watch
        (["dead", "dead"], ["again", "restart"]),
        (["dead", "alive", "dead"], ["again", "none", "again"]),
        # doubt takes three strikes in a row
        (["hang", "hang", "hang"], ["again", "again", "restart"]),
        (["hang", "hang", "alive", "hang"], ["again", "again", "none", "again"]),
        (["hang", "hang", "busy", "hang", "hang"], ["again", "again", "none", "again", "again"]),
        (["hang", "hang", "moving", "hang"], ["again", "again", "none", "again"]),
        # garbage has strikes of its own, and only a sane answer takes them back
        (["text", "text", "text"], ["again", "again", "restart"]),
        (["text", "text", "moving", "text"], ["again", "again", "none", "restart"]),
        (["text", "text", "busy", "text"], ["again", "again", "none", "restart"]),
        (["text", "text", "alive", "text"], ["again", "again", "none", "again"]),
        (["text", "hang", "text", "hang"], ["again", "again", "again", "again"]),
        # what proves nothing changes nothing
        (["hang", "unknown", "hang", "unknown", "hang"], ["again", "none", "again", "none", "restart"]),
        # never restarted for: busy, a full queue, a refused key, another model
        (["busy"] * 50, ["none"] * 50),
        (["moving"] * 50, ["none"] * 50),
        (["person"] * 50, ["none"] * 50),
        (["unknown"] * 50, ["none"] * 50),
    ],
)
def test_what_looks_come_to(signs: list[str], deeds: list[str]) -> None:
    assert Engine().deeds(*signs) == deeds


def test_a_dead_engine_gets_the_time_to_end_by_itself() -> None:
    engine = Engine(step=4)  # vLLM's own watchdog takes 5 s
    assert engine.deeds("dead", "dead", "dead", "dead") == ["again", "again", "again", "restart"]
    assert [line for line in engine.said if "strike" in line] == [
        "strike 1 of 2: it is dead.",
        "strike 2 of 2: it is dead.",
    ]


def test_a_hang_is_named_at_the_first_look_and_ended_within_a_period() -> None:
    engine = Engine(step=0)
    spent = engine.limits.answer_s
    action = engine.look("hang")
    assert engine.said == ["strike 1 of 3: it is hang."]
    while action.deed == "again":
        spent += action.again_s + engine.limits.answer_s
        action = engine.look("hang")
    assert action.deed == "restart"
    assert spent <= engine.limits.period_s


def test_strikes_that_are_further_apart_than_looks_are_not_two_in_a_row() -> None:
    engine = Engine()
    assert engine.look("dead").deed == "again"
    engine.at += 3600
    assert engine.deeds("unknown", "dead", "dead") == ["none", "again", "restart"]
    assert engine.said[:2] == ["strike 1 of 2: it is dead."] * 2


def test_strikes_of_two_looks_of_the_timer_are_in_a_row() -> None:
    # The watch may have been ended after its first strike: the next tick comes within a period and a slow look.
    assert Engine(step=LIMITS.period_s + LIMITS.answer_s).deeds(*["hang"] * 3) == ["again", "again", "restart"]


# 096: busy is not dead; 094: but frozen counters are


def test_096_an_engine_with_requests_gets_longer_than_an_idle_one() -> None:
    idle, loaded = Engine(step=10), Engine(step=10)
    assert idle.deeds(*["hang"] * 3) == ["again", "again", "restart"]
    deeds = loaded.deeds(*["hang"] * 31, loaded=True)
    # Nothing moved for a whole period after the first strike: 30 looks of 10 s.
    assert deeds == [*["again"] * 30, "restart"]
    assert sum("it gets" in line for line in loaded.said) == 1


def test_096_progress_under_load_takes_every_strike_back() -> None:
    engine = Engine(step=100)
    for _again in range(20):
        assert engine.deeds("hang", "hang", "moving", loaded=True) == ["again", "again", "none"]


def test_load_that_nobody_can_tell_is_load() -> None:
    engine = Engine(step=10)
    engine.look("alive", loaded=False)
    assert engine.deeds(*["hang"] * 31, loaded=None) == [*["again"] * 30, "restart"]
    assert any("It may have requests, so it gets" in line for line in engine.said)


def test_an_engine_that_fails_the_watch_alone_is_for_a_person_and_not_for_a_restart() -> None:
    engine = Engine(step=100)
    deeds = engine.deeds(*["hang"] * 50, loaded=True, progress=True, replied=True)
    assert deeds == ["again", "again", *["none"] * 48]
    assert engine.said[2:] == ["not restarted, since the tokens of others moved meanwhile; see to it: it is hang."]
    # Nobody asks it anything at night; and the first request of the morning has a long prompt.
    assert engine.deeds(*["hang"] * 50, replied=True) == ["none"] * 50
    assert engine.deeds(*["hang"] * 3, loaded=True, replied=True) == ["again"] * 2 + ["restart"]
    assert len([line for line in engine.said if "see to it" in line]) == 1


def test_an_engine_whose_tokens_moved_gets_a_period_from_then_on() -> None:
    engine = Engine(step=50)
    assert engine.deeds("hang", "hang", "hang", loaded=True) == ["again"] * 3
    assert engine.deeds("hang", loaded=True, progress=True) == ["none"]
    assert engine.deeds(*["hang"] * 6, loaded=True) == [*["again"] * 5, "restart"]


def test_an_engine_that_falls_silent_after_its_tokens_moved_is_restarted_though_nobody_waits() -> None:
    engine = Engine(step=50)
    assert engine.deeds("hang", "hang") == ["again"] * 2
    assert engine.deeds("hang", progress=True) == ["none"]
    assert engine.deeds(*["hang"] * 6) == [*["again"] * 5, "restart"]


def test_what_moved_before_the_first_strike_proves_nothing() -> None:
    # It may be the work of the minutes before the engine's end.
    engine = Engine()
    assert engine.deeds("hang", progress=True, replied=True) == ["again"]
    assert engine.deeds("hang", "hang", replied=True) == ["again", "restart"]


def test_094_a_wedge_under_load_is_restarted_after_a_period_without_progress() -> None:
    engine = Engine(step=60)
    deeds = engine.deeds(*["hang"] * 6, loaded=True, low_power=True)
    assert deeds == [*["again"] * 5, "restart"]


# who is left alone


@pytest.mark.parametrize(
    "away", ["the unit is inactive (dead)", "the unit is activating (start-post)", "systemd is about to stop the unit"]
)
def test_a_unit_that_is_stopped_or_boots_is_not_touched_and_owes_no_strikes(away: str) -> None:
    engine = Engine()
    assert engine.deeds("hang", "hang") == ["again", "again"]
    assert engine.deeds(*["dead"] * 9, away=away) == ["hold"] * 9
    assert engine.deeds("hang", "hang", "hang") == ["again", "again", "restart"]
    assert engine.said[2:3] == ["strike 1 of 3: it is hang."]


def test_an_engine_that_was_none_of_its_business_for_a_while_keeps_all_but_its_strikes() -> None:
    engine = Engine()
    drafted(engine, 0.85, 0.87, 0.86)
    engine.deeds("person", "hang", low_power=True)
    before = engine.state
    assert engine.look(away="a deployment is under way").deed == "hold"
    engine.look("unknown")
    after = engine.state
    assert (after.trend, after.noted, after.invocation) == (before.trend, before.noted, before.invocation)
    assert (after.strikes, after.away) == ({}, "")
    # So a drafter that has grown tired is still held to what it did when it was young.
    assert drafted(engine, 0.3, 0.28, 0.2)[-1] == "restart"


def test_another_start_after_a_pause_begins_anew() -> None:
    engine = Engine()
    drafted(engine, 0.85, 0.87, 0.86)
    engine.look(away="the unit is activating (start-post)")
    engine.look(invocation="b")
    assert (engine.state.trend, engine.state.invocation) == (State().trend, "b")


def test_an_engine_whose_files_were_replaced_is_left_alone_and_that_is_said_once() -> None:
    engine = Engine()
    assert engine.deeds("dead", "dead", "dead", away="the files are of another", replaced=True) == ["hold"] * 3
    assert engine.said == ["not watched: the files are of another"]


def test_another_start_of_the_engine_begins_without_strikes() -> None:
    engine = Engine()
    assert engine.deeds("hang", "hang") == ["again", "again"]
    assert engine.look("hang", invocation="b").deed == "again"
    assert engine.state.strikes == {"hang": 1}


def test_what_a_person_has_to_see_to_is_said_once_until_it_is_cured() -> None:
    engine = Engine()
    engine.deeds("person", "person", "alive", "person")
    assert engine.said == ["not cured by a restart, so none is made: it is person."] * 2


# bounded


def test_restarts_are_bounded_and_then_the_unit_stays_down_with_one_line() -> None:
    engine = Engine(step=400)
    for number in (1, 2, 3):
        assert engine.deeds("hang", "hang", "hang", invocation=str(number)) == ["again", "again", "restart"]
        assert engine.said[-1] == f"restarting it (restart {number} of 3 within 6 h): it is hang."
    last = [engine.look("hang", invocation="4") for _strike in range(3)][-1]
    assert last.deed == "stop"
    assert last.lines == ("stays down: it was restarted 3 times within 6 h and fails again: it is hang.",)
    # Somebody has seen to it and started it: nothing is held against it.
    assert engine.deeds("hang", "hang", "hang", invocation="5") == ["again", "again", "restart"]


def test_restarts_of_long_ago_do_not_count() -> None:
    engine = Engine()
    for number in range(10):
        engine.at += LIMITS.window_s / 2
        assert engine.deeds("dead", "dead", invocation=str(number))[-1] == "restart"


def test_a_restart_that_did_not_come_about_counts_all_the_same() -> None:
    engine = Engine()
    deeds = engine.deeds(*["dead"] * 8)
    assert deeds == ["again", "restart"] * 3 + ["again", "stop"]


# age, drafter, power


def test_an_ageing_engine_is_restarted_at_a_quiet_moment_once_its_hours_are_over() -> None:
    engine = Engine(AGEING)
    young, due = {"age_s": 19.9 * 3600}, {"age_s": 20.1 * 3600}
    assert engine.deeds("alive", **young) == ["none"]
    assert engine.deeds("moving", "busy", "alive", loaded=True, **due) == ["none"] * 3
    assert engine.deeds("alive", **due) == ["restart"]
    assert engine.said[-1] == (
        "restarting it as planned: it has run for 20.1 h, and its model role sets restart_after_hours to 20"
    )
    assert engine.state.restarts == ()


def test_an_ageing_engine_without_a_quiet_moment_is_restarted_before_its_crash() -> None:
    engine = Engine(AGEING)
    assert engine.deeds("moving", loaded=True, age_s=21.9 * 3600) == ["none"]
    assert engine.deeds("moving", loaded=True, age_s=22.1 * 3600) == ["restart"]


def test_an_ageing_engine_of_which_nobody_can_tell_whether_it_has_requests_is_taken_for_a_loaded_one() -> None:
    # With --disable-log-stats nobody ever can, and a /metrics that is late says nothing of the moment.
    engine = Engine(AGEING)
    engine.look("alive", loaded=False, age_s=19.9 * 3600)
    assert engine.deeds("alive", "alive", loaded=None, age_s=20.1 * 3600) == ["none", "none"]
    assert engine.deeds("alive", loaded=None, age_s=22.1 * 3600) == ["restart"]


def test_an_engine_that_does_not_age_is_left_alone_for_ever() -> None:
    assert Engine().deeds("alive", "alive", age_s=1e9) == ["none", "none"]


def drafted(engine: Engine, *shares: float, age_s: float = 6 * 3600, loaded: bool = False) -> list[str]:
    """Have the drafter hit this share of 2500 tokens before each look."""
    deeds: list[str] = []
    for share in shares:
        was = engine.state.trend
        now = Drafts(was.drafts + 500, was.drafted + 2500, was.accepted + round(2500 * share))
        deeds.append(engine.look("moving" if loaded else "alive", drafts=now, age_s=age_s, loaded=loaded).deed)
    return deeds


@pytest.mark.parametrize(
    ("shares", "last"),
    [
        ([0.85, 0.87, 0.86, 0.6, 0.55, 0.6, 0.62], "none"),  # from code to talk
        ([0.85, 0.87, 0.86, 0.3, 0.8, 0.3, 0.8, 0.3], "none"),
        ([0.85, 0.87, 0.86, 0.3, 0.28, 0.2], "restart"),
        ([0.3, 0.31, 0.28, 0.2, 0.2, 0.2, 0.2], "none"),
        ([0.3, 0.31, 0.28, 0.1, 0.08, 0.05], "restart"),
    ],
)
def test_a_drafter_decays_by_its_own_measure(shares: list[float], last: str) -> None:
    assert drafted(Engine(), *shares)[-1] == last


def test_a_decayed_drafter_waits_for_a_quiet_moment_and_a_young_one_is_not_called_so() -> None:
    fall = [0.85, 0.87, 0.86, 0.3, 0.28, 0.2]
    assert drafted(Engine(), *fall, age_s=3600)[-1] == "none"
    engine = Engine()
    assert drafted(engine, *fall, loaded=True)[-1] == "none"
    fell = "its drafter hits 20% of the time, and hit 86% when it was started"
    assert engine.said == [f"{fell}; it is restarted as soon as it has no requests"]
    assert engine.deeds("alive", loaded=None, age_s=6 * 3600) == ["none"]
    assert drafted(engine, 0.2) == ["restart"]


def test_a_drafter_that_never_hits_is_told_of_and_not_restarted() -> None:
    engine = Engine()
    assert drafted(engine, 0.0, 0.0, 0.0, 0.0, 0.0) == ["none"] * 5
    assert engine.said == ["none of 2500 drafted tokens was accepted; run a soak before trusting it"]


def test_110_the_low_power_state_is_said_once_and_never_restarted_for() -> None:
    engine = Engine()
    assert engine.deeds(*["moving"] * 2, low_power=True, loaded=True) == ["none", "none"]
    assert engine.deeds("alive", low_power=False) == ["none"]
    assert engine.deeds(*["moving"] * 9, low_power=True, loaded=True) == ["none"] * 9
    assert len(engine.said) == 1
    assert engine.said[0].startswith("GB10_LOW_POWER_STATE")
    # Where there is no nvidia-smi, nothing is known.
    assert Engine().deeds(*["moving"] * 9, low_power=None) == ["none"] * 9


def test_what_was_seen_is_counted() -> None:
    engine = Engine()
    engine.deeds("alive", "moving", "hang", "hang", "hang")
    assert engine.state.counts == {"looks": 5, "alive": 1, "moving": 1, "hang": 3, "strikes": 3, "restarts": 1}

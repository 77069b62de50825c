# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _group_rules as rules

HEAD = rules.Member(0, "spark-1", "192.0.2.1")
FOLLOWER = rules.Member(1, "spark-2", "192.0.2.2")
THIRD = rules.Member(2, "spark-3", "192.0.2.3")
TOGETHER = rules.round_of(("a", "b"))


def state(rank: int = 0, **changes: t.Any) -> rules.RankState:
    """A rank whose gate is open and which sees the other one."""
    values: dict[str, t.Any] = {
        "instance": "writer",
        "spec": "s",
        "rank": rank,
        "token": "ab"[rank],
        "stage": "open",
        "round": "",
        "sees": {1 - rank: "ba"[rank]},
        "said": "",
        "ended": None,
        "now": 0.0,
    }
    return rules.RankState(**{**values, **changes})


def seen(silent_s: float = 1.0, given_up_s: float = 0.0, error: str = "", **changes: t.Any) -> rules.Seen:
    """What the head knows of its follower."""
    return rules.Seen(member=FOLLOWER, state=state(1, **changes), silent_s=silent_s, error=error, given_up_s=given_up_s)


def test_ranks_whose_gates_are_open_and_who_see_each_other_start_in_one_round() -> None:
    head = rules.meet(state(), [seen()])
    follower = rules.meet(state(1), [rules.Seen(member=HEAD, state=state(), silent_s=1)])
    assert head == follower == rules.Meeting(round=TOGETHER, tokens=("a", "b"))


def test_a_rank_goes_into_the_round_that_another_one_has_begun_with_its_token() -> None:
    assert rules.meet(state(), [seen(stage="booting", round=TOGETHER)]).round == TOGETHER


@pytest.mark.parametrize(
    ("other", "says"),
    [
        pytest.param(seen(stage="gating", said="10 of 20 GiB are available"), "10 of 20 GiB", id="memory"),
        pytest.param(seen(stage="stopped"), "rank 1 (spark-2) is stopped", id="stopped"),
        pytest.param(seen(stage="pausing"), "is about to start again", id="pause"),
        pytest.param(seen(stage="ending"), "is ending its engine", id="ending"),
        pytest.param(seen(stage="booting", round="older"), "is booting", id="stale partner"),
        pytest.param(seen(stage="serving", round="older"), "is serving", id="stale partner that serves"),
        pytest.param(seen(sees={}), "does not see this rank yet", id="one-way link"),
        pytest.param(seen(sees={0: "earlier"}), "does not see this rank yet", id="sees an earlier start"),
        pytest.param(seen(spec="other"), "run site.yml for the whole group", id="other settings"),
        pytest.param(seen(silent_s=60, error="connection refused"), "(connection refused), for 60 s", id="silent"),
        pytest.param(rules.Seen(member=FOLLOWER, state=None, silent_s=3), "does not answer at 192.0.2.2", id="never"),
        pytest.param(seen(stage="given-up", given_up_s=5), "stays down", id="given up a moment ago"),
    ],
)
def test_a_rank_waits_and_says_for_what(other: rules.Seen, says: str) -> None:
    meeting = rules.meet(state(), [other])
    assert not meeting.round
    assert not meeting.refused
    assert says in meeting.waiting


def test_a_rank_gives_up_after_another_one_has() -> None:
    meeting = rules.meet(state(), [seen(stage="given-up", given_up_s=rules.GIVEN_UP_S, said="no such flag")])
    assert meeting.refused == "rank 1 (spark-2) stays down: no such flag"
    assert not meeting.round


CAUSE = "rank 1 (spark-2) stays down: no such flag"


def refusal(member: rules.Member, said: str, own: rules.RankState) -> str:
    """Return with what words a rank is refused by another one that has given up."""
    given_up = state(member.rank, stage="given-up", said=said)
    return rules.meet(own, [rules.Seen(member=member, state=given_up, silent_s=1, given_up_s=60)]).refused


def test_the_cause_is_told_once_however_often_ranks_give_up_for_each_other() -> None:
    """As where each box is started alone, after the other one has given up for it again."""
    head, follower = state(0), state(1)
    said = {0: refusal(FOLLOWER, "no such flag", head), 1: "no such flag"}
    assert said[0] == CAUSE
    for _day in range(3):
        said[1] = refusal(HEAD, said[0], follower)
        assert said[1] == f"rank 0 (spark-1) stays down: {CAUSE}"
        said[0] = refusal(FOLLOWER, said[1], head)
        assert said[0] == CAUSE


def test_a_third_rank_blames_the_one_with_the_cause() -> None:
    third = dataclasses.replace(state(), rank=2, token="c")
    assert refusal(HEAD, CAUSE, third) == CAUSE
    waiting = rules.Seen(member=HEAD, state=state(stage="given-up", said=CAUSE), silent_s=1)
    assert waiting.words() == f"rank 0 (spark-1) stays down: {CAUSE}"
    echoed = seen(stage="given-up", said=f"rank 0 (spark-1) stays down: {CAUSE}")
    assert echoed.words() == CAUSE


def test_a_rank_does_not_give_up_for_what_another_one_said_before_it_fell_silent() -> None:
    other = seen(silent_s=27, stage="given-up", given_up_s=60, said="no such flag", error="no route to host")
    meeting = rules.meet(state(), [other])
    assert not meeting.refused
    assert "does not answer at 192.0.2.2 (no route to host), for 27 s" in meeting.waiting


def test_of_three_ranks_one_that_waits_for_its_memory_holds_all() -> None:
    ready = rules.Seen(member=FOLLOWER, state=state(1, sees={0: "a", 2: "c"}), silent_s=1)
    third = dataclasses.replace(state(), rank=2, token="c", sees={0: "a", 1: "b"})
    gating = rules.Seen(member=THIRD, state=dataclasses.replace(third, stage="gating"), silent_s=1)
    assert "rank 2 (spark-3) waits for its memory" in rules.meet(state(), [ready, gating]).waiting
    opened = dataclasses.replace(gating, state=third)
    assert rules.meet(state(), [ready, opened]).tokens == ("a", "b", "c")


@pytest.mark.parametrize("sees", [{0: "a"}, {0: "a", 2: "of an earlier start"}])
def test_of_three_ranks_none_starts_while_two_do_not_see_each_other(sees: dict[int, str]) -> None:
    second = rules.Seen(member=FOLLOWER, state=state(1, sees=sees), silent_s=1)
    third = dataclasses.replace(state(), rank=2, token="c", sees={0: "a", 1: "b"})
    meeting = rules.meet(state(), [second, rules.Seen(member=THIRD, state=third, silent_s=1)])
    assert not meeting.round
    assert meeting.waiting == "rank 1 (spark-2) does not see rank 2 (spark-3) yet"


SERVING = state(stage="serving", round=TOGETHER)


def lost(other: rules.Seen, own: rules.RankState = SERVING, age_s: float = 100) -> rules.Loss | None:
    return rules.lost(own, ("a", "b"), [other], silence_s=20, age_s=age_s)


@pytest.mark.parametrize(
    ("other", "age_s"),
    [
        pytest.param(seen(stage="serving", round=TOGETHER), 100, id="serving"),
        pytest.param(seen(stage="booting", round=TOGETHER), 100, id="booting"),
        pytest.param(seen(stage="serving", round=TOGETHER, silent_s=19), 100, id="silent for a while"),
        pytest.param(seen(), 5, id="on its way into the round"),
        pytest.param(rules.Seen(member=FOLLOWER, state=None, silent_s=19), 100, id="a daemon that has just begun"),
    ],
)
def test_a_rank_stays_in_its_round(other: rules.Seen, age_s: float) -> None:
    assert lost(other, age_s=age_s) is None


GONE = rules.Ended(round=TOGETHER, cause="its container was killed (exit status 137)", own=True, at=5.0)


@pytest.mark.parametrize(
    ("other", "says", "blameless"),
    [
        pytest.param(
            seen(silent_s=21, error="no answer in time"), "has not answered at 192.0.2.2 for 21 s", True, id="cut"
        ),
        pytest.param(seen(stage="serving", round="newer"), "has started without this rank", False, id="other round"),
        pytest.param(seen(token="c"), "is ready to start", True, id="a new start of it"),
        pytest.param(seen(), "is ready to start", True, id="never came"),
        pytest.param(seen(stage="stopped"), "is stopped", True, id="stopped"),
        pytest.param(seen(stage="given-up", said="why"), "stays down: why", False, id="given up"),
        pytest.param(seen(stage="pausing", ended=GONE), "left: its container was killed", False, id="says why"),
        pytest.param(
            seen(stage="gating", ended=dataclasses.replace(GONE, round="earlier")),
            "waits for its memory",
            True,
            id="old",
        ),
        pytest.param(seen(stage="gating"), "waits for its memory", True, id="its gate has closed at its last look"),
        pytest.param(seen(stage="ending", blameless=True), "is ending its engine", True, id="ends by an order"),
        pytest.param(seen(stage="ending"), "is ending its engine", False, id="ends by itself"),
        pytest.param(seen(stage="pausing", blameless=True), "is about to start again", True, id="has seen a silence"),
        pytest.param(seen(stage="stopped", ended=GONE), "left: its container was killed", False, id="stopped later"),
        pytest.param(
            seen(stage="gating", ended=dataclasses.replace(GONE, cause="an order", blameless=True)),
            "left: an order",
            True,
            id="says that it left by an order",
        ),
    ],
)
def test_a_rank_leaves_its_round_and_says_why(other: rules.Seen, says: str, blameless: bool) -> None:
    loss = lost(other)
    assert loss is not None
    assert says in loss.cause
    assert loss.blameless is blameless


@pytest.mark.parametrize(("silent_s", "stays"), [(21, True), (59, True), (61, False)])
def test_a_daemon_that_is_being_started_anew_is_given_more_time(silent_s: float, stays: bool) -> None:
    other = seen(stage="serving", round=TOGETHER, silent_s=silent_s, error="connection refused")
    loss = lost(dataclasses.replace(other, refused=True))
    assert (loss is None) is stays


def test_the_time_in_which_a_rank_did_not_run_itself_is_no_silence_of_another_one() -> None:
    other = seen(stage="serving", round=TOGETHER, silent_s=30, error="no answer in time")
    assert lost(dataclasses.replace(other, stalled_s=25)) is None
    loss = lost(dataclasses.replace(other, silent_s=46, stalled_s=25))
    assert loss is not None
    assert "for 21 s" in loss.cause
    # It is old nevertheless: no round begins with it.
    assert dataclasses.replace(other, stalled_s=29).token == ""


def test_an_engine_that_runs_in_no_round_is_ended() -> None:
    loss = lost(seen(stage="serving", round=TOGETHER), own=state(stage="serving"))
    assert loss is not None
    assert "in no round" in loss.cause
    assert loss.blameless


def test_the_story_names_who_left_first_and_the_first_error_that_is_no_echo() -> None:
    loud = rules.Ended(
        round="r", cause="its engine ended by itself with exit status 0", own=True, at=9.0,
        error="EngineDeadError: see above", error_at=8.0, echo=True,
    )  # fmt: skip
    quiet = rules.Ended(
        round="r", cause="its container was killed (exit status 137)", own=True, at=7.0,
        error="RuntimeError: out of memory", error_at=8.5,
    )  # fmt: skip
    assert rules.story({HEAD: loud, FOLLOWER: quiet}) == (
        "rank 1 (spark-2) left first: its container was killed (exit status 137); "
        "the first error, on rank 1 (spark-2): RuntimeError: out of memory"
    )


def test_the_story_does_not_blame_who_only_ended_sooner() -> None:
    cause = "its engine ended by itself with exit status 1"
    failed = rules.Ended(round="r", cause=cause, own=True, at=9.0, error="RuntimeError: CUDA error", error_at=6.0)
    for echoes in (
        rules.Ended(round="r", cause=cause, own=True, at=7.0, error="EngineDeadError", error_at=6.5, echo=True),
        rules.Ended(round="r", cause=cause, own=True, at=7.0),
    ):
        assert rules.story({HEAD: echoes, FOLLOWER: failed}).startswith("rank 1 (spark-2) left first")
    # Also where the one that failed has written no error at all.
    silent = dataclasses.replace(failed, error="", error_at=0.0)
    echo = rules.Ended(round="r", cause=cause, own=True, at=7.0, error="EngineDeadError", error_at=6.5, echo=True)
    assert rules.story({HEAD: echo, FOLLOWER: silent}).startswith("rank 1 (spark-2) left first")


def test_an_echo_after_the_rank_was_told_to_end_takes_no_blame_from_it() -> None:
    told = rules.Ended(
        round="r", cause="its container was told to end (SIGTERM)", own=True, at=5.0,
        error="EngineDeadError", error_at=6.0, echo=True,
    )  # fmt: skip
    failed = rules.Ended(round="r", cause="it failed", own=True, at=9.0, error="RuntimeError: x", error_at=6.5)
    assert rules.story({HEAD: told, FOLLOWER: failed}).startswith("rank 0 (spark-1) left first")


def test_whose_engine_was_gone_for_another_one_left_first_also_where_its_daemon_was_quicker_than_its_engine() -> None:
    # The follower's worker is killed. The head's engine ends of that within a second, which the follower's daemon sees
    # before its own engine has said anything.
    error = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [192.0.2.2]:43"
    exits = "its engine ended by itself with exit status 0"
    echo = rules.Ended(round="r", cause=exits, own=True, at=7.0, error=error, error_at=6.5, echo=True)
    made = rules.Ended(round="r", cause="rank 0 (spark-1) is ending its engine", own=False, at=7.5)
    assert rules.story({HEAD: echo, FOLLOWER: made}) == (
        f"rank 1 (spark-2) left first: rank 0 (spark-1) lost the connection to its engine: {error}"
    )
    # Of three, the address says which.
    assert rules.story({HEAD: echo, THIRD: made, FOLLOWER: made}).startswith("rank 1 (spark-2) left first")
    unnamed = dataclasses.replace(echo, error="RuntimeError: ncclRemoteError")
    assert rules.story({HEAD: unnamed, FOLLOWER: made}).startswith("rank 1 (spark-2) left first")
    assert rules.story({HEAD: unnamed, FOLLOWER: made, THIRD: made}).startswith("rank 0 (spark-1) left first")
    # An echo of the rank's own engine core says nothing of another rank, and a link that is out is nobody's end.
    within = dataclasses.replace(echo, error="EngineDeadError: EngineCore encountered an issue")
    assert rules.story({HEAD: within, FOLLOWER: made}).startswith("rank 0 (spark-1) left first")
    silent = dataclasses.replace(made, blameless=True)
    assert rules.story({HEAD: echo, FOLLOWER: silent}).startswith("rank 0 (spark-1) left first")


def test_the_story_blames_nobody_for_a_link() -> None:
    records = {
        HEAD: rules.Ended(round="r", cause="rank 1 (spark-2) has not answered for 20 s", own=False, at=1.0),
        FOLLOWER: rules.Ended(round="r", cause="rank 0 (spark-1) has not answered for 21 s", own=False, at=2.0),
    }
    assert rules.story(records) == "no rank left of itself: rank 1 (spark-2) has not answered for 20 s"


def test_a_rank_that_another_one_made_leave_is_not_who_left_first() -> None:
    follows = rules.Ended(round="r", cause="rank 1 (spark-2) left", own=False, at=1.0)
    assert rules.story({HEAD: follows, FOLLOWER: GONE}).startswith("rank 1 (spark-2) left first")


def test_what_is_published_is_read_back() -> None:
    left = dataclasses.replace(GONE, blameless=True)
    told = state(1, stage="serving", round=TOGETHER, ended=left, said="it serves", blameless=True)
    assert rules.RankState.read(told.as_dict(), "writer", 1) == told


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        "text",
        {},
        {**state(1).as_dict(), "instance": "reader"},
        {**state(1).as_dict(), "rank": 0},
        {**state(1).as_dict(), "stage": "dancing"},
        {**state(1).as_dict(), "sees": []},
        {**state(1).as_dict(), "sees": {"x": "a"}},
        {**state(1).as_dict(), "token": 5},
        {**state(1).as_dict(), "now": "soon"},
        {**state(1).as_dict(), "now": 10**400},
        {**state(1).as_dict(), "now": float("nan")},
        {**state(1).as_dict(), "now": float("inf")},
        {**state(1).as_dict(), "stage": []},
        {**state(1).as_dict(), "stage": {}},
        {key: value for key, value in state(1).as_dict().items() if key != "spec"},
    ],
)
def test_an_answer_of_something_else_is_refused(answer: object) -> None:
    with pytest.raises(rules.StateError, match="rank 1 of writer"):
        rules.RankState.read(answer, "writer", 1)


@pytest.mark.parametrize("moment", [10**400, float("nan"), float("-inf"), "5", None, True])
@pytest.mark.parametrize("key", ["at", "error_at"])
def test_an_end_without_a_usable_time_is_none(key: str, moment: object) -> None:
    record = {**dataclasses.asdict(GONE), key: moment}
    assert rules.Ended.read(record) is None
    assert rules.RankState.read({**state(1).as_dict(), "ended": record}, "writer", 1).ended is None


def test_a_text_from_the_network_is_one_short_line_without_control_characters() -> None:
    answer = {**state(1).as_dict(), "said": "a\nb\x1b[31m" + "c" * 5000}
    said = rules.RankState.read(answer, "writer", 1).said
    assert said.startswith("a b [31mccc")
    assert len(said) == 1000

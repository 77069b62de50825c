# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the unit of a rank does, with the files in a folder of the test and a clock that only sleeping moves."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _boot_errors,
    _command,
    _group_files,
    _group_rules,
    _group_start,
    _instance,
)
from ansible_collections.gb10.fleet.plugins.module_utils._group_files import Asked, Gate, Round, View
from ansible_collections.gb10.fleet.plugins.module_utils._process_state import ProcessState

ALIVE = ProcessState("alive", "the process runs")


class World:
    """A rank that waits; ``script`` says what happens at which second."""

    def __init__(self, folder: pathlib.Path, script: dict[int, c.Callable[[World], t.Any]]) -> None:
        self.files = _group_files.GroupFiles("writer", folder)
        self.script = script
        self.now = 1000.0
        self.said: list[str] = []
        self.obstacle = ""

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        action = self.script.get(round(self.now - 1000))
        if action:
            action(self)
        if self.now > 2000:
            raise AssertionError("it waits for ever")

    def view(self, token: str = "a", **words: t.Any) -> None:
        self.files.write(View(token=token, at=self.now, **words))

    def round(self, name: str = "r", token: str = "a") -> None:
        self.files.write(Round(token, name, (token, "b"), self.now))
        self.view(token)

    def wait(self) -> _group_start.Wait:
        return _group_start.Wait(self.files, "a", self.said.append, lambda: self.now, self.sleep)

    def meet(self) -> str:
        return _group_start.meet(self.wait(), lambda: self.obstacle)


def test_a_rank_starts_when_the_daemon_says_that_all_do(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, {3: lambda w: w.view(waiting="rank 1 is booting"), 9: lambda w: w.round()})
    assert world.meet() == ""
    assert world.now == 1009
    assert world.said == ["waiting for the other ranks (3 s): rank 1 is booting"]


def test_memory_that_is_gone_again_closes_the_gate(tmp_path: pathlib.Path) -> None:
    gates: list[Gate | None] = []

    def short(world: World) -> None:
        world.obstacle = "10 GiB too little"
        world.round()

    def enough(world: World) -> None:
        gates.append(world.files.gate("a"))
        world.obstacle = ""
        world.round()

    world = World(tmp_path, {5: short, 20: enough})
    assert world.meet() == ""
    assert world.now == 1020
    assert gates == [Gate("a", False, 1000.0, 1019.0)]
    assert "10 GiB too little" in world.said[-1]


def test_a_gate_that_has_closed_waits_for_another_round(tmp_path: pathlib.Path) -> None:
    def short(world: World) -> None:
        world.obstacle = "10 GiB too little"
        world.round()

    def enough(world: World) -> None:
        world.obstacle = ""
        world.view()

    world = World(tmp_path, {5: short, 10: enough, 30: lambda w: w.round("another")})
    assert world.meet() == ""
    assert world.now == 1030


def test_a_gate_whose_last_look_took_so_long_that_the_round_is_over_waits_for_another_one(
    tmp_path: pathlib.Path,
) -> None:
    world = World(tmp_path, {30: lambda w: w.round("another")})
    world.round("over")

    def look() -> str:
        if world.now == 1000:
            world.now += 17
            world.files.withdraw("a")
        return ""

    assert _group_start.meet(world.wait(), look) == ""
    assert world.now == 1030


def test_a_slow_look_keeps_no_round_from_beginning(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, {})
    rounds = []

    def look() -> str:
        # The daemon takes the round of a gate back that has been silent for 15 s.
        world.now += 19
        world.files.withdraw("a")
        return ""

    def sleep(seconds: float) -> None:
        world.now += seconds
        if world.files.round("a") is None:
            rounds.append(world.now)
            world.round()

    wait = dataclasses.replace(world.wait(), sleep=sleep)
    assert _group_start.meet(wait, look) == ""
    assert len(rounds) == 1
    assert world.now < 1030
    # What follows is systemd's: how long it takes to come to the engine says nothing of the gate.
    gate = world.files.gate("a")
    assert gate is not None
    assert gate.left
    assert gate.silent_s() == 0.0


def test_a_start_is_refused_when_another_rank_has_given_up(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, {4: lambda w: w.view(refused="rank 1 (spark-2) stays down: no such flag")})
    assert world.meet() == "rank 1 (spark-2) stays down: no such flag"


def test_the_words_and_the_round_of_an_earlier_start_do_not_count(tmp_path: pathlib.Path) -> None:
    def stale(world: World) -> None:
        world.view(token="before", refused="no")
        world.files.write(Round("before", "r", ("before", "b"), world.now))

    world = World(tmp_path, {2: stale, 30: lambda w: w.round()})
    assert world.meet() == ""
    assert world.now == 1030


def test_a_daemon_that_does_not_run_is_named(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, {40: lambda w: w.round()})
    assert world.meet() == ""
    assert "gb10-fleet-peer of this instance does not run" in world.said[0]


def follow(world: World, process: ProcessState = ALIVE) -> str:
    return _group_start.follow(world.wait(), timeout_s=300, process=lambda: process)


def test_a_follower_is_ready_when_the_head_of_its_own_round_serves(tmp_path: pathlib.Path) -> None:
    world = World(
        tmp_path,
        {
            10: lambda w: w.view(head_round="older", head_serves=True),
            20: lambda w: w.view(head_round="r", head_serves=False),
            30: lambda w: w.view(head_round="r", head_serves=True),
        },
    )
    world.round()
    assert follow(world) == ""
    assert world.now == 1030


def test_a_follower_whose_head_never_serves_fails_in_time(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, {})
    world.round()
    assert follow(world) == "the head has not answered a completion within 300 s"


def test_a_follower_whose_engine_is_gone_fails_at_once(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, {})
    assert "no process 7" in follow(world, ProcessState("gone", "there is no process 7"))
    assert world.now == 1000


def agree(world: World, states: dict[int, _instance.Unit] | None = None) -> str:
    def show() -> _instance.Unit:
        seconds = round(world.now - 1000)
        return next((unit for at, unit in reversed((states or {}).items()) if seconds >= at), SERVES)

    return _group_start.agree(
        "writer",
        timeout_s=300,
        tell=world.said.append,
        files=world.files,
        show=show,
        clock=lambda: world.now,
        sleep=world.sleep,
    )


SERVES = _instance.Unit.from_show("vllm-writer.service", "ActiveState=active\nInvocationID=a\n")
STARTS = _instance.Unit.from_show("vllm-writer.service", "ActiveState=activating\nInvocationID=b\n")


def test_a_rank_that_is_proven_waits_until_all_others_are(tmp_path: pathlib.Path) -> None:
    head = "rank 0 (spark-1)"
    world = World(tmp_path, {10: lambda w: w.view(proving=head), 20: lambda w: w.view(proving="")})
    world.view(proving=head)
    assert agree(world) == ""
    assert world.now == 1020
    assert world.files.proven("a")
    assert world.said == [f"vllm-writer.service is proven for its part; waiting for {head}"]


def test_a_rank_whose_engine_is_ended_meanwhile_is_not_proven_and_says_why(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, {})
    world.view(proving="rank 0 (spark-1)")
    world.files.write(Asked("a", "rank 0 (spark-1) is stopped", False, 1.0))
    assert agree(world, {5: STARTS}) == (
        "vllm-writer.service was proven, and has ended while the other ranks were still being proven: "
        "rank 0 (spark-1) is stopped."
    )


def test_nobody_waits_for_ever_for_a_rank_that_is_never_proven(tmp_path: pathlib.Path) -> None:
    script = {second: lambda w: w.view(proving="rank 0 (spark-1)") for second in range(0, 400, 5)}
    world = World(tmp_path, script)
    assert "rank 0 (spark-1) was not known to be within 300 s" in agree(world)
    # Nor for a daemon that says nothing.
    assert "what the other ranks do was not known" in agree(World(tmp_path / "silent", {}))


def exit_of(**changes: t.Any) -> _group_start.Exit:
    return _group_start.Exit(**{"token": "a", "result": "success", "code": "exited", "status": "0", **changes})


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (exit_of(), "its engine ended by itself with exit status 0"),
        (exit_of(result="exit-code", status="137"), "its container was killed (exit status 137)"),
        (exit_of(result="signal", code="killed", status="KILL"), "its engine ended (signal, killed KILL)"),
        (exit_of(failure="dead: no such flag"), "dead: no such flag"),
        (exit_of(failure="dead: no such flag", order="stop"), "it was stopped by an order to systemd"),
    ],
)
def test_how_an_engine_ended_is_kept_in_words(tmp_path: pathlib.Path, how: _group_start.Exit, says: str) -> None:
    files = _group_files.GroupFiles("writer", tmp_path)
    files.write(Round("a", "r", ("a", "b"), 1.0))
    kept = _group_start.ended(files, how, None, 50.0)
    assert kept is not None
    assert (kept.cause, kept.own, kept.round, kept.at) == (says, True, "r", 50.0)
    assert files.ended() == kept


def test_an_engine_that_the_daemon_ended_is_not_what_left_first(tmp_path: pathlib.Path) -> None:
    files = _group_files.GroupFiles("writer", tmp_path)
    files.write(Round("a", "r", ("a", "b"), 1.0))
    files.write(Asked("a", "rank 1 (spark-2) is stopped", own=False))
    error = _boot_errors.BootError(
        log="", message="RuntimeError: x", kind="exception", order=1, stamp="44.5", echo=True
    )
    kept = _group_start.ended(files, exit_of(order="restart"), error, 50.0)
    assert kept is not None
    assert (kept.cause, kept.own) == ("rank 1 (spark-2) is stopped", False)
    assert (kept.error, kept.error_at, kept.echo) == ("RuntimeError: x", 44.5, True)


TOLD = _group_start.Signal("SIGTERM", 30.0)


@pytest.mark.parametrize(
    ("how", "asked", "signalled", "says"),
    [
        # docker stop: the head fails 10 s before the follower has ended, and is still not what left first.
        (
            exit_of(order="stop", status="137"),
            Asked("a", "rank 0 (spark-1) left", own=False, at=40.0),
            TOLD,
            ("its container was told to end (SIGTERM)", True, 30.0),
        ),
        (exit_of(), None, TOLD, ("its container was told to end (SIGTERM)", True, 30.0)),
        (
            exit_of(status="137"),
            None,
            _group_start.Signal("SIGKILL", 30.0),
            ("its container was killed (exit status 137)", True, 30.0),
        ),
        (exit_of(order="stop"), None, TOLD, ("it was stopped by an order to systemd", True, 30.0)),
        (exit_of(failure="dead: no such flag"), None, TOLD, ("dead: no such flag", True, 30.0)),
        # The daemon's own docker stop comes after its reason.
        (
            exit_of(order="stop"),
            Asked("a", "rank 0 (spark-1) left", own=False, at=20.0),
            TOLD,
            ("rank 0 (spark-1) left", False, 20.0),
        ),
        (exit_of(order="stop"), Asked("a", "it hangs", own=True, at=20.0), TOLD, ("it hangs", True, 20.0)),
    ],
)
def test_a_rank_has_left_when_it_was_told_to(
    tmp_path: pathlib.Path,
    how: _group_start.Exit,
    asked: Asked | None,
    signalled: _group_start.Signal,
    says: tuple[str, bool, float],
) -> None:
    files = _group_files.GroupFiles("writer", tmp_path)
    files.write(Round("a", "r", ("a", "b"), 1.0))
    if asked:
        files.write(asked)
    kept = _group_start.ended(files, how, None, 50.0, signalled)
    assert kept is not None
    assert (kept.cause, kept.own, kept.at) == says


@pytest.mark.parametrize(
    ("how", "asked", "signalled", "blameless"),
    [
        (exit_of(order="stop"), None, TOLD, True),
        (exit_of(), None, None, False),
        (exit_of(order="restart"), Asked("a", "rank 0 was silent", own=False, at=20.0, blameless=True), None, True),
        (exit_of(order="restart"), Asked("a", "rank 0 left", own=False, at=20.0), None, False),
        # It was killed before its daemon found a reason to end it.
        (
            exit_of(order="restart", status="137"),
            Asked("a", "rank 0 was silent", own=False, at=40.0, blameless=True),
            TOLD,
            False,
        ),
    ],
)
def test_an_order_or_a_silence_is_the_fault_of_no_rank(
    tmp_path: pathlib.Path,
    how: _group_start.Exit,
    asked: Asked | None,
    signalled: _group_start.Signal | None,
    blameless: bool,
) -> None:
    files = _group_files.GroupFiles("writer", tmp_path)
    files.write(Round("a", "r", ("a", "b"), 1.0))
    if asked:
        files.write(asked)
    kept = _group_start.ended(files, how, None, 50.0, signalled)
    assert kept is not None
    assert kept.blameless is blameless
    assert _group_rules.Ended.read(dataclasses.asdict(kept)) == kept


def test_the_first_signal_since_the_round_began_is_read_from_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(argv: list[str], **_options: float) -> tuple[int, str, str]:
        ran.append(argv)
        return 0, "1764450001500000000 15\n1764450011500000000 9\n", ""

    monkeypatch.setattr(_command, "run", run)
    monkeypatch.setattr(_group_start.time, "monotonic", lambda: 110.0)
    joined = Round("a", "r", ("a", "b"), 10.0)
    found = _group_start.first_signal("vllm-writer", joined, 1764450020.0)
    assert found == _group_start.Signal("SIGTERM", 1764450001.5)
    assert "--since=1764449920.000" in ran[0]
    assert "container=vllm-writer" in ran[0]
    assert _group_start.first_signal("vllm-writer", None, 1764450020.0) is None
    assert len(ran) == 1


@pytest.mark.parametrize(("said", "name"), [("", None), ("1764450001500000000 99\n", "signal 99"), ("x\n", None)])
def test_what_docker_says_of_signals_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, said: str, name: str | None
) -> None:
    monkeypatch.setattr(_command, "run", lambda _argv, **_options: (0, said, ""))
    found = _group_start.first_signal("vllm-writer", Round("a", "r", ("a", "b"), 0.0), 1764450020.0)
    assert (found.name if found else None) == name


def test_a_start_that_was_stopped_by_an_order_is_known_as_such(tmp_path: pathlib.Path) -> None:
    files = _group_files.GroupFiles("writer", tmp_path)
    assert _group_start.ended(files, exit_of(order="stop"), None, 50.0) is None
    assert files.stopped("a")
    assert not files.stopped("b")


def test_an_order_of_the_daemon_is_no_stop(tmp_path: pathlib.Path) -> None:
    """Else a rank whose start limit ends it while it is restarted would never say that it stays down."""
    files = _group_files.GroupFiles("writer", tmp_path)
    files.write(Round("a", "r", ("a", "b"), 1.0))
    files.write(Asked("a", "rank 1 (spark-2) left", own=False))
    assert _group_start.ended(files, exit_of(order="restart"), None, 50.0) is not None
    assert not files.stopped("a")


def test_a_stop_over_the_restart_of_the_daemon_is_a_stop(tmp_path: pathlib.Path) -> None:
    files = _group_files.GroupFiles("writer", tmp_path)
    files.write(Asked("a", "rank 1 (spark-2) is stopped", own=False))
    _group_start.ended(files, exit_of(order="stop", status="143"), None, 50.0)
    assert files.stopped("a")


def test_a_restart_by_a_person_is_no_stop(tmp_path: pathlib.Path) -> None:
    """Else a rank whose start limit refuses the new start would never say that it stays down."""
    files = _group_files.GroupFiles("writer", tmp_path)
    _group_start.ended(files, exit_of(order="restart"), None, 50.0)
    assert not files.stopped("a")


def test_errors_of_other_ranks_are_not_taken_for_those_of_this_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = (
        "1764450000.1 spark-2 vllm-writer[7]: waiting for the other ranks (2 s): rank 0: CUDA out of memory\n"
        "1764450001.2 spark-2 vllm-writer[8]: ValueError: this one is our own\n"
    )
    monkeypatch.setattr(_command, "run", lambda _argv, **_options: (0, journal, ""))
    error = _group_start.first_error("a")
    assert error is not None
    assert (error.message, error.stamp) == ("ValueError: this one is our own", "1764450001.2")


def test_a_start_that_never_came_to_a_round_leaves_no_record(tmp_path: pathlib.Path) -> None:
    files = _group_files.GroupFiles("writer", tmp_path)
    assert _group_start.ended(files, exit_of(), None, 50.0) is None
    assert files.ended() is None


@pytest.mark.parametrize(
    ("jobs", "order"),
    [
        ("", ""),
        ("31 vllm-writer.service start running\n", ""),
        ("31 vllm-writer.service restart running\n", "restart"),
        ("31 vllm-writer.service stop running\n32 vllm-other.service start waiting\n", "stop"),
        ("32 vllm-other.service stop running\n", ""),
    ],
)
def test_an_order_is_a_job_that_ends_the_unit(monkeypatch: pytest.MonkeyPatch, jobs: str, order: str) -> None:
    monkeypatch.setattr(_command, "run", lambda _argv, **_options: (0, jobs, ""))
    assert _group_start.order("vllm-writer.service") == order


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token": "a"}', '{"token": "a", "more": 1}'])
def test_a_file_that_is_not_whole_says_nothing(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "writer").mkdir()
    for kind in ("gate", "round", "view", "asked", "ended"):
        (tmp_path / "writer" / f"{kind}.json").write_text(text)
    files = _group_files.GroupFiles("writer", tmp_path)
    assert (files.gate("a"), files.round("a"), files.view(), files.asked("a"), files.ended()) == (None,) * 5


def test_an_old_word_of_the_daemon_does_not_count(tmp_path: pathlib.Path) -> None:
    files = _group_files.GroupFiles("writer", tmp_path)
    files.write(View(token="a", at=100.0))
    assert files.view(110.0) is not None
    assert files.view(120.0) is None

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The daemon of a rank, step by step; systemd and the other ranks are tables of the test."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import errno
import pathlib
import time
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _command,
    _generation,
    _group_daemon,
    _group_files,
    _group_rules,
    _instance,
    _journal,
    _sd_notify,
    _status,
)
from ansible_collections.gb10.fleet.plugins.module_utils._group_files import Gate, Round, Stopped

GROUP = {
    "name": "pair",
    "spec": "s",
    "rank": 0,
    "members": [
        {"rank": 0, "box": "spark-1", "address": "192.0.2.1"},
        {"rank": 1, "box": "spark-2", "address": "192.0.2.2"},
    ],
    "peer_port": 29511,
    "silence_seconds": 20,
    "heartbeat_seconds": 15,
}
SETTINGS: dict[str, t.Any] = {
    "url": "http://127.0.0.1:1",
    "models": ["writer"],
    "kind": "chat",
    "secrets_file": "",
    "start_limit_burst": 3,
    "group": GROUP,
}
TOGETHER = _group_rules.round_of(("a", "b"))
OTHER = _group_rules.RankState(
    instance="writer",
    spec="s",
    rank=1,
    token="b",
    stage="serving",
    round=TOGETHER,
    sees={0: "a"},
    said="",
    ended=None,
    now=0.0,
)


def gate(token: str = "a", is_open: bool = True, age_s: float = 0.0) -> Gate:
    return Gate(token, is_open, 1.0, time.monotonic() - age_s)


class Link:
    """What is known of the other rank, as the test says it."""

    offset_s = 0.0
    stalled_s = 0.0

    def __init__(self, member: _group_rules.Member, _instance: str, _port: int, _source: str) -> None:
        self.member = member
        self.known = _group_rules.Seen(member=member, state=OTHER, silent_s=1.0)

    def seen(self) -> _group_rules.Seen:
        return self.known

    def forgive(self) -> None:
        pass


@dataclasses.dataclass
class Rank:
    """One rank in a folder of the test."""

    daemon: _group_daemon.Daemon
    files: _group_files.GroupFiles
    unit: dict[str, str]
    ran: list[str]
    journal: list[str]

    @property
    def link(self) -> Link:
        return t.cast("Link", self.daemon._links[0])

    def other(self, silent_s: float = 1.0, **changes: t.Any) -> None:
        self.link.known = dataclasses.replace(
            self.link.known, state=dataclasses.replace(OTHER, **changes), silent_s=silent_s
        )

    def is_in(self, active: str, sub: str, token: str = "a") -> None:
        self.unit.update(ActiveState=active, SubState=sub, InvocationID=token)

    def restarts(self) -> list[str]:
        return [one for one in self.ran if "restart" in one]


@pytest.fixture
def rank(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    unit = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "InvocationID": "a"}
    ran: list[str] = []
    journal: list[str] = []

    def run(argv: list[str], **_options: object) -> tuple[int, str, str]:
        ran.append(" ".join(argv))
        return 0, "".join(f"{key}={value}\n" for key, value in unit.items()), ""

    monkeypatch.setattr(_command, "run", run)
    monkeypatch.setattr(_group_files, "FOLDER", tmp_path / "groups")
    monkeypatch.setattr(_status.StatusFile.__init__, "__defaults__", (tmp_path,))
    monkeypatch.setattr(_group_daemon, "Link", Link)
    monkeypatch.setattr(_journal, "error", lambda _unit, message: journal.append(message))
    group = _group_daemon.Group.read(SETTINGS)
    if group is None:
        raise AssertionError
    files = _group_files.GroupFiles("writer")
    files.write(Round("a", TOGETHER, ("a", "b"), 1.0))
    return Rank(_group_daemon.Daemon("writer", SETTINGS, group, str), files, unit, ran, journal)


@pytest.mark.parametrize(
    ("active", "sub", "said", "stage"),
    [
        ("inactive", "dead", None, "stopped"),
        ("failed", "failed", None, "given-up"),
        ("deactivating", "stop-post", None, "ending"),
        ("activating", "auto-restart", None, "pausing"),
        ("activating", "auto-restart-queued", None, "pausing"),
        ("failed", "failed-before-auto-restart", None, "pausing"),
        ("inactive", "dead-before-auto-restart", None, "pausing"),
        ("activating", "start-pre", None, "gating"),
        ("activating", "start-pre", False, "gating"),
        ("activating", "start-pre", True, "open"),
        ("activating", "start-post", True, "booting"),
        ("active", "running", True, "serving"),
    ],
)
def test_the_stage_of_a_rank_is_read_from_its_unit(
    tmp_path: pathlib.Path, active: str, sub: str, said: bool | None, stage: str
) -> None:
    files = _group_files.GroupFiles("writer", tmp_path)
    if said is not None:
        files.write(gate(is_open=said))
    assert _group_daemon.stage_of(unit_in(active, sub), files) == stage


def unit_in(active: str, sub: str) -> _instance.Unit:
    text = f"ActiveState={active}\nSubState={sub}\nInvocationID=a\n"
    return _instance.Unit.from_show("vllm-writer.service", text)


def test_a_unit_that_was_stopped_while_it_started_has_not_given_up(tmp_path: pathlib.Path) -> None:
    files = _group_files.GroupFiles("writer", tmp_path)
    files.write(Stopped("a"))
    assert _group_daemon.stage_of(unit_in("failed", "failed"), files) == "stopped"
    files.write(Stopped("of an earlier start"))
    assert _group_daemon.stage_of(unit_in("failed", "failed"), files) == "given-up"


def test_the_word_of_a_gate_of_another_program_is_read(tmp_path: pathlib.Path) -> None:
    files = _group_files.GroupFiles("pair", tmp_path)
    (tmp_path / "pair").mkdir()
    # It has waited since before the program of the box was replaced, and does not say when it last spoke.
    (tmp_path / "pair/gate.json").write_text('{"token": "a", "open": true, "since": 1.0}', encoding="utf-8")
    found = files.gate("a")
    assert found is not None
    assert (found.open, found.silent_s()) == (True, 0.0)
    later = '{"token": "a", "open": true, "since": 1.0, "at": 2.0, "left": true, "of_the_future": 1}'
    (tmp_path / "pair/gate.json").write_text(later, encoding="utf-8")
    assert files.gate("a") == Gate("a", True, 1.0, 2.0, left=True)
    (tmp_path / "pair/gate.json").write_text('{"token": "a"}', encoding="utf-8")
    assert files.gate("a") is None


def test_a_gate_that_hangs_is_not_open_and_both_boxes_hear_of_it(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(_journal, "warning", lambda _unit, message: warned.append(message))
    rank.is_in("activating", "start-pre", "c")
    rank.files.write(gate("c", age_s=17))
    rank.other(stage="open", round="", sees={0: "c"})
    rank.daemon.step()
    rank.daemon.step()
    published = rank.daemon.published() or {}
    line = "its start gate has hung for 17 s in a look at Docker Engine and at the memory"
    assert (published["stage"], published["said"]) == ("gating", line)
    assert rank.files.round("c") is None
    assert warned == [f"rank 0 (spark-1) is not ready to start: {line}"]
    # It answers again.
    rank.files.write(gate("c", age_s=1))
    rank.daemon.step()
    assert rank.files.round("c") is not None


def test_a_healthy_round_is_left_alone(rank: Rank) -> None:
    rank.daemon.step()
    assert not rank.restarts()
    published = rank.daemon.published()
    assert published is not None
    assert (published["stage"], published["round"], published["sees"]) == ("serving", TOGETHER, {"1": "b"})


def test_systemd_hears_with_each_look_that_the_daemon_works(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(_sd_notify, "alive", lambda: told.append(len(rank.ran)))
    before = len(rank.ran)
    rank.daemon.step()
    # No two commands of the daemon, each of which may take its whole time limit, are without a word between them.
    assert told == [before, before + 1]
    rank.other(stage="stopped", round="")
    before = len(rank.ran)
    rank.daemon.step()
    assert told[2:] == [before, before + 1, before + 2]


def test_a_state_that_is_old_is_not_told(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(_group_daemon.time, "monotonic", lambda: now[0])
    rank.daemon.step()
    now[0] = 1010.0
    assert rank.daemon.published() is not None
    now[0] = 1011.0
    assert rank.daemon.published() is None
    rank.daemon.step()
    assert rank.daemon.published() is not None


def test_ranks_meet(rank: Rank) -> None:
    rank.is_in("activating", "start-pre", "c")
    rank.files.write(gate("c"))
    rank.other(stage="gating", round="")
    rank.daemon.step()
    view = rank.files.view()
    assert view is not None
    assert "waits for its memory" in view.waiting
    assert rank.files.round("c") is None
    rank.other(stage="open", round="", sees={0: "c"})
    rank.daemon.step()
    joined = rank.files.round("c")
    assert joined is not None
    assert (joined.name, joined.tokens) == (_group_rules.round_of(("c", "b")), ("c", "b"))


def test_a_round_that_the_gate_has_left_is_withdrawn(rank: Rank) -> None:
    rank.is_in("activating", "start-pre")
    rank.files.write(gate(is_open=False))
    rank.daemon.step()
    assert rank.files.round("a") is None


@pytest.mark.parametrize("changes", [{"stage": "pausing", "round": ""}, {"silent_s": 30}])
def test_a_round_that_another_rank_has_left_is_withdrawn_before_the_engine_starts(
    rank: Rank, changes: dict[str, t.Any]
) -> None:
    rank.is_in("activating", "start-pre")
    rank.files.write(gate())
    rank.daemon.step()
    assert rank.files.round("a") is not None
    rank.other(**changes)
    rank.daemon.step()
    assert rank.files.round("a") is None
    assert not rank.restarts()
    # What refuses the start is heard again.
    rank.link.known = dataclasses.replace(rank.link.known, given_up_s=60.0)
    rank.other(stage="given-up", round="", said="no such flag")
    rank.daemon.step()
    view = rank.files.view()
    assert view is not None
    assert "no such flag" in view.refused


def test_a_rank_whose_partner_is_gone_starts_anew_and_says_why(rank: Rank) -> None:
    rank.other(stage="pausing", round="")
    rank.daemon.step()
    assert rank.restarts() == ["systemctl try-restart --no-block --job-mode=fail vllm-writer.service"]
    asked = rank.files.asked("a")
    assert asked is not None
    assert asked.own is False
    status = _status.StatusFile("writer").read()
    assert status is not None
    assert status.failed
    assert status.message == "rank 1 (spark-2) is about to start again"
    assert not [one for one in rank.ran if "reset-failed" in one]


class Thread:
    """A thread that runs at once, so that a test need not wait for it."""

    def __init__(self, target: c.Callable[..., object], args: tuple[object, ...] = (), **_options: object) -> None:
        self.start = lambda: target(*args)


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_the_container_is_told_to_end_once_also_where_systemd_refuses(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    codes = [1] * failures
    works = _command.run

    def run(argv: list[str], **options: t.Any) -> tuple[int, str, str]:
        code, out, err = works(argv, **options)
        return (codes.pop() if codes and argv[1] == "try-restart" else code), out, err

    monkeypatch.setattr(_command, "run", run)
    monkeypatch.setattr(_group_daemon.threading, "Thread", Thread)
    rank.other(stage="stopped", round="")
    for _step in range(3):
        rank.daemon.step()
    assert len(rank.restarts()) == 3
    assert [one for one in rank.ran if one.startswith("docker")] == ["docker stop --time 30 vllm-writer"]


def test_a_daemon_that_was_started_anew_meanwhile_tells_the_container_to_end(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_group_daemon.threading, "Thread", Thread)
    rank.files.write(_group_files.Asked("a", "rank 1 (spark-2) is stopped", own=False))
    rank.other(stage="stopped", round="")
    rank.daemon.step()
    assert [one for one in rank.ran if one.startswith("docker")] == ["docker stop --time 30 vllm-writer"]


def test_a_daemon_that_was_ended_for_hanging_ends_an_engine_that_is_alone_by_then(rank: Rank) -> None:
    rank.daemon.step()
    assert not rank.restarts()
    # What the other rank has done while this daemon hung.
    left = ended(cause="rank 0 (spark-1) has not answered for 20 s", own=False, blameless=True)
    rank.other(stage="open", round="", token="c", ended=left)
    anew = _group_daemon.Daemon("writer", SETTINGS, rank.daemon.group, str)
    anew._links[0] = rank.daemon._links[0]
    anew.step()
    assert len(rank.restarts()) == 1
    assert resets(rank) == 1


def test_a_link_that_is_down_costs_no_try(rank: Rank) -> None:
    rank.other(silent_s=30)
    rank.daemon.step()
    reset = rank.ran.index("systemctl reset-failed vllm-writer.service")
    assert reset < rank.ran.index(rank.restarts()[0])
    assert rank.restarts()


def resets(rank: Rank) -> int:
    return rank.ran.count("systemctl reset-failed vllm-writer.service")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"stage": "ending", "round": "", "blameless": True}, id="it is being stopped or rebooted"),
        pytest.param({"stage": "stopped", "round": ""}, id="it was stopped"),
        pytest.param({"stage": "gating", "round": "", "token": "c"}, id="it has started anew"),
        pytest.param({"stage": "gating", "round": ""}, id="its gate has closed at its last look"),
    ],
)
def test_what_is_no_fault_of_another_rank_costs_no_try(rank: Rank, changes: dict[str, t.Any]) -> None:
    rank.other(**changes)
    rank.daemon.step()
    assert rank.restarts()
    assert resets(rank) == 1
    asked = rank.files.asked("a")
    assert asked is not None
    assert asked.blameless


def test_the_failure_of_another_rank_costs_a_try(rank: Rank) -> None:
    rank.other(stage="gating", round="", token="c", ended=ended())
    rank.daemon.step()
    assert rank.restarts()
    assert not resets(rank)


@pytest.mark.parametrize(
    ("jobs", "asked", "blameless"),
    [
        pytest.param("7 vllm-writer.service stop running\n", None, True, id="an order"),
        pytest.param("7 vllm-writer.service start running\n", None, False, id="an engine that fails at its boot"),
        pytest.param("", None, False, id="an engine that ended by itself"),
        pytest.param("7 vllm-writer.service restart running\n", False, False, id="its daemon, for a failure"),
        pytest.param("7 vllm-writer.service restart running\n", True, True, id="its daemon, for a silence"),
    ],
)
def test_a_rank_says_while_it_ends_whether_that_is_the_fault_of_any(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, jobs: str, asked: bool | None, blameless: bool
) -> None:
    works = _command.run

    def run(argv: list[str], **options: t.Any) -> tuple[int, str, str]:
        return (0, jobs, "") if argv[1] == "list-jobs" else works(argv, **options)

    monkeypatch.setattr(_command, "run", run)
    if asked is not None:
        rank.files.write(_group_files.Asked("a", "why", own=False, blameless=asked))
    rank.is_in("deactivating", "stop")
    rank.daemon.step()
    assert (rank.daemon.published() or {})["blameless"] is blameless
    # The next start has not ended yet.
    rank.is_in("activating", "start-pre", "c")
    rank.daemon.step()
    assert (rank.daemon.published() or {})["blameless"] is False


def boot_in_vain(rank: Rank, times: int, first: int = 0) -> list[int]:
    """Boot a number of times while the other rank falls silent; return how often the unit's tries were given back."""
    given_back = []
    for number in range(first, first + times):
        before = resets(rank)
        token = f"t{number}"
        rank.is_in("activating", "start-post", token)
        rank.files.write(Round(token, TOGETHER, (token, "b"), 1.0))
        rank.other(silent_s=30, stage="booting")
        # It is asked again until the unit ends.
        rank.daemon.step()
        rank.daemon.step()
        given_back.append(min(1, resets(rank) - before))
    return given_back


def test_only_so_many_boots_that_come_to_nothing_are_forgiven_also_over_a_restart_of_the_daemon(rank: Rank) -> None:
    assert boot_in_vain(rank, 2) == [1, 1]
    rank.daemon = _group_daemon.Daemon("writer", SETTINGS, rank.daemon.group, str)
    assert boot_in_vain(rank, 3, first=2) == [1, 0, 0]


def test_boots_are_forgiven_anew_once_a_round_has_served(rank: Rank) -> None:
    assert boot_in_vain(rank, 4) == [1, 1, 1, 0]
    rank.is_in("active", "running", "t9")
    rank.files.write(Round("t9", TOGETHER, ("t9", "b"), 1.0))
    rank.other()
    rank.daemon.step()
    assert boot_in_vain(rank, 1, first=10) == [1]


@pytest.mark.parametrize("state", [("inactive", "dead"), ("failed", "failed")])
def test_boots_are_forgiven_anew_once_somebody_has_stopped_the_rank(rank: Rank, state: tuple[str, str]) -> None:
    assert boot_in_vain(rank, 4) == [1, 1, 1, 0]
    rank.is_in(*state, "t3")
    # Between the two halves of a restart a unit is in that state, too.
    rank.daemon.step()
    assert rank.files.forgiven().times == 3
    rank.daemon.step()
    assert boot_in_vain(rank, 1, first=10) == [1]


def test_a_box_that_stalled_says_so_and_blames_nobody(rank: Rank, capsys: pytest.CaptureFixture[str]) -> None:
    rank.link.stalled_s = 25.0
    rank.other(silent_s=30)
    rank.link.known = dataclasses.replace(rank.link.known, stalled_s=25.0)
    rank.daemon.step()
    rank.daemon.step()
    assert not rank.restarts()
    assert capsys.readouterr().out == "this box stalled for 25 s; that is no silence of the other ranks\n"


def test_an_engine_that_does_not_complete_is_ended_by_its_own_rank(rank: Rank) -> None:
    rank.daemon._heartbeat.failed = "it does not complete any more (hung: no completion in 20.0 s)"
    rank.daemon.step()
    asked = rank.files.asked("a")
    assert asked is not None
    assert asked.own
    assert rank.restarts()
    # The next start is not blamed for it.
    rank.is_in("activating", "start-post", "c")
    rank.files.write(Round("c", TOGETHER, ("c", "b"), 1.0))
    rank.daemon.step()
    assert rank.daemon._heartbeat.failed == ""


def test_the_watch_hears_of_each_beat_and_of_which_start_it_was(rank: Rank) -> None:
    assert rank.files.beat("a") is None
    rank.daemon._heartbeat._lives()
    beat = rank.files.beat("a")
    assert beat is not None
    assert beat.at <= time.monotonic()
    assert rank.files.beat("b") is None


def test_a_word_that_cannot_be_written_does_not_end_the_heartbeat(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_files: object, _word: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(_group_files.GroupFiles, "write", full)
    rank.daemon._heartbeat._lives()
    assert rank.files.beat("a") is None


def fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no room in /run."""

    def write(*_arguments: object, **_options: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", write)


def test_a_rank_alone_is_ended_also_where_no_word_can_be_left(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(monkeypatch)
    rank.other(stage="stopped", round="")
    rank.daemon.step()
    rank.daemon.step()
    assert len(rank.restarts()) == 2
    said = capsys.readouterr().out.splitlines()
    assert said.count("ending the engine: rank 1 (spark-2) is stopped") == 1
    assert len([line for line in said if line.startswith("no word can be left for the unit")]) == 1


def test_no_round_begins_that_cannot_be_written(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rank.is_in("activating", "start-pre", "c")
    rank.files.write(gate("c"))
    rank.other(stage="open", round="", sees={0: "c"})
    fill(monkeypatch)
    rank.daemon.step()
    assert rank.files.round("c") is None
    assert "begins" not in capsys.readouterr().out


def test_the_end_of_a_round_is_told_once_also_where_that_cannot_be_remembered(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.files.write(ended())
    rank.other(stage="pausing", round="", ended=ended(at=9.0, own=False))
    fill(monkeypatch)
    rank.daemon.step()
    rank.daemon.step()
    assert len(rank.journal) == 1


def test_a_rank_whose_port_is_taken_watches_the_others_and_answers_when_it_is_free(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []
    tries: list[int] = []

    class Server:
        def __init__(self, *_arguments: object) -> None:
            tries.append(1)
            if len(tries) <= 2:
                raise OSError(errno.EADDRINUSE, "Address already in use")

        def run(self) -> None:
            begun.append(len(tries))

    for kind in (Link, _group_daemon._heartbeat.Heartbeat):
        monkeypatch.setattr(kind, "run", lambda *_arguments: None, raising=False)
    monkeypatch.setattr(_group_daemon.time, "sleep", lambda _seconds: None)
    monkeypatch.setattr(_group_daemon, "StateServer", Server)
    rank.other(stage="stopped", round="")
    needed = [True] * 4
    rank.daemon.run(lambda: bool(needed and needed.pop()))
    assert len(rank.restarts()) == 4
    assert begun == [3]
    assert capsys.readouterr().out.count("192.0.2.1:29511, which is tried again: Address already in use") == 1


@pytest.mark.parametrize(("active", "sub"), [("deactivating", "stop"), ("inactive", "dead"), ("failed", "failed")])
def test_a_rank_without_an_engine_is_not_restarted(rank: Rank, active: str, sub: str) -> None:
    rank.is_in(active, sub)
    rank.other(stage="stopped", round="")
    rank.daemon.step()
    assert not rank.restarts()


def ended(**changes: t.Any) -> _group_rules.Ended:
    return _group_rules.Ended(**{"round": TOGETHER, "cause": "it was killed", "own": True, "at": 5.0, **changes})


def test_the_end_of_a_round_is_told_once_when_all_ranks_have_spoken(rank: Rank) -> None:
    rank.files.write(ended(cause="rank 1 (spark-2) is stopped", own=False))
    rank.daemon.step()
    assert not rank.journal
    rank.other(ended=ended())
    rank.daemon.step()
    rank.daemon.step()
    assert rank.journal == ["serving group pair has stopped on all boxes: rank 1 (spark-2) left first: it was killed"]


def test_the_end_of_a_round_is_told_without_a_rank_that_does_not_speak(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.files.write(ended(cause="rank 1 (spark-2) has not answered", own=False))
    rank.other(silent_s=30)
    rank.daemon.step()
    later = _group_daemon.time.monotonic() + 60
    monkeypatch.setattr(_group_daemon.time, "monotonic", lambda: later)
    rank.daemon.step()
    assert rank.journal == [
        (
            "serving group pair has stopped here; nothing was heard of rank 1 (spark-2): "
            "no rank left of itself: rank 1 (spark-2) has not answered"
        )
    ]


@pytest.mark.parametrize("other", [{"stage": "ending", "round": ""}, {"stage": "serving"}])
def test_the_end_of_a_round_is_told_after_a_rank_that_still_leaves_has_left(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, other: dict[str, t.Any]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(_group_daemon.time, "monotonic", lambda: now[0])
    rank.is_in("activating", "auto-restart")
    rank.files.write(ended(cause="its engine ended by itself with exit status 1", at=10.0))
    rank.other(**other)
    for moment in (1000.0, 1016.0, 1060.0):
        now[0] = moment
        rank.daemon.step()
    assert not rank.journal
    rank.other(stage="pausing", round="", ended=ended(at=9.0))
    rank.daemon.step()
    assert rank.journal == ["serving group pair has stopped on all boxes: rank 1 (spark-2) left first: it was killed"]


def test_the_end_of_a_round_is_told_without_a_rank_that_never_leaves(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(_group_daemon.time, "monotonic", lambda: now[0])
    rank.is_in("activating", "auto-restart")
    rank.files.write(ended())
    rank.other(stage="ending", round="")
    for moment in (1000.0, 1100.0, 1179.0):
        now[0] = moment
        rank.daemon.step()
    assert not rank.journal
    now[0] = 1180.0
    rank.daemon.step()
    assert rank.journal == [
        (
            "serving group pair has stopped here; not known is how rank 1 (spark-2) left: "
            "rank 0 (spark-1) left first: it was killed"
        )
    ]


def test_the_view_for_a_follower_names_the_round_that_its_head_serves(rank: Rank) -> None:
    head = _group_rules.Member(0, "spark-1", "192.0.2.1")
    rank.link.known = dataclasses.replace(rank.link.known, member=head, state=dataclasses.replace(OTHER, rank=0))
    rank.daemon.step()
    view = rank.files.view()
    assert view is not None
    assert (view.head_round, view.head_serves) == (TOGETHER, True)
    rank.link.known = dataclasses.replace(rank.link.known, silent_s=60)
    rank.daemon.step()
    view = rank.files.view()
    assert view is not None
    assert not view.head_serves


def test_a_rank_is_being_proven_while_its_box_switches_and_has_not_said_that_it_is(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_generation.Store, "under_way", True)
    rank.daemon.step()
    assert (rank.daemon.published() or {})["proving"] is True
    rank.files.write(_group_files.Proven("a"))
    rank.daemon.step()
    assert (rank.daemon.published() or {})["proving"] is False
    # The next start of it has to be proven again.
    rank.is_in("active", "running", "a2")
    rank.daemon.step()
    assert (rank.daemon.published() or {})["proving"] is True


@pytest.mark.parametrize(
    ("other", "named"),
    [({"proving": True}, "rank 1 (spark-2)"), ({"proving": False}, ""), ({"proving": True, "round": "x"}, "")],
)
def test_the_view_names_who_is_being_proven_in_the_same_round(rank: Rank, other: dict[str, t.Any], named: str) -> None:
    # Also while it does not answer: nobody knows then.
    rank.other(silent_s=10.0, **other)
    rank.daemon.step()
    view = rank.files.view()
    assert view is not None
    assert view.proving == named


def test_an_instance_of_one_box_needs_no_daemon() -> None:
    assert _group_daemon.run("writer", {**SETTINGS, "group": None}, str) == _group_daemon.NOT_NEEDED


def test_the_daemon_starts_anew_with_new_settings(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, t.Any]] = [SETTINGS, {**SETTINGS, "url": "new"}]
    steps: list[int] = []
    monkeypatch.setattr(_instance, "settings", lambda _name: answers.pop(0))

    def run(_self: object, still_needed: c.Callable[[], bool]) -> None:
        while still_needed():
            steps.append(1)

    monkeypatch.setattr(_group_daemon.Daemon, "run", run)
    assert _group_daemon.run("writer", SETTINGS, str) == 0
    assert steps == [1]

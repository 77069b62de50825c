# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The box's program, command by command, with everything around it replaced by what it would have met."""

from __future__ import annotations

import collections.abc as c
import json
import pathlib
import time
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _box,
    _command,
    _deployment,
    _generation,
    _group_daemon,
    _group_files,
    _instance,
    _journal,
    _memory,
    _status,
    _switch,
    _watch,
)

SETTINGS: dict[str, t.Any] = {
    "name": "writer",
    "url": "http://127.0.0.1:1",
    "models": ["writer"],
    "kind": "chat",
    "secrets_file": "",
    "memory_floor_bytes": 1,
    "gate_timeout_s": 0,
    "boot_timeout_s": 1,
    "start_limit_burst": 3,
}


class Box:
    """A box whose commands are answered by a table."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.answers: dict[str, tuple[int, str, str]] = {}
        self.ran: list[str] = []
        self.journal: list[tuple[str, str]] = []

    def run(self, argv: list[str], **_options: object) -> tuple[int, str, str]:
        """Answer a command by the first entry of the table that it begins with."""
        command = " ".join(argv)
        self.ran.append(command)
        return next((answer for start, answer in self.answers.items() if command.startswith(start)), (0, "", ""))

    def status(self) -> _status.Status | None:
        """Return what the program left for the modules."""
        return _status.StatusFile("writer", self.folder).read()


@pytest.fixture
def box(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    made = Box(tmp_path)
    made.answers["docker container inspect"] = (1, "", "Error: No such container: vllm-writer")
    monkeypatch.setattr(_command, "run", made.run)
    monkeypatch.setattr(_instance, "settings", lambda name: SETTINGS if name == "writer" else {})
    monkeypatch.setattr(_status.StatusFile.__init__, "__defaults__", (tmp_path,))
    monkeypatch.setattr(_memory, "drop_page_cache", lambda _tell: None)
    monkeypatch.setattr(_memory, "processes", lambda: ())
    monkeypatch.setattr(_journal, "error", lambda unit, message: made.journal.append((unit, message)))
    return made


def memory(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    monkeypatch.setattr(_memory, "meminfo", lambda: _memory.MemInfo(100, available, 0))


def test_the_gate_opens_and_says_so(
    box: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory(monkeypatch, 50)
    assert _box.main(["gate", "writer"]) == 0
    assert "the gate is open" in capsys.readouterr().out
    status = box.status()
    assert status is not None
    assert not status.failed


def test_the_gate_refuses_with_a_reason_that_the_modules_can_read(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 0)
    assert _box.main(["gate", "writer"]) == 1
    status = box.status()
    assert status is not None
    assert status.failed
    assert "refusing to start" in status.message


def test_a_gate_does_not_hang_with_docker_engine_and_says_what_it_waits_for(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(monkeypatch, 50)
    limits: dict[str, float | None] = {}
    answers = _command.run

    def run(argv: list[str], *, timeout_s: float | None = None, **_options: object) -> tuple[int, str, str]:
        limits[" ".join(argv[:2])] = timeout_s
        return answers(argv)

    monkeypatch.setattr(_command, "run", run)
    box.answers["docker ps"] = (_command.TIMED_OUT, "", "docker did not end within 20 s")
    assert _box.main(["gate", "writer"]) == 1
    status = box.status()
    assert status is not None
    assert "Docker Engine does not answer (`docker ps --no-trunc --quiet`: docker did not end within 20 s)" in (
        status.message
    )
    assert limits == {"docker container": 20.0, "docker ps": 20.0}


def test_a_container_that_is_left_is_stopped_in_order_and_removed(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 50)
    state = {"Running": True, "Pid": 1, "ExitCode": 0}
    left = {"Id": "c", "Name": "/vllm-writer", "State": state, "Config": {"Image": "x", "Labels": None}}
    box.answers["docker container inspect"] = (0, json.dumps([left]), "")
    assert _box.main(["gate", "writer"]) == 0
    assert box.ran.index("docker stop --time 30 vllm-writer") < box.ran.index("docker rm --force vllm-writer")
    # One that cannot be removed would cost the next start: the gate waits for that, too.
    box.answers["docker rm"] = (_command.TIMED_OUT, "", "docker did not end within 60 s")
    assert _box.main(["gate", "writer"]) == 1
    status = box.status()
    assert status is not None
    assert "Docker Engine does not answer (`docker rm --force vllm-writer`" in status.message


def test_readiness_of_a_dead_process_is_refused_at_once(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINPID", "4194305")  # above the highest process id that Linux gives
    assert _box.main(["ready", "writer"]) == 1
    status = box.status()
    assert status is not None
    assert status.failed
    assert "dead" in status.message


@pytest.mark.parametrize("key", ["correct horse hidden", "schlüssel-hidden"])
def test_a_key_that_no_request_can_carry_is_the_reason_and_no_traceback(
    box: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, key: str
) -> None:
    secrets = tmp_path / "writer.env"
    secrets.write_text(f"VLLM_API_KEY={key}\n", encoding="utf-8")
    monkeypatch.setattr(_instance, "settings", lambda _name: {**SETTINGS, "secrets_file": str(secrets)})
    assert _box.main(["ready", "writer"]) == 1
    status = box.status()
    assert status is not None
    assert status.failed
    assert status.message.startswith("vllm-writer cannot be asked: api_key holds spaces, control or non-ASCII")
    assert "Correct vllm_server_api_key" in status.message
    assert "hidden" not in status.message


def shown(active: str) -> tuple[int, str, str]:
    return 0, f"LoadState=loaded\nActiveState={active}\nResult=exit-code\n", ""


@pytest.mark.parametrize(
    "line",
    [
        'docker: Error response from daemon: Conflict. The container name "/vllm-writer" is already in use.',
        "vllm serve: error: unrecognized arguments: --no-such-flag",
        "exec /usr/local/bin/vllm: exec format error",
    ],
)
def test_what_was_said_before_any_engine_ran_is_the_reason(
    box: Box, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("MAINPID", "4194305")
    box.answers["journalctl"] = (0, f"the gate is open\n{line}\n", "")
    assert _box.main(["ready", "writer"]) == 1
    status = box.status()
    assert status is not None
    assert f"said: {line}" in status.message


def test_the_last_words_name_the_reason_once_systemd_has_given_up(box: Box) -> None:
    _status.StatusFile("writer").write(_status.Status("ready", "dead: the process is gone", True, 0.0))
    box.answers["systemctl show"] = shown("failed")
    assert _box.main(["explain", "writer"]) == 0
    assert len(box.journal) == 1
    unit, line = box.journal[0]
    assert unit == "vllm-writer.service"
    assert "stays down after 3 starts: dead: the process is gone" in line
    assert "systemctl reset-failed vllm-writer.service" in line


def test_there_are_no_last_words_while_systemd_still_tries(box: Box) -> None:
    box.answers["systemctl show"] = shown("activating")
    assert _box.main(["explain", "writer"]) == 0
    assert box.journal == []


def test_there_are_no_last_words_where_somebody_has_stopped_the_start(box: Box) -> None:
    """systemd calls such a unit failed, and calls for the last words of it."""
    failed = "LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=signal\nInvocationID=5b55\n"
    box.answers["systemctl show"] = (0, failed, "")
    asked = "journalctl UNIT=vllm-writer.service INVOCATION_ID=5b55 JOB_TYPE=stop _PID=1"
    box.answers[asked] = (0, "Stopped vllm-writer.service - vLLM instance writer.\n", "")
    assert _box.main(["explain", "writer"]) == 0
    assert box.journal == []
    # Without a journal nobody knows, and the words are worth more than the silence.
    box.answers[asked] = (_command.TIMED_OUT, "", "journalctl did not end within 20 s")
    assert _box.main(["explain", "writer"]) == 0
    assert len(box.journal) == 1


def test_the_last_words_wait_for_the_end_of_the_pause(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [
        "ActiveState=failed\nSubState=failed-before-auto-restart\nResult=exit-code\n",
        "ActiveState=activating\nSubState=auto-restart\n",
        # Here it turns out whether it was the last try. What triggers these words then is lost while they still run.
        "ActiveState=activating\nSubState=auto-restart-queued\n",
        "ActiveState=failed\nSubState=failed\nResult=exit-code\n",
    ]
    slept: list[float] = []
    monkeypatch.setattr(_box.time, "sleep", slept.append)

    def run(argv: list[str], **_options: object) -> tuple[int, str, str]:
        if argv[0] != "systemctl":
            return 0, "", ""
        return 0, f"LoadState=loaded\n{states.pop(0) if len(states) > 1 else states[0]}", ""

    monkeypatch.setattr(_command, "run", run)
    assert _box.main(["explain", "writer"]) == 0
    assert len(box.journal) == 1
    assert len(slept) == 3


@pytest.mark.parametrize("command", ["gate", "ready", "explain", "watch"])
def test_an_instance_that_the_box_does_not_know(box: Box, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _box.main([command, "nobody"]) == 2
    assert "etc/gb10-fleet/instances/nobody.json is missing" in capsys.readouterr().out
    assert box.ran == []


def test_the_daemon_of_an_instance_that_is_gone_is_not_started_again(
    box: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    place = tmp_path / "nobody.json"
    monkeypatch.setattr(_instance, "settings_file", lambda _name: place)
    assert _box.main(["peer", "nobody"]) == _group_daemon.NOT_NEEDED
    # A file that cannot be read is another matter: the next deployment cures it.
    place.write_text("{")
    assert _box.main(["peer", "nobody"]) == 2
    assert box.ran == []


def test_the_watch_gets_the_settings_and_the_key(
    box: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "writer.env").write_text("VLLM_API_KEY=sk-1\n")
    settings = {**SETTINGS, "secrets_file": str(tmp_path / "writer.env")}
    monkeypatch.setattr(_instance, "settings", lambda name: settings)
    seen: list[object] = []

    def watch(*given: object, **named: object) -> int:
        seen.append((given, named))
        return 0

    monkeypatch.setattr(_watch, "watch", watch)
    assert _box.main(["watch", "writer"]) == 0
    assert seen == [(("writer", settings), {"api_key": "sk-1"})]


def test_a_gate_without_docker_is_not_a_traceback(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 50)
    box.answers["docker container inspect"] = (1, "", "Cannot connect to the Docker daemon")
    assert _box.main(["gate", "writer"]) == 1
    status = box.status()
    assert status is not None
    assert "Cannot connect to the Docker daemon" in status.message


@pytest.mark.parametrize(("outcome", "failed"), [("served", False), ("restored", True), ("down", True)])
def test_a_switch_says_how_it_ended_and_a_failed_one_says_it_as_an_error(
    box: Box, monkeypatch: pytest.MonkeyPatch, outcome: str, failed: bool
) -> None:
    last = _generation.Last(outcome=outcome, message=f"it {outcome}")
    monkeypatch.setattr(_switch.Switch, "run", lambda _switch: last)
    monkeypatch.setattr(_status, "FOLDER", box.folder)
    assert _box.main(["switch"]) == 0
    status = _status.StatusFile(_deployment.JOB).read()
    assert status is not None
    assert (status.stage, status.message, status.failed) == (_status.DONE, f"it {outcome}", failed)
    assert box.journal == ([(_deployment.UNIT, f"it {outcome}")] if failed else [])


def test_a_switch_that_cannot_even_go_back_is_left_for_systemd_to_run_again(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_switch: _switch.Switch) -> None:
        raise _instance.UnitError("systemctl does not answer")

    monkeypatch.setattr(_switch.Switch, "run", broken)
    monkeypatch.setattr(_status, "FOLDER", box.folder)
    assert _box.main(["switch"]) == 1
    status = _status.StatusFile(_deployment.JOB).read()
    assert status is not None
    assert (status.failed, status.message) == (True, "systemctl does not answer")


def test_without_a_marker_there_is_nothing_to_switch(
    box: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_switch.Switch, "run", lambda _switch: None)
    monkeypatch.setattr(_status, "FOLDER", box.folder)
    assert _box.main(["switch"]) == 0
    assert "no switch is under way" in capsys.readouterr().out


def test_pulls_are_reported_at_most_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    times: c.Iterator[float] = iter([0.0, 0.0, 0.5, 1.9, 2.0, 2.0, 9.0, 9.0])
    monkeypatch.setattr(_box.time, "monotonic", lambda: next(times))
    told: list[str] = []
    seldom = _box.Seldom(told.append)
    for line in ("first", "too soon", "still too soon", "now", "much later"):
        seldom.say(line)
    assert told == ["first", "now", "much later"]


@pytest.fixture
def rank(box: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> _group_files.GroupFiles:
    """Return the files of a rank whose daemon has just said that start "a" goes into round "r"."""
    monkeypatch.setattr(_group_files, "FOLDER", tmp_path / "groups")
    monkeypatch.setattr(_instance, "settings", lambda _name: {**SETTINGS, "group": {"rank": 1}})
    monkeypatch.setenv("INVOCATION_ID", "a")
    files = _group_files.GroupFiles("writer")
    files.write(_group_files.Round("a", "r", ("b", "a"), 1.0))
    files.write(_group_files.View("a", head_round="r", head_serves=True, at=time.monotonic()))
    return files


def test_the_gate_of_a_rank_opens_when_all_ranks_start(
    box: Box, rank: _group_files.GroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(monkeypatch, 50)
    assert _box.main(["gate", "writer"]) == 0
    status = box.status()
    assert status is not None
    assert status.message == "all ranks start together"
    gate = rank.gate("a")
    assert gate is not None
    assert gate.open


def test_the_gate_of_a_rank_refuses_when_another_one_has_given_up(
    box: Box, rank: _group_files.GroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(monkeypatch, 50)
    rank.write(_group_files.View("a", refused="rank 0 (spark-1) stays down", at=time.monotonic()))
    assert _box.main(["gate", "writer"]) == 1
    status = box.status()
    assert status is not None
    assert (status.failed, status.message) == (True, "rank 0 (spark-1) stays down")


def test_a_headless_rank_is_ready_when_its_head_serves(box: Box, rank: _group_files.GroupFiles) -> None:
    assert _box.main(["ready", "writer"]) == 0
    status = box.status()
    assert status is not None
    assert "the head has answered a completion" in status.message


def test_how_the_engine_of_a_rank_ended_is_kept(
    box: Box, rank: _group_files.GroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SERVICE_RESULT", "exit-code"), ("EXIT_CODE", "exited"), ("EXIT_STATUS", "137")):
        monkeypatch.setenv(name, value)
    assert _box.main(["ended", "writer"]) == 0
    ended = rank.ended()
    assert ended is not None
    assert (ended.round, ended.cause) == ("r", "its container was killed (exit status 137)")


def test_a_rank_that_stays_down_names_all_boxes_that_have_to_be_started(
    box: Box, rank: _group_files.GroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = {"rank": 1, "members": [{"box": "spark-1"}, {"box": "spark-2"}]}
    monkeypatch.setattr(_instance, "settings", lambda _name: {**SETTINGS, "group": group})
    box.answers["systemctl show"] = (0, "ActiveState=failed\nResult=start-limit-hit\nInvocationID=a\n", "")
    assert _box.main(["explain", "writer"]) == 0
    ((_unit, line),) = box.journal
    assert line.endswith(
        "; when it is cured, on each of spark-1, spark-2: `systemctl reset-failed vllm-writer.service`, and then, on "
        "each: `systemctl start --no-block vllm-writer.service`."
    )


def test_a_rank_that_was_stopped_by_a_person_says_nothing_of_staying_down(
    box: Box, rank: _group_files.GroupFiles
) -> None:
    box.answers["systemctl show"] = (0, "ActiveState=failed\nResult=signal\nInvocationID=a\n", "")
    rank.write(_group_files.Stopped("a"))
    assert _box.main(["explain", "writer"]) == 0
    assert not box.journal

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import subprocess
import sys
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _process_state as process

if t.TYPE_CHECKING:
    import pathlib


def shown(**properties: t.Any) -> str:
    unit = {"LoadState": "loaded", "MainPID": 0, "Result": "success", "ExecMainStatus": 0, "NRestarts": 0} | properties
    return "".join(f"{name}={value}\n" for name, value in unit.items())


@pytest.mark.parametrize(
    ("text", "life", "words"),
    [
        (shown(ActiveState="active", SubState="running", MainPID=4711), "alive", "main process 4711"),
        (shown(ActiveState="activating", SubState="start-post", MainPID=4711), "alive", "start-post"),
        (shown(ActiveState="reloading", SubState="reload", MainPID=4711), "alive", "reloading"),
        (shown(ActiveState="activating", SubState="start-pre"), "alive", "before its main process"),
        (shown(ActiveState="activating", SubState="start"), "alive", "before its main process"),
        (shown(ActiveState="activating", SubState="start-post"), "gone", "main process ended"),
        (
            shown(ActiveState="activating", SubState="auto-restart", NRestarts=3, Result="exit-code", ExecMainStatus=1),
            "restarting",
            "3 so far; result exit-code, last exit status 1",
        ),
        (shown(ActiveState="activating", SubState="auto-restart-queued"), "restarting", "start the unit again"),
        (shown(ActiveState="failed", SubState="failed-before-auto-restart"), "restarting", "start the unit again"),
        (shown(ActiveState="inactive", SubState="dead-before-auto-restart"), "restarting", "start the unit again"),
        (
            shown(ActiveState="failed", SubState="failed", Result="start-limit-hit", ExecMainStatus=1),
            "gone",
            "result start-limit-hit",
        ),
        (shown(ActiveState="inactive", SubState="dead"), "gone", "inactive"),
        (shown(ActiveState="deactivating", SubState="stop-sigterm", MainPID=4711), "gone", "stop-sigterm"),
        (shown(LoadState="not-found", ActiveState="inactive", SubState="dead"), "gone", "no unit of that name"),
        (shown(ActiveState="active", SubState="exited"), "unknown", "no main process"),
        ("", "unknown", ""),
        ("Failed to connect to bus\n", "unknown", ""),
    ],
)
def test_a_unit_is_alive_restarting_or_gone(text: str, life: str, words: str) -> None:
    state = process.ProcessState.from_unit(text)
    assert (state.life, words in state.detail) == (life, True), state.detail


@pytest.mark.parametrize(
    ("inspected", "life", "words"),
    [
        ({"Status": "running"}, "alive", "running"),
        ({"Status": "created"}, "alive", "created"),
        ({"Status": "paused"}, "alive", "paused"),
        ({"Status": "restarting", "ExitCode": 1}, "restarting", "exit status 1"),
        ({"Status": "exited", "ExitCode": 0, "OOMKilled": False}, "gone", "(exit status 0)"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "gone", "137, killed for memory"),
        ({"Status": "dead", "ExitCode": 1}, "gone", "dead"),
        ({}, "unknown", "did not say"),
        (["running"], "unknown", "did not say"),
        (None, "unknown", "did not say"),
    ],
)
def test_a_container_is_alive_restarting_or_gone(inspected: t.Any, life: str, words: str) -> None:
    state = process.ProcessState.from_container(json.dumps(inspected))
    assert (state.life, words in state.detail) == (life, True), state.detail


@pytest.mark.parametrize(
    ("stat", "life"),
    [
        ("7 (vllm) S 1 7 7", "alive"),
        ("7 (a) Z (b) R 1 7", "alive"),
        ("7 (vllm) T 1 7", "alive"),
        ("7 (vllm) Z 1 7", "gone"),
        ("7 (vllm) X 1 7", "gone"),
        ("", "unknown"),
    ],
)
def test_a_process_that_waits_to_be_reaped_is_gone(stat: str, life: str) -> None:
    assert process.ProcessState.from_stat(stat).life == life


def test_a_stopped_process_says_so() -> None:
    assert "stopped by a signal" in process.ProcessState.from_stat("7 (vllm) T 1").detail


def test_a_real_process_is_alive_and_then_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    check = process.pid_check(child.pid)
    before = check().life
    child.communicate(b"\n")
    assert (before, check().life) == ("alive", "gone")


def test_a_process_that_cannot_be_read_is_unknown(tmp_path: pathlib.Path) -> None:
    (tmp_path / "7" / "stat").mkdir(parents=True)
    assert process.pid_check(7, tmp_path)().life == "unknown"


@pytest.mark.parametrize("pid", [0, -1])
def test_no_process_number_is_no_death(pid: int) -> None:
    assert process.pid_check(pid)().life == "unknown"


class Machine:
    """Answers commands by their second word, and remembers them."""

    def __init__(self, **answers: tuple[int, str] | None) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], timeout: float) -> tuple[int, str] | None:
        self.asked.append(argv)
        assert 0 < timeout <= 10
        return self.answers[argv[2] if argv[0] == "docker" else argv[0]]


@pytest.mark.parametrize(
    ("answer", "life"),
    [
        ((0, shown(ActiveState="active", SubState="running", MainPID=4711)), "alive"),
        ((1, "System has not been booted with systemd"), "unknown"),
        (None, "unknown"),
    ],
)
def test_systemd_is_asked_for_a_unit(answer: tuple[int, str] | None, life: str) -> None:
    machine = Machine(systemctl=answer)
    assert process.unit_check("vllm-coordinator.service", machine)().life == life
    assert machine.asked[0][-2:] == ["--", "vllm-coordinator.service"]


RUNNING = (0, '{"Status": "running"}')


@pytest.mark.parametrize(
    ("listed", "inspected", "life"),
    [
        ((0, "vllm-a\n"), RUNNING, "alive"),
        ((0, "vllm-a-old\nvllm-a\n"), RUNNING, "alive"),
        ((0, "other,vllm-a\n"), RUNNING, "alive"),
        ((0, "vllm-a-old\n"), RUNNING, "gone"),
        ((0, ""), RUNNING, "gone"),
        ((1, ""), RUNNING, "unknown"),
        (None, RUNNING, "unknown"),
        ((0, "vllm-a\n"), (1, ""), "unknown"),
        ((0, "vllm-a\n"), None, "unknown"),
    ],
)
def test_docker_is_asked_for_a_container(
    listed: tuple[int, str] | None, inspected: tuple[int, str] | None, life: str
) -> None:
    assert process.container_check("vllm-a", Machine(ls=listed, inspect=inspected))().life == life


@pytest.mark.parametrize(
    ("argv", "timeout", "answer"),
    [
        (["sh", "-c", "echo out; echo err >&2; exit 3"], 5.0, (3, "out\n")),
        (["sh", "-c", "printf '\\377'"], 5.0, (0, "\ufffd")),
        (["sleep", "30"], 0.1, None),
        (["/no/such/program"], 5.0, None),
    ],
)
def test_a_program_that_is_missing_or_hangs_gives_no_answer(
    argv: list[str], timeout: float, answer: tuple[int, str] | None
) -> None:
    assert process.run_command(argv, timeout) == answer

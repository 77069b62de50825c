# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib
import time

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _converge, _group_files, _instance, _status

SPEC, OTHER = "a" * 64, "b" * 64
UNIT = "vllm-writer.service"


class FakeBox:
    """A box whose systemd and Docker follow a script: every look at the unit takes the next state of it."""

    def __init__(self, folder: pathlib.Path, *states: str, spec: str = "", unit_text: str | None = None) -> None:
        self.states = list(states)
        self.spec = spec
        self.calls: list[str] = []
        self.refused: set[str] = set()
        self.root = folder / "root"
        units = self.root / _instance.UNIT_FOLDER
        units.mkdir(parents=True)
        (self.root / _instance.INSTANCE_FOLDER).mkdir(parents=True)
        (units / UNIT).write_text(f"{_instance.MARK}.\n[Unit]\n" if unit_text is None else unit_text)
        self.status = _status.StatusFile("writer", folder / "run")
        self.now = 0.0
        self.box = self.acting()

    def acting(self, *, check_mode: bool = False) -> _converge.Box:
        """Return the box to act on, with a clock that only sleeping moves."""
        return _converge.Box(
            run=self.run,
            check_mode=check_mode,
            sysroot=self.root,
            status_folder=self.root.parent / "run",
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """Answer a command."""
        if argv[:2] == ["systemctl", "show"]:
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            return 0, "LoadState=loaded\nInvocationID=" + str(len(self.states)) + "\n" + state.replace(" ", "\n"), ""
        if argv[:3] == ["docker", "container", "inspect"]:
            if not self.spec:
                return 1, "", "Error response from daemon: No such container: vllm-writer"
            labels = {_instance.SPEC_LABEL: self.spec}
            running = {"Running": True, "Pid": 1, "ExitCode": 0}
            found = {
                "Id": "c" * 64,
                "Name": "/vllm-writer",
                "State": running,
                "Config": {"Image": "x@y", "Labels": labels},
            }
            return 0, json.dumps([found]), ""
        self.calls.append(" ".join(argv[1:]))
        return (1, "", "Failed: Read-only file system") if argv[1] in self.refused else (0, "", "")

    def started(self, *, begin: bool = True, step_s: float = 0.0, keep_trying: bool = False) -> _converge.Outcome:
        """Ask for SPEC."""
        return _converge.started(self.box, "writer", SPEC, begin=begin, step_s=step_s, keep_trying=keep_trying)


ACTIVE = "ActiveState=active SubState=running UnitFileState=enabled"
STARTING = "ActiveState=activating SubState=start-post UnitFileState=enabled"
FAILED = "ActiveState=failed SubState=failed Result=exit-code UnitFileState=enabled"
RETRYING = "ActiveState=activating SubState=auto-restart Result=exit-code NRestarts=1 UnitFileState=enabled"
STOPPED = "ActiveState=inactive SubState=dead UnitFileState=enabled"


def test_an_engine_that_serves_what_it_should_is_left_alone(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, ACTIVE, spec=SPEC)
    outcome = box.started()
    assert (outcome.changed, outcome.finished, box.calls) == (False, True, [])


def test_an_engine_that_serves_something_else_is_restarted(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, ACTIVE, STARTING, STARTING, spec=OTHER)
    outcome = box.started()
    assert (outcome.changed, outcome.finished) == (True, False)
    assert f"restart --no-block {UNIT}" in box.calls


def test_a_changed_unit_file_is_read_before_the_start(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, f"{STOPPED} NeedDaemonReload=yes", STARTING)
    box.started()
    assert box.calls.index("daemon-reload") < box.calls.index(f"restart --no-block {UNIT}")


def test_the_start_counter_is_cleared_so_that_an_edit_is_not_held_against_the_unit(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, FAILED, STARTING)
    box.started()
    assert box.calls.index(f"reset-failed {UNIT}") < box.calls.index(f"restart --no-block {UNIT}")


def test_a_disabled_unit_is_enabled(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, "ActiveState=inactive SubState=dead UnitFileState=disabled", STARTING)
    box.started()
    assert f"enable {UNIT}" in box.calls


def test_an_engine_that_serves_and_is_disabled_is_enabled_and_not_started_anew(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, ACTIVE.replace("enabled", "disabled"), spec=SPEC)
    outcome = box.started()
    assert (outcome.changed, outcome.booted, box.calls) == (True, False, [f"enable {UNIT}"])
    assert (outcome.before, outcome.after) == (f"{outcome.after}, disabled", f"{UNIT}: active, spec {SPEC[:12]}")


def test_an_engine_that_comes_up_between_two_steps_was_started_all_the_same(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, STOPPED, STARTING, STARTING, ACTIVE, spec=SPEC)
    first = box.started()
    assert (first.finished, first.booted) == (False, True)
    assert box.started(begin=False).finished


def test_a_start_of_the_same_engine_that_is_under_way_is_joined(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, STARTING, spec=SPEC)
    outcome = box.started()
    assert not outcome.finished
    assert box.calls == []


def test_progress_is_what_the_box_said_last(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, STARTING, spec=SPEC)
    box.status.write(_status.Status("ready", "12 s of 300 s: starting", False, 0.0))
    assert box.started(begin=False).as_dict()["progress"] == "12 s of 300 s: starting"


def test_a_first_start_that_fails_is_stopped_and_explained(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, RETRYING)
    box.status.write(_status.Status("ready", "dead: the process is gone", True, 0.0))
    outcome = box.started(begin=False)
    assert outcome.failed
    assert "dead: the process is gone" in outcome.message
    assert f"journalctl -u {UNIT}" in outcome.message
    assert box.calls == [f"stop {UNIT}"]


@pytest.mark.parametrize(
    "state",
    [
        "ActiveState=failed SubState=failed-before-auto-restart",
        "ActiveState=inactive SubState=dead-before-auto-restart",
        "ActiveState=activating SubState=auto-restart-queued",
    ],
)
def test_a_pause_is_no_end_however_systemd_calls_it(tmp_path: pathlib.Path, state: str) -> None:
    box = FakeBox(tmp_path, STOPPED, STARTING, f"{state} Result=exit-code NRestarts=1", STARTING, ACTIVE, spec=SPEC)
    outcome = box.started(step_s=60.0, keep_trying=True)
    assert (outcome.failed, outcome.finished) == (False, True)


WAITING = "ActiveState=activating SubState=start-pre UnitFileState=enabled"


@pytest.mark.parametrize("token", ["1", "an earlier start"])
def test_a_rank_that_waits_in_vain_says_for_which_one_and_what_that_one_does(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    box = FakeBox(tmp_path, WAITING)
    settings = {"group": {"rank": 0}, "gate_timeout_s": 60}
    (box.root / _instance.INSTANCE_FOLDER / "writer.json").write_text(json.dumps(settings))
    monkeypatch.setattr(_group_files, "FOLDER", tmp_path / "groups")
    files, now = _group_files.GroupFiles("writer"), time.monotonic()
    files.write(_group_files.Gate("1", True, now - 300, now))
    files.write(_group_files.View(token, waiting="rank 1 (spark-2) waits for its memory: 9 GiB too little", at=now))
    said = "waiting for the other ranks (300 s): rank 1 (spark-2) waits for its memory"
    box.status.write(_status.Status("gate", said, failed=False, at=0.0))
    outcome = box.started(begin=False)
    assert outcome.failed
    assert "the other ranks did not come: " in outcome.message
    assert "rank 1 (spark-2) waits for its memory" in outcome.message


def test_what_has_served_before_is_tried_again_and_never_stopped(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, STOPPED, STARTING, RETRYING, RETRYING, STARTING, f"{FAILED} NRestarts=2")
    outcome = box.started(step_s=60.0, keep_trying=True)
    assert outcome.failed
    assert "did not come up: systemd reports exit-code" in outcome.message
    assert not [call for call in box.calls if call.startswith("stop")]


@pytest.mark.parametrize("state", [FAILED, STOPPED])
def test_a_unit_that_went_down_while_waited_for_is_a_failure(tmp_path: pathlib.Path, state: str) -> None:
    assert FakeBox(tmp_path, state).started(begin=False).failed


def test_check_mode_changes_nothing(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, STOPPED)
    box.box = box.acting(check_mode=True)
    assert box.started().changed
    assert _converge.stopped(box.box, "writer", remove=True).changed
    assert box.calls == []
    assert (box.root / _instance.UNIT_FOLDER / UNIT).exists()


def test_removing_takes_the_unit_and_its_settings(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, ACTIVE, STOPPED, spec=SPEC)
    secrets = box.root / _instance.INSTANCE_FOLDER / "writer.env"
    secrets.write_text("HF_TOKEN=hf_nothing\n")
    outcome = _converge.stopped(box.box, "writer", remove=True)
    assert outcome.changed
    assert not (box.root / _instance.UNIT_FOLDER / UNIT).exists()
    assert not secrets.exists()
    # A unit that fails while it is stopped (its gate was ended) leaves no failed state of a unit that is gone.
    explain = "gb10-fleet-explain@writer.service"
    ended = [f"disable --now {UNIT}", f"stop {explain}", "daemon-reload", f"reset-failed {explain}"]
    assert [call for call in box.calls if call in ended] == ended
    assert box.calls[-1] == f"reset-failed {UNIT}"


UNUSABLE = "LoadState=bad-setting ActiveState=inactive SubState=dead UnitFileState=enabled"


def test_a_unit_that_systemd_cannot_read_is_named_before_it_is_started(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, UNUSABLE)
    with pytest.raises(_instance.UnitError, match=r"cannot use vllm-writer\.service as it is .*\(bad-setting\)"):
        box.started()
    assert box.calls == []
    # What was reloaded since may be another one.
    box = FakeBox(tmp_path / "again", f"{UNUSABLE} NeedDaemonReload=yes", STARTING, ACTIVE, spec=SPEC)
    assert not box.started(step_s=60.0).failed


@pytest.mark.parametrize(
    ("state", "now"), [(UNUSABLE, ""), (UNUSABLE.replace("inactive", "active").replace("dead", "running"), "--now ")]
)
def test_a_unit_that_systemd_cannot_read_is_removed_all_the_same(tmp_path: pathlib.Path, state: str, now: str) -> None:
    box = FakeBox(tmp_path, state, STOPPED)
    assert _converge.stopped(box.box, "writer", remove=True).changed
    # "systemctl stop" fails with "not loaded" where such a unit does not run.
    assert box.calls[0] == f"disable {now}{UNIT}"
    assert not (box.root / _instance.UNIT_FOLDER / UNIT).exists()


@pytest.mark.parametrize(
    "state", ["inactive SubState=dead-before-auto-restart", "failed SubState=failed-before-auto-restart"]
)
def test_a_pause_between_two_tries_is_stopped_however_systemd_calls_it(tmp_path: pathlib.Path, state: str) -> None:
    box = FakeBox(tmp_path, f"ActiveState={state} UnitFileState=enabled")
    outcome = _converge.stopped(box.box, "writer", remove=False)
    assert outcome.changed
    assert f"stop {UNIT}" in box.calls


def test_what_cannot_be_disabled_is_stopped_all_the_same(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, ACTIVE, spec=SPEC)
    box.refused = {"disable"}
    with pytest.raises(_instance.UnitError, match="disable --now"):
        _converge.stopped(box.box, "writer", remove=True)
    assert box.calls == [f"disable --now {UNIT}", f"stop {UNIT}"]


def test_a_unit_of_somebody_else_is_left_alone(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, ACTIVE, unit_text="[Unit]\nDescription=mine\n")
    with pytest.raises(_instance.UnitError, match=r"not written by gb10\.fleet"):
        _converge.stopped(box.box, "writer", remove=True)
    assert box.calls == []
    assert _instance.foreign(["writer", "reader"], box.root) == ("writer",)
    assert _instance.placed(box.root) == ()


def test_stopping_twice_changes_nothing_the_second_time(tmp_path: pathlib.Path) -> None:
    box = FakeBox(tmp_path, STOPPED)
    assert not _converge.stopped(box.box, "writer", remove=False).changed
    assert box.calls == []

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _docker, _instance

SPEC = "a" * 64
ARGV = ["/usr/bin/docker", "run", f"--label=gb10.fleet.spec={SPEC}", "x@y", "serve", "--max-num-seqs", "4", ""]


def observed(root: pathlib.Path, *, cmdline: list[str] | None, record: object, running: bool = True) -> str:
    """Return the fingerprint of an engine whose unit has process 7."""
    if cmdline is not None:
        (root / "proc/7").mkdir(parents=True)
        (root / "proc/7/cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in cmdline))
    records = root / _instance.RECORD_FOLDER
    records.mkdir(parents=True)
    (records / "writer.json").write_text(json.dumps(record))

    def run(argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "systemctl":
            return 0, "LoadState=loaded\nActiveState=active\nMainPID=7\n", ""
        state = {"Running": running, "Pid": 8, "ExitCode": 0}
        config = {"Image": "x@y", "Labels": {_instance.SPEC_LABEL: SPEC}}
        return 0, json.dumps([{"Id": "c" * 64, "Name": "/vllm-writer", "State": state, "Config": config}]), ""

    return _instance.observe(run, "writer", root).running_spec


@pytest.mark.parametrize(
    ("cmdline", "record", "spec"),
    [
        pytest.param(ARGV, {"spec": SPEC, "argv": ARGV}, SPEC, id="what was proven"),
        pytest.param([*ARGV[:-2], "2", ""], {"spec": SPEC, "argv": ARGV}, "", id="edited by hand and restarted"),
        pytest.param([*ARGV[:-2], "2", ""], {"spec": "b" * 64, "argv": ARGV}, SPEC, id="the record is of another one"),
        pytest.param(ARGV, {}, SPEC, id="nothing was proven yet"),
        pytest.param(None, {"spec": SPEC, "argv": ARGV}, SPEC, id="the process cannot be read"),
        pytest.param(ARGV, {"spec": SPEC, "argv": None}, SPEC, id="a record without a command line"),
    ],
)
def test_an_engine_is_what_it_calls_itself(
    tmp_path: pathlib.Path, cmdline: list[str] | None, record: object, spec: str
) -> None:
    assert observed(tmp_path, cmdline=cmdline, record=record) == spec


def test_a_container_that_has_ended_runs_nothing(tmp_path: pathlib.Path) -> None:
    assert observed(tmp_path, cmdline=ARGV, record={"spec": SPEC, "argv": ARGV}, running=False) == ""


@pytest.mark.parametrize(
    ("record", "proven", "because"),
    [
        ({}, False, "it has no deploy record"),
        ({"spec": SPEC}, False, ""),
        ({"spec": SPEC, "proven": True, "because": "it answered"}, True, "it answered"),
    ],
)
def test_an_instance_of_which_nothing_is_written_down_is_not_proven(
    record: dict[str, object], proven: bool, because: str
) -> None:
    unit = _instance.Unit.from_show("vllm-writer.service", "")
    found = _instance.Instance("writer", unit, None, {"speculative": False}, record).as_dict()
    assert (found["proven"], found["because"]) == (proven, because)


PAIR = {"spec": SPEC, "group": {"name": "pair", "spec": SPEC, "members": []}}


@pytest.mark.parametrize(
    ("active", "sub", "running", "settings", "up", "due"),
    [
        pytest.param("active", "running", True, {"spec": SPEC}, True, False, id="serves"),
        pytest.param("activating", "start-pre", False, {"spec": SPEC}, True, False, id="in its gate"),
        pytest.param("activating", "start-post", True, {"spec": SPEC}, True, False, id="boots"),
        pytest.param("activating", "auto-restart", False, {"spec": SPEC}, True, False, id="between two tries"),
        pytest.param("failed", "failed-before-auto-restart", False, {"spec": SPEC}, True, False, id="before the pause"),
        pytest.param("reloading", "reload", True, {"spec": SPEC}, True, False, id="reloads"),
        pytest.param("deactivating", "stop-sigterm", True, {"spec": SPEC}, True, False, id="ends"),
        pytest.param("failed", "failed", False, {"spec": SPEC}, False, True, id="has used up its starts"),
        pytest.param("inactive", "dead", False, {"spec": SPEC}, False, True, id="was stopped"),
        pytest.param("inactive", "dead", False, {}, False, False, id="nobody knows what it would be"),
        pytest.param("active", "running", True, PAIR, True, False, id="a rank that serves"),
        pytest.param("activating", "start-post", True, PAIR, True, False, id="a rank that boots"),
        pytest.param("activating", "start-pre", False, PAIR, False, False, id="a rank that waits for the others"),
        pytest.param("inactive", "dead", False, PAIR, False, True, id="a rank that was stopped"),
        pytest.param("failed", "failed", False, PAIR, False, False, id="a rank that has given up with the others"),
    ],
)
def test_what_systemd_keeps_up_and_what_the_next_boot_brings_back(
    active: str, sub: str, running: bool, settings: dict[str, object], up: bool, due: bool
) -> None:
    shown = f"LoadState=loaded\nActiveState={active}\nSubState={sub}\nUnitFileState="
    container = _docker.Container("c", "vllm-writer", running, 7, 0, "x@y", {})
    for state, enabled in (("enabled", True), ("disabled", False)):
        unit = _instance.Unit.from_show("vllm-writer.service", shown + state)
        found = _instance.Instance("writer", unit, container, settings, {}).as_dict()
        # Who is stopped by somebody who has it disabled stays down.
        assert (found["up"], found["due"]) == (up and (enabled or active != "deactivating"), due and enabled)

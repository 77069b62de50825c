# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _instance

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

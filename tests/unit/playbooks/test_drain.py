# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a role that interrupts the engines stops, and what it serves again, by the tasks of the role themselves."""

from __future__ import annotations

import pathlib
import typing as t

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.gb10.fleet.plugins.module_utils import _docker, _instance

TASKS = pathlib.Path(__file__).parents[3] / "roles" / "vllm_server" / "tasks"
SPEC = {"spec": "one"}


def instance(
    name: str, active: str, sub: str, *, runs: str = "", settings: t.Mapping[str, t.Any] | None = None
) -> dict[str, t.Any]:
    """Return an instance as a box tells of it; ``runs`` is the command line of its engine, proven was "run"."""
    shown = f"LoadState=loaded\nActiveState={active}\nSubState={sub}\nUnitFileState=enabled\nMainPID=7\n"
    labels = {_instance.SPEC_LABEL: "one"}
    container = _docker.Container("c", f"vllm-{name}", True, 7, 0, "x@y", labels) if runs else None
    record = {"spec": "one", "argv": ["run"]}
    unit = _instance.Unit.from_show(_instance.unit_name(name), shown)
    return _instance.Instance(name, unit, container, settings or SPEC, record, tuple(runs.split())).as_dict()


def remembered(*instances: t.Mapping[str, t.Any]) -> dict[str, list[str]]:
    """Return the names of what is stopped, and of what was down already."""
    tasks = yaml.safe_load((TASKS / "drain.yml").read_text(encoding="utf-8"))
    (facts,) = [task["ansible.builtin.set_fact"] for task in tasks if "ansible.builtin.set_fact" in task]
    observed = {"instances": {one["name"]: one for one in instances}}
    templar = Templar(DataLoader(), variables={"__vllm_server_interrupted": observed})
    found = {name: templar.template(trust_as_template(text)) for name, text in facts.items()}
    return {name.removeprefix("__vllm_server_"): [one["name"] for one in some] for name, some in found.items()}


def test_all_that_runs_or_is_about_to_is_stopped_and_served_again() -> None:
    there = [
        instance("serving", "active", "running", runs="run"),
        instance("edited", "active", "running", runs="run --otherwise"),
        instance("booting", "activating", "start-post", runs="run"),
        instance("gated", "activating", "start-pre"),
        instance("between", "activating", "auto-restart"),
    ]
    assert [one["running_spec"] for one in there] == ["one", "", "one", "", ""]
    assert remembered(*there) == {"running": [one["name"] for one in there], "stopped": []}


def test_what_is_down_and_comes_back_with_the_boot_is_served_again() -> None:
    there = [instance("stopped", "inactive", "dead"), instance("failed", "failed", "failed")]
    assert remembered(*there) == {"running": [], "stopped": ["stopped", "failed"]}


def test_a_rank_that_waits_for_the_others_is_left_to_them() -> None:
    group = {"name": "pair", "spec": "one", "members": []}
    rank = {**SPEC, "group": group}
    there = [
        instance("waiting", "activating", "start-pre", settings=rank),
        instance("serving", "active", "running", runs="run", settings=rank),
        instance("failed", "failed", "failed", settings=rank),
    ]
    assert remembered(*there) == {"running": ["serving"], "stopped": []}


def test_on_a_box_without_instances_there_is_nothing_to_stop() -> None:
    assert remembered() == {"running": [], "stopped": []}


def test_what_is_served_again_is_whatever_its_unit_starts() -> None:
    (task,) = [
        task
        for task in yaml.safe_load((TASKS / "resume.yml").read_text(encoding="utf-8"))
        if "gb10.fleet.vllm_instance" in task
    ]
    assert "spec" not in task["gb10.fleet.vllm_instance"]

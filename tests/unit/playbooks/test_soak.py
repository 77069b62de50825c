# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook of the soak, on this machine: its modules are stand-ins that say what a box would."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import typing as t

import ansible_runner
import yaml

CHECKOUT = pathlib.Path(__file__).parents[3]
SCRIPTS = pathlib.Path(sys.executable).parent
# They find what their box is like in their environment.
MODULES = {
    "vllm_instance_info": (
        "module = AnsibleModule({})\n"
        "box = world(module)\n"
        "module.exit_json(changed=False, instances=box['instances']) if box else module.fail_json(msg='no Docker')"
    ),
    "vllm_soak": (
        "names = ('concurrency', 'requests', 'max_tokens', 'timeout', 'shared_prefix', 'scripts')\n"
        "module = AnsibleModule({'instance': {'type': 'str'}, **{name: {'type': 'raw'} for name in names}})\n"
        "name = module.params['instance']\n"
        "said = world(module)['soaks'][name]\n"
        "(module.exit_json if said.startswith('passed') else module.fail_json)(msg=said, given=module.params)"
    ),
}
HEAD = """
import json
import os

from ansible.module_utils.basic import AnsibleModule


def world(_module):
    return json.loads(os.environ["BOX"])


"""
# The check of the variables needs no connection, which matters for a box that cannot be reached.
CHECK = """
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        return {"changed": False}
"""
CHAT = {"headless": False, "kind": "chat"}
WRITER = {"instances": {"writer": CHAT}, "soaks": {"writer": "passed: 400 of 400 requests"}}


def soak(folder: pathlib.Path, boxes: dict[str, t.Any], **extra: t.Any) -> tuple[ansible_runner.Runner, str]:
    """Run the playbook; a box without anything has no Docker, and one that is None cannot be reached."""
    modules = folder / "collections/ansible_collections/gb10/fleet/plugins/modules"
    modules.mkdir(parents=True)
    for name, text in MODULES.items():
        (modules / f"{name}.py").write_text(HEAD + text + "\n", encoding="utf-8")
    (modules / "resolve_settings.py").write_text("", encoding="utf-8")
    actions = modules.parent / "action"
    actions.mkdir()
    (actions / "resolve_settings.py").write_text(CHECK, encoding="utf-8")
    hosts: dict[str, t.Any] = {
        name: {"ansible_connection": "local", "box": json.dumps(box)}
        if box is not None
        else {"ansible_host": "192.0.2.1", "ansible_ssh_common_args": "-o ProxyCommand=/bin/false"}
        for name, box in boxes.items()
    }
    common = {"ansible_python_interpreter": sys.executable, "ansible_become": False}
    plays = _plays()
    before, on_boxes, *_rest = plays
    before["ansible.builtin.import_playbook"] = str(CHECKOUT / "playbooks" / before["ansible.builtin.import_playbook"])
    on_boxes["environment"] = {"BOX": "{{ box | default('') | string }}"}
    on_boxes["become"] = False
    (folder / "soak.json").write_text(json.dumps(plays), encoding="utf-8")
    (folder / "hosts.json").write_text(json.dumps({"sparks": {"hosts": hosts, "vars": common}}), encoding="utf-8")
    (folder / "runner").mkdir()
    runner = ansible_runner.run(
        private_data_dir=str(folder / "runner"),
        playbook=str(folder / "soak.json"),
        inventory=str(folder / "hosts.json"),
        extravars=extra,
        envvars={
            "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(folder / "collections"),
            "ANSIBLE_INVENTORY_ENABLED": "yaml",
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
        },
        quiet=True,
    )
    return runner, runner.stdout.read()


def _plays() -> t.Any:
    return yaml.safe_load((CHECKOUT / "playbooks" / "soak.yml").read_text(encoding="utf-8"))


def soaked(runner: ansible_runner.Runner) -> list[str]:
    """Return the instances that were soaked, as box/instance."""
    return [
        f"{event['event_data']['host']}/{event['event_data']['res']['soak_instance_name']}"
        for event in runner.events
        if event["event"].startswith("runner_item_on_") and "soak_instance_name" in event["event_data"]["res"]
    ]


def last_failures(runner: ansible_runner.Runner) -> list[str]:
    """Return what the play at the end failed for, by box: it asks all of them at once, and any may answer first."""
    return sorted(
        event["event_data"]["res"]["msg"]
        for event in runner.events
        if event["event"] == "runner_on_failed" and event["event_data"]["task"] == "Name what did not pass"
    )


def test_a_failed_soak_keeps_no_other_box_from_being_soaked_and_the_run_fails_for_all_of_them(
    tmp_path: pathlib.Path,
) -> None:
    bad = {"instances": {"writer": CHAT, "reader": CHAT}, "soaks": {"writer": "failed: x", "reader": "passed: y"}}
    runner, output = soak(
        tmp_path, {"a": bad, "b": {}, "c": None, "d": WRITER, "e": bad, "f": {"instances": {"x": {}}}}
    )
    assert runner.status == "failed", output
    assert soaked(runner) == ["a/writer", "a/reader", "d/writer", "e/writer", "e/reader"], output
    *others, broken = last_failures(runner)
    # Whatever else goes wrong on a box does not read as a soak that passed.
    assert broken.startswith("f: ")
    assert others == [
        "a: writer: failed: x",
        "b: no Docker",
        "c: it was not reached",
        "e: writer: failed: x",
    ]


def test_what_cannot_be_judged_is_left_out_and_named_with_the_reason(tmp_path: pathlib.Path) -> None:
    left_out = {"embedder": {"headless": False, "kind": "embedding"}, "rank": {**CHAT, "headless": True}}
    box = {**WRITER, "instances": {**left_out, "writer": CHAT}}
    runner, output = soak(tmp_path, {"a": box})
    assert runner.status == "successful", output
    assert soaked(runner) == ["a/writer"]
    said = " ".join(output.split())
    assert "vllm-embedder: it serves vectors (kind embedding), and a soak judges answers" in said
    assert "vllm-rank: it is a rank of a serving group, and its head is soaked for all ranks" in said
    assert "passed: 400 of 400 requests" in said


def test_which_instances_and_which_scripts_can_be_said(tmp_path: pathlib.Path) -> None:
    box = {"instances": {"writer": CHAT, "reader": CHAT}, "soaks": {"reader": "passed: y"}}
    runner, output = soak(tmp_path, {"a": box}, soak_instances=["reader"], soak_scripts=["cjk", "hangul"])
    assert runner.status == "successful", output
    assert soaked(runner) == ["a/reader"]
    given = [
        event["event_data"]["res"]["given"]["scripts"]
        for event in runner.events
        if event["event"] == "runner_item_on_ok" and "given" in event["event_data"]["res"]
    ]
    assert given == [["cjk", "hangul"]]

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/plan.yml: no box is reached for of which enough is known, and the others are asked."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import sys
import typing as t

import ansible_runner
import pytest

CHECKOUT = pathlib.Path(__file__).parents[3]
SCRIPTS = pathlib.Path(sys.executable).parent
GIB = 1 << 30
REVISION = "0123456789abcdef0123456789abcdef01234567"
MEMORY = {"total_bytes": 127535084 * 1024, "available_bytes": 113 * GIB}
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}


class Run(t.NamedTuple):
    """What a run of plan.yml came to."""

    status: str
    message: str
    output: str
    plans: dict[str, t.Any]
    connected: bool


def run_plan(
    folder: pathlib.Path,
    hosts: dict[str, t.Any],
    sequences: int = 4,
    group: dict[str, t.Any] | None = None,
    *,
    kept: dict[str, str] | None = None,
    options: str = "",
    docker: str = "echo '{}'",
) -> Run:
    """Run plan.yml; ``kept`` are the variables for what it keeps, which else lies in the folder.

    ``docker`` is what stands for the command of that name on boxes that this machine stands for.
    """
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "docker").write_text(f"#!/bin/sh\n{docker}\n", encoding="utf-8")
    (folder / "bin" / "docker").chmod(0o755)
    ssh = folder / "ssh"
    ssh.write_text(f"#!/bin/sh\ntouch {folder}/connected\nexit 255\n", encoding="utf-8")
    ssh.chmod(0o755)
    (folder / "runner").mkdir(exist_ok=True)
    (folder / "checkpoints" / "example" / "writer").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints" / "example" / "writer" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    writer = {
        "checkpoint": {"repo": "example/writer", "revision": REVISION},
        "image": {"name": "vllm/vllm-openai", "digest": "sha256:" + "ab" * 32},
        "vllm": "0.28.0",
        "max_model_len": 32768,
        "max_num_seqs": sequences,
        "measured": {"weights_gib": 15.3},
    }
    inventory = {
        "sparks": {
            "hosts": {name: {"ansible_ssh_executable": str(ssh), **variables} for name, variables in hosts.items()},
            "vars": {"model_roles": ["writer"], "model_catalogue": {"writer": writer}},
        }
    }
    if group:
        inventory["sparks"]["children"] = {"pair": {"hosts": dict.fromkeys(hosts), "vars": group}}
    (folder / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    runner = ansible_runner.run(
        private_data_dir=str(folder / "runner"),
        playbook=str(CHECKOUT / "playbooks" / "plan.yml"),
        inventory=str(folder / "hosts.json"),
        extravars={
            "plan_checkpoints": str(folder / "checkpoints"),
            **({"plan_facts": str(folder / "facts"), "plan_dest": str(folder / "plan.json")} if kept is None else kept),
        },
        cmdline=options or None,
        envvars={
            "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
            "ANSIBLE_INVENTORY_ENABLED": "yaml",
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{folder / 'bin'}:{SCRIPTS}:{os.environ['PATH']}",
        },
        quiet=True,
    )
    failed = [
        str(event["event_data"]["res"].get("msg"))
        for event in runner.events
        if event["event"] in {"runner_on_failed", "runner_on_unreachable"}
    ]
    plan = folder / "plan.json"
    return Run(
        t.cast("str", runner.status),
        "\n".join(failed),
        runner.stdout.read(),
        json.loads(plan.read_text(encoding="utf-8"))["boxes"] if plan.exists() else {},
        (folder / "connected").exists(),
    )


def test_no_host_is_needed_where_its_memory_is_known(tmp_path: pathlib.Path) -> None:
    (tmp_path / "facts").mkdir()
    kept = {"memory": {**MEMORY, "available_bytes": 100 * GIB}}
    (tmp_path / "facts" / "spark-2.json").write_text(json.dumps(kept), encoding="utf-8")
    run = run_plan(tmp_path, {"spark-1": {"box_memory": MEMORY}, "spark-2": {}})
    assert run.status == "successful", run.output
    assert not run.connected
    assert "WARNING" not in run.output
    assert sorted(run.plans) == ["spark-1", "spark-2"]
    assert {plan["verdict"] for plan in run.plans.values()} == {"fits"}
    assert run.plans["spark-2"]["box"]["numbers"]["available"]["value"] == 100 * GIB
    assert "spark-1: 121.63 GiB, fits" in run.output
    kv_bytes = run.plans["spark-1"]["instances"]["writer"]["kv_cache_memory_bytes"]
    assert f"--kv-cache-memory-bytes {kv_bytes}" in run.output


def test_plan_that_is_refused_fails_with_the_largest_that_fits(tmp_path: pathlib.Path) -> None:
    run = run_plan(tmp_path, {"spark-1": {"box_memory": MEMORY}}, sequences=40)
    assert run.status == "failed"
    assert not run.connected
    assert run.message.startswith("spark-1: Instance writer needs")
    assert "The largest that fits: max_model_len" in run.message
    assert run.plans["spark-1"]["verdict"] == "refused"
    assert "REFUSED" in run.output
    # Ansible prints all that a failed task returns; a plan is hundreds of lines.
    assert "kv_bytes_per_block" not in run.output


def test_box_of_which_nothing_is_known_is_asked(tmp_path: pathlib.Path) -> None:
    run = run_plan(tmp_path, {"spark-1": {}})
    assert run.connected
    assert run.status == "failed"
    assert run.plans == {}


def test_a_serving_group_is_planned_before_anybody_looked_at_its_fabric(tmp_path: pathlib.Path) -> None:
    boxes = {name: {"box_memory": MEMORY, "model_roles": []} for name in ("spark-1", "spark-2")}
    group = {"serving_group": {"model_role": "writer"}, "fabric": {"members": list(boxes)}}
    run = run_plan(tmp_path, boxes, group=group)
    assert run.status == "successful", run.output
    assert not run.connected
    assert "WARNING" not in run.output
    command = run.plans["spark-2"]["instances"]["writer"]["command"]
    assert command[command.index("--master-addr") + 1] == "192.168.100.11"
    assert command[command.index("--node-rank") + 1] == "1"


def test_a_ring_is_planned_although_its_addresses_are_not_known_yet(tmp_path: pathlib.Path) -> None:
    boxes = {f"spark-{number}": {"box_memory": MEMORY, "model_roles": []} for number in (1, 2, 3)}
    group = {
        "serving_group": {"model_role": "writer", "pipeline_parallel_size": 3},
        "fabric": {"topology": "ring", "members": list(boxes)},
    }
    run = run_plan(tmp_path, boxes, group=group)
    assert run.status == "successful", run.output
    assert not run.connected
    assert "--master-addr" not in run.plans["spark-3"]["instances"]["writer"]["command"]


# --- boxes that have to be asked -------------------------------------------------------------------------------------


def asked_boxes(*names: str) -> dict[str, t.Any]:
    """Return boxes that this machine stands for; what is asked of them is read for real."""
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    return {name: {**here, "model_roles": []} for name in names}


@pytest.mark.parametrize(("place", "options"), [("default", ""), ("relative", "--check"), ("absolute", "")])
def test_a_box_is_asked_once_and_its_answer_kept(tmp_path: pathlib.Path, place: str, options: str) -> None:
    """Paths count from where the command is given, as those of plan_boxes do; here that is the runner's folder."""
    folder = {"default": "runner/facts", "relative": "runner/of/mine", "absolute": "deep/facts"}[place]
    kept = {"default": {}, "relative": {"plan_facts": "of/mine"}, "absolute": {"plan_facts": f"{tmp_path}/{folder}"}}
    boxes = asked_boxes("spark-1", "spark-2")
    run = run_plan(tmp_path, boxes, kept=kept[place], options=options)
    assert run.status == "successful", run.output
    answers = [json.loads((tmp_path / folder / f"{box}.json").read_text(encoding="utf-8")) for box in boxes]
    assert all(answer["memory"]["total_bytes"] > answer["memory"]["available_bytes"] > 0 for answer in answers)
    assert all(answer["instances"] == {} for answer in answers)
    assert all(datetime.datetime.fromisoformat(answer["read_at"]) for answer in answers)
    (tmp_path / folder / "spark-2.json").write_text(json.dumps({"memory": MEMORY}), encoding="utf-8")
    again = run_plan(tmp_path, boxes, kept=kept[place], options=options)
    assert again.status == "successful", again.output
    assert re.search(r"memory: \S+/spark-1\.json of [-0-9]{10} [:0-9]{5} UTC; delete it to ask", again.output)
    assert "spark-2: 121.63 GiB, fits" in again.output
    assert "Read the memory of the box" not in again.output


def test_a_box_without_docker_engine_has_memory_all_the_same(tmp_path: pathlib.Path) -> None:
    run = run_plan(tmp_path, asked_boxes("spark-1"), docker="echo no daemon >&2; exit 1")
    assert run.status == "successful", run.output
    answer = json.loads((tmp_path / "facts" / "spark-1.json").read_text(encoding="utf-8"))
    assert answer["memory"]["total_bytes"] > 0
    assert "no daemon" in answer["instances_unread"]


def test_what_a_box_serves_gives_its_memory_back(tmp_path: pathlib.Path) -> None:
    engine = {"pid": 4711, "name": "VLLM::EngineCore", "bytes": 2 * GIB, "container": "", "vllm": True}
    memory = {**MEMORY, "available_bytes": round(18.9 * GIB), "holders": [engine]}
    served = {"reader": {"unit": "vllm-reader.service", "running": True, "memory_bytes": 90 * GIB}}
    (tmp_path / "facts").mkdir()
    file = tmp_path / "facts" / "spark-1.json"
    file.write_text(json.dumps({"memory": memory, "instances": served, "gpu": "cdi"}), encoding="utf-8")
    run = run_plan(tmp_path, {"spark-1": {}})
    assert run.status == "successful", run.output
    assert "MEMORY_HELD_BY_VLLM" not in run.output
    told = run_plan(tmp_path, {"spark-1": {"box_memory": memory}})
    assert told.message.startswith("spark-1: vLLM runs on spark-1: its processes hold 2.0 GiB, and")
    assert "Leave box_memory out, and the box is asked what it serves" in told.message

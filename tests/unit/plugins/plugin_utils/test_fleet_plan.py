# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils._box_plan import box_plan
from ansible_collections.gb10.fleet.plugins.plugin_utils._fleet_plan import CheckpointFolder, Known, plan_box, refusal
from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_inputs import PlanInputError
from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_text import plan_text

GIB = 1 << 30
REVISION = "0123456789abcdef0123456789abcdef01234567"
MEMORY: dict[str, t.Any] = {"total_bytes": 127535084 * 1024, "available_bytes": 113 * GIB}
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
WRITER: dict[str, t.Any] = {
    "name": "writer",
    "model_role": "writer",
    "checkpoint": {"repo": "example/writer", "revision": REVISION},
    "image": {"name": "vllm/vllm-openai", "reference": "vllm/vllm-openai@sha256:" + "ab" * 32},
    "vllm": "0.28.0",
    "kind": "chat",
    "max_model_len": 32768,
    "max_num_seqs": 4,
    "port": 8000,
    "tensor_parallel_size": 1,
    "args": {},
    "env": {},
    "expects": {},
    "measured": {"weights_gib": 15.3},
    "served_model_name": ["writer"],
}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> CheckpointFolder:
    place = tmp_path / "checkpoints" / "example" / "writer"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return CheckpointFolder(tmp_path / "checkpoints")


def test_box_is_planned_from_told_memory_and_config_files(folder: CheckpointFolder) -> None:
    plan = plan_box("spark-1", [WRITER], Known(MEMORY, {}), folder)
    assert (plan["verdict"], plan["box"]["name"]) == ("fits", "spark-1")
    planned = plan["instances"]["writer"]
    # 36 layers x 8 heads x 128 x 2 x 2 bytes, 16 tokens a block, 4 x 2048 blocks and the one never handed out.
    assert planned["kv_cache_memory_bytes"] == (4 * 2048 + 1) * 16 * 147456
    command = planned["command"]
    assert command[:3] == ["vllm", "serve", "example/writer"]
    assert command[command.index("--kv-cache-memory-bytes") + 1] == str(planned["kv_cache_memory_bytes"])
    assert command[command.index("--gpu-memory-utilization") + 1] == str(planned["gpu_memory_utilization"])


def test_layout_of_hugging_faces_cache(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "models--example--writer" / "snapshots" / REVISION
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    report = CheckpointFolder(tmp_path).find("example/writer", REVISION)
    assert report is not None
    assert report["architecture"] == "Qwen3ForCausalLM"
    assert CheckpointFolder(tmp_path).find("example/writer", "f" * 40) is None
    assert CheckpointFolder(None).find("example/writer", REVISION) is None


def test_broken_checkpoint_folder_is_said(tmp_path: pathlib.Path) -> None:
    (tmp_path / "example" / "writer").mkdir(parents=True)
    with pytest.raises(PlanInputError, match="holds neither config"):
        CheckpointFolder(tmp_path).find("example/writer", REVISION)


def test_unknown_checkpoint_refuses_the_plan() -> None:
    plan = plan_box("spark-1", [WRITER], Known(MEMORY, {}), CheckpointFolder(None))
    assert plan["verdict"] == "refused"
    assert refusal("spark-1", plan).startswith("spark-1: Instance writer: how many tokens a cache holds")


def test_finding_of_a_checkpoint_is_a_finding_of_the_plan(folder: CheckpointFolder) -> None:
    report = folder.find("example/writer", REVISION)
    assert report is not None
    broken = {
        "id": "CHECKPOINT_SHARD_MISSING",
        "severity": "error",
        "message": "Shards are missing.",
        "remedy": "Get them.",
    }
    known = Known(MEMORY, {"writer": {**report, "findings": [broken]}})
    plan = plan_box("spark-1", [WRITER], known, CheckpointFolder(None))
    assert plan["verdict"] == "refused"
    assert plan["instances"]["writer"]["fits"]
    assert refusal("spark-1", plan) == "spark-1: Checkpoint of writer: Shards are missing. Get them."


def test_flag_that_the_release_lacks_refuses_the_plan(folder: CheckpointFolder) -> None:
    plan = plan_box("spark-1", [{**WRITER, "args": {"swap_space": 4}}], Known(MEMORY, {}), folder)
    assert plan["verdict"] == "refused"
    assert plan["instances"]["writer"]["command"] == []
    assert "swap" in refusal("spark-1", plan)


def test_cpu_host(folder: CheckpointFolder) -> None:
    memory = {"total_bytes": 64 * GIB, "available_bytes": 60 * GIB, "platform": "cpu", "holders": None}
    plan = plan_box("lab", [{**WRITER, "vllm": "0.32.0"}], Known(memory, {}), folder)
    assert plan["box"]["platform"] == "cpu"
    assert plan["instances"]["writer"]["numbers"]["kv_block_size"]["value"] == 128


def test_reserve_is_the_boxes_own(folder: CheckpointFolder) -> None:
    plan = plan_box("spark-1", [WRITER], Known(MEMORY, {}), folder, host_reserve_bytes=3 * GIB)
    assert plan["box"]["numbers"]["host_reserve"]["value"] == 3 * GIB


def test_inventory_comes_before_the_kept_file(tmp_path: pathlib.Path) -> None:
    kept: dict[str, dict[str, t.Any]] = {
        "memory": {"total_bytes": 1, "available_bytes": 1},
        "checkpoints": {"writer": {}},
    }
    (tmp_path / "spark-1.json").write_text(json.dumps(kept), encoding="utf-8")
    read = Known.of("spark-1", {}, tmp_path)
    assert (read.memory, read.checkpoints) == (kept["memory"], {"writer": {}})
    assert Known.of("spark-1", {"box_memory": MEMORY}, tmp_path) == Known(MEMORY, {"writer": {}})
    assert Known.of("spark-1", {"box_memory": MEMORY, "box_checkpoints": {}}, tmp_path) == Known(MEMORY, {})
    assert Known.of("spark-2", {}, tmp_path) == Known(None, {})
    assert Known.of("spark-1", {}, None) == Known(None, {})


ENGINE = {"pid": 4711, "name": "VLLM::EngineCore", "bytes": 2 * GIB, "container": "", "vllm": True}
SERVING: dict[str, t.Any] = {"total_bytes": 127535084 * 1024, "available_bytes": 38 * GIB, "holders": [ENGINE]}


def served(name: str, running: bool = True) -> dict[str, t.Any]:
    """Return what vllm_instance_info says of an instance, as far as a plan needs it."""
    return {name: {"unit": f"vllm-{name}.service", "running": running, "memory_bytes": 70 * GIB}}


@pytest.mark.parametrize("name", ["writer", "reader"])
def test_box_that_serves_is_planned_as_site_yml_plans_it(name: str, folder: CheckpointFolder) -> None:
    """The model role stays as it is, or takes the place of another one: the old engine's memory is free by then."""
    plan = plan_box("spark-1", [WRITER], Known(SERVING, {}, served(name)), folder)
    assert plan["verdict"] == "fits"
    assert plan["box"]["numbers"]["available"]["value"] == (38 + 70) * GIB
    report = folder.find("example/writer", REVISION)
    site = box_plan(
        [WRITER],
        memory=SERVING,
        observed={"gpu": "cdi", "instances": served(name)},
        checkpoints={"writer": report} if report else {},
        host_reserve_bytes=8 * GIB,
    )
    assert site["instances"]["writer"].items() <= plan["instances"]["writer"].items()
    assert site["box"]["numbers"] == plan["box"]["numbers"]


@pytest.mark.parametrize(
    ("known", "remedy"),
    [
        (Known(SERVING, {}), "Leave box_memory out, and the box is asked what it serves; or state in box_memory as"),
        (
            Known(SERVING, {}, file="facts/spark-1.json"),
            "Delete facts/spark-1.json, and the box is asked what it serves; or",
        ),
        (
            Known(SERVING, {}, file="facts/spark-1.json", unread="Docker does not answer."),
            "is asked what it serves (the last time it could not say: Docker does not answer); or",
        ),
    ],
)
def test_memory_that_vllm_holds_is_said_where_nobody_knows_whose_it_is(
    known: Known, remedy: str, folder: CheckpointFolder
) -> None:
    plan = plan_box("spark-1", [WRITER], known, folder)
    (finding,) = [one for one in plan["findings"] if one["id"] == "MEMORY_HELD_BY_VLLM"]
    assert finding["message"].startswith(
        "vLLM runs on spark-1: its processes hold 2.0 GiB, and what the driver has for"
    )
    assert remedy in finding["remedy"]
    assert plan["verdict"] == "refused"
    assert refusal("spark-1", plan).startswith(
        f"spark-1: {finding['message']} {finding['remedy']} Instance writer needs"
    )
    assert "Find out whether it may stop: VLLM::EngineCore (pid 4711) 2.0 GiB" in refusal("spark-1", plan)
    other = plan_box("spark-1", [{**WRITER, "args": {"swap_space": 4}, "max_num_seqs": 1}], known, folder)
    assert "vLLM runs on" not in refusal("spark-1", other)


def test_vllm_that_is_none_of_ours_is_named_as_who_holds_the_memory(folder: CheckpointFolder) -> None:
    plan = plan_box("spark-1", [WRITER], Known(SERVING, {}, served("writer", running=False)), folder)
    assert "Find out whether it may stop: VLLM::EngineCore (pid 4711) 2.0 GiB" in refusal("spark-1", plan)
    assert "MEMORY_HELD_BY_VLLM" not in [one["id"] for one in plan["findings"]]


def test_box_without_a_gpu_is_planned_as_site_yml_plans_it(folder: CheckpointFolder) -> None:
    vllm = {**WRITER, "vllm": "0.32.0"}
    plan = plan_box("lab", [vllm], Known(MEMORY, {}, {}, gpu="none"), folder)
    assert plan["box"]["platform"] == "cpu"
    assert plan_text(plan).startswith("lab: 121.63 GiB, no GPU, fits\n")
    told = Known({**MEMORY, "platform": "gb10"}, {}, {}, gpu="none")
    assert plan_box("lab", [vllm], told, folder)["box"]["platform"] == "gb10"


def test_what_a_box_served_belongs_to_the_memory_read_with_it(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "spark-1.json"
    kept = {"memory": SERVING, "instances": served("writer"), "gpu": "cdi"}
    file.write_text(json.dumps(kept), encoding="utf-8")
    read = Known.of("spark-1", {}, tmp_path)
    assert (read.instances, read.gpu, read.unread, read.file) == (served("writer"), "cdi", "", str(file))
    assert Known.of("spark-1", {"box_memory": MEMORY}, tmp_path) == Known(MEMORY, {})
    file.write_text(json.dumps({"memory": SERVING, "instances_unread": "no Docker"}), encoding="utf-8")
    read = Known.of("spark-1", {}, tmp_path)
    assert (read.instances, read.gpu, read.unread, read.file) == (None, "", "no Docker", str(file))


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ({"read_at": "2026-08-01T14:03:59Z"}, "2026-08-01 14:03 UTC"),
        ({"read_at": "2026-08-01T14:03:59+02:00"}, "2026-08-01 12:03 UTC"),
        # What an earlier release has kept, or a person has edited, is as old as its file.
        ({}, "2026-07-30 20:00 UTC"),
        ({"read_at": "of late"}, "2026-07-30 20:00 UTC"),
        ({"read_at": 3}, "2026-07-30 20:00 UTC"),
        ({"read_at": "0001-01-01T00:00:00+14:00"}, "2026-07-30 20:00 UTC"),
    ],
)
def test_plan_says_where_its_memory_is_from_and_of_when(
    kept: dict[str, t.Any], says: str, tmp_path: pathlib.Path, folder: CheckpointFolder
) -> None:
    file = tmp_path / "spark-1.json"
    file.write_text(json.dumps({"memory": MEMORY, **kept}), encoding="utf-8")
    os.utime(file, (0, datetime.datetime(2026, 7, 30, 20, 0, 30, tzinfo=datetime.UTC).timestamp()))
    plan = plan_box("spark-1", [WRITER], Known.of("spark-1", {}, tmp_path), folder)
    lines = plan_text(plan).splitlines()
    assert lines[:2] == [
        "spark-1: 121.63 GiB, fits",
        f"memory: {file} of {says}; delete it to ask the box again",
    ]
    told = plan_box("spark-1", [WRITER], Known.of("spark-1", {"box_memory": MEMORY}, tmp_path), folder)
    assert plan_text(told).splitlines()[1] == "memory: what box_memory says"


@pytest.mark.parametrize("instances", [[1], {"writer": 3}, {"writer": {"unit": "x", "running": True}}])
def test_instances_that_nobody_can_read(instances: t.Any, folder: CheckpointFolder) -> None:
    with pytest.raises(PlanInputError, match=r"spark-1: instances in facts/x\.json are not as .*; delete the file"):
        plan_box("spark-1", [WRITER], Known(MEMORY, {}, instances, file="facts/x.json"), folder)


@pytest.mark.parametrize("text", ["not json", "[]"])
def test_damaged_file_is_said(text: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "spark-1.json").write_text(text, encoding="utf-8")
    with pytest.raises(PlanInputError, match=r"spark-1\.json: .*delete it"):
        Known.of("spark-1", {}, tmp_path)


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (Known(None, {}), "its memory is not known"),
        (Known({"total_bytes": 1}, {}), "box_memory lacks available_bytes"),
        (Known(t.cast("t.Any", [1]), {}), "are mappings"),
        (Known(MEMORY, t.cast("t.Any", [1])), "are mappings"),
    ],
)
def test_unusable_knowledge(known: Known, says: str) -> None:
    with pytest.raises(PlanInputError, match=says):
        plan_box("spark-1", [WRITER], known, CheckpointFolder(None))


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        ({"holders": "x"}, "box_memory.holders is a list of mappings with name and bytes"),
        ({"holders": [3]}, "box_memory.holders is a list of mappings"),
        ({"holders": [{"name": "x"}]}, "box_memory.holders is a list of mappings"),
        ({"platform": "x"}, "box_memory.platform is x; expected one of gb10, cpu"),
    ],
)
def test_memory_that_nobody_can_read(memory: dict[str, t.Any], says: str, folder: CheckpointFolder) -> None:
    with pytest.raises(PlanInputError, match=re.escape(says)):
        plan_box("spark-1", [WRITER], Known({**MEMORY, **memory}, {}), folder)


def test_holders_need_no_more_than_their_bytes(folder: CheckpointFolder) -> None:
    held = {**MEMORY, "holders": [{"bytes": GIB}]}
    assert plan_box("spark-1", [WRITER], Known(held, {}), folder)["verdict"] == "fits"


def test_facts_however_deep_are_no_crash(tmp_path: pathlib.Path) -> None:
    (tmp_path / "spark-1.json").write_text('{"a":' * 100_000, encoding="utf-8")
    with pytest.raises(PlanInputError, match="cannot be read"):
        Known.of("spark-1", {}, tmp_path)

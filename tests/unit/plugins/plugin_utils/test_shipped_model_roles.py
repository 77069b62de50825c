# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The shipped model roles: complete but for what a user has to say, and sound on the version that they state."""

from __future__ import annotations

import copy
import json
import pathlib
import re
import typing as t

import pytest
import yaml

from ansible_collections.gb10.fleet.plugins.plugin_utils import _claims, _model_roles
from ansible_collections.gb10.fleet.plugins.plugin_utils._catalogue import shipped_catalogue
from ansible_collections.gb10.fleet.plugins.plugin_utils._expected_backend import expected_backends
from ansible_collections.gb10.fleet.plugins.plugin_utils._instance_facts import instance_facts
from ansible_collections.gb10.fleet.plugins.plugin_utils._memory_plan import plan_memory
from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_lint import lint_instance

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
CONFIGS: dict[str, dict[str, t.Any]] = json.loads((FIXTURES / "kv_models.json").read_text(encoding="utf-8"))
SHIPPED = shipped_catalogue()
SCHEMES = {
    "qwen36-35b-a3b-nvfp4": "nvfp4_w4a4",
    "qwen36-35b-a3b-nvfp4-fast": "nvfp4_w4a4",
    "qwen36-35b-a3b-nvfp4-w4a16": "nvfp4_w4a16",
    "qwen3-coder-next-int4": "int4_autoround",
    "nemotron-3-nano-30b-nvfp4": "nvfp4_w4a4",
    "nemotron-3-super-120b-nvfp4-two-nodes": "nvfp4_w4a4",
    "aeon-heretic-35b": "nvfp4_w4a16",
    "aeon-ornith-35b": "nvfp4_w4a16",
    "gpt-oss-120b-mxfp4": "mxfp4",
}
WHEN = "2026-11-29"


def from_the_user(role: dict[str, t.Any]) -> dict[str, t.Any]:
    """Return what only a user can know of a model role: digest and revision, and names that are not established."""
    checkpoint, image = role.get("checkpoint", {}), role.get("image", {})
    said: dict[str, t.Any] = {
        "checkpoint": {"repo": checkpoint.get("repo", "owner/name"), "revision": "f" * 40},
        "image": {"name": image.get("name", "owner/vllm"), "digest": "sha256:" + "0" * 64},
    }
    if role.get("speculative", {}).get("method") == "dflash":
        said["speculative"] = {"model": "owner/drafter", "revision": "e" * 40}
    return said


def instance(name: str) -> dict[str, t.Any]:
    role = copy.deepcopy(SHIPPED[name])
    catalogue = {name: _model_roles.merged(role, from_the_user(role))}
    resolved = _model_roles.resolve([{"role": name, "tensor_parallel_size": 1}], catalogue)
    assert [problem.what for problem in resolved.problems] == []
    planned = {"kv_cache_memory_bytes": 1 << 34, "gpu_memory_utilization": 0.6}
    return planned | resolved.instances[0] | {"tensor_parallel_size": role.get("tensor_parallel_size", 1)}


def test_every_configuration_of_the_mission_is_there() -> None:
    assert len(SHIPPED) == 14
    assert {role["vllm"] for role in SHIPPED.values()} == {"0.25.0", "0.27.1", "0.32.0"}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_schema(name: str) -> None:
    assert list(_model_roles.catalogue_problems({name: SHIPPED[name]}, SHIPPED)) == []


@pytest.mark.parametrize("name", SHIPPED)
def test_no_digest_and_no_revision_is_invented(name: str) -> None:
    assert "digest" not in SHIPPED[name].get("image", {})
    assert "revision" not in SHIPPED[name].get("checkpoint", {})
    entry = [{"role": name, "tensor_parallel_size": 1}]
    missing = " ".join(problem.what for problem in _model_roles.resolve(entry, SHIPPED).problems)
    assert "revision" in missing or "does not say checkpoint" in missing
    assert "digest" in missing or "does not say image" in missing


@pytest.mark.parametrize(
    "name", [name for name, role in SHIPPED.items() if role.get("speculative", {}).get("method") == "dflash"]
)
def test_its_drafter_is_asked_for_and_brought_along(name: str) -> None:
    role = copy.deepcopy(SHIPPED[name])
    said = from_the_user(role)
    without = {name: _model_roles.merged(role, {key: said[key] for key in ("checkpoint", "image")})}
    (problem,) = _model_roles.resolve([name], without).problems
    assert problem.path == ("model_roles", 0, "speculative", "model")
    assert f"model_catalogue: {{{name}: {{speculative: {{model: owner/drafter}}}}}}" in problem.remedy
    unpinned = {name: _model_roles.merged(without[name], {"speculative": {"model": "owner/drafter"}})}
    (problem,) = _model_roles.resolve([name], unpinned).problems
    assert problem.path == ("model_roles", 0, "speculative", "revision")
    brought = [(one["repo"], one["revision"]) for one in instance(name)["download"]]
    assert brought == [(said["checkpoint"]["repo"], "f" * 40), ("owner/drafter", "e" * 40)]


@pytest.mark.parametrize("name", SHIPPED)
def test_it_lints_on_its_own_version(name: str) -> None:
    answer = lint_instance(instance(name))
    assert (answer.parses, answer.exact) == (True, True)
    assert [finding.as_dict() for finding in answer.findings] == []


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_known_against_it_is_stated(name: str) -> None:
    nodes = SHIPPED[name].get("tensor_parallel_size", 1)
    observed = {"checkpoint": {"scheme": SCHEMES.get(name, "nvfp4_w4a4")}, "nodes": nodes}
    one = instance(name)
    if nodes > 1:
        one["env"] = {**one["env"], "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"}
    found = _claims.claims_for(instance_facts(one, observed), WHEN)
    grave = {finding.id for finding in found if finding.severity != "info"}
    assert grave == set(SHIPPED[name]["evidence"]["known_limits"])


@pytest.mark.parametrize("name", SHIPPED)
def test_it_says_where_it_comes_from(name: str) -> None:
    evidence, measured = SHIPPED[name]["evidence"], SHIPPED[name]["measured"]
    assert evidence["sources"]
    assert not measured or (measured["source"] and measured["date"])


@pytest.mark.parametrize("name", SCHEMES)
def test_what_it_expects_is_what_its_version_picks(name: str) -> None:
    one = instance(name)
    flags = instance_facts(one)["flags"]
    picked = expected_backends(one["vllm"], SCHEMES[name], flags=flags).as_expects()
    assert SHIPPED[name]["expects"]["moe_backend"] == picked["moe_backend"]


# The geometry that a role's checkpoint has, and about how many bytes its files take (GB of 10^9, as reported).
_PLANNED = {
    "qwen36-35b-a3b-nvfp4-fast": ("qwen3.6-35b-a3b", 22),
    "qwen3-coder-next-int4": ("qwen3-coder-next", 41),
    "nemotron-3-nano-omni-30b-nvfp4": ("nemotron-3-nano-omni-30b", 21),
    # Fine-tunes of Qwen3.6-35B-A3B, whose layers they have.
    "aeon-heretic-35b": ("qwen3.6-35b-a3b", 22),
    "aeon-ornith-35b": ("qwen3.6-35b-a3b", 22),
    "qwen36-35b-a3b-nvfp4": ("qwen3.6-35b-a3b", 22),
    "qwen36-35b-a3b-nvfp4-w4a16": ("qwen3.6-35b-a3b", 22),
    "qwen36-35b-a3b-fp8": ("qwen3.6-35b-a3b", 37),
    "qwen38-27b-nvfp4": ("qwen3.6-27b", 22.6),
    "qwen36-27b-dflash": ("qwen3.6-27b", 20),
    "aeon-27b-mtp": ("qwen3.6-27b", 20),
    "nemotron-3-nano-30b-nvfp4": ("nemotron-3-nano-30b", 19),
    "gpt-oss-120b-mxfp4": ("gpt-oss-120b", 65),
    "nemotron-3-super-120b-nvfp4-two-nodes": ("nemotron-3-super", 80),
}


def test_every_role_is_planned() -> None:
    assert set(_PLANNED) == set(SHIPPED)


@pytest.mark.parametrize("name", _PLANNED)
def test_it_plans_on_a_box(name: str) -> None:
    config, gigabytes = _PLANNED[name]
    one = {key: value for key, value in instance(name).items() if key != "kv_cache_memory_bytes"}
    role = SHIPPED[name]
    if "kv_cache_memory_bytes" in role:
        one["kv_cache_memory_bytes"] = role["kv_cache_memory_bytes"]
    args = role.get("args", {})
    one |= {
        "config": CONFIGS[config],
        "weights_bytes": round(gigabytes * 10**9),
        "max_num_batched_tokens": args.get("max_num_batched_tokens", 0),
        "gpu_memory_utilization": None,
    }
    box = {"name": "spark-1", "total_bytes": 127535084 * 1024, "available_bytes": round(113.35 * (1 << 30))}
    if role.get("tensor_parallel_size", 1) > 1:
        one["peers"] = [box | {"name": "spark-2"}]
    plan = plan_memory(box, [one])
    assert [finding for finding in plan["findings"] if finding["severity"] == "error"] == []
    assert plan["verdict"] == "fits"


def test_the_two_models_of_the_readme_fit_a_box() -> None:
    checkout = pathlib.Path(__file__).parents[4]
    text = (checkout / "README.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(model_roles:.*?)```", text, re.DOTALL)]
    (entries,) = [block["model_roles"] for block in blocks if len(block["model_roles"]) > 1]
    shown = checkout / "inventories" / "example" / "group_vars" / "sparks" / "model_catalogue.yml"
    user = yaml.safe_load(shown.read_text(encoding="utf-8"))["model_catalogue"]
    catalogue = _model_roles.merged_catalogue(SHIPPED, user)
    catalogue = {name: _model_roles.merged(role, from_the_user(role)) for name, role in catalogue.items()}
    resolved = _model_roles.resolve(entries, catalogue)
    assert [problem.what for problem in resolved.problems] == []
    models = {"coordinator": ("qwen3.6-35b-a3b", 22), "qwen3-coder-next-int4": ("qwen3-coder-next", 41)}
    planned = []
    for one in resolved.instances:
        config, gigabytes = models[one["model_role"]]
        entry = {"config": CONFIGS[config], "weights_bytes": gigabytes * 10**9, **one["args"]}
        planned.append({key: value for key, value in one.items() if key != "args"} | entry)
    box = {"name": "spark-1", "total_bytes": 130595926016, "available_bytes": 117440512000}
    plan = plan_memory(box, planned)
    assert [finding["message"] for finding in plan["findings"] if finding["severity"] == "error"] == []

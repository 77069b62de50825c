# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What was observed of a box and what its inventory wants, joined."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils._box_plan import box_plan
from tests.unit.plugins.plugin_utils.test_image_kernels import NATIVE, image, instance

GIB = 1 << 30
GEOMETRY_CONFIG = {
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
CHECKPOINT: dict[str, t.Any] = {
    "geometry": None,
    "scheme": "nvfp4_w4a4",
    "parts": {"dense": "nvfp4_w4a4"},
    "weights_bytes_total": 5 * GIB,
    "part_bytes": {},
    "findings": [],
}
MEMORY = {"total_bytes": 121 * GIB, "available_bytes": 112 * GIB, "holders": []}
OBSERVED: dict[str, t.Any] = {"gpu": "cdi", "instances": {}}


def plan(
    one: dict[str, t.Any], images: dict[str, t.Any] | None = None, today: str = "", **checkpoint: t.Any
) -> dict[str, t.Any]:
    wanted = {key: value for key, value in one.items() if key != "gpu_memory_utilization"}
    return box_plan(
        [{**wanted, "config": GEOMETRY_CONFIG, "measured": {}}],
        memory=MEMORY,
        observed=OBSERVED,
        checkpoints={"writer": {**CHECKPOINT, **checkpoint}},
        host_reserve_bytes=8 * GIB,
        images=images,
        today=today,
    )


def errors(found: dict[str, t.Any]) -> list[str]:
    return [finding["id"] for finding in found["findings"] if finding["severity"] == "error"]


def test_an_image_that_can_run_it_says_what_the_boot_has_to_show() -> None:
    made = plan(instance(), {"example/vllm@sha256:1": image(NATIVE)})
    assert (made["verdict"], errors(made)) == ("fits", [])
    assert made["instances"]["writer"]["expects"] == {"linear_backend": "FlashInferCutlassNvFp4LinearKernel"}


def test_an_image_that_cannot_run_it_refuses_the_plan_that_would_fit() -> None:
    made = plan(instance(), {"example/vllm@sha256:1": image(NATIVE, jit=False)})
    assert made["instances"]["writer"]["fits"]
    assert (made["verdict"], errors(made)) == ("refused", ["KERNELS_CANNOT_BE_COMPILED"])
    (finding,) = [one for one in made["findings"] if one["severity"] == "error"]
    assert finding["message"].startswith("Instance writer: vLLM will pick FlashInferCutlassNvFp4LinearKernel")


def test_another_image_on_the_box_says_nothing_of_this_one() -> None:
    made = plan(instance(), {"example/other@sha256:2": image({}, files=[])})
    assert made["verdict"] == "fits"


def test_facts_that_only_the_checkpoint_decides_are_judged_on_a_day() -> None:
    speculative = {"method": "dflash", "num_speculative_tokens": 8, "model": "example/drafter"}
    one = instance(speculative=speculative)
    judged = {finding["id"] for finding in plan(one, today="2026-11-29")["findings"]}
    unjudged = {finding["id"] for finding in plan(one)["findings"]}
    assert "DFLASH_ON_QUANTISED_TARGET" in judged - unjudged


@pytest.mark.parametrize(
    ("args", "gib"),
    [
        ({}, 0),
        ({"kv-offloading-size": 10}, 10),
        ({"kv_offloading_size": 10, "kv_offloading_backend": "lmcache"}, 0),
        ({"kv_transfer_config": {"kv_connector_extra_config": {"cpu_bytes_to_use": 3 * GIB}}}, 3),
        ({"kv_transfer_config": {"kv_connector_extra_config": "odd"}}, 0),
        ({"kv_transfer_config": "odd"}, 0),
    ],
)
def test_what_is_offloaded_stays_in_the_pool(args: dict[str, t.Any], gib: int) -> None:
    without = plan(instance())["instances"]["writer"]["numbers"]
    made = plan(instance(args=args))["instances"]["writer"]["numbers"]
    assert made["total"]["value"] - without["total"]["value"] == gib * GIB
    assert made.get("kv_offload", {"value": 0})["value"] == gib * GIB


def test_offloading_more_than_the_box_has_is_refused() -> None:
    made = plan(instance(args={"kv_offloading_size": 100}))
    assert (made["verdict"], errors(made)) == ("refused", ["INSTANCE_DOES_NOT_FIT"])

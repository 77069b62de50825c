# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What was observed of a box and what its inventory wants, joined."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import ModelGeometry
from ansible_collections.gb10.fleet.plugins.plugin_utils import _box_plan, _group_plan
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


@pytest.mark.parametrize("served", ["writer", "reader"])
def test_the_usual_edit_fits_whatever_the_box_serves_now(served: str) -> None:
    """What the inventory does not name any more is stopped before the new one starts, so its memory is free by then."""
    state = {"unit": f"vllm-{served}.service", "memory_bytes": 90 * GIB, "running": True}
    engine = {"pid": 4711, "name": "VLLM::EngineCore", "bytes": 2 * GIB, "container": "", "vllm": True}
    made = box_plan(
        [{key: value for key, value in instance().items() if key != "gpu_memory_utilization"}],
        memory={**MEMORY, "available_bytes": 19 * GIB, "holders": [engine]},
        observed={**OBSERVED, "instances": {served: state}},
        checkpoints={"writer": {**CHECKPOINT, "geometry": ModelGeometry.from_config(GEOMETRY_CONFIG).as_dict()}},
        host_reserve_bytes=8 * GIB,
    )
    assert (made["verdict"], errors(made)) == ("fits", [])
    assert made["box"]["numbers"]["available"]["value"] == (19 + 90) * GIB
    assert made["box"]["holders"] == []


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
        ({"kv_transfer_config": '{"kv_connector_extra_config": {"cpu_bytes_to_use": 3221225472}}'}, 3),
        ({"kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use": 3 * GIB}, 3),
        ({"kv_transfer_config": '{"a":' * 3000}, 0),
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


@pytest.mark.parametrize(
    ("args", "is_cached"),
    [
        ({}, True),
        ({"enable_prefix_caching": False}, False),
        ({"no_enable_prefix_caching": True}, False),
        ({"disable-prefix-caching": True}, False),
        ({"disable_prefix_caching": False}, True),
    ],
)
def test_prefix_caching_under_every_name(args: dict[str, t.Any], is_cached: bool) -> None:
    assert _box_plan._entry(instance(args=args), {})["prefix_caching"] is is_cached


@pytest.mark.parametrize(
    ("args", "env", "severity"),
    [
        ({}, {}, "error"),
        ({}, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, "warning"),
        ({"hf_overrides": {"rope_parameters": {"rope_type": "yarn", "factor": 4}}}, {}, "warning"),
    ],
)
def test_a_context_above_the_checkpoint(args: dict[str, t.Any], env: dict[str, str], severity: str) -> None:
    made = plan(instance(args=args, env=env, max_model_len=81920, max_num_seqs=1))
    found = {one["id"]: one["severity"] for one in made["findings"]}
    assert found["CONTEXT_ABOVE_CHECKPOINT"] == severity


def test_an_index_says_how_large_weights_are_that_are_not_here_yet() -> None:
    made = plan(instance(), weights_bytes_total=None, weights_bytes_declared=7 * GIB)
    assert made["instances"]["writer"]["numbers"]["weights"]["value"] == 7 * GIB
    unknown = plan(instance(), weights_bytes_total=None, weights_bytes_declared=None)
    assert errors(unknown) == ["WEIGHTS_UNKNOWN"]


# --- a pipeline ------------------------------------------------------------------------------------------------------

LAYER, TABLE = 200 << 20, 600 << 20
OF_LAYERS = {
    "weights_bytes_total": 36 * LAYER + 2 * TABLE,
    "part_bytes": {"dense": 36 * LAYER, "embedding": TABLE, "lm_head": TABLE},
    "layer_bytes": [LAYER] * 36,
    "lm_head_tied": False,
}


def of_stage(rank: int, checkpoint: dict[str, t.Any] | None = None, **changes: t.Any) -> dict[str, t.Any]:
    """Return the plan of a rank of three stages, or of as many as the changes say."""
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 3, "node_rank": rank, "max_model_len": 32768}
    return plan({**instance(), **sizes, **changes}, **(OF_LAYERS if checkpoint is None else checkpoint))


def number(made: dict[str, t.Any], name: str) -> int:
    return int(made["instances"]["writer"]["numbers"][name]["value"])


def test_each_stage_holds_its_own_layers() -> None:
    alone = of_stage(0, pipeline_parallel_size=1)
    stages = [of_stage(rank) for rank in range(3)]
    assert [number(one, "weights") for one in stages] == [12 * LAYER + TABLE, 12 * LAYER, 12 * LAYER + TABLE]
    # The same requests in a third of the bytes, and every rank is asked for the same.
    asked = {one["instances"]["writer"]["kv_cache_memory_bytes"] for one in stages}
    assert asked == {alone["instances"]["writer"]["kv_cache_memory_bytes"] // 3}
    assert {number(one, "kv_tokens") for one in stages} == {number(alone, "kv_tokens")}
    assert "layers 12 to 23 of stage 2 of 3" in stages[1]["instances"]["writer"]["numbers"]["weights"]["reason"]
    assert "PIPELINE_STAGES_UNKNOWN" not in [one["id"] for made in stages for one in made["findings"]]


def test_stages_of_unequal_length_hold_unequal_parts_of_one_pool() -> None:
    by_hand = {"env": {"VLLM_PP_LAYER_PARTITION": "20,10,6"}}
    stages = [of_stage(rank, **by_hand) for rank in range(3)]
    (asked,) = {one["instances"]["writer"]["kv_cache_memory_bytes"] for one in stages}
    assert [number(one, "kv_cache") for one in stages] == [asked, asked // 2, asked * 6 // 20]
    assert len({number(one, "kv_tokens") for one in stages}) == 1
    for one in stages:
        assert number(one, "total") == sum(number(one, name) for name in ("weights", "overhead", "kv_cache"))


def test_ranks_of_one_stage_share_its_layers() -> None:
    stages = [of_stage(rank, tensor_parallel_size=2, pipeline_parallel_size=2) for rank in range(4)]
    first, last = (18 * LAYER + TABLE) // 2, (18 * LAYER + TABLE) // 2
    assert [number(one, "weights") for one in stages] == [first, first, last, last]


@pytest.mark.parametrize(
    ("checkpoint", "changes"),
    [
        ({**OF_LAYERS, "layer_bytes": []}, {}),
        ({key: one for key, one in OF_LAYERS.items() if key != "layer_bytes"}, {}),  # facts of an earlier run
        ({**OF_LAYERS, "layer_bytes": [LAYER] * 35}, {}),
    ],
)
def test_headers_that_do_not_tell_leave_the_weights_of_all_layers(
    checkpoint: dict[str, t.Any], changes: dict[str, t.Any]
) -> None:
    made = of_stage(1, checkpoint, **changes)
    assert number(made, "weights") == 36 * LAYER + 2 * TABLE
    (finding,) = [one for one in made["findings"] if one["id"] == "PIPELINE_STAGES_UNKNOWN"]
    assert (finding["severity"], made["verdict"]) == ("info", "fits")
    assert "weights of each rank are planned as if it held all layers" in finding["message"]


def test_layers_whose_order_nobody_knows_promise_no_tokens() -> None:
    full = {"kind": "full_attention", "kv_heads": 8, "head_dim": 128, "v_head_dim": 128}
    layers = [{**full, "count": 18}, {**full, "kind": "sliding_attention", "window": 1024, "count": 18}]
    geometry = {"architecture": "Example", "model_type": "example", "attention_heads": 32, "layers": layers}
    made = of_stage(1, {**OF_LAYERS, "geometry": geometry})
    # A boot is held to the tokens that were planned, and these would be those of a rank with all layers.
    assert "kv_tokens" not in made["instances"]["writer"]["numbers"]
    (finding,) = [one for one in made["findings"] if one["id"] == "PIPELINE_STAGES_UNKNOWN"]
    assert "cache of each rank are planned" in finding["message"]
    ordered = of_stage(1, {**OF_LAYERS, "geometry": {**geometry, "order": [0, 1] * 18}})
    assert number(ordered, "kv_cache") * 3 == number(made, "kv_cache")


def test_layers_dealt_out_by_hand_that_do_not_go_round_are_refused() -> None:
    made = of_stage(1, env={"VLLM_PP_LAYER_PARTITION": "20,10,7"})
    assert errors(made) == ["PIPELINE_PARTITION_INVALID"]
    (finding,) = [one for one in made["findings"] if one["severity"] == "error"]
    assert "20,10,7 does not deal out the model's 36 layers" in finding["message"]


def test_the_pool_of_a_pipeline_is_that_of_its_tightest_stage() -> None:
    wanted = {**instance(), "pipeline_parallel_size": 3, "max_model_len": 32768, "gpu_memory_utilization": 0.3}
    members = [{"rank": rank, "box": f"spark-{rank}"} for rank in range(3)]

    def made(rank: int, **changes: t.Any) -> dict[str, t.Any]:
        one = {**wanted, "config": GEOMETRY_CONFIG, "measured": {}, "node_rank": rank, **changes}
        return box_plan(
            [{**one, "serving_group": {"members": members}}],
            memory=MEMORY,
            observed=OBSERVED,
            checkpoints={"writer": {**CHECKPOINT, **OF_LAYERS}},
            host_reserve_bytes=8 * GIB,
        )

    plans = {f"spark-{rank}": made(rank) for rank in range(3)}
    asked = [one["instances"]["writer"]["kv_cache_memory_bytes"] for one in plans.values()]
    # The middle one has no table of embeddings and no head, so more room.
    assert asked[0] == asked[2] < asked[1]
    (agreed,) = _group_plan.same_pools([{**wanted, "serving_group": {"members": members}}], plans)
    assert agreed["kv_cache_memory_bytes"] == asked[0]
    again = [made(rank, **agreed) for rank in range(3)]
    assert len({number(one, "kv_tokens") for one in again}) == 1
    assert {one["verdict"] for one in again} == {"fits"}

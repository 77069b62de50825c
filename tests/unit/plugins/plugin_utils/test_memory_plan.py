# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import ModelGeometry
from ansible_collections.gb10.fleet.plugins.plugin_utils._memory_plan import PlanInputError, plan_memory
from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_text import plan_text

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
CONFIGS: dict[str, dict[str, t.Any]] = json.loads((FIXTURES / "kv_models.json").read_text(encoding="utf-8"))
GIB = 1 << 30
# MemTotal 127535084 kB, and 113.35 GiB free at the start (GB10 boot log, 2026-08).
BOX: dict[str, t.Any] = {"name": "spark-1", "total_bytes": 127535084 * 1024, "available_bytes": round(113.35 * GIB)}
COORDINATOR: dict[str, t.Any] = {
    "name": "coordinator",
    "vllm": "0.28.0",
    "config": CONFIGS["qwen3.6-35b-a3b"],
    "weights_bytes": 23_622_320_128,
    "measured": {"weights_gib": 21.9, "overhead_gib": 5.8},
    "max_model_len": 131072,
    "max_num_seqs": 8,
    "kv_cache_dtype": "fp8",
    "speculative": {"method": "mtp", "num_speculative_tokens": 3},
}


def instance(**changes: t.Any) -> dict[str, t.Any]:
    return {**copy.deepcopy(COORDINATOR), **changes}


def ids(plan: dict[str, t.Any], severity: str | None = None) -> list[str]:
    return [finding["id"] for finding in plan["findings"] if severity in {None, finding["severity"]}]


def value(plan: dict[str, t.Any], number: str, index: int | None = None) -> float:
    part = plan["box"] if index is None else plan["instances"][index]
    result: float = part["numbers"][number]["value"]
    return result


def test_cache_holds_every_sequence_at_full_length() -> None:
    plan = plan_memory(BOX, [COORDINATOR])
    assert plan["verdict"] == "fits"
    assert ids(plan) == []
    planned = plan["instances"][0]
    # 8 requests of 77 blocks, and the block that is never handed out.
    assert planned["kv_cache_memory_bytes"] == (8 * 77 + 1) * 24150016
    assert planned["flags"] == ["--kv-cache-memory-bytes", "14900559872", "--gpu-memory-utilization", "0.35"]
    assert value(plan, "kv_tokens", 0) == 1050278
    assert value(plan, "max_concurrency", 0) == pytest.approx(8.012987)
    assert value(plan, "engines") == round(21.9 * GIB) + round(5.8 * GIB) + 14900559872
    assert value(plan, "free_after") == BOX["available_bytes"] - value(plan, "engines")


def test_every_number_has_unit_reason_and_uncertainty() -> None:
    plan = plan_memory(BOX, [COORDINATOR, instance(name="second", measured={})])
    for part in (plan["box"], *plan["instances"]):
        assert part["numbers"]
        for name, number in part["numbers"].items():
            assert set(number) == {"value", "unit", "reason", "uncertainty"}, name
            assert number["reason"], name
            assert number["unit"] in {"bytes", "tokens", "tokens/s", "blocks", "requests"}, name


def test_fraction_passes_the_start_check_and_covers_the_instance() -> None:
    plan = plan_memory(BOX, [COORDINATOR, instance(name="second")])
    free = BOX["available_bytes"]
    for index, planned in enumerate(plan["instances"]):
        asked = planned["gpu_memory_utilization"] * BOX["total_bytes"]
        assert value(plan, "total", index) <= asked <= free
        free -= value(plan, "total", index)


def test_fraction_sinks_to_what_is_free() -> None:
    # Host reserve 0 and a cap of 0.80 leave the last instance less free memory than its rounded-up fraction asks for.
    box = {"total_bytes": 100 * GIB, "available_bytes": round(20.5 * GIB)}
    wanted = instance(kv_cache_memory_bytes=24150016 * 100, measured={"weights_gib": 12, "overhead_gib": 6.2})
    plan = plan_memory(box, [wanted], host_reserve_bytes=0)
    assert plan["verdict"] == "fits"
    assert plan["instances"][0]["gpu_memory_utilization"] == 0.20


@pytest.mark.parametrize(
    ("changes", "kv_bytes", "reason"),
    [
        ({"kv_cache_memory_bytes": 17179869184}, 17179869184, "as the model role states it"),
        ({"kv_sequences": 2}, (2 * 77 + 1) * 24150016, "2 requests"),
        (
            # 0.35 x total - weights - overhead, in whole blocks.
            {"gpu_memory_utilization": 0.35},
            (int(0.35 * BOX["total_bytes"]) - round(21.9 * GIB) - round(5.8 * GIB)) // 24150016 * 24150016,
            "gpu_memory_utilization 0.35 leaves",
        ),
    ],
)
def test_wishes(changes: dict[str, t.Any], kv_bytes: int, reason: str) -> None:
    plan = plan_memory(BOX, [instance(**changes)])
    assert plan["verdict"] == "fits"
    assert plan["instances"][0]["kv_cache_memory_bytes"] == kv_bytes
    assert reason in plan["instances"][0]["numbers"]["kv_cache"]["reason"]


def test_wished_fraction_is_kept() -> None:
    assert plan_memory(BOX, [instance(gpu_memory_utilization=0.5)])["instances"][0]["gpu_memory_utilization"] == 0.5


def test_published_pin_is_planned_to_the_token() -> None:
    plan = plan_memory(BOX, [instance(vllm="0.26.0", max_num_seqs=4, kv_cache_memory_bytes=17179869184)])
    assert value(plan, "kv_tokens", 0) == 1210288
    assert round(value(plan, "max_concurrency", 0), 2) == 9.23


def test_context_that_does_not_fit_is_refused_with_the_largest_that_would() -> None:
    wanted = instance(config=CONFIGS["qwen3.6-27b"], max_model_len=262144, max_num_seqs=12)
    plan = plan_memory(BOX, [wanted])
    assert plan["verdict"] == "refused"
    assert ids(plan, "error") == ["INSTANCE_DOES_NOT_FIT"]
    planned = plan["instances"][0]
    assert (planned["kv_cache_memory_bytes"], planned["gpu_memory_utilization"], planned["flags"]) == (None, None, [])
    largest = planned["largest"]
    assert 0 < largest["max_model_len"] < 262144
    assert 0 < largest["max_num_seqs"] < 12
    shorter = plan_memory(BOX, [instance(**{**wanted, "max_model_len": largest["max_model_len"]})])
    fewer = plan_memory(BOX, [instance(**{**wanted, "max_num_seqs": largest["max_num_seqs"]})])
    assert shorter["verdict"] == fewer["verdict"] == "fits"
    longer = plan_memory(BOX, [instance(**{**wanted, "max_model_len": largest["max_model_len"] + 1600})])
    more = plan_memory(BOX, [instance(**{**wanted, "max_num_seqs": largest["max_num_seqs"] + 1})])
    assert longer["verdict"] == more["verdict"] == "refused"
    remedy = plan["findings"][-1]["remedy"]
    assert f"max_model_len {largest['max_model_len']}" in remedy
    assert f"max_num_seqs {largest['max_num_seqs']}" in remedy


def test_bytes_too_few_for_one_request_are_refused_with_the_longest_context() -> None:
    """eugr/spark-vllm-docker#396: 22.5 GiB for 196,608 tokens of MiniMax-M2 on two boxes; 23.25 GiB needed."""
    wanted = instance(
        config=CONFIGS["minimax-m2"],
        speculative={},
        kv_cache_dtype="auto",
        tensor_parallel_size=2,
        max_model_len=196608,
        max_num_seqs=1,
        kv_cache_memory_bytes=int(22.5 * GIB),
    )
    plan = plan_memory(BOX, [wanted])
    assert ids(plan, "error") == ["KV_CACHE_TOO_SMALL"]
    assert "23.25 GiB" in plan["findings"][0]["message"]
    assert "lower max_model_len to 190256" in plan["findings"][0]["remedy"]


def test_bytes_that_hold_fewer_sequences_are_kept_and_said() -> None:
    plan = plan_memory(BOX, [instance(kv_cache_memory_bytes=24150016 * 200)])
    assert plan["verdict"] == "fits"
    assert ids(plan) == ["KV_FEWER_SEQUENCES"]


def test_bytes_that_do_not_fit_are_refused_with_the_most_that_would() -> None:
    plan = plan_memory(BOX, [instance(kv_cache_memory_bytes=100 * GIB)])
    assert ids(plan, "error") == ["INSTANCE_DOES_NOT_FIT"]
    largest = plan["instances"][0]["largest"]["kv_cache_memory_bytes"]
    assert plan_memory(BOX, [instance(kv_cache_memory_bytes=largest)])["verdict"] == "fits"
    assert plan_memory(BOX, [instance(kv_cache_memory_bytes=largest + 1)])["verdict"] == "refused"


def test_second_instance_gets_what_the_first_leaves() -> None:
    first, second = instance(kv_cache_memory_bytes=60 * GIB), instance(name="second")
    plan = plan_memory(BOX, [first, second])
    assert [planned["fits"] for planned in plan["instances"]] == [True, False]
    assert plan["instances"][0] == plan_memory(BOX, [first])["instances"][0]
    assert value(plan, "engines") == value(plan, "total", 0)


def test_total_is_the_box_own() -> None:
    small = {"total_bytes": 60 * GIB, "available_bytes": 55 * GIB}
    plan = plan_memory(small, [instance(kv_sequences=1)])
    assert value(plan, "cap") == int(0.8 * 60 * GIB)
    assert value(plan, "host_reserve") == 60 * GIB // 8
    assert value(plan_memory(BOX, [COORDINATOR]), "host_reserve") == 8 * GIB


def test_cap_needs_an_override_that_says_so() -> None:
    wanted = instance(gpu_memory_utilization=0.85)
    plan = plan_memory(BOX, [wanted])
    assert "GPU_UTILIZATION_ABOVE_CAP" in ids(plan, "error")
    assert not plan["instances"][0]["fits"]
    override = {"fraction": 0.86, "reason": "the box serves nothing else"}
    allowed = plan_memory(BOX, [wanted], cap_override=override, host_reserve_bytes=4 * GIB)
    assert ids(allowed) == ["CAP_OVERRIDDEN", "HOST_RESERVE_SMALL"]
    assert allowed["findings"][0]["evidence"] == "override: the box serves nothing else"
    assert allowed["instances"][0]["gpu_memory_utilization"] == 0.85


def test_refusal_above_the_cap_never_advises_a_higher_fraction() -> None:
    """eugr/spark-vllm-docker#388: raising the fraction to 0.90, as vLLM advises, rebooted the box."""
    plan = plan_memory(BOX, [instance(gpu_memory_utilization=0.90)])
    remedies = " ".join(finding["remedy"] for finding in plan["findings"] if finding["severity"] == "error")
    places = [remedies.find(word) for word in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "fp8")]
    assert -1 not in places
    assert places == sorted(places)
    assert "0.9" not in remedies


def test_start_check_that_would_fail_names_who_holds_memory() -> None:
    """24.7 of 121.69 GiB free, 0.80 asked for: find the owner first (GB10, 2026-08)."""
    box = {
        "total_bytes": round(121.69 * GIB),
        "available_bytes": round(24.7 * GIB),
        "holders": [{"name": "gateway", "bytes": GIB}, {"name": "VLLM::EngineCore", "pid": 4711, "bytes": 95 * GIB}],
    }
    plan = plan_memory(box, [instance(gpu_memory_utilization=0.8, kv_cache_memory_bytes=24150016 * 80)])
    assert "INSTANCE_DOES_NOT_FIT" in ids(plan, "error")
    assert "VLLM::EngineCore (pid 4711) 95.0 GiB, gateway 1.0 GiB" in plan["findings"][-1]["remedy"]
    small = instance(
        gpu_memory_utilization=0.5,
        kv_cache_memory_bytes=24150016 * 80,
        measured={"weights_gib": 5, "overhead_gib": 2},
        max_num_seqs=1,
    )
    plan = plan_memory(box, [small])
    assert ids(plan, "error") == ["START_CHECK_WOULD_FAIL"]
    assert "at most 0.2 passes" in plan["findings"][-1]["remedy"]


def test_memory_of_the_units_planned_anew_counts_as_free() -> None:
    held = {"name": "VLLM::EngineCore", "unit": "vllm-coordinator.service", "bytes": 70 * GIB}
    box = {**BOX, "available_bytes": 40 * GIB, "holders": [held]}
    plan = plan_memory(box, [COORDINATOR])
    assert plan["verdict"] == "fits"
    assert value(plan, "available") == 110 * GIB
    assert plan["box"]["holders"] == []
    other = plan_memory({**box, "holders": [{**held, "unit": "other.service"}]}, [COORDINATOR])
    assert other["verdict"] == "refused"
    leaving = plan_memory(
        {**box, "holders": [{**held, "unit": "other.service"}], "leaving": ["other.service"]}, [COORDINATOR]
    )
    assert (leaving["verdict"], leaving["box"]["holders"]) == ("fits", [])
    assert value(leaving, "available") == 110 * GIB


def test_returned_memory_never_exceeds_what_is_used() -> None:
    held = {"name": "x", "unit": "vllm-coordinator.service", "bytes": 500 * GIB}
    plan = plan_memory({**BOX, "holders": [held]}, [COORDINATOR])
    assert value(plan, "available") == BOX["total_bytes"]


def test_worst_box_of_a_serving_group_decides() -> None:
    """guardkit/dgx-spark, 2026-08: the head also runs a gateway and a database, and it alone froze."""
    wanted = instance(tensor_parallel_size=2, kv_cache_memory_bytes=60 * GIB)
    assert plan_memory(BOX, [wanted])["verdict"] == "fits"
    head = {"total_bytes": BOX["total_bytes"], "available_bytes": 90 * GIB}
    plan = plan_memory(BOX, [{**wanted, "peers": [head]}])
    assert ids(plan, "error") == ["INSTANCE_DOES_NOT_FIT"]
    largest = plan["instances"][0]["largest"]["kv_cache_memory_bytes"]
    assert largest == 90 * GIB - 8 * GIB - round(21.9 * GIB) - round(5.8 * GIB)
    assert plan_memory(head, [{**wanted, "kv_cache_memory_bytes": largest}])["verdict"] == "fits"


def test_drafter_scratch_is_counted_for_each_sequence() -> None:
    draft = [{"kind": "full_attention", "count": 5, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128}]
    speculative = {"method": "dflash", "num_speculative_tokens": 10, "draft_layers": draft}
    wanted = instance(config=CONFIGS["qwen3.6-27b"], speculative=speculative, max_num_seqs=2, kv_sequences=1)
    plan = plan_memory(BOX, [wanted])
    assert ids(plan) == ["DRAFTER_SCRATCH_NOT_MEASURED"]
    assert value(plan, "drafter_scratch", 0) == 2 * 4 * GIB
    assert plan["instances"][0]["numbers"]["drafter_scratch"]["uncertainty"] is None
    measured = plan_memory(BOX, [{**wanted, "speculative": {**speculative, "scratch_gib_per_sequence": 1.5}}])
    assert ids(measured) == []
    assert value(measured, "drafter_scratch", 0) == 3 * GIB
    assert plan_memory(BOX, [{**wanted, "max_num_seqs": 16}])["verdict"] == "refused"


@pytest.mark.parametrize("method", ["mtp", "qwen3_next_mtp"])
def test_mtp_has_no_scratch(method: str) -> None:
    plan = plan_memory(BOX, [instance(speculative={"method": method, "num_speculative_tokens": 3})])
    assert value(plan, "drafter_scratch", 0) == 0


def test_ngram_drafts_without_layers_and_without_overlap() -> None:
    plain = instance(config=CONFIGS["qwen3-32b"], kv_cache_dtype="auto", speculative={}, max_num_seqs=1)
    ngram = {**plain, "speculative": {"method": "ngram", "num_speculative_tokens": 5}}
    assert value(plan_memory(BOX, [ngram]), "kv_cache", 0) == value(plan_memory(BOX, [plain]), "kv_cache", 0)
    windowed = {**plain, "config": CONFIGS["gemma-4-26b-a4b"]}
    overlapping = value(plan_memory(BOX, [windowed]), "kv_cache", 0)
    alone = value(plan_memory(BOX, [{**windowed, "speculative": ngram["speculative"]}]), "kv_cache", 0)
    assert alone < overlapping


def test_boot_counts_the_page_cache() -> None:
    wanted = instance(measured={"weights_gib": 60, "overhead_gib": 5}, weights_bytes=60 * GIB, kv_sequences=1)
    plan = plan_memory(BOX, [wanted])
    # The kernel gives page cache back by itself, so there is nothing to warn of before a boot has failed.
    assert ids(plan) == ids(plan, "info") == ["PAGE_CACHE_FILLS_POOL"]
    # What a person is told to do is a command that a box has, and no setting that there is none of.
    remedy = plan["findings"][0]["remedy"]
    assert remedy.startswith("The start gate drops the page cache once, before each start.")
    assert "sudo sh -c 'while sleep 2; do echo 3 > /proc/sys/vm/drop_caches; done'" in remedy
    assert value(plan, "page_cache", 0) == 60 * GIB
    assert value(plan, "boot_peak") == BOX["available_bytes"]
    assert value(plan, "boot_peak", 0) == value(plan, "total", 0)


def test_measured_boot_peak_is_a_limit() -> None:
    """vllm-project/vllm#46307: 48 GiB of weights at 0.70 peaked at 112 GiB while profiling."""
    measured = {"weights_gib": 48, "overhead_gib": 6, "boot_peak_gib": 112}
    plan = plan_memory(BOX, [instance(measured=measured)])
    assert ids(plan, "error") == ["INSTANCE_DOES_NOT_FIT"]
    assert "needs 112.00 GiB" in plan["findings"][-1]["message"]
    assert plan_memory(BOX, [instance(measured={**measured, "boot_peak_gib": 80})])["verdict"] == "fits"


def test_loader_and_batched_tokens_cost_memory() -> None:
    """MiaAI-Lab GLM #204 and DeepSeek One #4: 4.43 GiB for instanttensor, 3.91 GiB for 8224 instead of 2048 tokens."""
    unmeasured = instance(measured={"weights_gib": 21.9})
    base = value(plan_memory(BOX, [unmeasured]), "overhead", 0)
    loader = value(plan_memory(BOX, [{**unmeasured, "load_format": "instanttensor"}]), "overhead", 0)
    assert loader - base == round(4.43 * GIB)
    more = value(plan_memory(BOX, [{**unmeasured, "max_num_batched_tokens": 16384}]), "overhead", 0)
    assert more - base == pytest.approx(8192 * 680000)
    fewer = value(plan_memory(BOX, [{**unmeasured, "max_num_batched_tokens": 2048}]), "overhead", 0)
    assert fewer == round(5.4 * GIB)


def test_gguf_is_refused_by_its_format_not_by_its_size() -> None:
    """56 GB of GGUF became 160 GB in vLLM: no setting fits."""
    plan = plan_memory(BOX, [instance(scheme="gguf", measured={}, weights_bytes=56_000_000_000)])
    assert ids(plan, "error") == ["GGUF_EXPANDS"]
    expanded = plan_memory(BOX, [instance(scheme="gguf", measured={"weights_gib": 149})])
    assert ids(expanded, "error") == ["INSTANCE_DOES_NOT_FIT"]
    assert "No setting fits" in expanded["findings"][-1]["remedy"]
    assert expanded["instances"][0]["largest"] == {}


def test_unknown_weights_are_refused() -> None:
    plan = plan_memory(BOX, [instance(measured={}, weights_bytes=None)])
    assert ids(plan, "error") == ["WEIGHTS_UNKNOWN"]
    assert plan["instances"][0]["numbers"] == {}


def test_weights_of_files_are_split_over_the_ranks() -> None:
    plan = plan_memory(BOX, [instance(measured={}, tensor_parallel_size=2)])
    assert ids(plan) == ["WEIGHTS_NOT_MEASURED"]
    assert value(plan, "weights", 0) == 23_622_320_128 // 2
    assert plan["instances"][0]["numbers"]["weights"]["uncertainty"] == pytest.approx(0.1 * 23_622_320_128 / 2)


def test_unknown_model_needs_bytes_from_the_user() -> None:
    strange = {"architectures": ["SomethingNewForCausalLM"]}
    plan = plan_memory(BOX, [instance(config=strange)])
    assert ids(plan, "error") == ["KV_GEOMETRY_UNKNOWN"]
    assert "SomethingNewForCausalLM is not known here" in plan["findings"][0]["message"]
    pinned = plan_memory(BOX, [instance(config=strange, kv_cache_memory_bytes=16 * GIB)])
    assert pinned["verdict"] == "fits"
    assert ids(pinned) == ["KV_GEOMETRY_UNKNOWN"]
    assert "kv_tokens" not in pinned["instances"][0]["numbers"]
    nothing = plan_memory(BOX, [instance(config=None)])
    assert "neither its config.json" in nothing["findings"][0]["message"]
    assert "plan_checkpoints" in nothing["findings"][0]["remedy"]
    # A boot log would never say how large the cache of a model is that cannot be split so.
    uneven = plan_memory(BOX, [instance(tensor_parallel_size=3)])
    assert ids(uneven, "error")[0] == "KV_GEOMETRY_UNKNOWN"
    assert uneven["findings"][0]["remedy"].startswith("Use a tensor_parallel_size that divides them")


def test_version_that_stands_in_is_said() -> None:
    plan = plan_memory(BOX, [instance(vllm="0.28.1")])
    assert plan["verdict"] == "fits"
    assert ids(plan) == ["KV_RULES_STAND_IN"]
    assert ids(plan_memory(BOX, [instance(vllm="0.11.0")]), "error") == ["KV_GEOMETRY_UNKNOWN"]


def test_a_small_reserve_is_planned_with_a_warning() -> None:
    assert ids(plan_memory(BOX, [instance()], host_reserve_bytes=0), "warning") == ["HOST_RESERVE_SMALL"]
    assert ids(plan_memory(BOX, [instance()], host_reserve_bytes=8 * GIB), "warning") == []


def test_a_refusal_names_the_setting_that_counts() -> None:
    # Eight full contexts do not fit; max_num_seqs alone would change nothing.
    (finding,) = [
        one
        for one in plan_memory(BOX, [instance(max_num_seqs=64, kv_sequences=400)])["findings"]
        if one["id"] == "INSTANCE_DOES_NOT_FIT"
    ]
    assert "kv_sequences" in finding["remedy"]
    assert "max_num_seqs" not in finding["remedy"]


def test_who_was_planned_before_is_named_where_nothing_fits() -> None:
    big = instance(name="big", measured={"weights_gib": 60})
    plan = plan_memory(BOX, [big, instance(name="second", measured={"weights_gib": 60})])
    (finding,) = [one for one in plan["findings"] if one["id"] == "INSTANCE_DOES_NOT_FIT"]
    assert "No setting fits beside big; lower their kv_sequences or max_num_seqs first" in finding["remedy"]


def test_what_flags_ask_for_is_counted() -> None:
    without = plan_memory(BOX, [instance()])["instances"][0]["numbers"]
    numbers = plan_memory(BOX, [instance(extra_bytes={"mm_processor_cache_gb": 8 * GIB})])["instances"][0]["numbers"]
    assert numbers["extra"]["value"] == 8 * GIB
    assert "mm_processor_cache_gb" in numbers["extra"]["reason"]
    assert numbers["total"]["value"] - without["total"]["value"] == 8 * GIB


def test_a_drafter_whose_weights_nobody_knows_is_said() -> None:
    drafter = {"method": "eagle3", "num_speculative_tokens": 3, "model": "owner/drafter"}
    files = {"measured": {}, "weights_bytes": 20 * GIB}
    assert "DRAFTER_WEIGHTS_UNKNOWN" in ids(plan_memory(BOX, [instance(speculative=drafter, **files)]), "warning")
    known = {**drafter, "weights_gib": 2}
    assert "DRAFTER_WEIGHTS_UNKNOWN" not in ids(plan_memory(BOX, [instance(speculative=known, **files)]))
    assert "DRAFTER_WEIGHTS_UNKNOWN" not in ids(plan_memory(BOX, [instance(speculative=drafter)]))


def test_context_beyond_the_checkpoint_is_said() -> None:
    plan = plan_memory(BOX, [instance(max_model_len=524288, max_num_seqs=1)])
    assert ids(plan, "error") == ["CONTEXT_ABOVE_CHECKPOINT"]
    allowed = plan_memory(BOX, [instance(max_model_len=524288, max_num_seqs=1, context_may_exceed=True)])
    assert ids(allowed, "warning") == ["CONTEXT_ABOVE_CHECKPOINT"]


def test_geometry_serves_as_well_as_config() -> None:
    geometry = ModelGeometry.from_config(CONFIGS["qwen3.6-35b-a3b"]).as_dict()
    by_geometry = instance(geometry=geometry)
    del by_geometry["config"]
    assert plan_memory(BOX, [by_geometry]) == plan_memory(BOX, [COORDINATOR])


def test_cpu_host_of_the_lab() -> None:
    """vLLM 0.32.0 on a CPU printed 131,072 tokens for 64 MiB of this model (measured 2026-11-29)."""
    tiny = {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
    lab = {
        "name": "lab",
        "vllm": "0.32.0",
        "config": tiny,
        "weights_bytes": 310_000,
        "max_model_len": 512,
        "max_num_seqs": 4,
        "kv_cache_memory_bytes": 67108864,
    }
    plan = plan_memory({"platform": "cpu", "total_bytes": 24 * GIB, "available_bytes": 20 * GIB}, [lab])
    assert plan["verdict"] == "fits"
    assert value(plan, "kv_tokens", 0) == 131072
    assert value(plan, "max_concurrency", 0) == 256
    assert "decode_ceiling" not in plan["instances"][0]["numbers"]


def test_roofline_of_a_mixture_of_experts() -> None:
    plan = plan_memory(BOX, [instance(expert_bytes=20_000_000_000)])
    numbers = plan["instances"][0]["numbers"]
    weights = 21.9 * GIB
    experts = weights * 20_000_000_000 / 23_622_320_128
    active = weights - experts + experts * 8 / 256
    assert numbers["active_bytes_per_token"]["value"] == pytest.approx(active, abs=1)
    assert numbers["decode_ceiling"]["value"] == pytest.approx(273e9 / active, abs=0.1)
    assert numbers["decode_ceiling_full_context"]["value"] < numbers["decode_ceiling"]["value"]
    assert "decode_ceiling" not in plan_memory(BOX, [COORDINATOR])["instances"][0]["numbers"]


def test_input_is_left_alone() -> None:
    box, wanted = copy.deepcopy(BOX), instance()
    plan_memory(box, [wanted])
    assert (box, wanted) == (BOX, COORDINATOR)


@pytest.mark.parametrize(
    ("box", "instances", "options", "says"),
    [
        ([], [], {}, "box_memory: expected a mapping, found a list"),
        ({"total_bytes": 1}, [], {}, "box_memory: available_bytes is missing"),
        ({"total_bytes": 1, "available_bytes": 2}, [], {}, "0 <= available <= total"),
        ({"total_bytes": "121 GiB", "available_bytes": 0}, [], {}, "total_bytes is '121 GiB'"),
        ({**BOX, "platform": "tpu"}, [], {}, "platform is tpu"),
        ({**BOX, "holders": {}}, [], {}, "holders is not a list"),
        ({**BOX, "leaving": "x.service"}, [], {}, "leaving is not a list"),
        ({**BOX, "holders": ["x"]}, [], {}, "box_memory.holders[0]: expected a mapping"),
        (BOX, [{}], {}, "instances[0]: name is missing"),
        (BOX, [COORDINATOR, COORDINATOR], {}, "two have the same name"),
        (BOX, [instance(max_num_seqs=None)], {}, "instance coordinator: max_num_seqs is missing"),
        (BOX, [instance(max_num_seqs=0)], {}, "must be 1 or more"),
        (BOX, [instance(kv_cache_memory_bytes="16G")], {}, "kv_cache_memory_bytes is '16G'"),
        (BOX, [instance(gpu_memory_utilization="")], {}, "gpu_memory_utilization is ''"),
        (BOX, [instance(gpu_memory_utilization=1.5)], {}, "gpu_memory_utilization is 1.5"),
        (BOX, [instance(measured={"weights_gib": "22"})], {}, "weights_gib is '22'"),
        (BOX, [instance(measured=[1])], {}, "measured: expected a mapping"),
        (BOX, [instance(speculative=[1])], {}, "speculative: expected a mapping"),
        (BOX, [instance(peers={})], {}, "peers is not a list"),
        (
            BOX,
            [instance(speculative={"method": "dflash", "draft_layers": [{"kind": "mystery"}]})],
            {},
            "'mystery' is no kind of layer",
        ),
        (BOX, [], {"cap": 0.9}, "above 0.8"),
        (BOX, [], {"cap": 0}, "cap is 0"),
        (BOX, [], {"cap_override": {"fraction": 0.9}}, "cap_override needs fraction"),
        (BOX, [], {"cap_override": {"fraction": 1.2, "reason": "x"}}, "cap_override needs fraction"),
        (BOX, [], {"host_reserve_bytes": -1}, "host_reserve_bytes is -1"),
    ],
)
def test_input_that_cannot_be_used(box: t.Any, instances: t.Any, options: dict[str, t.Any], says: str) -> None:
    with pytest.raises(PlanInputError) as caught:
        plan_memory(box, instances, **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_empty_box_is_a_plan() -> None:
    plan = plan_memory(BOX, [])
    assert (plan["verdict"], plan["instances"], value(plan, "engines")) == ("fits", [], 0)


def test_text_shows_bar_table_and_findings() -> None:
    refused = instance(name="second", max_num_seqs=200)
    lines = plan_text(plan_memory(BOX, [COORDINATOR, refused])).splitlines()
    assert lines[0] == "spark-1: 121.63 GiB, REFUSED"
    bar = lines[1][1:-1]
    assert len(bar) == 60
    assert "".join(dict.fromkeys(bar)) == "hWKo.R"
    # 21.9 of 121.63 GiB are 10.8 of 60 characters.
    assert bar.count("W") in {10, 11}
    assert any(line.startswith("coordinator") and "1,050,278" in line for line in lines)
    assert any(line.startswith("second (refused)") for line in lines)
    assert "coordinator: --kv-cache-memory-bytes 14900559872 --gpu-memory-utilization 0.35" in lines
    assert any(line.startswith("error: INSTANCE_DOES_NOT_FIT") for line in lines)


def test_text_of_unknown_numbers() -> None:
    plan = plan_memory(BOX, [instance(measured={}, weights_bytes=None)])
    assert "unknown" in plan_text(plan)

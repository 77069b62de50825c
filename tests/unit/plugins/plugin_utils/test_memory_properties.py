# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What holds for every plan and every cache, whatever the numbers are."""

from __future__ import annotations

import json
import pathlib
import typing as t

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import GeometryError, ModelGeometry
from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_cache import (
    KvFit,
    KvLayout,
    KvRequest,
    KvTooSmall,
    KvUnsupportedError,
    kv_layout,
)
from ansible_collections.gb10.fleet.plugins.plugin_utils._memory_plan import plan_memory
from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_text import plan_text

CONFIGS: dict[str, dict[str, t.Any]] = json.loads(
    (pathlib.Path(__file__).parent / "fixtures" / "kv_models.json").read_text(encoding="utf-8")
)
GEOMETRIES = {name: ModelGeometry.from_config(config).as_dict() for name, config in CONFIGS.items()}
GIB = 1 << 30

# Examples are drawn from a fixed seed, so that a failure is the same on every machine.
settings.register_profile(
    "numbers", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("numbers")

versions = st.sampled_from(["0.22.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.32.0", "0.33.0"])


@st.composite
def boxes(draw: st.DrawFn) -> dict[str, t.Any]:
    total = draw(st.integers(20 * GIB, 130 * GIB))
    return {"name": "box", "total_bytes": total, "available_bytes": draw(st.integers(0, total))}


@st.composite
def instances(draw: st.DrawFn, name: str = "a") -> dict[str, t.Any]:
    model = draw(st.sampled_from(sorted(GEOMETRIES)))
    fields: dict[str, t.Any] = {
        "name": name,
        "vllm": draw(versions),
        "geometry": GEOMETRIES[model],
        "measured": {
            "weights_gib": draw(st.integers(0, 900)) / 10,
            "overhead_gib": draw(st.integers(1, 90)) / 10,
        },
        "weights_bytes": draw(st.integers(1, 90 * GIB)),
        "max_model_len": draw(st.integers(1, 300_000)),
        "max_num_seqs": draw(st.integers(1, 64)),
        "max_num_batched_tokens": draw(st.sampled_from([2048, 8192, 16384])),
        "kv_cache_dtype": draw(st.sampled_from(["auto", "fp8"])),
        "tensor_parallel_size": draw(st.sampled_from([1, 2])),
        "prefix_caching": draw(st.booleans()),
    }
    wish = draw(st.sampled_from(["none", "bytes", "fraction", "dflash"]))
    if wish == "bytes":
        fields["kv_cache_memory_bytes"] = draw(st.integers(1, 90 * GIB))
    elif wish == "fraction":
        fields["gpu_memory_utilization"] = draw(st.integers(1, 99)) / 100
    elif wish == "dflash":
        layer = {"kind": "full_attention", "count": 5, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128}
        fields["speculative"] = {"method": "dflash", "num_speculative_tokens": 5, "draft_layers": [layer]}
    elif GEOMETRIES[model]["draft_layers"] and draw(st.booleans()):
        fields["speculative"] = {"method": "mtp", "num_speculative_tokens": draw(st.integers(1, 4))}
    return fields


@st.composite
def fleets(draw: st.DrawFn) -> list[dict[str, t.Any]]:
    return [draw(instances(name=f"i{index}")) for index in range(draw(st.integers(0, 3)))]


def number(plan: dict[str, t.Any], name: str) -> float:
    result: float = plan["box"]["numbers"][name]["value"]
    return result


@given(boxes(), fleets())
def test_no_plan_exceeds_the_pool_or_the_cap(box: dict[str, t.Any], fleet: list[dict[str, t.Any]]) -> None:
    plan = plan_memory(box, fleet)
    engines = number(plan, "engines")
    assert engines <= number(plan, "cap") <= 0.80 * box["total_bytes"]
    if engines:
        assert number(plan, "free_after") >= number(plan, "host_reserve")
    assert number(plan, "boot_peak") <= box["available_bytes"]
    assert engines == sum(p["numbers"]["total"]["value"] for p in plan["instances"] if p["fits"])
    for planned in plan["instances"]:
        if planned["fits"]:
            assert 0.01 <= planned["gpu_memory_utilization"] <= 0.80
            assert isinstance(planned["kv_cache_memory_bytes"], int)
            assert planned["kv_cache_memory_bytes"] > 0
        else:
            assert planned["kv_cache_memory_bytes"] is None
            assert planned["flags"] == []
    errors = {finding["severity"] for finding in plan["findings"]}
    assert (plan["verdict"] == "refused") is ("error" in errors)
    assert (plan["verdict"] == "fits") is all(planned["fits"] for planned in plan["instances"])


@given(boxes(), fleets())
def test_start_check_of_each_instance_passes_in_turn(box: dict[str, t.Any], fleet: list[dict[str, t.Any]]) -> None:
    free = box["available_bytes"]
    for planned in plan_memory(box, fleet)["instances"]:
        if planned["fits"]:
            assert planned["gpu_memory_utilization"] * box["total_bytes"] <= free + 0.01 * box["total_bytes"] * (
                planned["gpu_memory_utilization"] == 0.01
            )
            free -= planned["numbers"]["total"]["value"]


@given(boxes(), fleets(), instances(name="new"))
def test_adding_an_instance_never_frees_memory(
    box: dict[str, t.Any], fleet: list[dict[str, t.Any]], new: dict[str, t.Any]
) -> None:
    before, after = plan_memory(box, fleet), plan_memory(box, [*fleet, new])
    assert number(after, "free_after") <= number(before, "free_after")
    assert number(after, "boot_peak") >= number(before, "boot_peak")
    assert after["instances"][: len(fleet)] == before["instances"]


@given(boxes(), instances(), st.integers(0, 100_000), st.integers(0, 16))
def test_more_context_or_sequences_never_need_less(
    box: dict[str, t.Any], small: dict[str, t.Any], longer: int, more: int
) -> None:
    small = {key: value for key, value in small.items() if key != "gpu_memory_utilization"}
    large = {**small, "max_model_len": small["max_model_len"] + longer, "max_num_seqs": small["max_num_seqs"] + more}
    before, after = (plan_memory(box, [entry])["instances"][0] for entry in (small, large))
    if "total" in before["numbers"] and "total" in after["numbers"]:
        assert after["numbers"]["total"]["value"] >= before["numbers"]["total"]["value"]
        assert after["numbers"]["boot_peak"]["value"] >= before["numbers"]["boot_peak"]["value"]


@given(boxes(), fleets())
def test_same_input_same_plan(box: dict[str, t.Any], fleet: list[dict[str, t.Any]]) -> None:
    first = json.dumps(plan_memory(box, fleet))
    assert json.dumps(plan_memory(json.loads(json.dumps(box)), json.loads(json.dumps(fleet)))) == first
    assert plan_text(json.loads(first))


@given(boxes(), instances())
def test_what_a_refusal_offers_fits(box: dict[str, t.Any], wanted: dict[str, t.Any]) -> None:
    largest = plan_memory(box, [wanted])["instances"][0]["largest"]
    for name, value in largest.items():
        plan = plan_memory(box, [{**wanted, name: value}])
        assert plan["instances"][0]["fits"], (name, value)


@st.composite
def layouts(draw: st.DrawFn) -> KvLayout | None:
    geometry = ModelGeometry.from_config(CONFIGS[draw(st.sampled_from(sorted(CONFIGS)))])
    request = KvRequest(
        vllm=draw(versions),
        max_model_len=draw(st.integers(1, 300_000)),
        max_num_batched_tokens=draw(st.integers(1, 20_000)),
        kv_cache_dtype=draw(st.sampled_from(["auto", "fp8"])),
        tensor_parallel_size=draw(st.sampled_from([1, 2, 4])),
        num_speculative_tokens=draw(st.integers(0, 4)) if geometry.draft_layers else 0,
        prefix_caching=draw(st.booleans()),
    )
    try:
        return kv_layout(geometry, request)
    except KvUnsupportedError:
        return None


@given(layouts(), st.integers(0, 100 * GIB), st.integers(0, 10 * GIB))
def test_more_bytes_never_hold_less(layout: KvLayout | None, kv_bytes: int, more: int) -> None:
    if layout is None:
        return
    small, large = layout.fit(kv_bytes), layout.fit(kv_bytes + more)
    if isinstance(small, KvFit):
        assert isinstance(large, KvFit)
        assert large.tokens >= small.tokens
        assert small.num_blocks * small.bytes_per_block <= kv_bytes
    elif isinstance(large, KvTooSmall):
        assert large.estimated_max_len >= small.estimated_max_len


@given(layouts(), st.integers(0, 100 * GIB))
def test_longest_context_starts_and_one_token_more_does_not(layout: KvLayout | None, kv_bytes: int) -> None:
    if layout is None:
        return
    longest = layout.longest(kv_bytes)
    assert longest == 0 or layout.minimum_bytes(longest) <= kv_bytes
    assert longest == layout.max_model_len or layout.minimum_bytes(longest + 1) > kv_bytes


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_damaged_config_is_read_or_refused_in_one_sentence(model: str, data: st.DataObject) -> None:
    config = json.loads(json.dumps(CONFIGS[model]))
    part = config.get("text_config", config)
    for name in data.draw(st.lists(st.sampled_from(sorted(part)), min_size=1, max_size=3)):
        part[name] = data.draw(json_values)
    refusal = ""
    try:
        geometry = ModelGeometry.from_config(config)
        assert ModelGeometry.from_dict(geometry.as_dict()) == geometry
        assert kv_layout(geometry, KvRequest("0.30.0", 4096, kv_cache_dtype="fp8")).bytes_per_block > 0
    except (GeometryError, KvUnsupportedError) as exc:
        refusal = str(exc)
    assert "\n" not in refusal

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filters claims_for and expected_backends."""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.filter.claims_for import FilterModule

claims_for = FilterModule().filters()["claims_for"]
expected_backends = FilterModule().filters()["expected_backends"]


def instance(**more: t.Any) -> dict[str, t.Any]:
    return {
        "vllm": "0.32.0",
        "checkpoint": {"repo": "unsloth/Qwen3.8-27B-NVFP4", "revision": "f" * 40},
        "image": {"name": "vllm/vllm-openai", "digest": "sha256:" + "0" * 64},
        "served_model_name": ["qwen"],
        "max_model_len": 131072,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 1 << 34,
        "gpu_memory_utilization": 0.6,
    } | more


def ids(found: list[dict[str, str]], *severities: str) -> list[str]:
    return [one["id"] for one in found if one["severity"] in severities]


def test_a_good_instance_has_neither_error_nor_warning() -> None:
    assert ids(claims_for(instance(), "2026-11-29"), "error", "warning") == []


@pytest.mark.parametrize(
    ("more", "observed", "expected"),
    [
        ({"speculative": {"method": "mtp", "num_speculative_tokens": 2}}, {}, ["FULL_GRAPHS_CORRUPT_QWEN38_MTP"]),
        ({"speculative": {"method": "qwen3_next_mtp"}}, {}, ["FULL_GRAPHS_CORRUPT_QWEN38_MTP"]),
        (
            {
                "speculative": {"method": "mtp", "num_speculative_tokens": 2},
                "args": {"compilation_config": {"cudagraph_mode": "piecewise"}},
            },
            {},
            [],
        ),
        ({}, {"driver": "590.48.01"}, ["DRIVER_590_48_LEAKS"]),
        ({}, {"reported_vllm": "0.1.dev18498"}, ["VERSION_MIS_STAMPED"]),
        ({}, {"reported_vllm": "0.31.0"}, ["VERSION_DIFFERS"]),
        ({}, {"reported_vllm": "0.32.0+cu130"}, []),
        ({}, {"gateway": {"wants": "gpt", "served": ["qwen"]}}, ["SERVED_NAME_MISMATCH"]),
        ({}, {"gateway": {"wants": "qwen", "served": ["qwen"]}}, []),
        (
            {"args": {"moe_backend": "marlin"}, "speculative": {"method": "mtp"}, "vllm": "0.32.0"},
            {"checkpoint": {"scheme": "nvfp4_w4a4", "parts": {"draft": "bf16"}}},
            ["DRAFT_NEEDS_OWN_MOE_BACKEND", "FULL_GRAPHS_CORRUPT_QWEN38_MTP"],
        ),
        (
            {"kv_cache_dtype": "fp8"},
            {"checkpoint": {"scheme": "nvfp4_w4a4", "kv_cache": {"calibrated": False}}},
            ["FP8_KV_WITHOUT_SCALES"],
        ),
        ({"reasoning_parser": "gemma4"}, {}, ["REASONING_PARSER_FAMILY_SUSPECT"]),
        ({"args": {"swap_space": 4, "enforce_eager": True}}, {}, ["ENFORCE_EAGER_COSTS_SPEED"]),
    ],
)
def test_what_is_known_of_an_instance(more: dict[str, t.Any], observed: dict[str, t.Any], expected: list[str]) -> None:
    assert ids(claims_for(instance(**more), "2026-11-29", observed), "error", "warning") == expected


def test_facts_instead_of_an_instance() -> None:
    assert [one["id"] for one in claims_for({"driver": "595.58.03"}, "2026-11-29")] == ["DRIVER_595_58_BREAKS_NVFP4"]


@pytest.mark.parametrize(
    ("value", "today", "says"), [("x", "2026-11-29", "an instance or a mapping"), ({}, "today", "is not a date")]
)
def test_one_sentence(value: t.Any, today: str, says: str) -> None:
    with pytest.raises(AnsibleFilterError, match=says):
        claims_for(value, today)


def test_expected_backends() -> None:
    answer = expected_backends(instance(args={"moe_backend": "marlin"}), "nvfp4_w4a4")
    assert answer["expects"] == {
        "moe_backend": "MARLIN",
        "linear_backend": "FlashInferCutlassNvFp4LinearKernel",
    }
    with pytest.raises(AnsibleFilterError, match="does not say which vllm"):
        expected_backends({}, "nvfp4_w4a4")


def test_the_launch_record_of_a_healthy_pair_is_healthy() -> None:
    """A published record of two boxes (2026-08-07): both twins named, another NCCL in the image than on the host."""
    pair = instance(
        vllm="0.26.0",
        tensor_parallel_size=2,
        nodes=2,
        max_model_len=98304,
        gpu_memory_utilization=0.75,
        args={"distributed_executor_backend": "mp"},
        env={
            "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
            "NCCL_SOCKET_IFNAME": "enp1s0f1np1",
            "GLOO_SOCKET_IFNAME": "enp1s0f1np1",
            "NCCL_IB_DISABLE": "0",
        },
    )
    found = claims_for(pair, "2026-11-29", {"nccl": {"image": "2.28.3", "host": "2.28.9"}})
    assert ids(found, "error") == []
    assert "NCCL_IB_HCA_NOT_SET" not in ids(found, "warning", "info")
    assert "NCCL_VERSION_DIFFERS_HOST_VS_IMAGE" in ids(found, "info")
    one_twin = {**pair, "env": {}}
    assert "NCCL_IB_HCA_NOT_SET" in ids(claims_for(one_twin, "2026-11-29"), "warning")

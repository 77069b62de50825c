# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command line of an instance."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_cli
from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_cli import FlagError, plain_args, render_args


def instance(**more: t.Any) -> dict[str, t.Any]:
    return {"vllm": "0.33.0", "checkpoint": {"repo": "owner/model"}} | more


def test_a_whole_instance() -> None:
    one = instance(
        checkpoint={"repo": "owner/model", "revision": "f" * 40},
        host="127.0.0.1",
        port=8000,
        served_model_name=["short", "owner/model"],
        tensor_parallel_size=2,
        max_model_len=262144,
        max_num_seqs=8,
        gpu_memory_utilization=0.6,
        kv_cache_memory_bytes=17179869184,
        kv_cache_dtype="fp8",
        speculative={"method": "mtp", "num_speculative_tokens": 3},
        reasoning_parser="qwen3",
        tool_call_parser="qwen3_coder",
        args={"max_num_batched_tokens": 8192, "enable-prefix-caching": True},
        image={"name": "x"},
        env={"VLLM_LOGGING_LEVEL": "INFO"},
    )
    assert render_args(one) == [
        "owner/model",
        *("--revision", "f" * 40),
        *("--host", "127.0.0.1"),
        *("--port", "8000"),
        *("--served-model-name", "short", "owner/model"),
        *("--tensor-parallel-size", "2"),
        *("--max-model-len", "262144"),
        *("--max-num-seqs", "8"),
        *("--gpu-memory-utilization", "0.6"),
        *("--kv-cache-memory-bytes", "17179869184"),
        *("--kv-cache-dtype", "fp8"),
        *("--speculative-config", '{"method":"mtp","num_speculative_tokens":3}'),
        *("--reasoning-parser", "qwen3"),
        *("--tool-call-parser", "qwen3_coder"),
        "--enable-auto-tool-choice",
        "--enable-prefix-caching",
        *("--max-num-batched-tokens", "8192"),
    ]


@pytest.mark.parametrize(
    ("version", "args", "words"),
    [
        ("0.32.0", {"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ("0.33.0", {"enable_prefix_caching": False}, ["--disable-prefix-caching"]),
        ("0.33.0", {"no_enable_prefix_caching": True}, ["--disable-prefix-caching"]),
        ("0.33.0", {"trust_remote_code": False}, ["--no-trust-remote-code"]),
        ("0.33.0", {"headless": False}, []),
        ("0.33.0", {"headless": True}, ["--headless"]),
        ("0.33.0", {"seed": None}, []),
        ("0.33.0", {"max_model_len": -1}, ["--max-model-len=-1"]),
        ("0.33.0", {"middleware": ["a.B", "c.D"]}, ["--middleware", "a.B", "--middleware", "c.D"]),
        ("0.33.0", {"allowed_origins": ["*"]}, ["--allowed-origins", '["*"]']),
        ("0.33.0", {"cudagraph_capture_sizes": [1, 2, 4]}, ["--cudagraph-capture-sizes", "1", "2", "4"]),
        ("0.33.0", {"seed": [7]}, ["--seed", "7"]),
        ("0.33.0", {"hf_overrides": {"a": "é"}}, ["--hf-overrides", '{"a":"é"}']),
        ("0.33.0", {"hf-overrides": '{"a": 1}'}, ["--hf-overrides", '{"a": 1}']),
        (
            "0.33.0",
            {"compilation_config.cudagraph_mode": "PIECEWISE", "compilation_config": {"mode": 3}},
            ["--compilation-config", '{"mode":3,"cudagraph_mode":"PIECEWISE"}'],
        ),
        (
            "0.33.0",
            {"compilation_config.pass_config.fuse_norm_quant": True},
            ["--compilation-config", '{"pass_config":{"fuse_norm_quant":true}}'],
        ),
    ],
)
def test_how_a_value_is_written(version: str, args: dict[str, t.Any], words: list[str]) -> None:
    assert render_args(instance(vllm=version, args=args)) == ["owner/model", *words]


@pytest.mark.parametrize(
    ("version", "args", "finding", "says"),
    [
        ("0.33.0", {"max_num_batched_token": 1}, "FLAG_UNKNOWN", "Did you mean --max-num-batched-tokens?"),
        ("0.33.0", {"calculate_kv_scales": True}, "FLAG_REMOVED", "0.27.1 was the last release with it"),
        ("0.21.0", {"linear_backend": "marlin"}, "FLAG_TOO_NEW", "0.22.0 is the first release with it"),
        ("0.33.0", {"mxfp4_backend": "CUTLASS"}, "FLAG_UNKNOWN", "nor has any release"),
        ("0.33.0", {"enforce_eager": "yes"}, "FLAG_VALUE_INVALID", "write true or false, not 'yes'"),
        ("0.33.0", {"seed": True}, "FLAG_VALUE_INVALID", "takes a value (int), not true"),
        ("0.33.0", {"seed": [1, 2]}, "FLAG_VALUE_INVALID", "takes one value, not the list [1, 2]"),
        ("0.33.0", {"seed": {"a": 1}}, "FLAG_VALUE_INVALID", "takes int, not a mapping"),
        ("0.33.0", {"no_enable_prefix_caching": False}, "FLAG_VALUE_INVALID", "write enable-prefix-caching: true"),
        ("0.33.0", {"max-num-batched-tokens": 1, "max_num_batched_tokens": 2}, "FLAG_TWICE", "is given twice"),
        ("0.33.0", {"max_model_len": 1}, "FLAG_TWICE", "--max-model-len is given twice"),
        ("0.9.2", {}, "VLLM_VERSION_UNKNOWN", "older than the oldest release whose flags are known"),
        ("latest", {}, "VLLM_VERSION_UNKNOWN", "'latest' is not a vLLM version"),
    ],
)
def test_what_the_release_does_not_have(version: str, args: dict[str, t.Any], finding: str, says: str) -> None:
    with pytest.raises(FlagError) as caught:
        render_args(instance(vllm=version, max_model_len=4096, args=args))
    assert [(one.id, one.severity) for one in caught.value.findings] == [(finding, "error")]
    assert says in str(caught.value)


def test_every_wrong_flag_is_reported_at_once() -> None:
    with pytest.raises(FlagError) as caught:
        render_args(instance(args={"swap_space": 4, "num_scheduler_steps": 1}))
    assert [one.evidence for one in caught.value.findings] == ["--num-scheduler-steps", "--swap-space"]


@pytest.mark.parametrize("version", ["0.10.2", "0.22.0", "0.26.1rc1.dev30+g1234567", "0.33.0"])
def test_the_order_of_the_keys_does_not_matter(version: str) -> None:
    args = {"seed": 1, "enforce_eager": True, "dtype": "auto", "block_size": 16}
    backwards = dict(reversed(args.items()))
    assert render_args(instance(vllm=version, args=args)) == render_args(instance(vllm=version, args=backwards))


def test_json_stays_one_word() -> None:
    words = render_args(instance(speculative={"method": "draft_model", "model": "a b", "x": {"y": [1]}}))
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "draft_model",
        "model": "a b",
        "x": {"y": [1]},
    }
    assert " " not in _vllm_cli.compact_json({"a": [1, 2], "b": {"c": None}})


def test_what_only_the_plan_reads_is_not_given_to_vllm() -> None:
    planned = {
        "scratch_gib_per_sequence": 4,
        "weights_gib": 1.5,
        "weights_bytes": 1,
        "draft_layers": [],
        "draft_config": {},
    }
    speculative = {"method": "mtp", "num_speculative_tokens": 2}
    words = render_args({"vllm": "0.32.0", "speculative": speculative | planned})
    assert words == ["--speculative-config", '{"method":"mtp","num_speculative_tokens":2}']
    assert render_args({"vllm": "0.32.0", "speculative": planned}) == []


@pytest.mark.parametrize(
    ("args", "plain"),
    [
        ({"a-b": 1, "c.d": 2, "c.e": 3}, {"a_b": 1, "c": {"d": 2, "e": 3}}),
        ({"a": '{"b": {"c": 1}}', "a.d": 2}, {"a": {"b": {"c": 1}, "d": 2}}),
        ({"a": "{no json", "b": "[1]"}, {"a": "{no json", "b": [1]}),
        ({"a": "[" * 100_000}, {"a": "[" * 100_000}),
        ({"a": 1, "a.b": 2}, {"a": 1, "a.b": 2}),
    ],
)
def test_args_as_the_plan_reads_them(args: dict[str, t.Any], plain: dict[str, t.Any]) -> None:
    assert plain_args(args) == plain

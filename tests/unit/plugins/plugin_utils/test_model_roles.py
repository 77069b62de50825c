# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a model role may not say, one fault a row; through a playbook in tests/unit/playbooks/test_validation.py."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils import _flag_policy, _model_roles
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import dotted

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WRITER: dict[str, t.Any] = {
    "checkpoint": {"repo": "example/writer", "revision": COMMIT},
    "image": {"name": "vllm/vllm-openai", "digest": "sha256:" + "ab" * 32},
    "vllm": "0.32.0",
    "max_model_len": 4096,
    "max_num_seqs": 4,
}


def said(**entry: t.Any) -> list[str]:
    resolved = _model_roles.resolve([{"role": "writer", **entry}], {"writer": WRITER})
    assert bool(resolved.problems) is not bool(resolved.instances)
    return [f"{dotted(one.path)}: {one.what}; {one.remedy}" for one in resolved.problems]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"num_gpu_blocks_override": 10_000_000}, "takes the place of the blocks that were planned"),
        ({"cpu_offload_gb": 1}, "share one pool"),
        ({"cpu-offload-gb": True}, "share one pool"),
        ({"offload_backend": "prefetch"}, "share one pool"),
        ({"uds": 1}, "asks its port"),
        ({"config": 1}, "flags that nobody has planned"),
        ({"dtype": "float32"}, "doubles what is not quantised"),
        ({"load_format": "gguf"}, "expands GGUF"),
        ({"quantization": "GGUF"}, "expands GGUF"),
        ({"hf_overrides": {"num_hidden_layers": 96}}, "changes num_hidden_layers of the checkpoint"),
        ({"hf_overrides": '{"text_config": {"num_hidden_layers": 96}}'}, "changes num_hidden_layers"),
        ({"hf_overrides.text_config.head_dim": 512}, "changes head_dim"),
        ({"disable_hybrid_kv_cache_manager": True}, "keep the whole context"),
        ({"enable_sleep_mode": True}, "gives its memory away"),
        ({"spec_method": "dflash"}, "a key of its own: speculative.method"),
        ({"spec-tokens": 10}, "a key of its own: speculative.num_speculative_tokens"),
        ({"spec_model": "a/b"}, "a key of its own: speculative.model"),
        ({"nnodes": 2}, "sets the flag 'nnodes'"),
        ({"headless": True}, "sets the flag 'headless'"),
        ({"decode_context_parallel_size": 2}, "a box has one GPU"),
        ({"prefill_context_parallel_size": 2}, "a box has one GPU"),
        ({"data_parallel_size_local": 2}, "a box has one GPU"),
        ({"data_parallel_rank": 1}, "a box has one GPU"),
        ({"device_ids": "0"}, "a box has one GPU"),
        ({"grpc": True}, "speaks HTTP"),
        ({"ssl_ca_certs": "/a"}, "speaks plain HTTP"),
        ({"max_num_batched_tokens": "8192"}, "not a whole number from 1"),
        ({"tokenizer": "owner/other"}, "neither pinned nor downloaded"),
        ({"hf_config_path": "owner/other"}, "neither pinned nor downloaded"),
        ({"lora_modules": ["mine=owner/lora"]}, "neither pinned nor downloaded"),
        ({"runner": "pooling"}, "of kind chat, which an engine with runner pooling cannot answer as"),
        ({"a": "ghp_0123456789abcdefghij"}, "looks like a secret"),
        ({"a": ["nvapi-0123456789abcdefghij"]}, "looks like a secret"),
        ({"override_generation_config": '{"token": "x"}'}, "has 'token', which looks like a secret"),
        ({"chat_template": "a\u202eb"}, "another control character"),
    ],
)
def test_a_flag_that_no_model_role_may_set(args: dict[str, t.Any], says: str) -> None:
    (sentence,) = said(args=args)
    assert sentence.startswith("model_roles[0].args.")
    assert says in sentence
    assert "ghp_" not in sentence
    assert "nvapi-" not in sentence


@pytest.mark.parametrize(
    "args",
    [
        {"cpu_offload_gb": 0},
        {"uds": None},
        {"data_parallel_size": 1},
        {"enable_sleep_mode": False},
        {"dtype": "bfloat16"},
        {"kv_offloading_size": 4},
        {"hf_overrides": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}},
        {"tokenizer": "example/writer"},
        {"tokenizer": "/opt/tokenizer"},
        {"generation_config": "vllm"},
        {"lora_modules": ["mine=/opt/lora"]},
    ],
)
def test_a_flag_that_changes_nothing_is_none_of_our_business(args: dict[str, t.Any]) -> None:
    assert said(args=args) == []


def test_a_repository_is_fine_where_the_engine_may_ask() -> None:
    assert said(args={"tokenizer": "owner/other"}, env={"HF_HUB_OFFLINE": "0"}) == []


def test_every_wrong_flag_is_named() -> None:
    assert len(said(args={"uds": "/a", "spec_model": "a/b", "dtype": "float", "--seed": 1})) == 4


@pytest.mark.parametrize(
    ("speculative", "key"),
    [
        ({}, ""),
        ({"Method": "mtp"}, ".method"),
        ({"method": ["x"], "num_speculative_tokens": 1}, ".method"),
        ({"method": "mtp"}, ".num_speculative_tokens"),
        ({"method": "mtp", "num_speculative_token": 2}, ".num_speculative_tokens"),
        ({"method": "mtp", "num_speculative_tokens": 10**30}, ".num_speculative_tokens"),
        ({"method": "mtp", "num_speculative_tokens": True}, ".num_speculative_tokens"),
        ({"method": "dflash", "num_speculative_tokens": 8}, ".model"),
        ({"method": "eagle3", "num_speculative_tokens": 8}, ".model"),
        ({"method": "dflash", "num_speculative_tokens": 8, "model": "a/b"}, ".revision"),
        ({"method": "dflash", "num_speculative_tokens": 8, "model": "a/b", "revision": "main"}, ".revision"),
        ({"method": "mtp", "num_speculative_tokens": 1, "weights_gib": "2"}, ".weights_gib"),
        ({"method": "mtp", "num_speculative_tokens": 1, "weights_bytes": -1}, ".weights_bytes"),
    ],
)
def test_a_way_to_speculate_that_is_not_complete(speculative: dict[str, t.Any], key: str) -> None:
    (sentence,) = said(speculative=speculative)
    assert sentence.startswith(f"model_roles[0].speculative{key}: ")


@pytest.mark.parametrize(
    "speculative",
    [
        {"method": "mtp", "num_speculative_tokens": 2},
        {"method": "qwen3_next_mtp", "num_speculative_tokens": 2},
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        {"method": "suffix"},
        {"method": "dflash", "num_speculative_tokens": 8, "model": "/opt/drafter"},
        {"method": "dflash", "num_speculative_tokens": 8, "model": "a/b", "revision": COMMIT, "weights_gib": 1.5},
    ],
)
def test_a_way_to_speculate_that_is_complete(speculative: dict[str, t.Any]) -> None:
    assert said(speculative=speculative) == []


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"measured": {"weight_gib": 21}}, "measured.weight_gib: is not read by the plan"),
        ({"measured": {"overhead": 3}}, ""),
        ({"measured": {"weights_gib": "21"}}, "which is not a size in GiB"),
        ({"kind": "embedding", "args": {"runner": "generate"}}, "of kind embedding"),
        ({"env": {"MY_PASSPHRASE": "x"}}, "looks like a secret"),
        ({"env": {"A": "github_pat_0123456789abcdefghij"}}, "looks like a secret"),
        ({"description": "a\u202eb"}, "another control character"),
        ({"vllm": "0.26.1rc1.dev30+g0123456789abcdef01234567 nightly"}, "is not a vLLM version"),
        ({"vllm": "0." * 5000}, "is not a vLLM version"),
        ({"vllm": "0.26.1rc1.dev30+g0123456789abcdef01234567"}, ""),
    ],
)
def test_the_other_keys(entry: dict[str, t.Any], says: str) -> None:
    sentences = said(**entry)
    assert len(sentences) == bool(says)
    assert says in "".join(sentences)


@pytest.mark.parametrize(
    ("args", "extra"),
    [
        ({"mm_processor_cache_gb": 200}, {"mm_processor_cache_gb": 400 << 30}),
        ({"mm_ipc_gpu_memory_gb": "50"}, {"mm_ipc_gpu_memory_gb": 50 << 30}),
        ({"kv_offloading_size": 1.5}, {"kv_offloading_size": 3 << 29}),
        ({"kv_offloading_size": 4, "kv_offloading_backend": "lmcache"}, {}),
        ({"mm_processor_cache_gb": 0, "kv_offloading_size": True}, {}),
    ],
)
def test_the_memory_that_flags_ask_for(args: dict[str, t.Any], extra: dict[str, int]) -> None:
    assert _flag_policy.extra_bytes(args) == extra

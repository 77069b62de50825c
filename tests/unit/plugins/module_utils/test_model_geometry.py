# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import GeometryError, ModelGeometry

LLAMA: dict[str, t.Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN_NEXT: dict[str, t.Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "max_position_embeddings": 262144,
    "dtype": "bfloat16",
}
NEMOTRON: dict[str, t.Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "num_hidden_layers": 8,
    "hybrid_override_pattern": "MEM*MEM-",
    "hidden_size": 2688,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "chunk_size": 128,
}


def kinds(config: dict[str, t.Any], part: str = "layers") -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in getattr(ModelGeometry.from_config(config), part):
        counts[entry.layer.kind] = counts.get(entry.layer.kind, 0) + entry.count
    return counts


@pytest.mark.parametrize(
    ("config", "layers", "draft"),
    [
        pytest.param(LLAMA, {"full_attention": 32}, {}, id="llama"),
        pytest.param(
            {**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": 4096},
            {"sliding_attention": 32},
            {},
            id="window-on-every-layer",
        ),
        pytest.param(
            {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096, "use_sliding_window": False},
            {"full_attention": 32},
            {},
            id="window-turned-off",
        ),
        pytest.param({**LLAMA, "sliding_window": 0}, {"full_attention": 32}, {}, id="window-of-zero"),
        pytest.param(
            {**LLAMA, "architectures": ["GptOssForCausalLM"], "sliding_window": 128},
            {"sliding_attention": 16, "full_attention": 16},
            {},
            id="gpt-oss-alternates",
        ),
        pytest.param(
            {**LLAMA, "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 26, "sliding_window": 512},
            {"sliding_attention": 22, "full_attention": 4},
            {},
            id="gemma3-every-sixth-is-full",
        ),
        pytest.param(
            {**LLAMA, "architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 26, "sliding_window": 4096},
            {"sliding_attention": 13, "full_attention": 13},
            {},
            id="gemma2-every-other-is-full",
        ),
        pytest.param(
            {
                **LLAMA,
                "architectures": ["Gemma4ForCausalLM"],
                "num_hidden_layers": 6,
                "num_kv_shared_layers": 2,
                "sliding_window": 512,
                "layer_types": ["sliding_attention", "full_attention"] * 3,
            },
            {"sliding_attention": 2, "full_attention": 2, "no_cache": 2},
            {},
            id="gemma4-shares-the-last-layers",
        ),
        pytest.param(
            {
                **LLAMA,
                "architectures": ["Llama4ForConditionalGeneration"],
                "num_hidden_layers": 48,
                "attention_chunk_size": 8192,
            },
            {"chunked_attention": 36, "full_attention": 12},
            {},
            id="llama4-chunks",
        ),
        pytest.param(
            {**LLAMA, "architectures": ["Glm4MoeForCausalLM"], "num_nextn_predict_layers": 1},
            {"full_attention": 32},
            {"full_attention": 1},
            id="glm4-mtp",
        ),
        pytest.param(QWEN_NEXT, {"gated_delta_net": 36, "full_attention": 12}, {"full_attention": 1}, id="qwen3-next"),
        pytest.param(
            {
                **QWEN_NEXT,
                "architectures": ["Qwen3_5MoeForConditionalGeneration"],
                "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
                "mtp_num_hidden_layers": 2,
            },
            {"gated_delta_net": 36, "full_attention": 12},
            {"full_attention": 2},
            id="qwen3.5-layer-types",
        ),
        pytest.param(NEMOTRON, {"mamba2": 4, "no_cache": 3, "full_attention": 1}, {}, id="nemotron"),
        pytest.param(
            {**NEMOTRON, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"},
            {"mamba2": 4, "no_cache": 3, "full_attention": 1},
            {"full_attention": 1, "no_cache": 1},
            id="nemotron-mtp",
        ),
        pytest.param(
            {
                **NEMOTRON,
                "hybrid_override_pattern": None,
                "layers_block_type": ["mamba", "moe", "attention", "mlp"],
            },
            {"mamba2": 1, "no_cache": 2, "full_attention": 1},
            {},
            id="nemotron-block-names",
        ),
        pytest.param(
            {
                **LLAMA,
                "architectures": ["GraniteMoeHybridForCausalLM"],
                "num_hidden_layers": 4,
                "layer_types": ["mamba", "mamba", "attention", "mamba"],
                "mamba_n_heads": 128,
                "mamba_d_head": "auto",
                "mamba_n_groups": 1,
                "mamba_d_state": 128,
                "mamba_d_conv": 4,
                "mamba_expand": 2,
                "mamba_chunk_size": 256,
            },
            {"mamba2": 3, "full_attention": 1},
            {},
            id="granite-hybrid",
        ),
        pytest.param(
            {
                "architectures": ["DeepseekV3ForCausalLM"],
                "num_hidden_layers": 61,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "num_nextn_predict_layers": 1,
            },
            {"latent_attention": 61},
            {"latent_attention": 1},
            id="deepseek-v3",
        ),
        pytest.param(
            {
                "architectures": ["DeepseekV32ForCausalLM"],
                "num_hidden_layers": 61,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "index_head_dim": 128,
                "num_nextn_predict_layers": 1,
            },
            {"sparse_latent_attention": 61},
            {"sparse_latent_attention": 1},
            id="deepseek-v3.2",
        ),
        pytest.param(
            {
                "architectures": ["DeepseekV4ForCausalLM"],
                "num_hidden_layers": 4,
                "num_nextn_predict_layers": 1,
                "head_dim": 512,
                "qk_rope_head_dim": 64,
                "sliding_window": 128,
                "index_head_dim": 128,
                "layer_types": ["sliding", "c4", "c128", "c4"],
                "compress_rates": {"c4": 4, "c128": 128},
            },
            {"compressed_attention": 4},
            {"compressed_attention": 1},
            id="deepseek-v4-compress-rates",
        ),
    ],
)
def test_layers(config: dict[str, t.Any], layers: dict[str, int], draft: dict[str, int]) -> None:
    assert kinds(config) == layers
    assert kinds(config, "draft_layers") == draft


def test_index_is_shared_by_layers_between() -> None:
    geometry = ModelGeometry.from_config(
        {
            "architectures": ["GlmMoeDsaForCausalLM"],
            "num_hidden_layers": 10,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "index_head_dim": 128,
            "index_topk_freq": 4,
            "index_skip_topk_offset": 3,
        }
    )
    # Layers 0 to 2 and 6 have an index of their own.
    assert [(entry["index_head_dim"], entry["count"]) for entry in geometry.as_dict()["layers"]] == [(128, 4), (0, 6)]


def test_index_pattern_names_the_sharing_layers() -> None:
    geometry = ModelGeometry.from_config(
        {
            "architectures": ["DeepseekV32ForCausalLM"],
            "num_hidden_layers": 4,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "index_head_dim": 128,
            "index_topk_pattern": "FSSF",
        }
    )
    assert [(entry["index_head_dim"], entry["count"]) for entry in geometry.as_dict()["layers"]] == [(128, 2), (0, 2)]


def test_gemma4_global_layers_have_heads_of_their_own() -> None:
    config = {
        **LLAMA,
        "architectures": ["Gemma4ForConditionalGeneration"],
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 1024,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": 2,
    }
    shared = ModelGeometry.from_config({**config, "attention_k_eq_v": True}).as_dict()["layers"][1]
    apart = ModelGeometry.from_config({**config, "attention_k_eq_v": False}).as_dict()["layers"][1]
    assert (shared["kv_heads"], shared["head_dim"]) == (2, 512)
    assert (apart["kv_heads"], apart["head_dim"]) == (8, 512)


@pytest.mark.parametrize("wrapper", ["text_config", "llm_config", "language_config"])
def test_nested_text_config(wrapper: str) -> None:
    outer = {"architectures": ["Qwen3VLForConditionalGeneration"], "dtype": "float16", wrapper: {**LLAMA}}
    geometry = ModelGeometry.from_config(outer)
    assert geometry.architecture == "Qwen3VLForConditionalGeneration"
    assert (geometry.num_layers, geometry.dtype, geometry.vocab_size) == (32, "float16", 128256)


def test_doubly_nested_config() -> None:
    outer = {"architectures": ["Qwen3VLForConditionalGeneration"], "thinker_config": {"text_config": {**LLAMA}}}
    assert ModelGeometry.from_config(outer).num_layers == 32


def test_limits_and_scalars() -> None:
    geometry = ModelGeometry.from_config(QWEN_NEXT)
    assert (geometry.experts, geometry.experts_per_token, geometry.attention_heads) == (512, 10, 16)
    assert (geometry.max_model_len, geometry.dtype, geometry.hidden_size) == (262144, "bfloat16", 2048)
    assert ModelGeometry.from_config({**LLAMA, "model_max_length": 1048576}).max_model_len == 1048576
    assert ModelGeometry.from_config({**LLAMA, "max_position_embeddings": None}).max_model_len == 0


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        (NEMOTRON, "float32"),
        ({**NEMOTRON, "mamba_ssm_cache_dtype": "float16"}, "float16"),
        ({**QWEN_NEXT, "mamba_ssm_dtype": "float32"}, ""),
        ({**QWEN_NEXT, "architectures": ["Qwen3_5ForCausalLM"], "mamba_ssm_dtype": "float32"}, "float32"),
        ({**QWEN_NEXT, "architectures": ["Qwen3_5ForCausalLM"]}, ""),
    ],
)
def test_dtype_of_the_recurrent_state(config: dict[str, t.Any], dtype: str) -> None:
    assert ModelGeometry.from_config(config).ssm_dtype == dtype


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, ""),
        ({"quant_method": "fp8"}, ""),
    ],
)
def test_dtype_of_the_cache(quantization: dict[str, t.Any], dtype: str) -> None:
    assert ModelGeometry.from_config({**LLAMA, "quantization_config": quantization}).kv_cache_dtype == dtype


def test_hf_quant_config_counts_where_config_says_nothing() -> None:
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    assert ModelGeometry.from_config(LLAMA, beside).kv_cache_dtype == "fp8"
    own = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    assert ModelGeometry.from_config(own, beside).kv_cache_dtype == ""


@pytest.mark.parametrize(
    ("rope", "kind"),
    [
        ({}, "default"),
        ({"rope_scaling": {"type": "yarn", "factor": 40}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "llama3"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "sliding_attention": {}}}, "yarn"),
    ],
)
def test_rope_type(rope: dict[str, t.Any], kind: str) -> None:
    assert ModelGeometry.from_config({**LLAMA, **rope}).rope_type == kind


@pytest.mark.parametrize(
    ("extra", "architecture", "layers"),
    [
        ({}, "MistralForCausalLM", {"full_attention": 6}),
        ({"sliding_window": [None, 4096, 4096]}, "MistralForCausalLM", {"full_attention": 2, "sliding_attention": 4}),
        ({"moe": {"num_experts": 8, "num_experts_per_tok": 2}}, "MixtralForCausalLM", {"full_attention": 6}),
        (
            {
                "moe": {"num_experts": 128, "num_experts_per_tok": 4, "num_shared_experts": 1},
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
            },
            "MistralLarge3ForCausalLM",
            {"latent_attention": 6},
        ),
    ],
)
def test_params_json_of_mistral(extra: dict[str, t.Any], architecture: str, layers: dict[str, int]) -> None:
    params = {"dim": 5120, "n_layers": 6, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "vocab_size": 131072}
    geometry = ModelGeometry.from_config({**params, **extra})
    assert geometry.architecture == architecture
    assert kinds({**params, **extra}) == layers
    assert geometry.max_model_len == 128000


@pytest.mark.parametrize("config", [LLAMA, QWEN_NEXT, NEMOTRON], ids=["llama", "qwen", "nemotron"])
def test_plain_data_and_back(config: dict[str, t.Any]) -> None:
    geometry = ModelGeometry.from_config(config)
    assert ModelGeometry.from_dict(json.loads(json.dumps(geometry.as_dict()))) == geometry


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**LLAMA, "architectures": ["SomethingNewForCausalLM"]}, "SomethingNewForCausalLM is not known here"),
        ({**LLAMA, "architectures": None}, "architectures is missing"),
        ({**LLAMA, "num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({**LLAMA, "num_key_value_heads": "8"}, "num_key_value_heads is '8'"),
        ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers is True"),
        ({**LLAMA, "layer_types": ["full_attention"]}, "layer_types has 1 entries for 32 layers"),
        ({**LLAMA, "layer_types": "full"}, "layer_types is not a list"),
        ({**LLAMA, "layer_types": ["mystery"] * 32}, "layer_types has 'mystery'"),
        ({**NEMOTRON, "hybrid_override_pattern": "MX"}, "hybrid_override_pattern is 'MX'"),
        ({**QWEN_NEXT, "linear_num_key_heads": None}, "linear_num_key_heads is missing"),
        ({"architectures": ["KimiLinearForCausalLM"], "num_hidden_layers": 27}, "linear_attn_config is missing"),
        ({"architectures": ["DeepseekV4ForCausalLM"], "num_hidden_layers": 4}, "compress_ratios is missing"),
        ({**LLAMA, "architectures": ["MiniMaxM3SparseForCausalLM"]}, "sparse_attention_config is missing"),
        ([], "expected an object"),
    ],
)
def test_what_is_not_known_is_refused(config: t.Any, says: str) -> None:
    with pytest.raises(GeometryError) as caught:
        ModelGeometry.from_config(config)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"architecture": "A", "model_type": "", "layers": [{"kind": "mystery", "count": 1}]}, "'mystery' is no kind"),
        ({"architecture": "A", "model_type": "", "layers": [{"kind": "full_attention", "count": 1}]}, "is incomplete"),
        ({"layers": []}, "architecture"),
    ],
)
def test_plain_data_that_is_no_geometry_is_refused(data: dict[str, t.Any], says: str) -> None:
    with pytest.raises(GeometryError, match=says):
        ModelGeometry.from_dict(data)


DENSE: dict[str, t.Any] = {
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


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({}, 40960),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 163840),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2}}, 81920),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 40960),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}, 81920),
        ({"rope_scaling": {"type": "linear", "factor": "x"}}, 40960),
    ],
)
def test_the_longest_context_has_its_rope_scaling_in_it(rope: dict[str, t.Any], longest: int) -> None:
    config = {**DENSE, **rope}
    assert ModelGeometry.from_config(config).max_model_len == longest


def test_more_layers_than_any_model_has_are_refused() -> None:
    with pytest.raises(GeometryError, match="num_hidden_layers is 1000000000; no model has more than"):
        ModelGeometry.from_config({**DENSE, "num_hidden_layers": 1_000_000_000})


def test_the_order_of_the_layers_is_kept_and_read_back() -> None:
    config = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "torch_dtype": "bfloat16",
    }
    geometry = ModelGeometry.from_config(config)
    assert [one.layer.kind for one in geometry.sequence] == config["layer_types"]
    assert ModelGeometry.from_dict(geometry.as_dict()) == geometry
    # What an earlier run has kept has no order, and is none the worse for it.
    older = {key: value for key, value in geometry.as_dict().items() if key != "order"}
    assert ModelGeometry.from_dict(older).sequence == ()
    with pytest.raises(GeometryError, match="order does not have every layer once"):
        ModelGeometry.from_dict({**older, "order": [0, 0, 1]})

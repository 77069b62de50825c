# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._name_patterns import Budget
from ansible_collections.gb10.fleet.plugins.module_utils._quant_methods import algo_scheme, read_declaration
from ansible_collections.gb10.fleet.plugins.module_utils._weight_names import Part, candidates, part_of

ATTENTION = "model.layers.0.self_attn.q_proj"
MLP = "model.layers.0.mlp.up_proj"
EXPERT = "model.layers.0.mlp.experts.*.up_proj"
HEAD = "lm_head"


def scheme_of(block: dict[str, t.Any], module: str, **config: t.Any) -> str:
    """Return the spelling of the scheme that a block declares for a module."""
    declaration = read_declaration({"quantization_config": block, **config}, {})
    part: Part = part_of(module, None)
    return declaration.rules.scheme_of(candidates(module), part, Budget()).spelling


PLAIN = "not quantised (16 bit)"
NVFP4 = "NVFP4 W4A4, groups of 16"


@pytest.mark.parametrize(
    ("algo", "name", "bits", "activations", "granularity"),
    [
        ("NVFP4", "nvfp4_w4a4", 4, 4, "group 16"),
        ("nvfp4", "nvfp4_w4a4", 4, 4, "group 16"),
        ("NVFP4_AWQ", "nvfp4_w4a4", 4, 4, "group 16"),
        ("W4A16_NVFP4", "nvfp4_w4a16", 4, 16, "group 16"),
        ("W4A8_NVFP4_FP8", "unknown", 4, 8, "group 16"),
        ("FP8", "fp8", 8, 8, "tensor"),
        ("FP8_PER_CHANNEL_PER_TOKEN", "fp8", 8, 8, "channel"),
        ("fp8_pb_wo", "fp8", 8, 16, "block 128x128"),
        ("MXFP8", "mxfp8", 8, 8, "group 32"),
        ("W4A8_MXFP4_FP8", "mxfp4", 4, 8, "group 32"),
        ("W4A16_AWQ", "int4_awq", 4, 16, "group 128"),
        ("UNQUANTIZED", "bf16", 16, 16, ""),
        (None, "bf16", 16, 16, ""),
        ("INT8_SQ", "unknown", 0, 0, ""),
        (["NVFP4"], "bf16", 16, 16, ""),
    ],
)
def test_modelopt_algorithms(algo: object, name: str, bits: int, activations: int, granularity: str) -> None:
    scheme = algo_scheme(algo)

    assert (scheme.name, scheme.weight_bits, scheme.activation_bits, scheme.granularity) == (
        name,
        bits,
        activations,
        granularity,
    )


def group(weights: dict[str, t.Any], activations: dict[str, t.Any] | None, **more: t.Any) -> dict[str, t.Any]:
    """Return a compressed-tensors block of one group over all linear layers."""
    fields = {"targets": ["Linear"], "weights": weights, "input_activations": activations, **more}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": fields}}


F4 = {"num_bits": 4, "type": "float", "group_size": 16}
F8 = {"num_bits": 8, "type": "float"}
I4 = {"num_bits": 4, "type": "int", "group_size": 32}
MX = {"scale_dtype": "torch.uint8", "group_size": 32}


@pytest.mark.parametrize(
    ("weights", "activations", "spelling"),
    [
        (F4, F4, NVFP4),
        (F4, None, "NVFP4 W4A16, groups of 16"),
        (F4, F8, "NVFP4 weights with 8-bit activations"),
        ({**F4, **MX}, None, "MXFP4 W4A16, groups of 32"),
        ({**F4, **MX}, F8, "MXFP4 W4A8, groups of 32"),
        ({**F8, "strategy": "tensor"}, F8, "FP8 W8A8, one scale per tensor"),
        ({**F8, "strategy": "channel"}, None, "FP8 W8A16, one scale per channel"),
        ({**F8, "strategy": "block", "block_structure": [128, 128]}, F8, "FP8 W8A8, one scale per block 128x128"),
        ({**F8, "strategy": "group", **MX}, F8, "MXFP8 W8A8, groups of 32"),
        (I4, None, "INT4 W4A16, groups of 32"),
        ({"num_bits": 4, "type": "int", "strategy": "channel"}, None, "INT4 W4A16, one scale per channel"),
        (I4, {"num_bits": 8, "type": "int"}, "INT4 W4A8, groups of 32"),
        ({"num_bits": 8, "type": "int"}, None, "INT8 W8A16, one scale per channel"),
        ({"num_bits": "4", "type": "float"}, None, "weights of None bits and type float are not known here"),
        ({}, F8, PLAIN),
    ],
)
def test_compressed_tensors_groups(
    weights: dict[str, t.Any], activations: dict[str, t.Any] | None, spelling: str
) -> None:
    assert scheme_of(group(weights, activations), MLP) == spelling


def test_a_group_that_names_a_module_wins_over_one_that_names_the_class() -> None:
    block = group(F4, F4)
    block["config_groups"]["group_1"] = {"targets": ["re:.*self_attn.*"], "weights": {**F8, "strategy": "channel"}}

    assert scheme_of(block, ATTENTION) == "FP8 W8A16, one scale per channel"
    assert scheme_of(block, MLP) == NVFP4


def test_the_first_of_two_groups_that_name_a_module_wins() -> None:
    block: dict[str, t.Any] = {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {"targets": [r"re:.*layers\.0\..*"], "weights": {**F8, "strategy": "tensor"}},
            "group_1": {"targets": ["re:.*mlp.*"], "weights": F4},
        },
    }

    assert scheme_of(block, MLP).startswith("FP8")
    assert scheme_of(block, MLP.replace("layers.0", "layers.1")).startswith("NVFP4")
    assert scheme_of(block, ATTENTION.replace("layers.0", "layers.1")) == PLAIN


def test_ignored_modules_stay_as_they_are() -> None:
    block = group(F4, F4) | {"ignore": ["lm_head", "re:.*self_attn.*"]}

    assert [scheme_of(block, module) for module in (HEAD, ATTENTION, MLP, EXPERT)] == [PLAIN, PLAIN, NVFP4, NVFP4]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*"]}, [PLAIN, NVFP4, NVFP4, PLAIN]),
        ({"quantization": {"quant_algo": "NVFP4", "exclude_modules": []}}, [NVFP4] * 4),
        (
            {"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "ignore": ["model.layers.0.mlp*"]},
            [NVFP4, PLAIN, PLAIN, NVFP4],
        ),
        (
            {
                "quant_algo": "NVFP4",
                "ignore": [],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": F4, "input_activations": None}},
            },
            ["NVFP4 W4A16, groups of 16"] * 4,
        ),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {EXPERT[:-10]: {"quant_algo": "NVFP4"}}},
            [PLAIN, PLAIN, NVFP4, PLAIN],
        ),
        (
            {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    "model.layers.0.mlp.experts.5.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                    ATTENTION: {"quant_algo": "fp8"},
                    MLP: "NVFP4",
                },
                "exclude_modules": [],
            },
            ["FP8 W8A8, one scale per tensor", PLAIN, "NVFP4 W4A16, groups of 16", PLAIN],
        ),
    ],
)
def test_modelopt_blocks(block: dict[str, t.Any], expected: list[str]) -> None:
    block = {"quant_method": "modelopt", **block}

    assert [scheme_of(block, module) for module in (ATTENTION, MLP, EXPERT, HEAD)] == expected


BLOCK8 = "FP8 W8A8, one scale per block 128x128"


@pytest.mark.parametrize(
    ("block", "config", "expected"),
    [
        ({}, {}, ["FP8 W8A8, one scale per tensor"] * 3 + [PLAIN]),
        ({"quant_method": "fbgemm_fp8"}, {}, ["FP8 W8A8, one scale per channel"] * 3 + [PLAIN]),
        ({"weight_block_size": [128, 128]}, {}, [BLOCK8] * 3 + [PLAIN]),
        ({"weight_block_size": "?"}, {}, ["FP8 W8A8, one scale per block of unknown size"] * 3 + [PLAIN]),
        (
            {"weight_block_size": [128, 128], "modules_to_not_convert": ["self_attn"]},
            {"expert_dtype": "fp4"},
            [PLAIN, BLOCK8, "MXFP4 W4A8, groups of 32", PLAIN],
        ),
        (
            {"weight_block_size": [128, 128], "moe_quant_algo": "NVFP4"},
            {"expert_dtype": "fp4"},
            [BLOCK8, BLOCK8, NVFP4, PLAIN],
        ),
        (
            {"ignored_layers": [MLP]},
            {"expert_dtype": "fp8"},
            ["FP8 W8A8, one scale per tensor", PLAIN, "FP8 W8A8, one scale per tensor", PLAIN],
        ),
    ],
)
def test_fp8_blocks(block: dict[str, t.Any], config: dict[str, t.Any], expected: list[str]) -> None:
    block = {"quant_method": "fp8", **block}

    assert [scheme_of(block, module, **config) for module in (ATTENTION, MLP, EXPERT, HEAD)] == expected


INT4 = "INT4 W4A16, groups of 128"


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"quant_method": "mxfp4"}, [PLAIN, PLAIN, "MXFP4 W4A16, groups of 32", PLAIN]),
        ({"quant_method": "gpt_oss_mxfp4", "modules_to_not_convert": ["experts"]}, [PLAIN] * 4),
        ({"quant_method": "mxfp8", "ignored_layers": ["mlp"]}, ["MXFP8 W8A8, groups of 32", PLAIN, PLAIN, PLAIN]),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, [INT4, INT4, INT4, PLAIN]),
        (
            {"quant_method": "inc", "bits": 4, "group_size": 128, "block_name_to_quantize": "model.layers,model.x"},
            [INT4, INT4, INT4, PLAIN],
        ),
        (
            {"quant_method": "auto-round", "bits": 4, "group_size": 128, "to_quant_block_names": ["model.vision"]},
            [PLAIN] * 4,
        ),
        (
            {
                "quant_method": "auto-round",
                "bits": 4,
                "group_size": 128,
                "extra_config": {ATTENTION: {"bits": 16}, ".*experts.*": {"bits": 8}, HEAD: {"bits": 4}},
            },
            [PLAIN, INT4, "INT8 W8A16, groups of 128", INT4],
        ),
        (
            {"quant_method": "auto-round", "bits": 4, "data_type": "nv_fp", "act_bits": 4, "group_size": 16},
            [NVFP4, NVFP4, NVFP4, PLAIN],
        ),
        (
            {"quant_method": "auto-round", "bits": 8, "data_type": "mx_fp", "act_bits": 8},
            ["MXFP8 W8A8, groups of 32"] * 3 + [PLAIN],
        ),
        ({"quant_method": "awq_marlin", "bits": 4, "group_size": 128}, [INT4, INT4, INT4, PLAIN]),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["self_attn"]},
            [PLAIN, INT4, INT4, PLAIN],
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}, [INT4] * 4),
        (
            {
                "quant_method": "gptq_marlin",
                "bits": 4,
                "group_size": 128,
                "dynamic": {r"-:.*self_attn.*": {}, r"+:.*experts.*": {"bits": 8}},
            },
            [PLAIN, INT4, "INT8 W8A16, groups of 128", PLAIN],
        ),
        ({"quant_method": "gptq", "bits": 3, "group_size": -1}, ["INT3 W3A16, one scale per channel"] * 3 + [PLAIN]),
        ({"quant_method": "bitsandbytes"}, ["quant_method bitsandbytes is not known here"] * 4),
    ],
)
def test_other_methods(block: dict[str, t.Any], expected: list[str]) -> None:
    assert [scheme_of(block, module) for module in (ATTENTION, MLP, EXPERT, HEAD)] == expected


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"kv_cache_quant_algo": "FP8"}, ("fp8", None)),
        ({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}}, ("nvfp4", None)),
        ({"kv_cache_quant_algo": "INT3"}, ("unknown", None)),
        ({"kv_cache_quant_algo": None}, ("none", None)),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, ("fp8", True)),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": True}}, ("fp8", False)),
        ({"kv_cache_scheme": {"num_bits": 2, "type": "float"}}, ("unknown", None)),
        ({"kv_cache_scheme": None}, ("none", None)),
    ],
)
def test_kv_cache(block: dict[str, t.Any], expected: tuple[str, bool | None]) -> None:
    declaration = read_declaration({"quantization_config": {"quant_method": "modelopt", **block}}, {})

    assert (declaration.kv_cache, declaration.kv_scales) == expected


@pytest.mark.parametrize(
    ("config", "sidecars", "where"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, {}, "config.json: quantization_config"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, {}, "config.json: compression_config"),
        (
            {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
            {"hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4"}}},
            "config.json: text_config.quantization_config",
        ),
        (
            {"thinker_config": {"text_config": {"quantization_config": {"quant_method": "fp8"}}}},
            {},
            "config.json: thinker_config.text_config.quantization_config",
        ),
        ({}, {"hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4"}}}, "hf_quant_config.json"),
        (
            {"quantization_config": None},
            {"quantization_config.json": {"quant_method": "auto-round"}},
            "quantization_config.json",
        ),
        ({}, {}, ""),
    ],
)
def test_where_a_block_is_found(config: dict[str, t.Any], sidecars: dict[str, t.Any], where: str) -> None:
    assert read_declaration(config, sidecars).where == where

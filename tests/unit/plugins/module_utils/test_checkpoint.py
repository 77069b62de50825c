# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint import inspect_checkpoint
from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_files import CheckpointError
from ansible_collections.gb10.fleet.plugins.module_utils._weight_scheme import SCHEMES
from tests.unit.plugins.module_utils import checkpoint_builder as build
from tests.unit.plugins.module_utils.fixtures import published_checkpoints as published

Report = dict[str, t.Any]


def inspect(directory: Path, files: dict[str, t.Any] | None = None) -> Report:
    """Write JSON files into a directory and inspect it."""
    for name, content in (files or {}).items():
        build.write_json(directory / name, content)
    return inspect_checkpoint(str(directory)).as_dict()


def ids(report: Report, *, at_least: str = "info") -> set[str]:
    """Return the ids of the findings that are at least so grave."""
    levels = ("info", "warning", "error")
    return {entry["id"] for entry in report["findings"] if levels.index(entry["severity"]) >= levels.index(at_least)}


# Declared schemes, from the JSON files alone: bulk, dense, experts, head, draft.
DECLARED = {
    "deepseek_v4": (published.deepseek_v4(), "mxfp4", "fp8", "mxfp4", "bf16", "mxfp4"),
    "deepseek_v4_fp8": (
        published.deepseek_v4(expert_dtype=None, model_type="deepseek_ref"),
        *("fp8", "fp8", "fp8", "bf16", "fp8"),
    ),
    "deepseek_v4_nvfp4": (published.deepseek_v4_nvfp4(), "nvfp4_w4a4", "fp8", "nvfp4_w4a4", "bf16", "mxfp4"),
    "deepseek_v4_redhat": (published.deepseek_v4_redhat(), "nvfp4_w4a4", "fp8", "nvfp4_w4a4", "bf16", "nvfp4_w4a4"),
    "qwen38_unsloth": (published.qwen38_unsloth(), "nvfp4_w4a4", "nvfp4_w4a4", "unknown", "fp8", "unknown"),
    "glm_52": (published.glm_52(), "nvfp4_w4a4", "bf16", "nvfp4_w4a4", "bf16", "bf16"),
    "gemma4": (published.gemma4(), "nvfp4_w4a4", "bf16", "nvfp4_w4a4", "bf16", None),
    "minimax_m3": (published.minimax_m3(), "nvfp4_w4a4", "mxfp8", "nvfp4_w4a4", "bf16", "bf16"),
    "gpt_oss": (published.gpt_oss(), "mxfp4", "bf16", "mxfp4", "bf16", None),
    "kimi_k25": (published.kimi_k25(), "int4_gptq", "bf16", "int4_gptq", "bf16", None),
    "kimi_k3": (published.kimi_k3(), "mxfp4", "bf16", "mxfp4", "bf16", None),
    "autoround": (published.autoround(), "int4_autoround", "int4_autoround", "unknown", "bf16", "unknown"),
    "qwen36_nvidia": (published.qwen36_nvidia(), "nvfp4_w4a16", "fp8", "nvfp4_w4a16", "nvfp4_w4a16", "bf16"),
}


@pytest.mark.parametrize("name", DECLARED)
def test_schemes_from_json_alone(tmp_path: Path, name: str) -> None:
    config, bulk, dense, experts, head, draft = DECLARED[name]

    report = inspect(tmp_path, {"config.json": config})

    assert report["scheme"] == bulk
    assert report["parts"] == {"dense": dense, "experts": experts, "lm_head": head, "draft": draft}
    assert report["format"] == "none"
    assert report["weights_bytes"] == {}
    assert report["weights_bytes_total"] is None
    assert "CHECKPOINT_WEIGHTS_ABSENT" in ids(report)
    assert not ids(report, at_least="error")


@pytest.mark.parametrize("name", DECLARED)
def test_every_scheme_has_a_public_name(tmp_path: Path, name: str) -> None:
    report = inspect(tmp_path, {"config.json": DECLARED[name][0]})

    assert {report["scheme"], *(part for part in report["parts"].values() if part)} <= set(SCHEMES)


def test_a_header_that_says_fp8_does_not_hide_nvfp4_experts(tmp_path: Path) -> None:
    report = inspect(tmp_path, {"config.json": published.deepseek_v4_nvfp4()})

    assert report["declared"]["method"] == "fp8"
    assert report["part_details"]["experts"]["modules"] == 6
    assert report["part_details"]["dense"]["granularity"] == "block 128x128"
    assert report["needs_fp4_kernels"] is True
    assert "CHECKPOINT_HEADER_MISLEADS" in ids(report)


def test_expert_dtype_outside_the_block_halves_the_experts(tmp_path: Path) -> None:
    official = published.deepseek_v4()
    repack = published.deepseek_v4(expert_dtype=None)
    assert official["quantization_config"] == repack["quantization_config"]
    (tmp_path / "official").mkdir()
    (tmp_path / "repack").mkdir()

    found = [
        inspect(tmp_path / name, {"config.json": config})
        for name, config in (("official", official), ("repack", repack))
    ]

    assert [report["part_details"]["experts"]["weight_bits"] for report in found] == [4, 8]
    assert found[0]["needs_fp4_kernels"] is False
    assert "EXPERT_DTYPE_NOT_DECLARED" not in ids(found[0])
    # vLLM takes a missing expert_dtype of deepseek_v4 as fp4.
    assert "EXPERT_DTYPE_NOT_DECLARED" in ids(found[1], at_least="warning")


def test_group_order_decides_and_shares_are_told(tmp_path: Path) -> None:
    report = inspect(tmp_path, {"config.json": published.qwen38_unsloth()})

    shares = {entry["spelling"]: entry["share"] for entry in report["part_details"]["dense"]["schemes"]}
    assert set(shares) == {"NVFP4 W4A4, groups of 16", "FP8 W8A8, one scale per channel"}
    assert shares["NVFP4 W4A4, groups of 16"] > 0.5
    assert report["kv_cache"] == {"scheme": "fp8", "calibrated": True}
    assert "LM_HEAD_4BIT" not in ids(report)


@pytest.mark.parametrize(
    ("files", "scheme", "where", "kv_cache"),
    [
        (
            {"config.json": published.nemotron(), "hf_quant_config.json": published.nemotron_quantization()},
            *("nvfp4_w4a4", "hf_quant_config.json", "fp8"),
        ),
        ({"config.json": published.kimi_k25()}, "int4_gptq", "config.json: text_config.quantization_config", "none"),
        (
            {"config.json": build.small_qwen3(), "quantize_config.json": {"bits": 4, "group_size": 128}},
            *("int4_gptq", "quantize_config.json", "none"),
        ),
        (
            {"config.json": build.small_qwen3(), "quant_config.json": {"w_bit": 4, "q_group_size": 128}},
            *("int4_awq", "quant_config.json", "none"),
        ),
    ],
)
def test_schemes_that_stand_elsewhere(
    tmp_path: Path, files: dict[str, t.Any], scheme: str, where: str, kv_cache: str
) -> None:
    report = inspect(tmp_path, files)

    assert report["scheme"] == scheme
    assert report["declared"]["where"] == where
    assert report["kv_cache"]["scheme"] == kv_cache
    assert "CHECKPOINT_SCHEME_ELSEWHERE" in ids(report)


def test_a_block_without_a_list_does_not_say_what_the_head_is(tmp_path: Path) -> None:
    block = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}

    report = inspect(tmp_path, {"config.json": published.nemotron(), "hf_quant_config.json": block})

    assert report["parts"]["experts"] == "nvfp4_w4a4"
    assert report["parts"]["lm_head"] == "unknown"
    assert "CHECKPOINT_SCHEME_UNKNOWN" in ids(report, at_least="warning")


@pytest.mark.parametrize(
    ("directory", "scheme"),
    [
        ("NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "unknown"),
        ("Qwen3-32B-AWQ", "unknown"),
        ("model-w4a16", "unknown"),
        ("Qwen3-32B", "bf16"),
        ("Llama-4-Scout-17B", "bf16"),
    ],
)
def test_silence_means_bf16_only_where_the_name_promises_nothing_else(
    tmp_path: Path, directory: str, scheme: str
) -> None:
    (tmp_path / directory).mkdir()

    report = inspect(tmp_path / directory, {"config.json": build.small_qwen3()})

    assert report["scheme"] == scheme
    assert ("CHECKPOINT_SCHEME_NOT_DECLARED" in ids(report)) == (scheme == "unknown")


def test_neither_quantisation_nor_dtype_is_unknown(tmp_path: Path) -> None:
    config = build.small_qwen3()
    del config["torch_dtype"]

    assert inspect(tmp_path, {"config.json": config})["scheme"] == "unknown"


def test_a_method_that_is_not_known_claims_nothing(tmp_path: Path) -> None:
    config = {**build.small_qwen3(), "quantization_config": {"quant_method": "quark"}}

    report = inspect(tmp_path, {"config.json": config})

    assert report["scheme"] == "unknown"
    assert report["needs_fp4_kernels"] is None
    assert "CHECKPOINT_SCHEME_UNKNOWN" in ids(report, at_least="warning")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"), {"in_proj_qkvz", "in_proj_ba"}),
        (("in_proj_a", "in_proj_b"), {"in_proj_ba"}),
        (("in_proj_qkv", "in_proj_z", "in_proj_qkvz", "in_proj_a", "in_proj_b", "in_proj_ba"), set()),
        ((), set()),
    ],
)
def test_ignore_list_that_misses_the_fused_names(tmp_path: Path, names: tuple[str, ...], expected: set[str]) -> None:
    report = inspect(tmp_path, {"config.json": published.qwen3_next_ignore_list(*names)})

    found = [entry for entry in report["findings"] if entry["id"] == "IGNORE_LIST_VS_FUSED_NAMES"]
    assert report["parts"]["dense"] == "nvfp4_w4a4"
    assert len(found) == bool(expected)
    assert all(name in found[0]["evidence"] for name in expected)
    assert all(entry["severity"] == "warning" for entry in found)


def test_pieces_of_one_matrix_with_two_schemes_are_refused(tmp_path: Path) -> None:
    config = {**build.small_qwen3(), **published.qwen3_next_ignore_list()}
    config["architectures"] = ["Qwen3ForCausalLM"]
    config["quantization_config"]["ignore"] = ["re:.*layers.1.self_attn.k_proj"]

    report = inspect(tmp_path, {"config.json": config})

    (found,) = (entry for entry in report["findings"] if entry["id"] == "IGNORE_LIST_SPLITS_FUSED")
    assert found["severity"] == "error"
    assert "model.layers.1.self_attn.qkv_proj" in found["evidence"]


def test_gguf_only(tmp_path: Path) -> None:
    head = b"GGUF" + (3).to_bytes(4, "little") + (291).to_bytes(8, "little") + bytes(48)
    for number in (1, 2):
        (tmp_path / f"model-Q5_K_M-0000{number}-of-00002.gguf").write_bytes(head)

    report = inspect(tmp_path)

    assert (report["scheme"], report["format"]) == ("gguf", "gguf")
    assert report["parts"]["dense"] == "gguf"
    assert report["weights_bytes"] == {"GGUF": 2 * len(head)}
    assert ids(report, at_least="error") == {"CHECKPOINT_GGUF_ONLY"}


def test_a_gguf_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"<html>rate limited</html>")

    assert ids(inspect(tmp_path), at_least="error") == {"CHECKPOINT_GGUF_ONLY", "CHECKPOINT_SHARD_MALFORMED"}


MISTRAL: dict[str, t.Any] = {
    "dim": 4096,
    "n_layers": 2,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
    "n_kv_heads": 8,
    "vocab_size": 32000,
}
NVFP4_GROUP = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "ignore": ["output"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": published.FLOAT4,
            "input_activations": published.FLOAT4_LOCAL,
        }
    },
}


@pytest.mark.parametrize(
    ("quantization", "scheme", "head"),
    [
        ({"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}, "fp8", "bf16"),
        (NVFP4_GROUP, "nvfp4_w4a4", "bf16"),
        ({"qformat_weight": "int3"}, "unknown", "unknown"),
    ],
)
def test_mistral_params_stand_in_for_the_config(
    tmp_path: Path, quantization: dict[str, t.Any], scheme: str, head: str
) -> None:
    (tmp_path / "tekken.json").write_text("{}", encoding="utf-8")

    report = inspect(tmp_path, {"params.json": {**MISTRAL, "quantization": quantization}})

    assert (report["scheme"], report["parts"]["lm_head"]) == (scheme, head)
    assert report["declared"]["where"] == "params.json: quantization"
    (found,) = (entry for entry in report["findings"] if entry["id"] == "CHECKPOINT_MISTRAL_FORMAT")
    assert "--config-format mistral --load-format mistral --tokenizer-mode mistral" in found["remedy"]
    assert sum(layer["count"] for layer in report["geometry"]["layers"]) == 2


def test_mistral_weights_are_the_consolidated_ones(tmp_path: Path) -> None:
    module = "layers.0.attention.wq"
    size = build.write_shard(tmp_path / "consolidated.safetensors", build.plain(module))
    build.write_shard(tmp_path / "model.safetensors", build.plain("model.layers.0.self_attn.q_proj", 512))

    native = inspect(tmp_path, {"params.json": MISTRAL})
    converted = inspect(tmp_path, {"config.json": build.small_qwen3()})

    assert (native["format"], native["weights_bytes"]) == ("mistral", {"BF16": size})
    assert (converted["format"], converted["weights_bytes"]) == ("safetensors", {"BF16": size * 8})


STORED: dict[str, tuple[t.Any, dict[str, t.Any], str]] = {
    "bf16": (build.plain, {}, "bf16"),
    "nvfp4": (
        build.modelopt_nvfp4,
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        "nvfp4_w4a4",
    ),
    "nvfp4, 16-bit activations": (
        build.modelopt_nvfp4,
        {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]},
        "nvfp4_w4a16",
    ),
    "packed nvfp4": (build.packed_nvfp4, {**NVFP4_GROUP, "ignore": ["lm_head"]}, "nvfp4_w4a4"),
    "fp8 blocks": (build.block_fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
    "mxfp8": (build.mxfp8, {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]}, "mxfp8"),
    "autoround": (build.gptq_int4, {"quant_method": "auto-round", "bits": 4, "group_size": 128}, "int4_autoround"),
    "gptq": (build.gptq_int4, {"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4_gptq"),
    "awq": (build.awq_int4, {"quant_method": "awq", "bits": 4, "group_size": 128}, "int4_awq"),
}


def write_model(directory: Path, tensors: build.Tensors, block: dict[str, t.Any] | None = None) -> Report:
    """Write a small dense model in one shard and inspect it."""
    config = build.small_qwen3()
    if block:
        config["quantization_config"] = block
    build.write_shard(directory / "model.safetensors", tensors)
    return inspect(directory, {"config.json": config})


@pytest.mark.parametrize("name", STORED)
def test_tensors_agree_with_an_honest_declaration(tmp_path: Path, name: str) -> None:
    make, block, scheme = STORED[name]

    report = write_model(tmp_path, build.dense_tensors(make), block)

    assert report["scheme"] == report["parts"]["dense"] == scheme
    assert report["parts"]["lm_head"] == "bf16"
    assert report["weights_complete"] is True
    assert not ids(report, at_least="warning")


@pytest.mark.parametrize("name", [name for name in STORED if name != "bf16"])
def test_a_declaration_that_the_tensors_contradict_is_an_error(tmp_path: Path, name: str) -> None:
    make, _block, scheme = STORED[name]
    wrong = STORED["nvfp4" if not scheme.startswith("nvfp4") else "fp8 blocks"][1]

    report = write_model(tmp_path, build.dense_tensors(make), wrong)

    found = [entry for entry in report["findings"] if entry["id"] == "CHECKPOINT_DECLARED_VS_ACTUAL"]
    assert [entry["severity"] for entry in found] == ["error"]
    assert "100% of the dense layers" in found[0]["message"]
    # What the tensors are, as far as tensors tell: AutoRound is stored like GPTQ.
    stored = {"int4_autoround": "int4_gptq", "nvfp4_w4a16": "nvfp4_w4a4"}.get(scheme, scheme)
    assert report["parts"]["dense"] == stored


@pytest.mark.parametrize("name", [name for name in STORED if name != "bf16"])
def test_quantised_tensors_that_no_file_declares(tmp_path: Path, name: str) -> None:
    report = write_model(tmp_path, build.dense_tensors(STORED[name][0]))

    assert ids(report, at_least="error") == {"CHECKPOINT_UNDECLARED_QUANTISATION"}
    assert report["declared"] == {"method": "", "where": "", "parts": {}}


def test_w4a4_without_activation_scales_is_a_contradiction(tmp_path: Path) -> None:
    tensors = build.dense_tensors(lambda *args: build.modelopt_nvfp4(*args, activations=False))

    report = write_model(tmp_path, tensors, STORED["nvfp4"][1])

    assert report["parts"]["dense"] == "nvfp4_w4a16"
    assert "CHECKPOINT_DECLARED_VS_ACTUAL" in ids(report, at_least="error")


def test_weights_only_with_activation_scales_stays_weights_only(tmp_path: Path) -> None:
    report = write_model(tmp_path, build.dense_tensors(build.modelopt_nvfp4), STORED["nvfp4, 16-bit activations"][1])

    assert report["parts"]["dense"] == "nvfp4_w4a16"
    assert report["needs_fp4_kernels"] is False
    assert not ids(report, at_least="warning")


def test_a_small_projection_left_alone_is_no_error(tmp_path: Path) -> None:
    tensors = build.dense_tensors(build.block_fp8)
    for role in ("weight", "weight_scale_inv"):
        del tensors[f"model.layers.1.self_attn.o_proj.{role}"]
    tensors |= build.plain("model.layers.1.self_attn.o_proj", 128, 128)

    report = write_model(tmp_path, tensors, STORED["fp8 blocks"][1])

    (found,) = (entry for entry in report["findings"] if entry["id"] == "CHECKPOINT_DECLARED_VS_ACTUAL")
    assert found["severity"] == "info"
    assert report["parts"]["dense"] == "fp8"


def test_a_module_excluded_by_the_list_but_quantised_is_an_error(tmp_path: Path) -> None:
    report = write_model(
        tmp_path, build.dense_tensors(build.modelopt_nvfp4, head=build.modelopt_nvfp4), STORED["nvfp4"][1]
    )

    (found,) = (entry for entry in report["findings"] if entry["id"] == "CHECKPOINT_DECLARED_VS_ACTUAL")
    assert (found["severity"], found["evidence"]) == ("error", "lm_head")
    assert report["parts"]["lm_head"] == "nvfp4_w4a4"
    assert "LM_HEAD_4BIT" in ids(report, at_least="warning")


def test_draft_experts_that_the_ignore_list_forgets(tmp_path: Path) -> None:
    """A boot crash of vllm-project/vllm#41994 (2026-05): the MTP experts are BF16, the list covers only the rest."""
    config = published.qwen36_nvidia()
    config["quantization_config"] = {**NVFP4_GROUP, "ignore": ["lm_head", "mtp.fc", "re:mtp.*self_attn.*"]}
    tensors: build.Tensors = {"lm_head.weight": ("BF16", (512, 128))}
    for name in ("gate_proj", "up_proj", "down_proj"):
        tensors |= build.packed_nvfp4(f"model.language_model.layers.0.mlp.experts.0.{name}")
        tensors |= build.plain(f"mtp.layers.0.mlp.experts.0.{name}")
    build.write_shard(tmp_path / "model.safetensors", tensors)

    report = inspect(tmp_path, {"config.json": config})

    assert (report["parts"]["experts"], report["parts"]["draft"]) == ("nvfp4_w4a4", "bf16")
    (found,) = (entry for entry in report["findings"] if entry["id"] == "CHECKPOINT_DECLARED_VS_ACTUAL")
    assert "of the draft layers" in found["message"]
    assert found["severity"] == "error"


def test_draft_layers_that_are_declared_but_were_not_kept(tmp_path: Path) -> None:
    config = build.small_qwen3() | {"num_nextn_predict_layers": 1}
    build.write_shard(tmp_path / "model.safetensors", build.dense_tensors(build.plain))

    report = inspect(tmp_path, {"config.json": config})

    assert report["parts"]["draft"] is None
    assert "CHECKPOINT_DRAFT_ABSENT" in ids(report, at_least="warning")


def test_draft_layers_behind_the_last_layer(tmp_path: Path) -> None:
    config = build.small_qwen3() | {"num_nextn_predict_layers": 1}
    tensors = build.dense_tensors(build.plain) | build.plain("model.layers.2.self_attn.q_proj", 128, 128)
    build.write_shard(tmp_path / "model.safetensors", tensors)

    report = inspect(tmp_path, {"config.json": config})

    assert report["parts"]["draft"] == "bf16"
    assert report["part_bytes"]["draft"] == 128 * 128 * 2


def test_experts_of_two_schemes(tmp_path: Path) -> None:
    config = published.qwen36_nvidia()
    block = config["quantization_config"]
    block["quantized_layers"]["model.language_model.layers.1.mlp.experts"] = {"quant_algo": "FP8"}

    report = inspect(tmp_path, {"config.json": config})

    (found,) = (entry for entry in report["findings"] if entry["id"] == "EXPERTS_OF_SEVERAL_SCHEMES")
    assert "FP8 W8A8, one scale per tensor 50%" in found["message"]


def test_one_expert_that_is_stored_otherwise_shows(tmp_path: Path) -> None:
    config = published.qwen36_nvidia()
    tensors: build.Tensors = {}
    for expert in range(4):
        make = build.plain if expert == 3 else build.modelopt_nvfp4
        tensors |= make(f"model.language_model.layers.0.mlp.experts.{expert}.gate_proj")
    build.write_shard(tmp_path / "model.safetensors", tensors)

    report = inspect(tmp_path, {"config.json": config})

    assert report["parts"]["experts"] == "nvfp4_w4a16"
    (found,) = (entry for entry in report["findings"] if entry["id"] == "CHECKPOINT_DECLARED_VS_ACTUAL")
    assert (found["severity"], "stored as not quantised" in found["message"]) == ("error", True)


def test_gpt_oss_tensors_fuse_all_experts_of_a_layer(tmp_path: Path) -> None:
    start = "model.layers.0.mlp.experts"
    tensors: build.Tensors = {
        f"{start}.gate_up_proj_blocks": ("U8", (8, 64, 4, 16)),
        f"{start}.gate_up_proj_scales": ("U8", (8, 64, 4)),
        f"{start}.gate_up_proj_bias": ("BF16", (8, 64)),
        "model.layers.0.self_attn.q_proj.weight": ("BF16", (64, 128)),
        "model.layers.0.mlp.router.weight": ("BF16", (8, 128)),
        "lm_head.weight": ("BF16", (512, 128)),
    }
    build.write_shard(tmp_path / "model.safetensors", tensors)

    report = inspect(tmp_path, {"config.json": published.gpt_oss()})

    assert report["parts"] == {"dense": "bf16", "experts": "mxfp4", "lm_head": "bf16", "draft": None}
    assert report["part_bytes"]["other"] == 8 * 128 * 2
    assert not ids(report, at_least="warning")


def test_deepseek_experts_are_packed_in_signed_bytes(tmp_path: Path) -> None:
    tensors = build.block_fp8("layers.0.attn.wq_a", 256, 512, scale="F8_E8M0")
    tensors |= build.deepseek_fp4("layers.0.ffn.experts.0.w1") | build.plain("head", 512)
    build.write_shard(tmp_path / "model.safetensors", tensors)

    report = inspect(tmp_path, {"config.json": published.deepseek_v4()})

    assert (report["parts"]["dense"], report["parts"]["experts"]) == ("fp8", "mxfp4")
    assert report["part_details"]["dense"]["granularity"] == "block 128x128"
    assert not ids(report, at_least="error")


def test_bytes_are_exact_by_type_and_part(tmp_path: Path) -> None:
    tensors = build.dense_tensors(build.modelopt_nvfp4, layers=1)
    total = build.write_shard(tmp_path / "model.safetensors", tensors)

    report = inspect(tmp_path, {"config.json": build.small_qwen3(layers=1)})

    linear = 4 * 128 * 128 + 3 * 256 * 128
    assert report["weights_bytes"] == {
        "BF16": 2 * (2 * 512 * 128 + 2 * 128),
        "F32": 4 * 2 * 7,
        "F8_E4M3": linear // 16,
        "U8": linear // 2,
    }
    assert report["weights_bytes_total"] == total == sum(report["part_bytes"].values())
    assert report["part_bytes"]["dense"] == linear // 2 + linear // 16 + 4 * 2 * 7


def test_bytes_are_exact_by_layer(tmp_path: Path) -> None:
    tensors = build.dense_tensors(build.modelopt_nvfp4, layers=2)
    # Layers of a tower and of a drafter have numbers, too; neither is a layer of the model.
    others = build.plain("visual.blocks.0.attn.proj") | build.plain("mtp.layers.0.mlp.up_proj")
    others |= build.plain("model.layers.2.mlp.up_proj")
    build.write_shard(tmp_path / "model.safetensors", tensors | others)

    report = inspect(tmp_path, {"config.json": build.small_qwen3(layers=2)})

    outside = {"embedding", "lm_head", "multimodal", "draft"}
    first, second = report["layer_bytes"]
    assert first == second > 0
    final_norm = 2 * 128
    assert first + second + final_norm == sum(
        size for part, size in report["part_bytes"].items() if part not in outside
    )


def test_layers_that_were_not_all_read_have_no_bytes(tmp_path: Path) -> None:
    build.write_shard(tmp_path / "model.safetensors", build.dense_tensors(build.plain, layers=1))

    assert inspect(tmp_path, {"config.json": build.small_qwen3(layers=2)})["layer_bytes"] == []


def test_a_tied_head_has_no_tensor_of_its_own(tmp_path: Path) -> None:
    tensors = build.dense_tensors(build.plain)
    del tensors["lm_head.weight"]
    build.write_shard(tmp_path / "model.safetensors", tensors)

    report = inspect(tmp_path, {"config.json": build.small_qwen3() | {"tie_word_embeddings": True}})

    assert (report["parts"]["lm_head"], report["lm_head_tied"]) == ("bf16", True)


def two_shards(directory: Path) -> dict[str, build.Tensors]:
    """Write a small model in two shards with an index, and return what is in each."""
    tensors = build.dense_tensors(build.plain)
    names = sorted(tensors)
    shards = {
        f"model-0000{number}-of-00002.safetensors": {name: tensors[name] for name in names[number - 1 :: 2]}
        for number in (1, 2)
    }
    total = sum(build.write_shard(directory / shard, content) for shard, content in shards.items())
    build.write_index(directory, shards, total)
    build.write_json(directory / "config.json", build.small_qwen3())
    return shards


def test_shards_with_an_index(tmp_path: Path) -> None:
    two_shards(tmp_path)

    report = inspect(tmp_path)

    assert (report["shards"], report["weights_complete"]) == (2, True)
    assert report["weights_bytes_total"] == report["weights_bytes_declared"]
    assert ids(report) == set()


@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_shard_is_named(tmp_path: Path, with_index: bool) -> None:
    two_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    if not with_index:
        (tmp_path / "model.safetensors.index.json").unlink()

    report = inspect(tmp_path)

    assert report["shards_missing"] == ["model-00002-of-00002.safetensors"]
    assert report["weights_complete"] is False
    (found,) = (entry for entry in report["findings"] if entry["id"] == "CHECKPOINT_SHARD_MISSING")
    assert "model-00002-of-00002.safetensors" in found["message"]


def test_a_shard_cut_short_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    shards = two_shards(tmp_path)
    build.write_shard(tmp_path / "model-00002-of-00002.safetensors", shards["model-00002-of-00002.safetensors"], cut=77)

    report = inspect(tmp_path)

    (found,) = (entry for entry in report["findings"] if entry["severity"] == "error")
    assert found["id"] == "CHECKPOINT_SHARD_TRUNCATED"
    assert found["message"] == "The shard model-00002-of-00002.safetensors is 77 bytes short."
    assert report["shards_damaged"] == ["model-00002-of-00002.safetensors"]
    # The header is whole, so bytes and schemes are known all the same.
    assert report["weights_bytes_total"] == report["weights_bytes_declared"]


def test_a_shard_that_is_an_error_page_is_named(tmp_path: Path) -> None:
    two_shards(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"<html>503 Service Unavailable</html>")

    report = inspect(tmp_path)

    assert ids(report, at_least="error") == {"CHECKPOINT_SHARD_MALFORMED"}
    assert report["shards_damaged"] == ["model-00001-of-00002.safetensors"]


def test_a_tensor_that_the_index_promises_and_the_shard_lacks(tmp_path: Path) -> None:
    shards = two_shards(tmp_path)
    shards["model-00001-of-00002.safetensors"]["model.layers.1.extra.weight"] = ("BF16", (2, 2))
    build.write_index(tmp_path, shards)

    assert ids(inspect(tmp_path), at_least="error") == {"CHECKPOINT_TENSOR_MISSING"}


def test_an_index_with_a_stale_total(tmp_path: Path) -> None:
    build.write_index(tmp_path, two_shards(tmp_path), 12345)

    assert ids(inspect(tmp_path)) == {"CHECKPOINT_INDEX_SIZE_DIFFERS"}


def test_index_without_shards_names_the_modules_exactly(tmp_path: Path) -> None:
    two_shards(tmp_path)
    for shard in tmp_path.glob("*.safetensors"):
        shard.unlink()

    report = inspect(tmp_path)

    assert (report["format"], report["weights_complete"]) == ("safetensors", None)
    assert report["weights_bytes_declared"] > 0
    assert report["parts"] == {"dense": "bf16", "experts": None, "lm_head": "bf16", "draft": None}
    assert report["part_details"]["dense"]["modules"] == 14
    assert ids(report) == {"CHECKPOINT_WEIGHTS_ABSENT"}


@pytest.mark.parametrize(
    ("name", "content", "finding"),
    [
        ("config.json", "{not json", "CHECKPOINT_CONFIG_UNREADABLE"),
        ("config.json", "[1, 2]", "CHECKPOINT_CONFIG_UNREADABLE"),
        ("hf_quant_config.json", "", "CHECKPOINT_CONFIG_UNREADABLE"),
        ("model.safetensors.index.json", '{"weight_map": []}', "CHECKPOINT_INDEX_UNREADABLE"),
    ],
)
def test_broken_json_is_named(tmp_path: Path, name: str, content: str, finding: str) -> None:
    two_shards(tmp_path)
    (tmp_path / name).write_text(content, encoding="utf-8")

    (found,) = (entry for entry in inspect(tmp_path)["findings"] if entry["id"] == finding)
    assert name in found["message"]


def test_shards_without_a_config(tmp_path: Path) -> None:
    two_shards(tmp_path)
    (tmp_path / "config.json").unlink()

    report = inspect(tmp_path)

    assert "CHECKPOINT_CONFIG_MISSING" in ids(report, at_least="error")
    assert report["scheme"] == "bf16"
    assert report["geometry"] == {}


def test_two_files_that_declare_different_schemes(tmp_path: Path) -> None:
    files = {
        "config.json": build.small_qwen3() | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}},
        "hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4"}},
    }

    assert "CHECKPOINT_QUANT_CONFIGS_DISAGREE" in ids(inspect(tmp_path, files), at_least="warning")


def test_two_files_that_declare_the_same(tmp_path: Path) -> None:
    config = published.deepseek_v4_nvfp4()
    block = config["quantization_config"]
    beside = {"quantization": {key: block[key] for key in ("quant_algo", "quantized_layers")}}

    report = inspect(tmp_path, {"config.json": config, "hf_quant_config.json": beside})

    assert "CHECKPOINT_QUANT_CONFIGS_DISAGREE" not in ids(report)


def test_pickle_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"\x80\x04")

    report = inspect(tmp_path, {"config.json": build.small_qwen3()})

    assert report["format"] == "pickle"
    assert "CHECKPOINT_PICKLE_ONLY" in ids(report, at_least="warning")


def test_an_unknown_architecture_has_no_geometry_but_a_scheme(tmp_path: Path) -> None:
    config = build.small_qwen3() | {"architectures": ["NobodyKnowsForCausalLM"], "model_type": "nobody_knows"}

    report = inspect(tmp_path, {"config.json": config})

    assert (report["geometry"], report["scheme"]) == ({}, "bf16")
    assert "CHECKPOINT_GEOMETRY_UNKNOWN" in ids(report, at_least="warning")


@pytest.mark.parametrize("kind", ["absent", "file", "empty"])
def test_what_is_no_checkpoint_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_text("x", encoding="utf-8")
    elif kind == "empty":
        path.mkdir()

    with pytest.raises(CheckpointError, match=r"give the directory that holds the checkpoint\.$"):
        inspect_checkpoint(str(path))


def test_patterns_that_could_run_for_years_are_not_run(tmp_path: Path) -> None:
    config = {**build.small_qwen3(), **published.qwen3_next_ignore_list()}
    config["quantization_config"]["ignore"] = ["lm_head", r"re:(a*)*b", r"re:(x|xx)+y$"]

    report = inspect(tmp_path, {"config.json": config})

    (found,) = (entry for entry in report["findings"] if entry["id"] == "CHECKPOINT_PATTERNS_NOT_EVALUATED")
    assert "2 patterns" in found["message"]
    assert report["parts"]["lm_head"] == "bf16"


WRONG: tuple[t.Any, ...] = (None, True, -1, 1 << 70, 3.5, "", "x", [], [None], {}, {"a": {}}, [[["x"]]])


@pytest.mark.parametrize("name", DECLARED)
def test_any_value_of_the_wrong_kind_is_survived(tmp_path: Path, name: str) -> None:
    """Replace each field of the config and of its quantisation block by values that make no sense."""
    config = DECLARED[name][0]
    paths: list[tuple[str, ...]] = [(key,) for key in config]
    paths += [("quantization_config", key) for key in config.get("quantization_config", {})]
    for at, path in enumerate(paths):
        broken = copy.deepcopy(config)
        inner = broken
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = WRONG[at % len(WRONG)]

        report = inspect(tmp_path, {"config.json": broken})

        assert report["scheme"] in SCHEMES


def test_every_finding_is_documented() -> None:
    root = Path(__file__).resolve().parents[4]
    text = (root / "docs" / "findings.md").read_text(encoding="utf-8")
    sources = [*(root / "plugins" / "module_utils").glob("_checkpoint*.py")]
    used = {
        name
        for path in sources
        for name in re.findall(r'"((?:CHECKPOINT|EXPERTS?|IGNORE|LM)_[A-Z0-9_]+)"', path.read_text())
    }

    assert len(used) > 25
    assert sorted(name for name in used if f"| {name} |" not in text) == []


def test_cache_dtype_that_stands_beside_config_json(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 4,
    }
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    report = inspect(tmp_path, {"config.json": config, "hf_quant_config.json": beside})
    assert report["geometry"]["kv_cache_dtype"] == "fp8"


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b"\xff\xfe\x00", b'{"a":' * 50_000], ids=["empty", "list", "object", "binary", "deep"]
)
def test_a_config_that_is_there_is_not_called_missing(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "config.json").write_bytes(raw)
    report = inspect_checkpoint(str(tmp_path)).as_dict()
    found = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert [finding["id"] for finding in found] == ["CHECKPOINT_CONFIG_UNREADABLE"]
    assert "config.json" in found[0]["message"]

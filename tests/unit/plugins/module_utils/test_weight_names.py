# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._weight_names import (
    Part,
    candidates,
    fold_experts,
    part_of,
    split_name,
)


@pytest.mark.parametrize(
    ("tensor", "module", "role"),
    [
        ("lm_head.weight", "lm_head", "weight"),
        ("a.q_proj.weight_scale_2", "a.q_proj", "weight_scale_2"),
        ("a.q_proj.weight_scale_inv", "a.q_proj", "weight_scale_inv"),
        ("layers.0.ffn.experts.3.w1.scale", "layers.0.ffn.experts.3.w1", "scale"),
        ("a.mlp.experts.gate_up_proj_blocks", "a.mlp.experts.gate_up_proj", "blocks"),
        ("a.mlp.experts.down_proj", "a.mlp.experts.down_proj", "weight"),
        ("a.mlp.experts.down_proj_weight_scale_2", "a.mlp.experts.down_proj", "weight_scale_2"),
        ("a.self_attn.k_scale", "a.self_attn", "k_scale"),
        ("a.linear_attn.A_log", "a.linear_attn.A_log", "weight"),
        ("weight", "", "weight"),
    ],
)
def test_tensor_names_split_into_module_and_role(tensor: str, module: str, role: str) -> None:
    assert split_name(tensor) == (module, role)


@pytest.mark.parametrize(
    ("module", "part"),
    [
        ("model.layers.0.self_attn.q_proj", "dense"),
        ("model.layers.0.mlp.shared_experts.up_proj", "dense"),
        ("model.layers.0.mlp.shared_expert.up_proj", "dense"),
        ("backbone.layers.3.mixer.in_proj", "dense"),
        ("model.layers.0.mlp.experts.17.up_proj", "experts"),
        ("layers.0.ffn.experts", "experts"),
        ("model.layers.0.mlp.gate", "other"),
        ("model.layers.0.mlp.shared_expert_gate", "other"),
        ("model.layers.0.input_layernorm", "other"),
        ("backbone.layers.0.mixer.conv1d", "other"),
        ("lm_head", "lm_head"),
        ("model.language_model.lm_head", "lm_head"),
        ("head", "lm_head"),
        ("output", "lm_head"),
        ("model.embed_tokens", "embedding"),
        ("embed", "embedding"),
        ("backbone.embeddings", "embedding"),
        ("model.visual.blocks.0.attn.qkv", "multimodal"),
        ("vision_tower.encoder.layers.0.self_attn.q_proj", "multimodal"),
        ("mtp.layers.0.mlp.experts.1.up_proj", "draft"),
        ("mtp.0.ffn.experts.1.w1", "draft"),
        ("mtp.fc", "draft"),
        ("mtp.lm_head", "draft"),
        ("model.layers.62.mlp.experts.1.up_proj", "draft"),
        ("model.layers.61.mlp.experts.1.up_proj", "experts"),
        ("model.layers.62.shared_head.norm", "other"),
    ],
)
def test_modules_belong_to_parts(module: str, part: Part) -> None:
    assert part_of(module, 62) == part


def test_without_a_number_of_layers_nothing_lies_behind_the_last() -> None:
    assert part_of("model.layers.900.self_attn.q_proj", None) == "dense"


def test_all_experts_of_a_layer_are_one_module() -> None:
    assert (
        fold_experts("a.mlp.experts.17.up_proj") == fold_experts("a.mlp.experts.3.up_proj") == "a.mlp.experts.*.up_proj"
    )
    assert fold_experts("a.mlp.experts.gate_up_proj") == "a.mlp.experts.gate_up_proj"


@pytest.mark.parametrize(
    ("module", "other"),
    [
        ("a.self_attn.q_proj", "a.self_attn.qkv_proj"),
        ("layers.0.attn.wkv", "layers.0.attn.fused_wqa_wkv"),
        ("layers.0.ffn.experts.*.w1", "layers.0.ffn.experts.0.gate_proj"),
        ("language_model.model.layers.0.x", "model.language_model.layers.0.x"),
        ("model.language_model.layers.0.x", "language_model.model.layers.0.x"),
        ("language_model.lm_head", "lm_head"),
    ],
)
def test_lists_may_use_another_name(module: str, other: str) -> None:
    assert other in candidates(module)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names of tensors and modules: what part of the model they belong to, and what else they are called.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

Part = t.Literal["dense", "experts", "lm_head", "draft", "embedding", "multimodal", "other"]

# What follows the name of a module in the name of a tensor.
_ROLES: t.Final = frozenset(
    (
        "weight_global_scale",
        "weight_zero_point",
        "input_global_scale",
        "weight_scale_inv",
        "input_zero_point",
        "pre_quant_scale",
        "weight_scale_2",
        "weight_packed",
        "weight_g_idx",
        "qscale_weight",
        "weight_scale",
        "weight_shape",
        "output_scale",
        "input_scale",
        "qscale_act",
        "qweight",
        "k_scale",
        "q_scale",
        "v_scale",
        "qzeros",
        "weight",
        "scales",
        "g_idx",
        "scale",
        "bias",
    )
)
# Experts fused into one tensor carry the role behind an underscore (gpt-oss: gate_up_proj_blocks).
_FUSED_ROLES = re.compile(
    r"^(?P<module>.*\.experts\.\w*?proj)(?:_(?P<role>blocks|scales|bias|weight_scale_2|weight_scale|weight|input_scale|scale))?$"
)
_MULTIMODAL = re.compile(
    r"(?:^|\.)(?:visual|vision_\w+|vision|vit|audio_\w+|sound_\w+|mm_\w+|multi_modal_projector|patch_merge_mlp|"
    r"embed_vision|embed_audio|merger|mlp1|conformer|pre_mm_projector_norm)(?:\.|$)"
)
_EMBEDDING = re.compile(
    r"(?:^|\.)(?:embed|embed_tokens|embeddings|tok_embeddings|wte|word_embeddings|embed_tokens_per_layer)(?:\.|$)"
)
_HEAD = re.compile(r"(?:^|\.)lm_head$|^(?:head|output|embed_out)$")
_DRAFT = re.compile(r"(?:^|\.)(?:mtp|mtp_layers|nextn|nextn_predict_layers|mtp_block)(?:\.|$)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d{1,4})\.")
# Small matrices that no scheme quantises: routers, norms, convolutions, gates of one column.
_OTHER = re.compile(
    r"(?:^|\.)(?:router|gate|shared_expert_gate|e_score_correction|conv1d|q_conv1d|k_conv1d|v_conv1d|rotary_emb|"
    r"\w*norm\w*|dt_bias|A_log|sinks|attn_sink|indexer|compressor)(?:\.|$)"
)
_SMALL_PARTS: t.Final[tuple[tuple[Part, re.Pattern[str]], ...]] = (
    ("lm_head", _HEAD),
    ("multimodal", _MULTIMODAL),
    ("embedding", _EMBEDDING),
    ("other", _OTHER),
)
_EXPERT_INDEX = re.compile(r"(\.experts\.)\d+(\.|$)")

# Names under which vLLM or the tool that wrote the list knows a module: projections that are fused at load time, and
# DeepSeek's and Mixtral's numbered ones.
_ALIASES: t.Final[dict[str, tuple[str, ...]]] = {
    "q_proj": ("qkv_proj",),
    "k_proj": ("qkv_proj",),
    "v_proj": ("qkv_proj",),
    "gate_proj": ("gate_up_proj",),
    "up_proj": ("gate_up_proj",),
    "gate_up_proj": ("gate_proj",),
    "w1": ("gate_proj", "gate_up_proj"),
    "w2": ("down_proj",),
    "w3": ("up_proj", "gate_up_proj"),
    "wq_a": ("fused_wqa_wkv",),
    "wkv": ("fused_wqa_wkv",),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Module:
    """A module with weights: its name, its part of the model, and how much it weighs beside others."""

    name: str
    part: Part
    size: float = 1.0


def split_name(tensor: str) -> tuple[str, str]:
    """Split the name of a tensor into its module and the role that the tensor plays in it."""
    fused = _FUSED_ROLES.match(tensor)
    if fused:
        return fused["module"], fused["role"] or "weight"
    module, _dot, last = tensor.rpartition(".")
    if last in _ROLES:
        return module, last
    return tensor, "weight"


def fold_experts(module: str) -> str:
    """Return the name with the number of the expert replaced: all experts of a layer are one module."""
    return _EXPERT_INDEX.sub(r"\g<1>*\g<2>", module)


def part_of(module: str, num_layers: int | None) -> Part:
    """Return the part of the model that a module belongs to; ``num_layers`` tells draft layers kept behind the last."""
    layer = _LAYER.search(module)
    behind = num_layers is not None and layer is not None and int(layer[1]) >= num_layers
    draft = behind or _DRAFT.search(module) is not None
    for part, pattern in _SMALL_PARTS:
        if pattern.search(module) and not (draft and part == "lm_head"):
            return part
    if draft:
        return "draft"
    if "experts" in module.split("."):
        return "experts"
    return "dense" if layer else "other"


def layer_of(module: str, num_layers: int | None) -> int | None:
    """Return the layer of the model that a module belongs to; None for draft layers, and for what is in no layer."""
    layer = _LAYER.search(f"{module}.")
    if layer is None or num_layers is None or int(layer[1]) >= num_layers:
        return None
    return None if _DRAFT.search(module) or _MULTIMODAL.search(module) else int(layer[1])


def candidates(module: str) -> tuple[str, ...]:
    """Return the names under which a list may speak of a module, its own first."""
    spellings = [module.replace(".experts.*", ".experts.0")]
    if spellings[0] != module:
        spellings.append(module.replace(".experts.*.", ".experts."))
    for prefix, other in (
        ("language_model.model.", "model.language_model."),
        ("model.language_model.", "language_model.model."),
    ):
        if module.startswith(prefix):
            spellings.append(other + spellings[0][len(prefix) :])
    if spellings[0].endswith(".lm_head"):
        spellings.append("lm_head")
    result = list(spellings)
    for name in spellings:
        head, _dot, last = name.rpartition(".")
        result += [f"{head}.{alias}" for alias in _ALIASES.get(last, ())]
    return tuple(dict.fromkeys(result))

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which modules a model has, as far as its config tells: what stands in for the tensors of a checkpoint without any.

Names and shapes are those of the families' checkpoints (Hugging Face, 2026-08 to 2026-11). Sizes only have to rank
parts against each other, so that the bulk of the weights is known; they are no byte counts.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import integer, mapping, strings
from ansible_collections.gb10.fleet.plugins.module_utils._quantization import top_level
from ansible_collections.gb10.fleet.plugins.module_utils._weight_names import Module, part_of

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._weight_names import Part

_MAX_LAYERS: t.Final = 1024
_MAX_DRAFT_LAYERS: t.Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """How the checkpoints of a family of models name their modules."""

    prefix: str = "model."
    attention: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    dense: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    experts: tuple[str, ...] = ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj", "mlp.experts.*.down_proj")
    shared: tuple[str, ...] = (
        "mlp.shared_experts.gate_proj",
        "mlp.shared_experts.up_proj",
        "mlp.shared_experts.down_proj",
    )
    head: str = "lm_head"
    draft: str = "mtp.layers.{i}."


def _each(parent: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{parent}.{name}" for name in names)


_GATED = ("gate_proj", "up_proj", "down_proj")
_NUMBERED = ("w1", "w3", "w2")
_GDN = _each("linear_attn", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
_LATENT = _each("self_attn", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_SPARSE = _each("block_sparse_moe.experts.*", *_NUMBERED)
_FUSED = ("gate_up_proj", "down_proj")
_DEFAULT = Family()
_FAMILIES: t.Final[tuple[tuple[str, Family], ...]] = (
    (
        "deepseek_v4",
        Family(
            prefix="",
            attention=_each("attn", "wq_a", "wq_b", "wkv", "wo_a", "wo_b"),
            experts=_each("ffn.experts.*", *_NUMBERED),
            dense=_each("ffn", *_NUMBERED),
            shared=_each("ffn.shared_experts", *_NUMBERED),
            head="head",
            draft="mtp.{i}.",
        ),
    ),
    ("deepseek|glm_moe_dsa|glm4_moe_lite|kimi_k2", Family(attention=_LATENT, draft="model.layers.{n}.")),
    ("kimi", Family(attention=_LATENT, experts=_SPARSE)),
    ("glm", Family(draft="model.layers.{n}.")),
    ("mini_?max", Family(experts=_SPARSE, shared=_each("block_sparse_moe.shared_experts", *_GATED))),
    ("mixtral|granitemoe", Family(experts=_SPARSE)),
    (
        "nemotron_h",
        Family(
            prefix="backbone.",
            attention=_each("mixer", "q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "out_proj"),
            dense=_each("mixer", "up_proj", "down_proj"),
            experts=_each("mixer.experts.*", "up_proj", "down_proj"),
            shared=_each("mixer.shared_experts", "up_proj", "down_proj"),
        ),
    ),
    ("gemma4", Family(experts=_each("experts.*", *_GATED))),
    ("gpt_oss", Family(experts=_each("mlp.experts", *_FUSED))),
    (
        "qwen3_next|qwen3_[5-9]",
        Family(attention=(*_DEFAULT.attention, *_GDN), shared=_each("mlp.shared_expert", *_GATED)),
    ),
    ("qwen", Family(shared=_each("mlp.shared_expert", *_GATED))),
    ("llama4", Family(experts=_each("feed_forward.experts", *_FUSED), dense=_each("feed_forward", *_GATED))),
    (
        "mistral_native",
        Family(
            prefix="",
            attention=_each("attention", "wq", "wk", "wv", "wo"),
            dense=_each("feed_forward", *_NUMBERED),
            experts=_each("experts.*", *_NUMBERED),
            shared=_each("shared_experts", *_NUMBERED),
            head="output",
        ),
    ),
)
_LAYER_NUMBER = re.compile(r"layers\\?\.\(?((?:\d+\|?)+)")
_LAYERS_PREFIX = re.compile(r"^(?:re:)?((?:[A-Za-z_]\w*\.)*)layers(?:\.|$)")


@dataclasses.dataclass(frozen=True, slots=True)
class Outline:
    """The little of a config that tells which modules a model has; None and empty where the config does not say."""

    model_type: str
    architecture: str
    num_layers: int | None
    num_experts: int
    dense_first: int
    shared_experts: bool
    draft_layers: int
    hidden: int | None
    intermediate: int | None
    expert_intermediate: int | None
    tied_head: bool

    @classmethod
    def read(cls, config: t.Mapping[str, t.Any]) -> Outline:
        """Read the outline from a parsed config.json or params.json; what is not there stays unknown."""
        number = _numbers(config)
        architectures = strings(top_level(config, "architectures"))
        model_type = top_level(config, "model_type")
        moe = mapping(top_level(config, "moe"))
        experts = number("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
        pattern = top_level(config, "mtp_hybrid_override_pattern")
        return cls(
            model_type=model_type if isinstance(model_type, str) else "",
            architecture=architectures[0] if architectures else "",
            num_layers=number("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
            num_experts=experts or integer(moe.get("num_experts")) or 0,
            dense_first=number("first_k_dense_replace") or integer(moe.get("first_k_dense_replace")) or 0,
            shared_experts=bool(
                number("n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size")
                or integer(moe.get("num_shared_experts"))
            ),
            draft_layers=number("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
            or (1 if isinstance(pattern, str) and pattern else 0),
            hidden=number("hidden_size", "dim", "n_embd"),
            intermediate=number("intermediate_size", "hidden_dim", "dense_intermediate_size"),
            expert_intermediate=number("moe_intermediate_size", "expert_hidden_dim")
            or integer(moe.get("expert_hidden_dim")),
            tied_head=top_level(config, "tie_word_embeddings") is True or config.get("tied_embeddings") is True,
        )

    @property
    def identified(self) -> bool:
        """Return whether the config says what the model is made of, so that a part it does not mention is not there."""
        return self.num_layers is not None


def _numbers(config: t.Mapping[str, t.Any]) -> t.Callable[..., int | None]:
    def first(*names: str) -> int | None:
        return next((value for name in names if (value := integer(top_level(config, name))) is not None), None)

    return first


def outline_modules(outline: Outline, patterns: t.Sequence[str]) -> list[Module]:
    """Return the modules that a model with this outline has, named in the way of the lists in ``patterns``.

    The names in a quantisation block tell which prefix the checkpoint uses and, where the config does not, how many
    layers there are.
    """
    family = _family(outline)
    prefix = _prefix(patterns)
    prefix = family.prefix if prefix is None else prefix
    layers = outline.num_layers if outline.num_layers is not None else _highest_layer(patterns) + 1
    modules = [
        Module(f"{prefix}layers.{index}.{name}", part)
        for index in range(min(layers, _MAX_LAYERS))
        for name, part in _layer(outline, family, index)
    ]
    modules.append(Module(family.head, "lm_head"))
    for index in range(min(outline.draft_layers, _MAX_DRAFT_LAYERS)):
        start = family.draft.format(i=index, n=layers + index).replace("model.", prefix, 1)
        modules += [Module(start + name, "draft") for name, _part in _layer(outline, family, outline.dense_first)]
    return [dataclasses.replace(module, size=size_of(outline, module.name)) for module in modules]


def size_of(outline: Outline, name: str) -> float:
    """Return how much a module weighs beside others, in units of the hidden size squared."""
    hidden = outline.hidden or 1024
    expert = (outline.expert_intermediate or outline.intermediate or 0.5 * hidden) / hidden
    parts = name.split(".")
    if "experts" in parts:
        # A list may name the experts of a layer as a whole: two projections in, one out.
        return expert * max(outline.num_experts, 1) * (3 if parts[-1] == "experts" else 1)
    if "shared_experts" in parts or "shared_expert" in parts:
        return expert
    if any(parent in parts for parent in ("mlp", "ffn", "feed_forward")):
        return (outline.intermediate or 3.5 * hidden) / hidden
    # Two numbers for each head rather than a matrix.
    return 0.01 if parts[-1] in ("in_proj_a", "in_proj_b") else 1.0


def _family(outline: Outline) -> Family:
    for kind in (outline.architecture, outline.model_type):
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()
        for names, family in _FAMILIES:
            if re.match(names, snake):
                return family
    return _DEFAULT


def _layer(outline: Outline, family: Family, index: int) -> t.Iterator[tuple[str, Part]]:
    """Yield the modules of one layer and the part that each belongs to."""
    for name in family.attention:
        yield name, "dense"
    if not outline.num_experts or index < outline.dense_first:
        for name in family.dense:
            yield name, "dense"
        return
    for name in family.experts:
        yield name, "experts"
    if outline.shared_experts:
        for name in family.shared:
            yield name, "dense"


def _prefix(patterns: t.Iterable[str]) -> str | None:
    """Return what stands before "layers." in the lists, None where no entry says."""
    counts: dict[str, int] = {}
    for pattern in patterns:
        match = _LAYERS_PREFIX.match(pattern)
        if match and part_of(f"{match[1]}layers.0.x", None) != "multimodal":
            counts[match[1]] = counts.get(match[1], 0) + 1
    counts = {prefix: count for prefix, count in counts.items() if "mtp" not in prefix}
    return max(counts, key=lambda prefix: counts[prefix]) if counts else None


def _highest_layer(patterns: t.Iterable[str]) -> int:
    """Return the highest layer that a list names, 0 where it names none."""
    numbers = [
        int(number)
        for pattern in patterns
        for match in _LAYER_NUMBER.finditer(pattern)
        for number in match[1].split("|")
        if number and len(number) < 4
    ]
    return max(numbers, default=0)

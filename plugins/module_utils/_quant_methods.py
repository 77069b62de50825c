# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One reader for each family of quantisation blocks: ModelOpt, compressed-tensors, FP8, MX formats and 4-bit integers.

Spellings from vLLM 0.33.0 (model_executor/layers/quantization, read on 2026-11-29) and from published checkpoints
(tests/unit/plugins/module_utils/fixtures names each).

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _weight_scheme as schemes
from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import integer, mapping, shown, strings
from ansible_collections.gb10.fleet.plugins.module_utils._name_patterns import NamePatterns
from ansible_collections.gb10.fleet.plugins.module_utils._quantization import (
    QuantizationDeclaration,
    Rules,
    excluded,
    find_block,
    kv_cache_of,
    listed_names,
    method_of,
    top_level,
    unsupported,
)
from ansible_collections.gb10.fleet.plugins.module_utils._weight_scheme import PLAIN, Scheme, unknown

Block = t.Mapping[str, t.Any]


def read_declaration(config: Block, sidecars: Block) -> QuantizationDeclaration:
    """Return what config.json and the files beside it declare; ``sidecars`` maps file names to their content."""
    block, where = find_block(config, sidecars)
    if not block:
        return QuantizationDeclaration()
    method = method_of(block, where)
    # awq_marlin, gptq_marlin, modelopt_fp4 and their like name the kernel besides the format.
    reader = _READERS.get(method) or next((_READERS[name] for name in _FAMILIES if method.startswith(name)), None)
    # DeepSeek-V4 says outside the block how its experts are stored.
    rules = reader({"expert_dtype": top_level(config, "expert_dtype"), **block}) if reader else unsupported(method)
    kv_cache, kv_scales = kv_cache_of(block)
    return QuantizationDeclaration(
        method, where, rules, kv_cache, kv_scales, _header(block, method, rules), listed_names(block)
    )


def read_mistral(params: Block) -> QuantizationDeclaration:
    """Return what Mistral's own params.json declares (vLLM transformers_utils/configs/mistral.py)."""
    block = mapping(params.get("quantization_config")) or mapping(params.get("quantization"))
    if not block:
        return QuantizationDeclaration()
    kind = block.get("qformat_weight")
    if kind is None:
        inner = read_declaration({"quantization_config": block}, {})
        key = "quantization_config" if params.get("quantization_config") else "quantization"
        return dataclasses.replace(inner, where=f"params.json: {key}")
    rules = unsupported(f"qformat_weight {kind}")
    if kind == "fp8_e4m3":
        rules = Rules(default=schemes.fp8(granularity="tensor"), lm_head=PLAIN)
    return QuantizationDeclaration("mistral", "params.json: quantization", rules, header=rules.default)


def _header(block: Block, method: str, rules: Rules) -> Scheme:
    """Return what somebody would conclude who reads quant_method alone."""
    if method in ("fp8", "deepseek_v4_fp8", "fbgemm_fp8"):
        return _fp8_scheme(block)
    return rules.default


def algo_scheme(algo: object, group_size: object = None) -> Scheme:
    """Return the scheme of a ModelOpt quant_algo; vLLM compares them without regard to case."""
    name = algo.upper() if isinstance(algo, str) else ""
    size = integer(group_size)
    if name in ("", "NONE", "UNQUANTIZED"):
        return PLAIN
    known: dict[str, t.Callable[[], Scheme]] = {
        "NVFP4": lambda: schemes.nvfp4(activations=4, group_size=size or 16),
        "NVFP4_AWQ": lambda: schemes.nvfp4(activations=4, group_size=size or 16),
        "W4A16_NVFP4": lambda: schemes.nvfp4(activations=16, group_size=size or 16),
        "NVFP4_W4A16": lambda: schemes.nvfp4(activations=16, group_size=size or 16),
        "W4A8_NVFP4_FP8": lambda: schemes.nvfp4(activations=8, group_size=size or 16),
        "FP8": lambda: schemes.fp8(granularity="tensor"),
        "FP8_PER_CHANNEL_PER_TOKEN": lambda: schemes.fp8(granularity="channel"),
        "FP8_PB_WO": lambda: schemes.fp8(granularity="block 128x128", activations=16),
        "FP8_BLOCK_SCALES": lambda: schemes.fp8(granularity="block 128x128"),
        "MXFP4": lambda: schemes.mxfp4(activations=4),
        "W4A8_MXFP4_FP8": lambda: schemes.mxfp4(activations=8),
        "W4A16_MXFP4": schemes.mxfp4,
        "MXFP8": schemes.mxfp8,
        "INT4_AWQ": lambda: schemes.integer(4, method="awq", group_size=size or 128),
        "W4A16_AWQ": lambda: schemes.integer(4, method="awq", group_size=size or 128),
    }
    return known[name]() if name in known else unknown(f"quant_algo {shown(name)} is not known here")


def _modelopt(block: Block) -> Rules:
    inner = mapping(block.get("quantization")) or block
    algo = inner.get("quant_algo")
    skip = NamePatterns.read(excluded(inner, "exclude_modules", "ignore"), "modelopt")
    layers = _layer_list(inner)
    if isinstance(algo, str) and algo.upper() == "MIXED_PRECISION":
        return Rules(skip=skip, exact=layers, lists_all=True)
    default = algo_scheme(algo, inner.get("group_size"))
    if default.name == "nvfp4_w4a4" and _weights_only(inner):
        default = schemes.nvfp4(activations=16)
    # ModelOpt's own recipes keep the head in 16 bit and list it; a block without any list says nothing about it.
    lists_exclusions = "exclude_modules" in inner or "ignore" in inner
    head = None if lists_exclusions else unknown("the block lists no excluded modules, so it does not say")
    return Rules(default=default, lm_head=head, skip=skip, exact=layers)


def _layer_list(block: Block) -> dict[str, Scheme]:
    """Return the per-layer list of a ModelOpt block; experts listed one by one also stand for the fused module."""
    result: dict[str, Scheme] = {}
    cache: dict[tuple[t.Any, t.Any], Scheme] = {}
    for name, entry in mapping(block.get("quantized_layers")).items():
        fields = mapping(entry)
        algo, size = fields.get("quant_algo"), integer(fields.get("group_size"))
        key = (algo if isinstance(algo, str) else "", size)
        if key not in cache:
            cache[key] = algo_scheme(*key)
        result[name] = cache[key]
        head, experts, _rest = name.partition(".experts.")
        if experts:
            result.setdefault(f"{head}.experts", cache[key])
    return result


def _weights_only(block: Block) -> bool:
    """Return whether the groups of a block quantise weights and leave activations alone."""
    groups = [mapping(group) for group in mapping(block.get("config_groups")).values()]
    return bool(groups) and not any(group.get("input_activations") for group in groups)


def _compressed_tensors(block: Block) -> Rules:
    groups: list[tuple[NamePatterns, Scheme]] = []
    for group in mapping(block.get("config_groups")).values():
        fields = mapping(group)
        if mapping(fields.get("weights")):
            targets = NamePatterns.read(strings(fields.get("targets")), "compressed-tensors")
            groups.append((targets, _group_scheme(fields, block.get("format"))))
    skip = NamePatterns.read(strings(block.get("ignore")), "compressed-tensors")
    return Rules(skip=skip, groups=tuple(groups))


def _group_scheme(group: Block, header_format: object) -> Scheme:
    """Return the scheme of one compressed-tensors group, whose own format counts more than the header's."""
    weights, activations = mapping(group.get("weights")), mapping(group.get("input_activations"))
    style = group.get("format") or header_format
    style = style if isinstance(style, str) else ""
    bits, kind, size = integer(weights.get("num_bits")), weights.get("type"), integer(weights.get("group_size"))
    act_bits = (integer(activations.get("num_bits")) or 0) if activations else 16
    power_of_two = "mx" in style or str(weights.get("scale_dtype")) in ("torch.uint8", "torch.float8_e8m0fnu")
    if kind == "float" and bits == 4:
        if power_of_two or size == 32:
            return schemes.mxfp4(activations=act_bits)
        return schemes.nvfp4(activations=act_bits, group_size=size or 16)
    if kind == "float" and bits == 8:
        if power_of_two and size == 32:
            return schemes.mxfp8(activations=act_bits)
        return schemes.fp8(granularity=_granularity(weights), activations=act_bits)
    if kind == "int" and bits:
        return schemes.integer(bits, method="gptq", group_size=size or 0, activations=act_bits)
    return unknown(f"weights of {shown(bits)} bits and type {shown(kind)} are not known here")


def _granularity(weights: Block) -> str:
    strategy = weights.get("strategy")
    if strategy == "block":
        return _block_name(weights.get("block_structure"))
    if strategy == "group":
        return f"group {integer(weights.get('group_size')) or '?'}"
    return strategy if strategy in ("tensor", "channel") else "unknown unit"


def _block_name(shape: object) -> str:
    if isinstance(shape, list) and len(shape) == 2 and all(integer(side) for side in shape):
        return f"block {shape[0]}x{shape[1]}"
    return "block of unknown size"


def _fp8_scheme(block: Block) -> Scheme:
    if block.get("weight_block_size"):
        return schemes.fp8(granularity=_block_name(block["weight_block_size"]))
    return schemes.fp8(granularity="channel" if block.get("quant_method") == "fbgemm_fp8" else "tensor")


def _fp8(block: Block) -> Rules:
    """FP8, with the experts set apart by a per-layer list, by moe_quant_algo, or by expert_dtype outside the block."""
    default = _fp8_scheme(block)
    experts: Scheme | None = None
    layers = _layer_list(block)
    if block.get("expert_dtype") == "fp4":
        experts = schemes.mxfp4(activations=8)
    if block.get("moe_quant_algo") and not layers:
        experts = algo_scheme(block["moe_quant_algo"], block.get("group_size"))
    # "ignore" of such a block excludes modules from the per-layer list's scheme, not from FP8.
    skip = NamePatterns.read(excluded(block, "modules_to_not_convert", "ignored_layers"), "plain")
    return Rules(default=default, lm_head=PLAIN, experts=experts, skip=skip, exact=layers, lists_all=True)


def _mxfp4(block: Block) -> Rules:
    # vLLM quantises only the experts with this method and leaves every other linear layer alone.
    skip = NamePatterns.read(strings(block.get("modules_to_not_convert")), "plain")
    return Rules(default=PLAIN, lm_head=PLAIN, experts=schemes.mxfp4(), skip=skip)


def _mxfp8(block: Block) -> Rules:
    skip = NamePatterns.read(excluded(block, "modules_to_not_convert", "ignored_layers"), "plain")
    return Rules(default=schemes.mxfp8(), lm_head=PLAIN, skip=skip)


def _autoround(block: Block) -> Rules:
    size = integer(block.get("group_size")) or 0
    activations = integer(block.get("act_bits")) or 16

    def scheme(bits: int, kind: str) -> Scheme:
        if bits >= 16:
            return PLAIN
        if kind.startswith("nv_fp"):
            return schemes.nvfp4(activations=activations)
        if kind.startswith("mx_fp"):
            return schemes.mxfp4(activations=activations) if bits == 4 else schemes.mxfp8(activations=activations)
        if kind == "int":
            return schemes.integer(bits, method="autoround", group_size=size, activations=activations)
        return unknown(f"AutoRound data_type {shown(kind)} with {bits} bits is not known here")

    bits = integer(block.get("bits")) or 0
    kind = block.get("data_type", "int")
    kind = kind if isinstance(kind, str) else ""
    exact: dict[str, Scheme] = {}
    groups: list[tuple[NamePatterns, Scheme]] = []
    for name, entry in mapping(block.get("extra_config")).items():
        own_bits = integer(mapping(entry).get("bits"))
        own = scheme(bits if own_bits is None else own_bits, kind)
        if re.search(r"[*+\\|()\[\]^$]", name):
            groups.append((NamePatterns.read([f"re:{name}"], "compressed-tensors"), own))
        else:
            exact[name] = own
    blocks = block.get("block_name_to_quantize") or block.get("to_quant_block_names")
    scope = tuple(name.strip() for entry in strings(blocks) for name in entry.split(",") if name.strip())
    return Rules(default=scheme(bits, kind), lm_head=PLAIN, exact=exact, groups=tuple(groups), scope=scope)


def _awq(block: Block) -> Rules:
    bits = integer(block.get("bits", block.get("w_bit"))) or 0
    size = integer(block.get("group_size", block.get("q_group_size"))) or 0
    skip = NamePatterns.read(strings(block.get("modules_to_not_convert")), "substring")
    return Rules(default=schemes.integer(bits, method="awq", group_size=size), lm_head=PLAIN, skip=skip)


def _gptq(block: Block) -> Rules:
    bits = integer(block.get("bits")) or 0
    size = integer(block.get("group_size")) or 0
    default = schemes.integer(bits, method="gptq", group_size=size)
    groups: list[tuple[NamePatterns, Scheme]] = []
    for pattern, entry in mapping(block.get("dynamic")).items():
        sign, _colon, rest = pattern.partition(":")
        fields = mapping(entry)
        own_bits = integer(fields.get("bits"))
        own = schemes.integer(
            bits if own_bits is None else own_bits, method="gptq", group_size=integer(fields.get("group_size")) or size
        )
        regex = rest if sign in ("-", "+") else pattern
        groups.append((NamePatterns.read([f"re:{regex}"], "compressed-tensors"), PLAIN if sign == "-" else own))
    return Rules(default=default, lm_head=default if block.get("lm_head") is True else PLAIN, groups=tuple(groups))


_READERS: t.Final[dict[str, t.Callable[[Block], Rules]]] = {
    "auto-round": _autoround,
    "auto_round": _autoround,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "deepseek_v4_fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "fp8": _fp8,
    "gpt_oss_mxfp4": _mxfp4,
    "gptq": _gptq,
    "inc": _autoround,
    "intel/auto-round": _autoround,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
    "mxfp8": _mxfp8,
}
_FAMILIES: t.Final = ("modelopt", "awq", "gptq")

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a checkpoint declares about its quantisation, resolved for every module by the rules that vLLM follows.

The precedence: what is excluded stays as it is; a per-layer list wins over a group or header; among groups the first
that names a module wins, and a group that names modules wins over one that names the class "Linear".

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import integer, mapping, shown, strings
from ansible_collections.gb10.fleet.plugins.module_utils._name_patterns import NamePatterns
from ansible_collections.gb10.fleet.plugins.module_utils._weight_scheme import PLAIN, Scheme, unknown

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._name_patterns import Budget
    from ansible_collections.gb10.fleet.plugins.module_utils._weight_names import Part

# Where multimodal wrappers keep the part of the language model.
NESTED: t.Final = ("text_config", "llm_config", "language_config", "thinker_config")

# Files that carry the quantisation when config.json does not: ModelOpt, GPTQ, AWQ, AutoRound.
SIDECARS: t.Final = ("hf_quant_config.json", "quantize_config.json", "quant_config.json", "quantization_config.json")

_KEYS = ("quantization_config", "compression_config")


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """Which module has which scheme, in the order of precedence: ``skip``, ``exact``, ``groups``, the rest.

    ``lists_all`` says that ``exact`` names every module that it is about, rather than exceptions.
    """

    default: Scheme = PLAIN
    lm_head: Scheme | None = None
    experts: Scheme | None = None
    skip: NamePatterns = dataclasses.field(default_factory=NamePatterns)
    exact: t.Mapping[str, Scheme] = dataclasses.field(default_factory=dict)
    lists_all: bool = False
    groups: tuple[tuple[NamePatterns, Scheme], ...] = ()
    scope: tuple[str, ...] = ()

    def scheme_of(self, names: t.Sequence[str], part: Part, budget: Budget) -> Scheme:
        """Return the scheme of a module that goes by several names, the one in the checkpoint first."""
        if self.skip.names(names, budget):
            return PLAIN
        return self._listed(names) or self._grouped(names, budget) or self._by_part(names, part)

    def _grouped(self, names: t.Sequence[str], budget: Budget) -> Scheme | None:
        named = (scheme for patterns, scheme in self.groups if patterns.names(names, budget))
        by_class = (scheme for patterns, scheme in self.groups if patterns.linear)
        return next(named, None) or next(by_class, None)

    def _by_part(self, names: t.Sequence[str], part: Part) -> Scheme:
        if part == "lm_head" and self.lm_head is not None:
            return self.lm_head
        if self.experts is not None and "experts" in names[0].split("."):
            return self.experts
        if self.scope and not any(name.startswith(self.scope) for name in names):
            return PLAIN
        return self.default

    def _listed(self, names: t.Sequence[str]) -> Scheme | None:
        """Look a module up in the per-layer list: itself, what it is part of, or the experts fused in it."""
        if not self.exact:
            return None
        for name in names:
            at = name
            while at:
                if at in self.exact:
                    return self.exact[at]
                at = at.rpartition(".")[0]
        return None

    @property
    def refused(self) -> tuple[str, ...]:
        """Return why patterns of the declaration were not evaluated."""
        lists = (self.skip, *(patterns for patterns, _scheme in self.groups))
        return tuple(reason for patterns in lists for reason in patterns.refused)


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizationDeclaration:
    """The quantisation that a checkpoint's JSON files declare, and where.

    ``method`` is what the file calls it, empty where nothing is declared. ``kv_cache`` is fp8, nvfp4, int8, none or
    unknown, and ``kv_scales`` tells whether its scales are calibrated. ``header`` is what somebody would conclude who
    reads the method alone. ``names`` are the entries of the block's lists of modules, as written.
    """

    method: str = ""
    where: str = ""
    rules: Rules = dataclasses.field(default_factory=Rules)
    kv_cache: str = "none"
    kv_scales: bool | None = None
    header: Scheme = PLAIN
    names: tuple[str, ...] = ()

    @property
    def declared(self) -> bool:
        """Return whether any file says anything about quantisation."""
        return bool(self.method)


def find_block(config: t.Mapping[str, t.Any], sidecars: t.Mapping[str, t.Any]) -> tuple[dict[str, t.Any], str]:
    """Return the quantisation block that vLLM would use, and where it stands; an empty one where there is none.

    The order is that of vLLM: the top of config.json, the part of the language model, then the files beside it.
    """
    for path, part in _language_parts(config):
        for key in _KEYS:
            block = mapping(part.get(key))
            if block:
                return block, f"config.json: {'.'.join((*path, key))}"
    for name in SIDECARS:
        block = mapping(sidecars.get(name))
        if block:
            return block, name
    return {}, ""


def top_level(config: t.Mapping[str, t.Any], key: str) -> t.Any:
    """Return a field of config.json or, where it is missing there, of the language model's part of it."""
    for _path, part in _language_parts(config):
        if part.get(key) is not None:
            return part[key]
    return None


def _language_parts(config: t.Mapping[str, t.Any]) -> t.Iterator[tuple[tuple[str, ...], t.Mapping[str, t.Any]]]:
    yield (), config
    for outer in NESTED:
        part = mapping(config.get(outer))
        if part:
            yield (outer,), part
            inner = mapping(part.get("text_config"))
            if inner:
                yield (outer, "text_config"), inner


def method_of(block: t.Mapping[str, t.Any], where: str) -> str:
    """Return the quantisation method of a block in lower case; files of some tools leave it to their name."""
    method = block.get("quant_method")
    if isinstance(method, str) and method:
        return method.lower()
    if "quantization" in block or "quant_algo" in block or mapping(block.get("producer")).get("name") == "modelopt":
        return "modelopt"
    if "config_groups" in block:
        return "compressed-tensors"
    return {"quantize_config.json": "gptq", "quant_config.json": "awq"}.get(where, "unnamed")


def kv_cache_of(block: t.Mapping[str, t.Any]) -> tuple[str, bool | None]:
    """Return the KV cache scheme of a block (fp8, nvfp4, int8, none or unknown), and whether it is calibrated."""
    inner = mapping(block.get("quantization")) or block
    algo = inner.get("kv_cache_quant_algo")
    if isinstance(algo, str) and algo:
        return algo.lower() if algo.lower() in ("fp8", "nvfp4", "int8") else "unknown", None
    scheme = mapping(inner.get("kv_cache_scheme"))
    if not scheme:
        return "none", None
    known = {("float", 8): "fp8", ("float", 4): "nvfp4", ("int", 8): "int8"}
    key = (str(scheme.get("type")), integer(scheme.get("num_bits")) or 0)
    dynamic = scheme.get("dynamic")
    return known.get(key, "unknown"), not dynamic if isinstance(dynamic, bool) else None


_LISTS = (
    "block_name_to_quantize",
    "exclude_modules",
    "ignore",
    "ignored_layers",
    "modules_to_not_convert",
    "targets",
    "to_quant_block_names",
)
_TABLES = ("dynamic", "extra_config", "quantized_layers")


def listed_names(block: t.Mapping[str, t.Any]) -> tuple[str, ...]:
    """Return the entries of all lists of modules in a block, as written."""
    parts = [block, mapping(block.get("quantization"))]
    parts += [mapping(group) for group in mapping(block.get("config_groups")).values()]
    names = [name for part in parts for key in _LISTS for name in strings(part.get(key))]
    return tuple(names + [name for part in parts for key in _TABLES for name in mapping(part.get(key))])


def excluded(block: t.Mapping[str, t.Any], *keys: str) -> tuple[str, ...]:
    """Return the modules that a block leaves as they are, under whichever of the keys it lists them."""
    return tuple(name for key in keys for name in strings(block.get(key)))


def unsupported(method: str) -> Rules:
    """Return the rules of a method that the collection does not know: nothing is claimed about any module."""
    why = unknown(f"quant_method {shown(method)} is not known here")
    return Rules(default=why, lm_head=why, experts=why)

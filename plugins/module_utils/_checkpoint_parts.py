# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The scheme of every part of a checkpoint: what is declared, what the tensors are, and what holds in the end.

Where both are known, the tensors decide how weights are stored and the declaration how they are multiplied: whether
activations are quantised, too, is nothing that a tensor shows for certain.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._model_outline import Outline, outline_modules, size_of
from ansible_collections.gb10.fleet.plugins.module_utils._name_patterns import Budget, PatternError
from ansible_collections.gb10.fleet.plugins.module_utils._weight_names import (
    Module,
    candidates,
    fold_experts,
    part_of,
    split_name,
)
from ansible_collections.gb10.fleet.plugins.module_utils._weight_scheme import Scheme, unknown

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_weights import Weights
    from ansible_collections.gb10.fleet.plugins.module_utils._quantization import QuantizationDeclaration
    from ansible_collections.gb10.fleet.plugins.module_utils._weight_names import Part

PARTS: t.Final[tuple[Part, ...]] = ("dense", "experts", "lm_head", "draft")

Shares = t.Mapping[Scheme, float]


@dataclasses.dataclass(frozen=True, slots=True)
class ModuleScheme:
    """One module: what is declared for it (None: nothing), what its tensors are (None: not read), what holds."""

    module: Module
    declared: Scheme | None
    stored: Scheme | None
    final: Scheme

    @property
    def contradicts(self) -> bool:
        """Return whether the tensors are something else than what is declared."""
        if self.declared is None or self.stored is None or self.declared.storage == "unknown":
            return False
        return not _agree(self.declared, self.stored)


@dataclasses.dataclass(frozen=True, slots=True)
class PartScheme:
    """One part of the model: the scheme of the bulk of it, and how much every scheme has."""

    scheme: Scheme
    shares: Shares
    modules: int

    @property
    def several(self) -> bool:
        """Return whether the part is quantised in more than one way."""
        return len({scheme.storage for scheme in self.shares if scheme.storage != "plain"}) > 1


@dataclasses.dataclass(frozen=True, slots=True)
class Schemes:
    """The schemes of a checkpoint. A part that the model does not have is missing from ``parts``."""

    modules: tuple[ModuleScheme, ...]
    parts: t.Mapping[Part, PartScheme]
    declared: t.Mapping[Part, PartScheme]
    stored: t.Mapping[Part, PartScheme]
    bulk: Scheme
    problem: str = ""

    @property
    def needs_fp4_kernels(self) -> bool | None:
        """Return whether any module multiplies 4-bit floats; None where some module's scheme is not known."""
        found = {scheme for part in self.parts.values() for scheme in part.shares}
        if any(scheme.multiplies_fp4 for scheme in found):
            return True
        return None if not found or any(scheme.storage == "unknown" for scheme in found) else False


def resolve(
    declaration: QuantizationDeclaration,
    outline: Outline,
    weights: Weights,
    undeclared: Scheme,
    budget: Budget | None = None,
) -> Schemes:
    """Return the schemes of all parts. ``undeclared`` is what holds where neither a file nor a tensor says anything."""
    resolver = _Resolver(declaration, budget or Budget())
    if weights.census.modules:
        found = [entry for module in weights.census.modules.items() for entry in _stored(module, resolver)]
    else:
        modules = _indexed(weights, outline) or _imagined(declaration, outline)
        found = [_entry(module, resolver.scheme(module), None, undeclared) for module in modules]
    return Schemes(
        modules=tuple(found),
        parts=_by_part(found, lambda entry: entry.final),
        declared=_by_part(found, lambda entry: entry.declared),
        stored=_by_part(found, lambda entry: entry.stored),
        bulk=_bulk(found),
        problem=resolver.problem,
    )


class _Resolver:
    """Asks the declaration about modules, and stops asking once its patterns have taken too long."""

    def __init__(self, declaration: QuantizationDeclaration, budget: Budget) -> None:
        self._declaration = declaration
        self._budget = budget
        self.problem = ""

    def scheme(self, module: Module) -> Scheme | None:
        if not self._declaration.declared:
            return None
        if self.problem:
            return unknown(self.problem)
        try:
            return self._declaration.rules.scheme_of(candidates(module.name), module.part, self._budget)
        except PatternError as exc:
            self.problem = str(exc)
            return unknown(self.problem)


def _stored(item: tuple[str, t.Any], resolver: _Resolver) -> t.Iterator[ModuleScheme]:
    name, tensors = item
    if tensors.part not in PARTS:
        return
    schemes = tensors.schemes()
    if not schemes:
        return
    declared = resolver.scheme(Module(name, tensors.part))
    for stored, share in schemes:
        # Parameters rather than bytes: 16-bit leftovers must not outweigh a model in 4 bits.
        size = tensors.nbytes * share * 8 / (stored.weight_bits or 16)
        yield _entry(Module(name, tensors.part, size), declared, stored, stored)


def _entry(module: Module, declared: Scheme | None, stored: Scheme | None, fallback: Scheme) -> ModuleScheme:
    if declared is None:
        return ModuleScheme(module, None, stored, fallback)
    if stored is None or _agree(declared, stored):
        return ModuleScheme(module, declared, stored, declared)
    return ModuleScheme(module, declared, stored, stored)


def _agree(declared: Scheme, stored: Scheme) -> bool:
    """Return whether tensors can be what is declared. More activation scales than needed do no harm; fewer do."""
    if declared.storage == "unknown":
        # Nothing was claimed, so nothing can be contradicted; the tensors may still tell.
        return stored.storage == "unknown"
    if declared.storage != stored.storage:
        return False
    if declared.storage == "int":
        return not stored.weight_bits or not declared.weight_bits or stored.weight_bits == declared.weight_bits
    return not (declared.name == "nvfp4_w4a4" and stored.name == "nvfp4_w4a16")


def _indexed(weights: Weights, outline: Outline) -> list[Module]:
    """Return the modules that an index lists, sized as far as the config tells."""
    names: dict[str, Part] = {}
    for tensor in weights.indexed:
        module, role = split_name(tensor)
        if role in ("weight", "weight_packed", "qweight", "blocks"):
            folded = fold_experts(module)
            if folded not in names:
                names[folded] = part_of(module, outline.num_layers)
    return [Module(name, part, size_of(outline, name)) for name, part in names.items() if part in PARTS]


def _imagined(declaration: QuantizationDeclaration, outline: Outline) -> list[Module]:
    """Return the modules that the model must have, taking the word of a per-layer list for the parts it covers."""
    listed: dict[str, Part] = {}
    if declaration.rules.lists_all:
        for name in declaration.rules.exact:
            part = part_of(name, outline.num_layers)
            if part in PARTS:
                listed[fold_experts(name)] = part
    covered = set(listed.values())
    modules = [module for module in outline_modules(outline, declaration.names) if module.part not in covered]
    modules += [Module(name, part, size_of(outline, name)) for name, part in listed.items()]
    return modules


def _by_part(
    entries: t.Iterable[ModuleScheme], pick: t.Callable[[ModuleScheme], Scheme | None]
) -> dict[Part, PartScheme]:
    sizes: dict[Part, dict[Scheme, float]] = {}
    counts: collections.Counter[Part] = collections.Counter()
    for entry in entries:
        scheme = pick(entry)
        if scheme is not None:
            shares = sizes.setdefault(entry.module.part, collections.defaultdict(float))
            shares[scheme] += entry.module.size
            counts[entry.module.part] += 1
    return {part: PartScheme(_largest(shares), _normalised(shares), counts[part]) for part, shares in sizes.items()}


def _bulk(entries: t.Iterable[ModuleScheme]) -> Scheme:
    shares: dict[Scheme, float] = collections.defaultdict(float)
    for entry in entries:
        shares[entry.final] += entry.module.size
    return _largest(shares) if shares else unknown("there is nothing to tell from")


def _largest(shares: t.Mapping[Scheme, float]) -> Scheme:
    """Return the most common scheme: first by public name, then by its spelling."""
    names: dict[str, float] = collections.defaultdict(float)
    for scheme, size in shares.items():
        names[scheme.name] += size
    name = max(names, key=lambda key: names[key])
    return max((scheme for scheme in shares if scheme.name == name), key=lambda scheme: shares[scheme])


def _normalised(shares: t.Mapping[Scheme, float]) -> dict[Scheme, float]:
    total = sum(shares.values()) or 1.0
    return {scheme: size / total for scheme, size in shares.items()}

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is wrong with a checkpoint's quantisation, or worth knowing before it is served.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_weights import some
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import shown
from ansible_collections.gb10.fleet.plugins.module_utils._name_patterns import Budget, PatternError

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_parts import ModuleScheme, Schemes
    from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_weights import Weights
    from ansible_collections.gb10.fleet.plugins.module_utils._model_outline import Outline
    from ansible_collections.gb10.fleet.plugins.module_utils._quantization import QuantizationDeclaration
    from ansible_collections.gb10.fleet.plugins.module_utils._weight_names import Part

# Projections that vLLM keeps in one matrix. It refuses a matrix whose pieces have different schemes
# (compressed_tensors/utils.py should_ignore_layer, modelopt.py, auto_round.py; vLLM 0.33.0, read on 2026-11-29).
_FUSED: t.Final[dict[str, tuple[str, ...]]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
# vLLM learnt on 2026-02-18 (pull request 34697) and 2026-02-27 (35413) that these two stand for their pieces in a list.
_LATE_ALIASES: t.Final = ("in_proj_qkvz", "in_proj_ba")

_PART_NAMES: t.Final[dict[Part, str]] = {
    "dense": "the dense layers",
    "experts": "the experts",
    "lm_head": "the head",
    "draft": "the draft layers",
}


def judge(
    declaration: QuantizationDeclaration, schemes: Schemes, outline: Outline, weights: Weights
) -> t.Iterator[Finding]:
    """Yield everything worth knowing about how a checkpoint is quantised."""
    yield from _contradictions(schemes)
    yield from _undeclared(declaration, schemes)
    yield from _header(declaration, schemes)
    yield from _parts(declaration, schemes)
    yield from _experts_default(declaration, schemes, outline)
    yield from _fused_names(declaration, schemes)
    yield from _split_matrices(schemes)
    yield from _draft(schemes, outline, weights)
    yield from _patterns(declaration, schemes)


def _contradictions(schemes: Schemes) -> t.Iterator[Finding]:
    """Compare the declaration with the tensors, part by part and direction by direction."""
    pairs: dict[tuple[Part, str, str], list[ModuleScheme]] = {}
    sizes: collections.Counter[Part] = collections.Counter()
    for entry in schemes.modules:
        sizes[entry.module.part] += int(entry.module.size)
        if entry.contradicts and entry.declared and entry.stored:
            key = (entry.module.part, entry.declared.spelling, entry.stored.spelling)
            pairs.setdefault(key, []).append(entry)
    for (part, declared, stored), entries in pairs.items():
        share = sum(entry.module.size for entry in entries) / (sizes[part] or 1)
        # The model's own code often leaves small projections alone, whatever the header says.
        left_alone = entries[0].stored is not None and entries[0].stored.storage == "plain"
        harmless = part == "dense" and left_alone and share < 0.5
        yield Finding(
            "CHECKPOINT_DECLARED_VS_ACTUAL",
            "info" if harmless else "error",
            f"Declared as {declared}, but stored as {stored}: {share:.0%} of {_PART_NAMES[part]}.",
            some([entry.module.name for entry in entries]),
            "" if harmless else "Get files of one revision, or a checkpoint whose config tells the truth.",
        )


def _undeclared(declaration: QuantizationDeclaration, schemes: Schemes) -> t.Iterator[Finding]:
    quantised = [
        entry for entry in schemes.modules if entry.stored and entry.stored.storage not in ("plain", "unknown")
    ]
    if quantised and not declaration.declared:
        yield Finding(
            "CHECKPOINT_UNDECLARED_QUANTISATION",
            "error",
            f"The tensors are quantised ({schemes.bulk.spelling}), but no file says so, so vLLM cannot load them.",
            some([entry.module.name for entry in quantised]),
            "Fetch config.json and hf_quant_config.json of the same revision.",
        )


def _header(declaration: QuantizationDeclaration, schemes: Schemes) -> t.Iterator[Finding]:
    """Say where the scheme was found when it is not where a reader looks first, or says something else there."""
    if not declaration.declared:
        return
    if declaration.where not in ("config.json: quantization_config", "params.json: quantization"):
        yield Finding(
            "CHECKPOINT_SCHEME_ELSEWHERE",
            "info",
            f"The quantisation is declared in {declaration.where}, not at the top of config.json.",
            f"quant_method {shown(declaration.method)}",
        )
    header = declaration.header
    if header.storage not in ("plain", "unknown", schemes.bulk.storage) and schemes.bulk.storage != "plain":
        yield Finding(
            "CHECKPOINT_HEADER_MISLEADS",
            "info",
            f"quant_method {shown(declaration.method)} suggests {header.spelling}, but the bulk of the weights is "
            f"{schemes.bulk.spelling}.",
            "; ".join(f"{part}: {found.scheme.spelling}" for part, found in schemes.parts.items()),
        )
    for part, found in schemes.parts.items():
        if found.scheme.name == "unknown":
            yield Finding(
                "CHECKPOINT_SCHEME_UNKNOWN",
                "warning",
                f"The scheme of {_PART_NAMES[part]} is not known: {found.scheme.spelling}.",
                declaration.where,
                "Measure the model role's weights and let the boot log show which kernels vLLM picks.",
            )


def _parts(declaration: QuantizationDeclaration, schemes: Schemes) -> t.Iterator[Finding]:
    experts = schemes.parts.get("experts")
    if experts and experts.several:
        shares = ", ".join(f"{scheme.spelling} {share:.0%}" for scheme, share in experts.shares.items())
        yield Finding(
            "EXPERTS_OF_SEVERAL_SCHEMES",
            "warning",
            f"Not all experts are quantised alike: {shares}.",
            declaration.where,
            "Leave --moe-backend at auto: no single backend serves all of them.",
        )
    head = schemes.parts.get("lm_head")
    if head and head.scheme.weight_bits == 4:
        yield Finding(
            "LM_HEAD_4BIT",
            "warning",
            "The head is quantised to 4 bits; one fleet saw garbage (!!!!) in greedy JSON from such a head (2026-07).",
            head.scheme.spelling,
            "Prove structured output before relying on it, or take a checkpoint with a 16-bit or 8-bit head.",
        )


def _experts_default(declaration: QuantizationDeclaration, schemes: Schemes, outline: Outline) -> t.Iterator[Finding]:
    experts = schemes.parts.get("experts")
    if outline.model_type == "deepseek_v4" and experts and declaration.method == "fp8" and experts.scheme.name == "fp8":
        yield Finding(
            "EXPERT_DTYPE_NOT_DECLARED",
            "warning",
            "config.json has no expert_dtype, and vLLM takes that as fp4 for deepseek_v4; these experts are FP8.",
            experts.scheme.spelling,
            'Serve with --hf-overrides \'{"expert_dtype": "fp8"}\'.',
        )


def _fused_names(declaration: QuantizationDeclaration, schemes: Schemes) -> t.Iterator[Finding]:
    """Find lists that exclude the pieces of a fused matrix and do not mention the matrix itself."""
    rules, budget = declaration.rules, Budget()
    missed: dict[str, str] = {}
    if not rules.skip:
        return
    try:
        for parent, pieces in _siblings(schemes).items():
            for fused in _LATE_ALIASES:
                names = [f"{parent}.{piece}" for piece in _FUSED[fused] if piece in pieces]
                if not names or not all(rules.skip.names([name], budget) for name in names):
                    continue
                if rules.scheme_of([f"{parent}.{fused}"], "dense", budget).storage != "plain":
                    missed[fused] = parent
    except PatternError:
        return
    if missed:
        yield Finding(
            "IGNORE_LIST_VS_FUSED_NAMES",
            "warning",
            f"The list of excluded modules names only the pieces of {' and '.join(missed)}, which vLLM builds as one "
            "matrix; builds older than 2026-02-27 take them for quantised and answer garbage, while kernels and health "
            "look fine.",
            some([f"{parent}.{fused}" for fused, parent in missed.items()]),
            "Use a vLLM built after 2026-02-27, and prove an answer that can be checked (vllm_probe) before serving.",
        )


def _split_matrices(schemes: Schemes) -> t.Iterator[Finding]:
    split: list[str] = []
    for parent, pieces in _siblings(schemes).items():
        for fused, names in _FUSED.items():
            declared = [pieces[name].declared for name in names if name in pieces]
            if len(declared) == len(names) and len({scheme.storage for scheme in declared if scheme}) > 1:
                split.append(f"{parent}.{fused}")
    if split:
        yield Finding(
            "IGNORE_LIST_SPLITS_FUSED",
            "error",
            f"{len(split)} matrices that vLLM fuses are declared with different schemes for their pieces; vLLM refuses "
            "to load them.",
            some(split),
            "Take a checkpoint that treats the pieces alike.",
        )


def _siblings(schemes: Schemes) -> dict[str, dict[str, ModuleScheme]]:
    result: dict[str, dict[str, ModuleScheme]] = {}
    for entry in schemes.modules:
        parent, _dot, name = entry.module.name.rpartition(".")
        result.setdefault(parent, {})[name] = entry
    return result


def _draft(schemes: Schemes, outline: Outline, weights: Weights) -> t.Iterator[Finding]:
    known = bool(weights.indexed) or weights.complete is True
    if outline.draft_layers and known and "draft" not in schemes.parts:
        yield Finding(
            "CHECKPOINT_DRAFT_ABSENT",
            "warning",
            f"config.json declares {outline.draft_layers} draft layers, but the checkpoint holds no tensor of theirs; "
            'speculation with {"method": "mtp"} cannot start.',
            "",
            "Serve without speculation, or name a separate draft model.",
        )


def _patterns(declaration: QuantizationDeclaration, schemes: Schemes) -> t.Iterator[Finding]:
    problems = [*declaration.rules.refused, *([schemes.problem] if schemes.problem else [])]
    if problems:
        yield Finding(
            "CHECKPOINT_PATTERNS_NOT_EVALUATED",
            "warning",
            f"{len(problems)} patterns of the quantisation config are not evaluated, so declared schemes may be wrong.",
            some(problems),
            "Look at the quantisation block by hand before trusting this checkpoint.",
        )

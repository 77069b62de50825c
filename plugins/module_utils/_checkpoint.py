# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a checkpoint directory declares and what it is: schemes, geometry, exact bytes, and what is wrong with it.

It works on a directory with only the JSON files, too, for planning before a download; then nothing is claimed that only
tensors could tell. No tensor data is read and no code of the checkpoint is run.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_files import (
    CheckpointError,
    CheckpointFileError,
    CheckpointTree,
)
from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_findings import judge
from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_parts import PARTS, PartScheme, Schemes, resolve
from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_weights import (
    Weights,
    read_gguf_files,
    read_weights,
    some,
)
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import shown
from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import GeometryError, ModelGeometry
from ansible_collections.gb10.fleet.plugins.module_utils._model_outline import Outline
from ansible_collections.gb10.fleet.plugins.module_utils._quant_methods import read_declaration, read_mistral
from ansible_collections.gb10.fleet.plugins.module_utils._quantization import (
    SIDECARS,
    QuantizationDeclaration,
    find_block,
    top_level,
)
from ansible_collections.gb10.fleet.plugins.module_utils._weight_scheme import PLAIN, Scheme, unknown

# A name that promises fewer than 16 bits. It proves nothing, but it keeps "nothing declared" from meaning "BF16".
_PROMISES_FEWER_BITS = re.compile(
    r"(?i)(?:nv|mx)?fp[48](?![0-9])|int[48](?![0-9])|\b[48][-_ ]?bit|w[48]a(?:4|8|16)|awq|gptq|autoround|auto-round|bnb"
)
_PLAIN_DTYPES = ("bfloat16", "float16", "float32", "half", "float")
_MISTRAL_FLAGS = "--config-format mistral --load-format mistral --tokenizer-mode mistral"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointReport:
    """Everything that checkpoint_info returns.

    ``parts`` maps dense, experts, lm_head and draft to the scheme of the bulk of each, None where the model has no such
    part. ``weights_bytes`` maps the types of safetensors to exact bytes and is empty where no shard was read.
    """

    directory: str
    label: str
    format: str
    architecture: str
    model_type: str
    schemes: Schemes
    parts: dict[str, str | None]
    declaration: QuantizationDeclaration
    kv_scales: bool | None
    tied_head: bool
    geometry: dict[str, t.Any]
    weights: Weights
    weights_bytes: dict[str, int]
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain data, the way it leaves the module."""
        total = sum(self.weights_bytes.values()) if self.weights_bytes else None
        return {
            "directory": self.directory,
            "name": self.label,
            "format": self.format,
            "architecture": self.architecture,
            "model_type": self.model_type,
            "scheme": "gguf" if self.format == "gguf" else self.schemes.bulk.name,
            "parts": self.parts,
            "part_details": {part: _details(found) for part, found in self.schemes.parts.items()},
            "part_bytes": dict(sorted(self.weights.census.bytes_by_part.items())),
            "layer_bytes": self.weights.census.layer_bytes() if self.weights.complete else [],
            "declared": {
                "method": self.declaration.method,
                "where": self.declaration.where,
                "parts": _names(self.schemes.declared) if self.declaration.declared else {},
            },
            "stored": {"parts": _names(self.schemes.stored)},
            "kv_cache": {"scheme": self.declaration.kv_cache, "calibrated": self.kv_scales},
            "lm_head_tied": self.tied_head,
            "needs_fp4_kernels": self.schemes.needs_fp4_kernels,
            "geometry": self.geometry,
            "weights_bytes": self.weights_bytes,
            "weights_bytes_total": total,
            "weights_bytes_declared": self.weights.declared_bytes,
            "weights_complete": self.weights.complete,
            "tensors": self.weights.census.tensors,
            "shards": len(self.weights.shards),
            "shards_missing": self.weights.missing,
            "shards_damaged": self.weights.damaged,
            "findings": [finding.as_dict() for finding in self.findings],
        }


@dataclasses.dataclass(frozen=True, slots=True)
class _Files:
    """The JSON files of a checkpoint, and what is wrong with them."""

    config: dict[str, t.Any]
    mistral: bool
    sidecars: dict[str, dict[str, t.Any]]
    findings: tuple[Finding, ...]


def inspect_checkpoint(path: str) -> CheckpointReport:
    """Read a checkpoint directory; raise CheckpointError where it is none."""
    tree = CheckpointTree.open(path)
    files = _read_files(tree)
    outline = Outline.read(files.config)
    if files.mistral:
        outline = dataclasses.replace(outline, architecture="mistral_native", model_type="mistral_native")
    weights = read_weights(tree, outline.num_layers, mistral=files.mistral)
    named = any(name in tree.names for name in ("config.json", "params.json"))
    if weights.format == "none" and not named and not files.sidecars:
        raise CheckpointError(
            f"{tree.root} holds neither config.json nor params.json nor safetensors nor GGUF files; "
            "give the directory that holds the checkpoint."
        )
    declaration = read_mistral(files.config) if files.mistral else read_declaration(files.config, files.sidecars)
    undeclared = _undeclared(files.config, tree.label)
    schemes = resolve(declaration, outline, weights, undeclared)
    geometry, geometry_finding = _geometry(files)
    gguf = weights.format == "gguf"
    findings = [*files.findings, *weights.findings, *geometry_finding]
    if gguf:
        schemes = _gguf_schemes()
        findings += _gguf_findings(tree)
    else:
        findings += judge(declaration, schemes, outline, weights)
        findings += _weight_findings(weights, declaration, undeclared)
        findings += _two_blocks(files)
    sizes = {"GGUF": read_gguf_files(tree)[0]} if gguf else dict(sorted(weights.census.bytes_by_dtype.items()))
    return CheckpointReport(
        directory=str(tree.root),
        label=tree.label,
        format="mistral" if files.mistral and weights.format in ("safetensors", "none") else weights.format,
        architecture=str(geometry.get("architecture") or ("" if files.mistral else outline.architecture)),
        model_type="" if files.mistral else outline.model_type,
        schemes=schemes,
        parts=_parts(schemes, outline, weights),
        declaration=declaration,
        kv_scales=_kv_scales(declaration, weights),
        tied_head=outline.tied_head,
        geometry=geometry,
        weights=weights,
        weights_bytes=sizes,
        findings=tuple(findings),
    )


def _read_files(tree: CheckpointTree) -> _Files:
    findings: list[Finding] = []
    read: dict[str, dict[str, t.Any]] = {}
    for name in ("config.json", "params.json", *SIDECARS):
        if name not in tree.names:
            continue
        try:
            read[name] = tree.read_json(name)
        except CheckpointFileError as exc:
            outside = exc.kind == "outside"
            findings.append(
                Finding(
                    "CHECKPOINT_LINK_OUTSIDE" if outside else "CHECKPOINT_CONFIG_UNREADABLE",
                    "error",
                    f"The file {exc}.",
                    "",
                    f"Put {name} itself in its place." if outside else f"Download {name} again.",
                )
            )
    for name in ("config.json", "params.json"):
        if read.get(name) == {}:
            message = f"The file {name} holds an empty object."
            findings.append(Finding("CHECKPOINT_CONFIG_UNREADABLE", "error", message, "", f"Download {name} again."))
    mistral = "config.json" not in tree.names and "params.json" in read
    if mistral:
        findings.append(
            Finding(
                "CHECKPOINT_MISTRAL_FORMAT",
                "info",
                "The checkpoint is in Mistral's own format: params.json stands in for config.json.",
                "",
                f"Serve it with {_MISTRAL_FLAGS}.",
            )
        )
    sidecars = {name: content for name, content in read.items() if name in SIDECARS}
    config = read.get("params.json", {}) if mistral else read.get("config.json", {})
    if not config and "config.json" not in tree.names and any(name.endswith(".safetensors") for name in tree.names):
        findings.append(
            Finding(
                "CHECKPOINT_CONFIG_MISSING",
                "error",
                "There are safetensors files, but neither config.json nor params.json.",
                "",
                "Download config.json of the same revision.",
            )
        )
    return _Files(config, mistral, sidecars, tuple(findings))


def _undeclared(config: t.Mapping[str, t.Any], label: str) -> Scheme:
    """Return what holds where no file declares a quantisation and no tensor is there to tell."""
    if _PROMISES_FEWER_BITS.search(label):
        return unknown(f"nothing is declared, though the name {shown(label)} promises fewer than 16 bits")
    declared = top_level(config, "dtype") or top_level(config, "torch_dtype")
    if isinstance(declared, str) and declared.removeprefix("torch.") in _PLAIN_DTYPES:
        return PLAIN
    return unknown("neither a quantisation nor a dtype is declared")


def _weight_findings(weights: Weights, declaration: QuantizationDeclaration, undeclared: Scheme) -> t.Iterator[Finding]:
    if weights.format == "pickle":
        yield Finding(
            "CHECKPOINT_PICKLE_ONLY",
            "warning",
            "The weights are pickle files (.bin, .pt, .pth), which can run code when loaded; they are not read.",
            "",
            "Take a checkpoint in safetensors.",
        )
    elif not weights.shards:
        yield Finding(
            "CHECKPOINT_WEIGHTS_ABSENT",
            "info",
            "No weight file is here, so schemes are those declared, and bytes by type are not known.",
            f"{len(weights.indexed)} tensors in the index" if weights.indexed else "",
        )
        if not declaration.declared and undeclared.storage == "unknown":
            yield Finding(
                "CHECKPOINT_SCHEME_NOT_DECLARED",
                "warning",
                f"Nobody can tell how the weights are stored: {undeclared.spelling}.",
                "",
                "Fetch hf_quant_config.json, if the repository has one, or the shards.",
            )
    total = sum(weights.census.bytes_by_dtype.values())
    if weights.complete and weights.declared_bytes not in (None, total):
        yield Finding(
            "CHECKPOINT_INDEX_SIZE_DIFFERS",
            "info",
            f"The index states {weights.declared_bytes} bytes of weights; the shards hold {total}.",
            "",
            "Plan with what the shards hold, as this module does.",
        )


def _two_blocks(files: _Files) -> t.Iterator[Finding]:
    """Compare the block in config.json with the one beside it, of which vLLM uses the first."""
    block, _where = find_block(files.config, {})
    if not block or files.mistral:
        return
    for name, content in files.sidecars.items():
        inner, outer = read_declaration({}, {name: content}), read_declaration(files.config, {})
        schemes = {inner.rules.default.name, outer.rules.default.name}
        lists = {frozenset(inner.rules.exact.items()), frozenset(outer.rules.exact.items())}
        same = len(lists) == 1 if inner.rules.exact or outer.rules.exact else len(schemes) == 1
        if outer.method == "compressed-tensors" or same:
            continue
        yield Finding(
            "CHECKPOINT_QUANT_CONFIGS_DISAGREE",
            "warning",
            f"{name} declares another quantisation than {outer.where}, which is the one that vLLM uses.",
            f"{inner.rules.default.spelling}; {outer.rules.default.spelling}",
            "Download both files of the same revision.",
        )


def _gguf_findings(tree: CheckpointTree) -> t.Iterator[Finding]:
    _total, fakes = read_gguf_files(tree)
    yield Finding(
        "CHECKPOINT_GGUF_ONLY",
        "error",
        "The weights are GGUF files, which vLLM would expand to 16 bits (56 GB grew to about 160 GB, 2026-08).",
        some([name for name in tree.names if name.lower().endswith(".gguf")]),
        "Serve it with llama.cpp, or take a checkpoint that is quantised for vLLM.",
    )
    if fakes:
        yield Finding(
            "CHECKPOINT_SHARD_MALFORMED",
            "error",
            f"{len(fakes)} files are called .gguf but do not start like one: {some(fakes)}.",
            "",
            "Delete them and download them again.",
        )


def _gguf_schemes() -> Schemes:
    gguf = Scheme("gguf", "GGUF", "unknown", 0, 0)
    return Schemes((), {"dense": PartScheme(gguf, {gguf: 1.0}, 0)}, {}, {}, gguf)


def _geometry(files: _Files) -> tuple[dict[str, t.Any], list[Finding]]:
    if not files.config:
        return {}, []
    try:
        # The dtype of the cache may stand beside config.json only.
        beside = files.sidecars.get("hf_quant_config.json")
        return ModelGeometry.from_config(files.config, beside).as_dict(), []
    except GeometryError as exc:
        remedy = "State kv_cache_memory_bytes for the model role and measure it."
        return {}, [Finding("CHECKPOINT_GEOMETRY_UNKNOWN", "warning", shown(exc, 400), "", remedy)]


def _parts(schemes: Schemes, outline: Outline, weights: Weights) -> dict[str, str | None]:
    """Return a scheme for each part; None says that the model has no such part, unknown that nobody can tell."""
    certain = bool(weights.indexed) or weights.complete is True or outline.identified
    absent = None if certain and weights.format != "gguf" else "unknown"
    parts: dict[str, str | None] = {
        part: schemes.parts[part].scheme.name if part in schemes.parts else absent for part in PARTS
    }
    if outline.tied_head and "lm_head" not in schemes.parts and weights.format != "gguf":
        # The head is the table of embeddings, which no scheme quantises.
        parts["lm_head"] = PLAIN.name
    return parts


def _kv_scales(declaration: QuantizationDeclaration, weights: Weights) -> bool | None:
    """Return whether the checkpoint brings calibrated scales for its KV cache."""
    if weights.census.modules:
        return any("k_scale" in module.roles for module in weights.census.modules.values())
    return declaration.kv_scales


def _names(parts: t.Mapping[t.Any, PartScheme]) -> dict[str, str]:
    return {str(part): found.scheme.name for part, found in parts.items()}


def _details(found: PartScheme) -> dict[str, t.Any]:
    scheme = found.scheme
    shares = sorted(found.shares.items(), key=lambda item: -item[1])
    return {
        "spelling": scheme.spelling,
        "weight_bits": scheme.weight_bits,
        "activation_bits": scheme.activation_bits,
        "granularity": scheme.granularity,
        "modules": found.modules,
        "schemes": [{"spelling": entry.spelling, "share": round(share, 4)} for entry, share in shares],
    }

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The weight files of a checkpoint: which there should be, which are there and whole, and what they hold.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_files import CheckpointFileError, read_gguf
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import integer, mapping, shown
from ansible_collections.gb10.fleet.plugins.module_utils._safetensors import SafetensorsError, read_header
from ansible_collections.gb10.fleet.plugins.module_utils._tensor_census import TensorCensus

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_files import CheckpointTree

Format = t.Literal["safetensors", "gguf", "pickle", "none"]

_NUMBERED = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors$")
_MAX_SHARDS: t.Final = 4_096
_INDEX_SUFFIX = ".safetensors.index.json"
_PICKLES = re.compile(r"^(?:pytorch_model|model|consolidated).*\.(?:bin|pt|pth)$")
_DOWNLOAD_AGAIN = "Download the checkpoint again; a resumed download fetches only what is missing."


@dataclasses.dataclass(slots=True)
class Weights:
    """What was found out about the weight files.

    ``census`` counts the tensors of every shard that could be read; ``indexed`` lists tensor names where only an index
    is there. ``declared_bytes`` is the total that the index states.
    """

    format: Format
    census: TensorCensus
    shards: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    damaged: list[str] = dataclasses.field(default_factory=list)
    indexed: list[str] = dataclasses.field(default_factory=list)
    declared_bytes: int | None = None
    findings: list[Finding] = dataclasses.field(default_factory=list)

    @property
    def complete(self) -> bool | None:
        """Return whether all shards are there and whole; None where none is there at all."""
        if not self.shards:
            return None
        return not self.missing and not self.damaged

    def error(self, name: str, message: str, *, evidence: str = "", remedy: str = _DOWNLOAD_AGAIN) -> None:
        """Add a finding that makes the checkpoint unusable."""
        self.findings.append(Finding(name, "error", message, evidence, remedy))


def read_weights(tree: CheckpointTree, num_layers: int | None, *, mistral: bool) -> Weights:
    """Read the headers of all shards that vLLM would load, or say what is there instead."""
    index_name, index, problem = _read_index(tree, mistral=mistral)
    expected = _expected(tree.names, index, mistral=mistral)
    missing = {name for name in expected if _is_missing(tree, name)}
    by_shard = _tensors_by_shard(index)
    weights = Weights(_format(tree.names, expected), TensorCensus(num_layers))
    weights.declared_bytes = integer(mapping(index.get("metadata")).get("total_size"))
    weights.shards = [name for name in expected if name not in missing]
    if problem:
        weights.error("CHECKPOINT_INDEX_UNREADABLE", f"{problem}, so nobody can tell which shards there should be.")
    if not weights.shards:
        # Planning before a download: only the JSON files are there.
        weights.indexed = [name for names in by_shard.values() for name in names]
        return weights
    weights.missing = sorted(missing)
    if missing:
        weights.error(
            "CHECKPOINT_SHARD_MISSING",
            f"{len(missing)} of {len(expected)} shards are missing: {some(weights.missing)}.",
            evidence=index_name or "the numbers in the names of the shards",
        )
    for name in weights.shards:
        _read_shard(tree, name, by_shard.get(name, ()), weights)
    return weights


def _read_shard(tree: CheckpointTree, name: str, expected: t.Iterable[str], weights: Weights) -> None:
    again = f"Delete {shown(name)} and download it again."
    try:
        stream, size = tree.open_file(name)
        with stream:
            header = read_header(stream, size)
    except CheckpointFileError as exc:
        weights.damaged.append(name)
        weights.error(
            "CHECKPOINT_LINK_OUTSIDE" if exc.kind == "outside" else "CHECKPOINT_SHARD_UNREADABLE",
            f"The shard {exc}.",
            remedy="Put the shard itself, or the cache's link into its blobs, in its place.",
        )
        return
    except (SafetensorsError, OSError) as exc:
        weights.damaged.append(name)
        message = f"The shard {shown(name)} is no readable safetensors file: {exc}."
        weights.error("CHECKPOINT_SHARD_MALFORMED", message, remedy=again)
        return
    for tensor, info in header.tensors.items():
        weights.census.add(tensor, info)
    if header.missing_bytes:
        weights.damaged.append(name)
        weights.error(
            "CHECKPOINT_SHARD_TRUNCATED",
            f"The shard {shown(name)} is {header.missing_bytes} bytes short.",
            evidence=f"its header describes {header.data_bytes} bytes of tensors, the file has {size} bytes in all",
            remedy=again,
        )
    elif header.surplus_bytes:
        weights.damaged.append(name)
        message = f"The shard {shown(name)} has {header.surplus_bytes} bytes that its header does not describe."
        weights.error("CHECKPOINT_SHARD_MALFORMED", message, remedy=again)
    lost = [tensor for tensor in expected if tensor not in header.tensors]
    if lost:
        weights.error(
            "CHECKPOINT_TENSOR_MISSING",
            f"The shard {shown(name)} lacks {len(lost)} tensors that the index places in it: {some(lost)}.",
            remedy="Download the index and the shards of one and the same revision.",
        )


def read_gguf_files(tree: CheckpointTree) -> tuple[int, list[str]]:
    """Return the size of all GGUF files together, and the names of those that are none despite their name."""
    total = 0
    fakes: list[str] = []
    for name in tree.names:
        if not name.lower().endswith(".gguf"):
            continue
        try:
            stream, size = tree.open_file(name)
        except CheckpointFileError:
            fakes.append(name)
            continue
        with stream:
            header = read_gguf(stream)
        total += size
        if header is None:
            fakes.append(name)
    return total, fakes


def some(names: t.Sequence[str], limit: int = 3) -> str:
    """Return the first few names for a message, and how many more there are."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(shown(name) for name in names[:limit]) + rest


def _read_index(tree: CheckpointTree, *, mistral: bool) -> tuple[str, dict[str, t.Any], str]:
    """Return name and content of the index that vLLM would use, and what is wrong with it; empty without one."""
    names = [name for name in tree.names if name.endswith(_INDEX_SUFFIX)]
    own = [name for name in names if name.startswith("consolidated") == mistral]
    name = next((name for name in own if name == f"model{_INDEX_SUFFIX}"), own[0] if own else "")
    if not name:
        return "", {}, ""
    try:
        index = tree.read_json(name, index=True)
    except CheckpointFileError as exc:
        return name, {}, str(exc)
    if not mapping(index.get("weight_map")):
        return name, {}, f"{shown(name)} has no weight_map"
    return name, index, ""


def _tensors_by_shard(index: t.Mapping[str, t.Any]) -> dict[str, list[str]]:
    shards: dict[str, list[str]] = {}
    for tensor, shard in mapping(index.get("weight_map")).items():
        if isinstance(shard, str):
            shards.setdefault(shard, []).append(tensor)
    return shards


def _expected(names: t.Sequence[str], index: t.Mapping[str, t.Any], *, mistral: bool) -> list[str]:
    """Return the shards that should be there: those of the index, else those that are there and their numbering."""
    if index:
        return sorted(_tensors_by_shard(index))[:_MAX_SHARDS]
    found = [name for name in names if name.endswith(".safetensors")]
    # Repositories of Mistral hold the weights twice; vLLM loads the set that belongs to the config.
    found = [name for name in found if name.startswith("consolidated") == mistral] or found
    complete = set(found)
    for name in found:
        match = _NUMBERED.match(name)
        total = int(match["total"]) if match else 0
        if match and total <= _MAX_SHARDS:
            complete.update(
                f"{match['stem']}-{number:05d}-of-{total:05d}.safetensors" for number in range(1, total + 1)
            )
    return sorted(complete)


def _is_missing(tree: CheckpointTree, name: str) -> bool:
    """Return whether a shard is not there at all; a link whose target is gone is a missing shard, too."""
    try:
        stream, _size = tree.open_file(name)
    except CheckpointFileError as exc:
        return exc.kind == "missing"
    stream.close()
    return False


def _format(names: t.Sequence[str], expected: t.Sequence[str]) -> Format:
    gguf = any(name.lower().endswith(".gguf") for name in names)
    if gguf and not any(name.endswith(".safetensors") for name in names):
        return "gguf"
    if expected:
        return "safetensors"
    return "pickle" if any(_PICKLES.match(name) for name in names) else "none"

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plain data that a memory plan is made from, checked and typed, and the facts where nothing was measured.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import typing as t

import yaml

from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import GeometryError, ModelGeometry
from ansible_collections.gb10.fleet.plugins.module_utils._model_layers import LayerCount
from ansible_collections.gb10.fleet.plugins.plugin_utils import _speculation
from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_cache import KvRequest
from ansible_collections.gb10.fleet.plugins.plugin_utils._pipeline import PartitionError, WeightParts, partition
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import kind_of

GIB = 1 << 30
# Why there is no geometry of a checkpoint that nobody has read.
NO_CONFIG = "neither its config.json (config) nor what checkpoint_info says of it (geometry) is known."


class PlanInputError(ValueError):
    """What a plan was asked with cannot be used; the message says what, where and what to do."""


@functools.cache
def facts() -> dict[str, t.Any]:
    """Return data/memory_facts.yml."""
    path = pathlib.Path(__file__).parent / "data" / "memory_facts.yml"
    data: dict[str, t.Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """A figure of a plan: what it is, why it is so, and how far the truth may lie from it (None: nobody knows)."""

    value: float
    unit: str
    reason: str
    uncertainty: float | None = 0

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain data; bytes are whole."""
        uncertainty = self.uncertainty
        if uncertainty is not None and self.unit == "bytes":
            uncertainty = round(uncertainty)
        return {"value": self.value, "unit": self.unit, "reason": self.reason, "uncertainty": uncertainty}


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """Something that holds memory of the box: a process, a container or a unit."""

    name: str
    held_bytes: int
    unit: str
    pid: int

    @classmethod
    def read(cls, data: t.Any, where: str) -> Holder:
        """Check one entry of holders."""
        fields = _mapping(data, where)
        return cls(
            str(fields.get("name") or fields.get("process") or fields.get("unit") or "unknown"),
            _whole(fields, "bytes", where, default=0),
            str(fields.get("unit") or ""),
            _whole(fields, "pid", where, default=0),
        )

    def __str__(self) -> str:
        pid = f" (pid {self.pid})" if self.pid else ""
        return f"{self.name}{pid} {self.held_bytes / GIB:.1f} GiB"


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """The memory of a box as it was observed, and the units of it that are stopped before anything is started."""

    name: str
    platform: str
    total_bytes: int
    available_bytes: int
    holders: tuple[Holder, ...]
    leaving: frozenset[str]

    @classmethod
    def read(cls, data: t.Any) -> Box:
        """Check what memory_info (or a person) said about a box."""
        fields = _mapping(data, "box_memory")
        total = _whole(fields, "total_bytes", "box_memory")
        available = _whole(fields, "available_bytes", "box_memory")
        if total < 1 or available > total:
            raise PlanInputError(
                f"box_memory: total_bytes is {total} and available_bytes {available}; expected 0 <= available <= total."
            )
        platform = str(fields.get("platform") or "gb10")
        if platform not in facts()["platforms"]:
            raise PlanInputError(
                f"box_memory: platform is {platform}; expected one of {', '.join(facts()['platforms'])}."
            )
        holders = [] if fields.get("holders") is None else fields["holders"]
        if not isinstance(holders, list):
            raise PlanInputError("box_memory: holders is not a list; leave it out or give a list of mappings.")
        leaving = fields.get("leaving") or []
        if not isinstance(leaving, list):
            raise PlanInputError("box_memory: leaving is not a list; leave it out or give a list of units.")
        return cls(
            str(fields.get("name") or ""),
            platform,
            total,
            available,
            tuple(Holder.read(entry, f"box_memory.holders[{index}]") for index, entry in enumerate(holders)),
            frozenset(map(str, leaving)),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Speculative:
    """How an instance speculates: the method, the tokens per step and what the drafter needs."""

    method: str = ""
    tokens: int = 0
    draft: tuple[LayerCount, ...] | None = None
    weights_bytes: int = 0
    scratch_bytes: int | None = None
    model: str = ""

    @property
    def scratch(self) -> tuple[int, bool]:
        """Return the scratch of one sequence in bytes, and whether somebody measured it."""
        if self.scratch_bytes is not None:
            return self.scratch_bytes, True
        known = facts()["drafter_scratch"]
        fact = known.get(self.method if self.tokens else "ngram", known["other"])
        return round(fact["gib_per_sequence"] * GIB), bool(fact["known"])

    @classmethod
    def read(cls, data: t.Any, where: str) -> Speculative:
        """Check the ``speculative`` of a model role."""
        if not data:
            return cls()
        fields = _mapping(data, where)
        method = str(fields.get("method") or "").lower()
        # vLLM's older names say the model family in front, such as qwen3_next_mtp.
        method = "mtp" if method.endswith("mtp") else method
        layers = fields.get("draft_layers")
        draft: tuple[LayerCount, ...] | None = None
        if method in {"ngram", "ngram_gpu", "suffix"}:
            method, draft = ("suffix" if method == "suffix" else "ngram"), ()
        elif layers is not None:
            if not isinstance(layers, list):
                raise PlanInputError(f"{where}.draft_layers is not a list of layers.")
            try:
                draft = tuple(LayerCount.from_dict(_mapping(entry, f"{where}.draft_layers")) for entry in layers)
            except ValueError as exc:
                raise PlanInputError(f"{where}.draft_layers: {exc}") from None
        elif fields.get("draft_config"):
            draft = _geometry(fields["draft_config"], f"{where}.draft_config").layers
        scratch = fields.get("scratch_gib_per_sequence")
        return cls(
            method,
            _whole(fields, "num_speculative_tokens", where, default=0),
            draft,
            _gib(fields, "weights_gib", where) or _whole(fields, "weights_bytes", where, default=0),
            None if scratch is None else _gib(fields, "scratch_gib_per_sequence", where),
            _speculation.drafter(fields),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """A model role placed on a box, with what is known of its checkpoint."""

    name: str
    vllm: str
    geometry: ModelGeometry | None
    geometry_error: str
    scheme: str
    weights_bytes: int
    expert_bytes: int
    measured_weights: int
    measured_overhead: int
    measured_boot_peak: int
    max_model_len: int
    max_num_seqs: int
    kv_sequences: int
    max_num_batched_tokens: int
    load_format: str
    speculative: Speculative
    kv_bytes: int
    kv_offload_bytes: int
    extra_bytes: int
    extra_reason: str
    context_may_exceed: bool
    utilization: float
    request: KvRequest
    peers: tuple[Box, ...]
    # How many stages a pipeline has, the weights by stage where the checkpoint's headers tell, and what is wrong with
    # layers that were dealt out by hand.
    pipeline: int = 1
    weight_parts: WeightParts | None = None
    partition_error: str = ""

    @property
    def stage_weights(self) -> int | None:
        """Return the bytes of the weights on this rank's stage, over all its ranks; None where nobody can tell."""
        counts = self.request.stage_layers
        if self.weight_parts is None or len(self.weight_parts.layers) != sum(counts):
            return None
        drafts = bool(self.speculative.tokens) and self.speculative.method != "ngram"
        return self.weight_parts.of_stage(counts, self.request.stage, drafts=drafts)

    @classmethod
    def read(cls, data: t.Any, index: int, platform: str) -> Instance:
        """Check one instance."""
        fields = _mapping(data, f"instances[{index}]")
        name = str(fields.get("name") or "")
        if not name:
            raise PlanInputError(f"instances[{index}]: name is missing; every instance needs one.")
        where = f"instance {name}"
        extra = _mapping(fields.get("extra_bytes") or {}, f"{where}: extra_bytes")
        measured = _mapping(fields.get("measured") or {}, f"{where}: measured")
        speculative = Speculative.read(fields.get("speculative"), f"{where}: speculative")
        geometry, geometry_error = _geometry_or_error(fields, where)
        batched = _whole(fields, "max_num_batched_tokens", where, default=0)
        batched = batched or facts()["platforms"][platform]["max_num_batched_tokens"]
        sequences = _whole(fields, "max_num_seqs", where)
        length = _whole(fields, "max_model_len", where)
        if sequences < 1 or length < 1:
            raise PlanInputError(f"{where}: max_model_len and max_num_seqs must be 1 or more.")
        tensor = _whole(fields, "tensor_parallel_size", where, default=1) or 1
        pipeline = _whole(fields, "pipeline_parallel_size", where, default=1) or 1
        parts = _weight_parts(fields, where) if pipeline > 1 else None
        layers = geometry.num_layers if geometry is not None else len(parts.layers) if parts is not None else 0
        stage_layers, partition_error = _stages(layers, pipeline, str(fields.get("layer_partition") or ""))
        request = KvRequest(
            vllm=str(fields.get("vllm") or ""),
            max_model_len=length,
            max_num_batched_tokens=batched,
            kv_cache_dtype=str(fields.get("kv_cache_dtype") or "auto"),
            tensor_parallel_size=tensor,
            num_speculative_tokens=speculative.tokens,
            prefix_caching=bool(fields.get("prefix_caching", True)),
            mamba_cache_dtype=str(fields.get("mamba_cache_dtype") or "auto"),
            mamba_ssm_cache_dtype=str(fields.get("mamba_ssm_cache_dtype") or "auto"),
            # An n-gram drafter and a CPU engine cannot overlap batches.
            async_scheduling=bool(fields.get("async_scheduling", speculative.method != "ngram" and platform != "cpu")),
            gdn_prefill_backend=str(fields.get("gdn_prefill_backend") or "auto"),
            platform=platform,
            draft=speculative.draft,
            stage_layers=stage_layers,
            # Ranks are numbered through the first stage, then the next one (vllm/distributed/parallel_state.py).
            stage=min(_whole(fields, "node_rank", where, default=0) // tensor, pipeline - 1) if stage_layers else 0,
        )
        utilization = fields.get("gpu_memory_utilization")
        if utilization is not None and not (
            isinstance(utilization, (int, float)) and not isinstance(utilization, bool) and 0 < utilization < 1
        ):
            raise PlanInputError(
                f"{where}: gpu_memory_utilization is {utilization!r}; expected a fraction between 0 and 1, or nothing."
            )
        peers = [] if fields.get("peers") is None else fields["peers"]
        if not isinstance(peers, list):
            raise PlanInputError(f"{where}: peers is not a list of box memories.")
        return cls(
            name=name,
            vllm=request.vllm,
            geometry=geometry,
            geometry_error=geometry_error,
            scheme=str(fields.get("scheme") or ""),
            weights_bytes=_whole(fields, "weights_bytes", where, default=0),
            expert_bytes=_whole(fields, "expert_bytes", where, default=0),
            measured_weights=_gib(measured, "weights_gib", f"{where}: measured"),
            measured_overhead=_gib(measured, "overhead_gib", f"{where}: measured"),
            measured_boot_peak=_gib(measured, "boot_peak_gib", f"{where}: measured"),
            max_model_len=length,
            max_num_seqs=sequences,
            kv_sequences=_whole(fields, "kv_sequences", where, default=0),
            max_num_batched_tokens=batched,
            load_format=str(fields.get("load_format") or "default"),
            speculative=speculative,
            kv_bytes=_whole(fields, "kv_cache_memory_bytes", where, default=0),
            kv_offload_bytes=_whole(fields, "kv_offload_bytes", where, default=0),
            extra_bytes=sum(_whole(extra, key, where) for key in extra),
            extra_reason=" and ".join(extra),
            context_may_exceed=bool(fields.get("context_may_exceed", False)),
            utilization=float(utilization or 0),
            request=request,
            peers=tuple(Box.read(peer) for peer in peers),
            pipeline=pipeline,
            weight_parts=parts,
            partition_error=partition_error,
        )


def _stages(layers: int, pipeline: int, by_hand: str) -> tuple[tuple[int, ...], str]:
    """Return the number of layers of each stage, none where that is not known or nothing is dealt out."""
    if pipeline == 1 or layers < pipeline:
        return (), ""
    try:
        return partition(layers, pipeline, by_hand), ""
    except PartitionError as error:
        return (), str(error)


def _weight_parts(fields: t.Mapping[str, t.Any], where: str) -> WeightParts | None:
    """Return the weights by what decides on their stage; None where the headers do not tell."""
    layers = fields.get("layer_bytes") or []
    total = _whole(fields, "weights_bytes", where, default=0)
    if not isinstance(layers, list) or not layers or not total:
        return None
    parts = _mapping(fields.get("part_bytes") or {}, f"{where}: part_bytes")
    return WeightParts.read([int(one) for one in layers], parts, total, tied=bool(fields.get("lm_head_tied")))


def _geometry_or_error(fields: t.Mapping[str, t.Any], where: str) -> tuple[ModelGeometry | None, str]:
    try:
        if fields.get("geometry"):
            return _geometry(fields["geometry"], f"{where}: geometry"), ""
        if fields.get("config"):
            return _geometry(fields["config"], f"{where}: config", fields.get("hf_quant_config")), ""
    except GeometryError as exc:
        return None, str(exc)
    return None, NO_CONFIG


def _geometry(data: t.Any, where: str, hf_quant_config: t.Any = None) -> ModelGeometry:
    fields = _mapping(data, where)
    # A geometry lists its layers by kind; a config.json never does.
    if isinstance(fields.get("layers"), list):
        return ModelGeometry.from_dict(fields)
    return ModelGeometry.from_config(dict(fields), hf_quant_config if isinstance(hf_quant_config, dict) else None)


def _mapping(data: t.Any, where: str) -> t.Mapping[str, t.Any]:
    if not isinstance(data, t.Mapping):
        raise PlanInputError(f"{where}: expected a mapping, found {kind_of(data)}.")
    return data


def _whole(fields: t.Mapping[str, t.Any], name: str, where: str, default: int | None = None) -> int:
    value = fields.get(name)
    if value is None:
        if default is None:
            raise PlanInputError(f"{where}: {name} is missing; give it as a whole number.")
        return default
    # Jinja hands numbers on as text; an empty text is a variable that nobody set.
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PlanInputError(f"{where}: {name} is {value!r}; expected a whole number of 0 or more.")
    return value


def _gib(fields: t.Mapping[str, t.Any], name: str, where: str) -> int:
    value = fields.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise PlanInputError(f"{where}: {name} is {value!r}; expected GiB as a number of 0 or more.")
    return round(value * GIB)

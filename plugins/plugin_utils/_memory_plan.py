# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a box will hold: cache bytes and memory fraction for every instance, with the reason for each number.

Pure arithmetic: no host, no clock, no network. The same input gives the same plan.

How the bytes of a cache are chosen: a user's ``kv_cache_memory_bytes`` is taken as it is; a user's
``gpu_memory_utilization`` gives what it leaves beside weights and overhead; otherwise the cache holds ``max_num_seqs``
(or ``kv_sequences``) requests of full length, and what is then left stays free.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import math
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils._instance_need import InstanceNeed, needs_of
from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_cache import (
    KvFit,
    KvLayout,
    KvTooSmall,
    KvUnsupportedError,
    kv_layout,
)
from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_inputs import (
    GIB,
    NO_CONFIG,
    Box,
    Instance,
    Number,
    PlanInputError,
    facts,
)
from ansible_collections.gb10.fleet.plugins.plugin_utils._roofline import roofline

__all__ = ["PlanInputError", "plan_memory"]
_NO_CHECKPOINT: t.Final = (
    "Download the checkpoint, or put its JSON files into the folder that plan_checkpoints names; else state "
    "kv_cache_memory_bytes for the model role, measured with its boot log."
)

# Files that are read already are let go of; those that are being read are not.
_DROP: t.Final = "sudo sh -c 'while sleep 2; do echo 3 > /proc/sys/vm/drop_caches; done'"


def plan_memory(
    box_memory: t.Mapping[str, t.Any],
    instances: t.Sequence[t.Mapping[str, t.Any]],
    *,
    host_reserve_bytes: int | None = None,
    cap: float | None = None,
    cap_override: t.Mapping[str, t.Any] | None = None,
) -> dict[str, t.Any]:
    """Return the plan of one box as plain data; raise PlanInputError where the input cannot be used."""
    box = Box.read(box_memory)
    names = [str(entry.get("name")) for entry in instances if isinstance(entry, t.Mapping)]
    if len(set(names)) != len(names):
        raise PlanInputError("instances: two have the same name; a name belongs to one systemd unit.")
    read = [Instance.read(entry, index, box.platform) for index, entry in enumerate(instances)]
    planner = _Planner(box, read, _Limits.read(box, host_reserve_bytes, cap, cap_override))
    return planner.plan()


@dataclasses.dataclass(frozen=True, slots=True)
class _Limits:
    """What the engines of a box may not exceed."""

    reserve: int
    cap: float
    cap_reason: str
    overridden: bool

    @classmethod
    def read(cls, box: Box, reserve: int | None, cap: float | None, override: t.Mapping[str, t.Any] | None) -> _Limits:
        fact = facts()["host_reserve"]
        if reserve is None:
            reserve = min(round(fact["gib"] * GIB), math.floor(box.total_bytes * fact["share"]))
        if isinstance(reserve, bool) or not isinstance(reserve, int) or reserve < 0:
            raise PlanInputError(f"host_reserve_bytes is {reserve!r}; expected a whole number of bytes.")
        ceiling = float(facts()["gpu_memory_cap"]["value"])
        fraction = ceiling if cap is None else cap
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
            raise PlanInputError(f"cap is {fraction!r}; expected a fraction between 0 and 1.")
        if fraction > ceiling:
            raise PlanInputError(
                f"cap is {fraction}, above {ceiling}; say cap_override with fraction and reason to go above it."
            )
        if not override:
            return cls(reserve, fraction, facts()["gpu_memory_cap"]["source"], False)
        wanted = override.get("fraction") if isinstance(override, t.Mapping) else None
        reason = override.get("reason") if isinstance(override, t.Mapping) else None
        if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or not 0 < wanted < 1 or not reason:
            raise PlanInputError("cap_override needs fraction (between 0 and 1) and reason (a sentence).")
        return cls(reserve, float(wanted), f"override: {reason}", wanted > ceiling)


class _Planner:
    """Places the instances one after another, in the order given."""

    def __init__(self, box: Box, instances: list[Instance], limits: _Limits) -> None:
        self.box = box
        self.instances = instances
        self.limits = limits
        self.findings: list[Finding] = []
        self.used = 0
        self.placed: list[str] = []
        self.boot_peak = 0
        units = {f"vllm-{instance.name}.service" for instance in instances} | box.leaving
        own = [holder for holder in box.holders if holder.unit in units]
        self.others = [holder for holder in box.holders if holder.unit not in units]
        # An instance that is planned anew or taken off the box gives its memory back before another one starts.
        self.returned = min(sum(holder.held_bytes for holder in own), box.total_bytes - box.available_bytes)
        self.available = box.available_bytes + self.returned
        self.cap_bytes = math.floor(limits.cap * box.total_bytes)
        self.budget = max(0, min(self.available - limits.reserve, self.cap_bytes))

    def plan(self) -> dict[str, t.Any]:
        if self.limits.overridden:
            self._say(
                "CAP_OVERRIDDEN",
                "warning",
                f"The engines of this box may take {self.limits.cap:.2f} of its memory, more than "
                f"{facts()['gpu_memory_cap']['value']:.2f}.",
                self.limits.cap_reason,
                "Watch free memory through a full boot, and take the override back where the box does not need it.",
            )
        self._check_reserve()
        planned = [self._place(instance) for instance in self.instances]
        return {
            "verdict": "refused" if self._errors() else "fits",
            "box": {
                "name": self.box.name,
                "platform": self.box.platform,
                "numbers": {name: number.as_dict() for name, number in self._box_numbers().items()},
                "holders": [dataclasses.asdict(holder) for holder in self.others],
            },
            "instances": planned,
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def _box_numbers(self) -> dict[str, Number]:
        held = self.box.total_bytes - self.available
        return {
            "total": _bytes(self.box.total_bytes, "MemTotal of the box"),
            "available": _bytes(self.available, self._available_reason()),
            "held_by_others": _bytes(held, "total less available: the host and what else runs on it"),
            "host_reserve": _bytes(self.limits.reserve, "left available for the host after everything runs"),
            "cap": _bytes(self.cap_bytes, f"{self.limits.cap:.2f} of total; {self.limits.cap_reason}"),
            "engines": _bytes(self.used, "weights, overhead, cache and drafter scratch of all instances that fit"),
            "boot_peak": _bytes(
                self.boot_peak, "the highest point while the instances start one after another, page cache included"
            ),
            "free_after": _bytes(self.available - self.used, "available less engines, once everything runs"),
        }

    def _available_reason(self) -> str:
        if self.returned:
            return f"MemAvailable and {_gib(self.returned)} that the box's own units hold now and give back"
        return "MemAvailable of the box"

    def _check_reserve(self) -> None:
        fact = facts()["host_reserve"]
        least = min(round(fact["gib"] * GIB), math.floor(self.box.total_bytes * fact["share"]))
        if self.limits.reserve < least and self.box.platform != "cpu":
            self._say(
                "HOST_RESERVE_SMALL",
                "warning",
                f"{_gib(self.limits.reserve)} stay with the host; boxes froze with less than {_gib(least)}.",
                fact["source"],
                "Take vllm_server_host_reserve_bytes out of the inventory, or watch free memory through a full boot.",
            )

    # One instance

    def _place(self, instance: Instance) -> dict[str, t.Any]:
        before = self._errors()
        need = needs_of(instance, self.box.platform, self._say)
        self._check_fraction(instance)
        layout = self._layout(instance)
        self._check_pipeline(instance, layout)
        limit = self._limit(instance)
        kv_bytes = self._kv_bytes(instance, need, layout)
        largest: dict[str, int] = {}
        # What this rank keeps of the cache; less than it is asked for where another stage has more layers.
        held = None if kv_bytes is None else layout.held(kv_bytes) if layout is not None else kv_bytes
        if need is not None and held is not None and kv_bytes is not None:
            # Running never takes more than the highest point of the boot.
            peak = need.hard_boot_peak(held)
            if peak > limit:
                largest = _largest(instance, need, layout, limit, kv_bytes)
                self._refuse(instance, peak, max(0, limit), largest)
        failed = self._errors() > before
        utilization = None
        if not failed and need is not None and held is not None:
            utilization = self._utilization(instance, need.total(held))
            failed = utilization is None
        result = {
            "name": instance.name,
            "fits": not failed,
            "kv_cache_memory_bytes": kv_bytes if not failed else None,
            "gpu_memory_utilization": utilization,
            "flags": [],
            "largest": largest,
            "numbers": {},
        }
        if need is not None:
            numbers = need.numbers(held or 0)
            numbers.update(_kv_numbers(instance, layout, kv_bytes))
            numbers.update(roofline(instance, need.weights, layout, self.box.platform))
            result["numbers"] = {name: number.as_dict() for name, number in numbers.items()}
        if failed or need is None or kv_bytes is None or held is None or utilization is None:
            return result
        result["flags"] = [
            "--kv-cache-memory-bytes",
            str(kv_bytes),
            "--gpu-memory-utilization",
            f"{utilization:g}",
        ]
        self._account(instance, need, held)
        return result

    def _check_pipeline(self, instance: Instance, layout: KvLayout | None) -> None:
        """Say where a stage of a pipeline is planned as if it held all layers, and refuses what vLLM would."""
        if instance.partition_error:
            self._say(
                "PIPELINE_PARTITION_INVALID",
                "error",
                f"Instance {instance.name}: VLLM_PP_LAYER_PARTITION {instance.partition_error}; vLLM refuses to start.",
                "vllm/distributed/utils.py of 0.32.0",
                "Give each stage its number of layers, such as 31,30, or leave the variable out.",
            )
        elif instance.pipeline > 1:
            unknown = [] if instance.measured_weights or instance.stage_weights is not None else ["weights"]
            unknown += [] if layout is None or layout.stages else ["cache"]
            if unknown:
                self._say(
                    "PIPELINE_STAGES_UNKNOWN",
                    "info",
                    f"Instance {instance.name}: {' and '.join(unknown)} of each rank are planned as if it held all "
                    f"layers, and not 1 of {instance.pipeline} stages, which is more than it will.",
                    "the checkpoint's headers do not tell what each layer is",
                    "Download the checkpoint, so that its headers can be read, or state measured.weights_gib.",
                )

    def _check_fraction(self, instance: Instance) -> None:
        if instance.utilization > self.limits.cap:
            self._say(
                "GPU_UTILIZATION_ABOVE_CAP",
                "error",
                f"Instance {instance.name} asks for gpu_memory_utilization {instance.utilization:g}, above the cap of "
                f"{self.limits.cap:.2f}.",
                self.limits.cap_reason,
                "Lower max_model_len, max_num_seqs or max_num_batched_tokens, use an fp8 cache, a smaller checkpoint "
                "or a second box; do not raise the fraction.",
            )

    def _account(self, instance: Instance, need: InstanceNeed, kv_bytes: int) -> None:
        free = self.available - self.used
        loading = need.loading(free)
        self.boot_peak = max(self.boot_peak, self.used + loading, self.used + need.hard_boot_peak(kv_bytes))
        if need.granted() + need.page_cache > free:
            self._say(
                "PAGE_CACHE_FILLS_POOL",
                "info",
                f"While {instance.name} loads, {_gib(need.weights)} of weights and as much page cache do not fit into "
                f"{_gib(free)} together, so the kernel has to take page cache back while the driver allocates.",
                "Some boots failed with NV_ERR_NO_MEMORY although the kernel called page cache available.",
                "The start gate drops the page cache once, before each start. If a boot fails with NV_ERR_NO_MEMORY "
                f"all the same, drop it on the box while the next one loads: {_DROP}; if that does not help, take a "
                "smaller checkpoint.",
            )
        self.used += need.total(kv_bytes)
        self.placed.append(instance.name)

    def _layout(self, instance: Instance) -> KvLayout | None:
        """Return the shape of the cache, or None with a finding where it is not known."""
        reason = instance.geometry_error
        remedy = _NO_CHECKPOINT if reason == NO_CONFIG else ""
        if instance.geometry is not None:
            try:
                layout = kv_layout(instance.geometry, instance.request)
            except KvUnsupportedError as exc:
                reason, remedy = str(exc), exc.remedy
            else:
                if layout.note:
                    self._say("KV_RULES_STAND_IN", "info", f"Instance {instance.name}: {layout.note}")
                longest = instance.geometry.max_model_len
                if longest and instance.max_model_len > longest:
                    self._say(
                        "CONTEXT_ABOVE_CHECKPOINT",
                        "warning" if instance.context_may_exceed else "error",
                        f"Instance {instance.name} asks for a context of {instance.max_model_len} tokens; its "
                        f"checkpoint declares {longest}.",
                        "vllm/config/model.py of 0.32.0 raises ValueError unless VLLM_ALLOW_LONG_MAX_MODEL_LEN is 1",
                        "Lower max_model_len, or state the RoPE scaling that vLLM is to use in args.hf_overrides.",
                    )
                return layout
        pinned = bool(instance.kv_bytes)
        self._say(
            "KV_GEOMETRY_UNKNOWN",
            "warning" if pinned else "error",
            f"Instance {instance.name}: how many tokens a cache holds cannot be computed: {reason}",
            "",
            "Read tokens and concurrency from its boot log."
            if pinned
            else remedy or "State kv_cache_memory_bytes for the model role, measured with its boot log.",
        )
        return None

    def _limit(self, instance: Instance) -> int:
        """Return what the instance may take on this box and on every peer of its serving group."""
        limit = self.budget - self.used
        for peer in instance.peers:
            cap = math.floor(self.limits.cap * peer.total_bytes)
            limit = min(limit, peer.available_bytes - self.limits.reserve, cap)
        return limit

    def _kv_bytes(self, instance: Instance, need: InstanceNeed | None, layout: KvLayout | None) -> int | None:
        """Choose the bytes of the cache, or say why there are none."""
        if instance.kv_bytes:
            if layout is not None:
                self._check_explicit(instance, layout, instance.kv_bytes)
            return instance.kv_bytes
        if layout is None or need is None or instance.utilization > self.limits.cap:
            return None
        if instance.utilization:
            granted = math.floor(instance.utilization * self.box.total_bytes) - need.granted()
            kv_bytes = layout.from_own(max(0, granted))
            self._check_explicit(instance, layout, kv_bytes)
            return kv_bytes
        sequences = instance.kv_sequences or instance.max_num_seqs
        return _kv_for(layout, sequences)

    def _check_explicit(self, instance: Instance, layout: KvLayout, kv_bytes: int) -> None:
        result = layout.fit(kv_bytes)
        if isinstance(result, KvTooSmall):
            self._say(
                "KV_CACHE_TOO_SMALL",
                "error",
                f"Instance {instance.name}: a cache of {_gib(kv_bytes)} is too small for one request of "
                f"{layout.max_model_len} tokens, which needs {_gib(result.needed_bytes)}.",
                f"estimated maximum model length {result.estimated_max_len}",
                f"Give it {layout.minimum_bytes()} bytes, or lower max_model_len to {result.estimated_max_len}."
                if result.estimated_max_len
                else f"Give it {layout.minimum_bytes()} bytes.",
            )
        elif result.max_concurrency < instance.max_num_seqs:
            self._say(
                "KV_FEWER_SEQUENCES",
                "info",
                f"Instance {instance.name}: its cache holds {result.max_concurrency:.2f} requests of full length at a "
                f"time, fewer than max_num_seqs {instance.max_num_seqs}; longer queues, not errors, follow.",
            )

    def _utilization(self, instance: Instance, wanted: int) -> float | None:
        """Return the fraction that vLLM's start check reads: what the instance takes, or what is free if less."""
        free = self.available - self.used
        if instance.utilization:
            requested = math.ceil(instance.utilization * self.box.total_bytes)
            if requested > free and self.box.platform != "cpu":
                self._say(
                    "START_CHECK_WOULD_FAIL",
                    "error",
                    f"Instance {instance.name}: vLLM would refuse to start, since gpu_memory_utilization "
                    f"{instance.utilization:g} asks for {_gib(requested)} and {_gib(free)} is free.",
                    self._held(),
                    f"Free the memory first; at most {_floor2(free / self.box.total_bytes):g} passes the check now.",
                )
                return None
            return instance.utilization
        share = min(math.ceil(wanted / self.box.total_bytes * 100) / 100, _floor2(free / self.box.total_bytes))
        return max(0.01, min(share, _floor2(self.limits.cap)))

    # Findings

    def _refuse(self, instance: Instance, wanted: int, limit: int, largest: dict[str, int]) -> None:
        options = []
        if largest.get("max_model_len"):
            count = instance.kv_sequences or instance.max_num_seqs
            options.append(f"max_model_len {largest['max_model_len']} with {count} sequences")
        options += [
            f"{key} {largest[key]} at {instance.max_model_len} tokens"
            for key in ("kv_sequences", "max_num_seqs")
            if largest.get(key)
        ]
        if largest.get("kv_cache_memory_bytes"):
            options.append(f"kv_cache_memory_bytes {largest['kv_cache_memory_bytes']}")
        remedy = (
            f"The largest that fits: {' or '.join(options)}."
            if options
            else f"No setting fits{self._beside()}; use a smaller checkpoint or a second box."
        )
        if self.others and self.available - self.limits.reserve < min(self.cap_bytes, wanted + self.used):
            remedy = f"Find out whether it may stop: {self._held()}. {remedy}"
        self._say(
            "INSTANCE_DOES_NOT_FIT",
            "error",
            f"Instance {instance.name} needs {_gib(wanted)}; {_gib(limit)} is left for it.",
            f"available {_gib(self.available)}, host reserve {_gib(self.limits.reserve)}, cap {_gib(self.cap_bytes)}, "
            f"planned before it {_gib(self.used)}",
            remedy,
        )

    def _beside(self) -> str:
        """Return who was planned before, whose caches could be smaller."""
        names = ", ".join(self.placed)
        return f" beside {names}; lower their kv_sequences or max_num_seqs first" if names else ""

    def _held(self) -> str:
        largest = sorted(self.others, key=lambda holder: (-holder.held_bytes, holder.name, holder.pid))[:3]
        return ", ".join(str(holder) for holder in largest) or "nothing is known to hold memory"

    def _say(self, finding_id: str, severity: t.Any, message: str, evidence: str = "", remedy: str = "") -> None:
        self.findings.append(Finding(finding_id, severity, message, evidence, remedy))

    def _errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)


def _kv_for(layout: KvLayout, sequences: int, length: int | None = None) -> int:
    """Return cache bytes for so many sequences of full length, in whole blocks, and the one never handed out."""
    need = layout.bytes_for(sequences, length)
    blocks = -(-need // layout.bytes_per_block)
    # From 0.29 on the minimum already has the block that is never handed out; with it, all sequences really run.
    per_request = layout.pool.blocks(layout.max_model_len if length is None else length, layout.in_flight)
    return max(blocks, sequences * per_request + 1) * layout.bytes_per_block


def _largest(
    instance: Instance, need: InstanceNeed, layout: KvLayout | None, limit: int, kv_bytes: int
) -> dict[str, int]:
    """Return the largest context with the sequences asked for, and the most sequences with the context asked for."""
    fixed = need.total(0)
    if instance.kv_bytes or layout is None:
        room = limit - max(fixed, need.hard_boot_peak(0))
        room = layout.from_own(room) if layout is not None and layout.stages else room
        least = layout.minimum_bytes() if layout is not None else 1
        return {"kv_cache_memory_bytes": room} if least <= room < kv_bytes else {}
    sequences = instance.kv_sequences or instance.max_num_seqs

    def fits_length(length: int) -> bool:
        return need.fits(layout.held(_kv_for(layout, sequences, length)), limit)

    # What kv_sequences says wins over max_num_seqs, which then only the drafter's scratch depends on.
    key = "kv_sequences" if instance.kv_sequences else "max_num_seqs"

    def fits_sequences(count: int) -> bool:
        fewer = need if instance.kv_sequences else need.for_sequences(count)
        return fewer.fits(layout.held(_kv_for(layout, count)), limit)

    largest = {}
    if length := _search(fits_length, instance.max_model_len - 1):
        largest["max_model_len"] = length
    if count := _search(fits_sequences, sequences - 1):
        largest[key] = count
    return largest


def _search(fits: t.Callable[[int], bool], highest: int) -> int:
    """Return the largest number from 1 to ``highest`` that fits, or 0."""
    low, high = 0, highest
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _kv_numbers(instance: Instance, layout: KvLayout | None, kv_bytes: int | None) -> dict[str, Number]:
    if kv_bytes is None:
        return {}
    if instance.kv_bytes:
        reason = "as the model role states it"
    elif instance.utilization:
        reason = f"what gpu_memory_utilization {instance.utilization:g} leaves beside weights and overhead"
    else:
        sequences = instance.kv_sequences or instance.max_num_seqs
        reason = f"{sequences} requests of {instance.max_model_len} tokens at a time, in whole blocks"
    if layout is None:
        return {"kv_cache": _bytes(kv_bytes, reason)}
    if layout.stages:
        reason += (
            f"; what stage {layout.stage + 1} of {len(layout.stages)} holds of {_gib(kv_bytes)} for the fullest one"
        )
    numbers = {"kv_cache": _bytes(layout.held(kv_bytes), reason)}
    if instance.pipeline > 1 and not layout.stages:
        # How many tokens it holds is that of a rank with all layers, which there is none of.
        return numbers
    result = layout.fit(kv_bytes)
    version = f"vLLM {instance.vllm}"
    numbers["kv_block_size"] = Number(layout.block_size, "tokens", f"block size of {version}")
    numbers["kv_bytes_per_block"] = _bytes(layout.bytes_per_block, "one block over all groups of layers")
    if isinstance(result, KvFit):
        numbers["kv_tokens"] = Number(result.tokens, "tokens", f"what {version} will print as KV cache size")
        numbers["kv_blocks"] = Number(result.num_blocks, "blocks", "cache bytes over bytes per block, rounded down")
        numbers["max_concurrency"] = Number(
            round(result.max_concurrency, 6), "requests", f"requests of {layout.max_model_len} tokens at a time"
        )
    return numbers


def _bytes(value: int, reason: str) -> Number:
    return Number(value, "bytes", reason)


def _gib(value: float) -> str:
    return f"{value / GIB:.2f} GiB"


def _floor2(value: float) -> float:
    return math.floor(value * 100) / 100

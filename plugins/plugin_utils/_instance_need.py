# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What one instance takes beside its cache: weights, overhead, drafter scratch, and what it needs while it boots.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_inputs import GIB, Instance, Number, facts

Say = t.Callable[..., None]


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceNeed:
    """The bytes of one rank of an instance."""

    weights: int
    weights_reason: str
    weights_uncertainty: float | None
    overhead: int
    overhead_reason: str
    overhead_uncertainty: float | None
    scratch_per_sequence: int
    scratch_known: bool
    sequences: int
    kv_offload: int
    extra: int
    extra_reason: str
    page_cache: int
    measured_boot_peak: int

    @property
    def scratch(self) -> int:
        """Return the drafter's scratch of all sequences."""
        return self.scratch_per_sequence * self.sequences

    def granted(self) -> int:
        """Return what vLLM takes off its grant before the cache: weights and overhead, not the drafter's scratch."""
        return self.weights + self.overhead

    def total(self, kv_bytes: int) -> int:
        """Return what the instance holds once it runs."""
        return self.weights + self.overhead + self.scratch + self.kv_offload + self.extra + kv_bytes

    def hard_boot_peak(self, kv_bytes: int) -> int:
        """Return the highest point of the boot that the kernel cannot take back."""
        return max(self.total(kv_bytes), self.measured_boot_peak)

    def loading(self, free: int) -> int:
        """Return weights, overhead and the page cache of the weights' files, as far as there is room for it."""
        return min(max(free, self.granted()), self.granted() + self.page_cache)

    def fits(self, kv_bytes: int, limit: int) -> bool:
        """Return whether the instance stays within a limit, running and booting."""
        return self.hard_boot_peak(kv_bytes) <= limit

    def for_sequences(self, count: int) -> InstanceNeed:
        """Return the need with another number of sequences."""
        return dataclasses.replace(self, sequences=count)

    def numbers(self, kv_bytes: int) -> dict[str, Number]:
        """Return the figures with their reasons."""
        scratch_reason = (
            f"{self.scratch_per_sequence / GIB:g} GiB for each of {self.sequences} sequences, which vLLM does not count"
            if self.scratch
            else "no memory outside of vLLM's accounting is known for this way of speculating"
        )
        # On a GB10 what is offloaded to the host stays in the same pool.
        offload = Number(self.kv_offload, "bytes", "per rank, asked for with kv_offloading_size or kv_transfer_config")
        extra = Number(self.extra, "bytes", f"asked for with {self.extra_reason}, beside weights and cache")
        return {
            **({"kv_offload": offload} if self.kv_offload else {}),
            **({"extra": extra} if self.extra else {}),
            "weights": Number(self.weights, "bytes", self.weights_reason, self.weights_uncertainty),
            "overhead": Number(self.overhead, "bytes", self.overhead_reason, self.overhead_uncertainty),
            "drafter_scratch": Number(self.scratch, "bytes", scratch_reason, 0 if self.scratch_known else None),
            "page_cache": Number(self.page_cache, "bytes", "files of the weights, read once while loading; given back"),
            "boot_peak": Number(
                self.hard_boot_peak(kv_bytes),
                "bytes",
                "highest point of the boot without page cache"
                + (", measured" if self.measured_boot_peak == self.hard_boot_peak(kv_bytes) else ""),
                self.overhead_uncertainty,
            ),
            "total": Number(
                self.total(kv_bytes),
                "bytes",
                "weights, overhead, drafter scratch and cache" + (" with what it offloads" if self.kv_offload else ""),
                _add(self.weights_uncertainty, self.overhead_uncertainty, 0 if self.scratch_known else None),
            ),
        }


def needs_of(instance: Instance, platform: str, say: Say) -> InstanceNeed | None:
    """Return what an instance needs, or None with an error finding where its weights are not known."""
    weights = _weights(instance, say)
    if weights is None:
        return None
    overhead, overhead_reason, overhead_uncertainty = _overhead(instance, platform)
    scratch, known = instance.speculative.scratch
    if not known:
        say(
            "DRAFTER_SCRATCH_NOT_MEASURED",
            "warning",
            f"Instance {instance.name} speculates with {instance.speculative.method or 'a drafter'}; nobody measured "
            f"its scratch, and {scratch / GIB:g} GiB per sequence are assumed.",
            facts()["drafter_scratch"]["source"].strip(),
            "Measure it and state speculative.scratch_gib_per_sequence, or keep max_num_seqs low.",
        )
    if instance.speculative.model and not instance.speculative.weights_bytes and not instance.measured_weights:
        say(
            "DRAFTER_WEIGHTS_UNKNOWN",
            "warning",
            f"Instance {instance.name}: the weights of its drafter {instance.speculative.model} are not counted.",
            "",
            "State speculative.weights_gib, or measured.weights_gib from a boot log, which has both.",
        )
    return InstanceNeed(
        weights=weights[0],
        weights_reason=weights[1],
        weights_uncertainty=weights[2],
        overhead=overhead,
        overhead_reason=overhead_reason,
        overhead_uncertainty=overhead_uncertainty,
        scratch_per_sequence=scratch,
        scratch_known=known,
        sequences=instance.max_num_seqs,
        kv_offload=-(-instance.kv_offload_bytes // instance.request.tensor_parallel_size),
        extra=instance.extra_bytes,
        extra_reason=instance.extra_reason,
        page_cache=instance.weights_bytes or weights[0],
        measured_boot_peak=instance.measured_boot_peak,
    )


def _weights(instance: Instance, say: Say) -> tuple[int, str, float | None] | None:
    draft = instance.speculative.weights_bytes
    drafted = f" and {draft / GIB:.2f} GiB of the draft model" if draft else ""
    if instance.measured_weights:
        return instance.measured_weights + draft, f"measured per rank for this role{drafted}", 0.01 * GIB
    if instance.scheme == "gguf":
        say(
            "GGUF_EXPANDS",
            "error",
            f"Instance {instance.name}: its checkpoint is GGUF, which vLLM expands while loading; the size of the file "
            "says nothing about the memory it takes.",
            "A file of 56 GB took 160 GB.",
            "Use a checkpoint that vLLM runs as it is (NVFP4, FP8, INT4 AutoRound or AWQ), or another engine.",
        )
        return None
    if not instance.weights_bytes:
        say(
            "WEIGHTS_UNKNOWN",
            "error",
            f"Instance {instance.name}: neither measured.weights_gib nor weights_bytes is known.",
            "",
            "Download the checkpoint, or its JSON files into the folder that plan_checkpoints names, or state "
            'measured.weights_gib from a boot log ("Model loading took ... GiB").',
        )
        return None
    ranks = instance.request.tensor_parallel_size
    of_stage = instance.stage_weights if instance.pipeline > 1 else None
    per_rank = -(-(instance.weights_bytes if of_stage is None else of_stage) // ranks)
    say(
        "WEIGHTS_NOT_MEASURED",
        "info",
        f"Instance {instance.name}: its weights are taken from the tensors of the checkpoint, not from a boot.",
        "",
        'State measured.weights_gib once it has run ("Model loading took ... GiB").',
    )
    share = f", {ranks} ranks" if ranks > 1 else ""
    if of_stage is not None:
        counts, stage = instance.request.stage_layers, instance.request.stage
        first = sum(counts[:stage])
        share = f", layers {first} to {first + counts[stage] - 1} of stage {stage + 1} of {instance.pipeline}{share}"
    fact = facts()["weights_from_files"]
    return per_rank + draft, f"bytes of the checkpoint's tensors{share}{drafted}", fact["uncertainty"] * per_rank


def _overhead(instance: Instance, platform: str) -> tuple[int, str, float | None]:
    if instance.measured_overhead:
        return instance.measured_overhead, "measured per rank for this role", 0.1 * GIB
    fact = facts()["platforms"][platform]
    known = fact["overhead"]
    tokens = instance.max_num_batched_tokens
    peak = round(known["base_gib"] * GIB) + tokens * known["bytes_per_batched_token"]
    overhead = max(round(known["least_gib"] * GIB), peak)
    reason = f"assumed for {tokens} batched tokens, not measured for this role; {fact['overhead_source']}"
    if buffers := round(facts()["loader"].get(instance.load_format, 0) * GIB):
        reason += f"; and {buffers / GIB:.2f} GiB that the loader {instance.load_format} keeps"
    return overhead + buffers, reason, known["uncertainty_gib"] * GIB


def _add(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None

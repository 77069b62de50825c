# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compares what a boot said with what its model role expects and what its plan computed.

Another backend, or a KV pool that is more than 2 % off, is a failed deploy: what was measured with other kernels, or
planned for another pool, says nothing about what now runs.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import shown

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._boot_log import BootLog

# What may be expected, and the kind of backend that answers it.
EXPECTATIONS: t.Final[dict[str, str]] = {
    "attention_backend": "attention",
    "gdn_backend": "gdn",
    "linear_backend": "linear",
    "mla_prefill_backend": "mla_prefill",
    "moe_backend": "moe",
}
POOL_TOLERANCE: t.Final = 0.02
_WEIGHTS_TOLERANCE: t.Final = 0.05
_GIB: t.Final = 1 << 30
# A backend goes by its enumeration in one line and by its class in another: FLASHINFER_CUTLASS, or
# FlashInferCutlassNvFp4LinearKernel. FLASH_ATTN was logged as "Flash Attention backend on V1 engine", and TRITON_ATTN
# as "Triton backend on V1 engine", while their enumeration ended in _VLLM_V1 (platforms/cuda.py of 0.10.2, 2025-09).
_CLASS_PARTS = re.compile(r"(?:nvfp4|mxfp4|mxfp8|fp8|scaledmm|linear|kernel|backend|prefill|attn|vllmv1)+$")


def compare_with_plan(
    parsed: BootLog, expects: t.Mapping[str, t.Any] | None, plan: t.Mapping[str, t.Any] | None
) -> list[Finding]:
    """Return what differs from a model role's ``expects`` and from the ``plan`` of the instance.

    ``plan`` is an instance of the memory plan, or any mapping with kv_tokens, kv_cache_memory_bytes, kv_block_size,
    weights (bytes), max_model_len and vllm; what it lacks is not compared.
    """
    findings = [finding for name, wanted in (expects or {}).items() for finding in _backend(parsed, name, wanted)]
    if plan:
        findings += _pool(parsed, plan)
        findings += _pinned(parsed, plan)
        findings += _others(parsed, plan)
    return findings


def same_backend(one: str, other: str) -> bool:
    """Return whether two spellings mean one backend."""
    return _plain(one) == _plain(other)


def _plain(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.lower()).replace("attention", "attn")
    shorter = _CLASS_PARTS.sub("", plain)
    return shorter or plain


def _backend(parsed: BootLog, name: str, wanted: t.Any) -> t.Iterator[Finding]:
    kind = EXPECTATIONS.get(name)
    if kind is None:
        yield Finding(
            "EXPECTATION_UNKNOWN",
            "warning",
            f"expects.{shown(name)} cannot be checked against a boot log.",
            "",
            f"Use one of {', '.join(sorted(EXPECTATIONS))}.",
        )
        return
    names = [str(entry) for entry in wanted] if isinstance(wanted, (list, tuple)) else [str(wanted)]
    # Who expects a kernel for FP8 by its class speaks of that precision; all others speak of what counts.
    found = parsed.counting(kind, "fp8" if all("fp8" in entry.lower() for entry in names) else "fp4")
    if not found:
        if parsed.state == "ready":
            yield Finding(
                "BOOT_BACKEND_NOT_LOGGED",
                "warning",
                f"The boot log names no {kind} backend, so {' or '.join(names)} cannot be confirmed.",
                f"vLLM {parsed.version or '?'} on {parsed.device or 'an unknown device'}",
                "Read the log: the release may say it in other words.",
            )
        return
    other = next((one for one in found if not any(same_backend(one.name, entry) for entry in names)), None)
    if other is None:
        return
    whose = f" of {other.where}" if len(found) > 1 else ""
    yield Finding(
        "BOOT_BACKEND_DIFFERS",
        "error",
        f"The {kind} backend{whose} is {other.name}, not {' or '.join(names)} as the model role expects.",
        "; ".join(dict.fromkeys(f"{entry.kind}: {entry.name}" for entry in parsed.backends)),
        "What was measured with other kernels does not hold here: find out why vLLM chose it, or expect it.",
    )


def _pool(parsed: BootLog, plan: t.Mapping[str, t.Any]) -> t.Iterator[Finding]:
    planned, tokens = _planned(plan, "kv_tokens"), parsed.kv_cache["tokens"]
    if not planned or tokens is None:
        return
    share = (tokens - planned) / planned
    if abs(share) > POOL_TOLERANCE:
        yield Finding(
            "BOOT_KV_POOL_DIFFERS",
            "error",
            f"The KV pool holds {tokens} tokens, {share:+.1%} of the {int(planned)} that were planned.",
            _pool_evidence(parsed),
            "Compare bytes, block size and context with the plan; on a difference by version, correct the rules.",
        )


def _pool_evidence(parsed: BootLog) -> str:
    parts = (f"{name} {value}" for name, value in parsed.kv_cache.items() if value is not None)
    return ", ".join(parts)


def _pinned(parsed: BootLog, plan: t.Mapping[str, t.Any]) -> t.Iterator[Finding]:
    """Compare the bytes of the pool with those that the plan pins; a log prints them in GiB with two decimals."""
    planned = _planned(plan, "kv_cache_memory_bytes")
    if not planned:
        return
    pool = parsed.kv_cache
    if pool["pinned_gib"] is None:
        if pool["available_gib"] is not None:
            yield Finding(
                "BOOT_KV_BYTES_NOT_PINNED",
                "error",
                f"vLLM sized the KV pool itself ({pool['available_gib']} GiB) instead of taking {int(planned)} bytes.",
                "",
                "Check that the unit passes --kv-cache-memory-bytes; the pool changes from boot to boot without it.",
            )
        return
    exact = pool["bytes"]
    if (exact is not None and exact != planned) or abs(pool["pinned_gib"] - planned / _GIB) > 0.006:
        yield Finding(
            "BOOT_KV_BYTES_DIFFER",
            "error",
            f"The KV pool is pinned to {exact or pool['pinned_gib']} {'bytes' if exact else 'GiB'}; "
            f"the plan says {int(planned)} bytes.",
            "",
            "Render the unit anew: it does not run what was planned.",
        )


def _others(parsed: BootLog, plan: t.Mapping[str, t.Any]) -> t.Iterator[Finding]:
    length, planned_length = parsed.kv_cache["max_model_len"], _planned(plan, "max_model_len")
    if length is not None and planned_length and length != planned_length:
        yield Finding(
            "BOOT_CONTEXT_DIFFERS",
            "error",
            f"The instance serves a context of {length} tokens, not {int(planned_length)}.",
            "",
            "A draft model or the checkpoint may limit it; plan with the context that is served.",
        )
    block, planned_block = parsed.kv_cache["block_size"], _planned(plan, "kv_block_size")
    if block is not None and planned_block and block != planned_block:
        yield Finding(
            "BOOT_BLOCK_SIZE_DIFFERS",
            "warning",
            f"Attention blocks hold {block} tokens, not {int(planned_block)} as planned.",
            f"vLLM {parsed.version or '?'}",
            "The release sizes hybrid caches by another rule than the plan assumes.",
        )
    weights, planned_weights = parsed.largest("weights_gib"), _planned(plan, "weights")
    if weights and planned_weights and weights > planned_weights / _GIB * (1 + _WEIGHTS_TOLERANCE):
        yield Finding(
            "BOOT_WEIGHTS_ABOVE_PLAN",
            "warning",
            f"The weights take {weights} GiB, more than the {planned_weights / _GIB:.2f} GiB that were planned.",
            "",
            "State measured.weights_gib for the model role.",
        )
    version = plan.get("vllm")
    if isinstance(version, str) and parsed.version and not _same_release(parsed.version, version):
        yield Finding(
            "BOOT_VERSION_DIFFERS",
            "warning",
            f"The image runs vLLM {parsed.version}; the model role says {version}.",
            "",
            "Correct the model role's vllm, so that flags and cache are planned for the release that runs.",
        )


def _same_release(found: str, wanted: str) -> bool:
    """Return whether two versions are one release; a local part (+cpu, +cu130) does not count."""
    return found.partition("+")[0] == wanted.partition("+")[0].removeprefix("v")


def _planned(plan: t.Mapping[str, t.Any], name: str) -> float | None:
    """Return a number of the plan, which stands there by itself or with its reason."""
    value = plan.get(name)
    if value is None:
        numbers = plan.get("numbers")
        entry = numbers.get(name) if isinstance(numbers, dict) else None
        value = entry.get("value") if isinstance(entry, dict) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

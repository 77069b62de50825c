# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a memory failure of vLLM means, and what to do first: read from its log and from what the host says.

vLLM's own advice in these messages (raise the fraction, lower the fraction) is wrong more often than right on unified
memory, so the verdict names the cause before any knob.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding

# Logs wrap long lines, so any blank may be a line break.
_START_CHECK = re.compile(
    r"Free memory on device(?: \S+)?\s+\((?P<free>[\d.]+)/(?P<total>[\d.]+)\s+GiB\)\s+on\s+startup\s+is\s+less\s+"
    r"than\s+desired\s+GPU\s+memory\s+utilization\s+\((?P<fraction>[\d.]+),\s+(?P<requested>[\d.]+)\s+GiB\)"
)
_TOO_SMALL = re.compile(
    r"max seq len\s+\((?P<length>\d+)\),\s+\(?(?P<need>[\d.]+)\s+GiB\s+KV\s+cache\s+is\s+needed,\s+which\s+is\s+"
    r"larger\s+than\s+the\s+available\s+KV\s+cache\s+memory\s+\((?P<available>[\d.]+)\s+GiB\)"
    r"(?:.*?estimated\s+maximum\s+model\s+length\s+is\s+(?P<longest>\d+))?",
    re.DOTALL,
)
_NO_CACHE = re.compile(r"No available memory for the cache blocks")
_GREW = re.compile(
    r"Error in memory profiling\.\s+Initial free memory\s+(?P<before>[\d.]+)\s+GiB,\s+current free memory\s+"
    r"(?P<after>[\d.]+)\s+GiB"
)
_GRANT = re.compile(
    r"Desired GPU memory utilization is \((?P<fraction>[\d.]+),\s+(?P<granted>[\d.]+)\s+GiB\)\.\s*"
    r"Actual usage is\s+(?P<used>[\d.]+)\s+GiB.*?Current kv cache memory in use is\s+(?P<cache>[\d.]+)\s+GiB",
    re.DOTALL,
)
_FIRST_CUDA_CALL = re.compile(r"CUDA error: out of memory.*?mem_get_info", re.DOTALL)
_DRIVER_OUT = re.compile(r"NV_ERR_NO_MEMORY")
# Falling this far this fast outruns a watchdog that looks twice a minute.
_COLLAPSE_GIB = 8.0
_COLLAPSE_SECONDS = 15.0
# Below this many GiB available a GB10 has frozen (eugr/spark-vllm-docker and vllm-project/vllm#56824, 2026).
_FREEZE_GIB = 8.0


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A process that holds GPU memory; ``unit`` is empty where no systemd unit or container owns it."""

    name: str
    pid: int
    mib: float
    unit: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a failed or dangerous start. Memory is in GiB, as logs print it."""

    log: str = ""
    # The fraction that the configuration states; None: not known, empty: a variable that nobody set.
    configured_fraction: str | None = None
    processes: tuple[Process, ...] = ()
    restarts: int = 0
    exited_seconds_ago: float | None = None
    free_at_boots: tuple[float, ...] = ()
    free_after_cleaning: float | None = None
    # Seconds and GiB available, in order.
    samples: tuple[tuple[float, float], ...] = ()
    total: float | None = None
    budget: float | None = None
    peak: float | None = None
    exit_code: int | None = None
    kernel_oom: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """What happened, the numbers that say so, and what was found."""

    verdict: str
    numbers: dict[str, float]
    findings: tuple[Finding, ...]


def free_memory_source(reported: float, mem_free: float, mem_available: float) -> str:
    """Say whether an engine took MemFree or MemAvailable for free memory: the nearer one, or "neither"."""
    distances = {"mem_free": abs(reported - mem_free), "mem_available": abs(reported - mem_available)}
    nearest = min(distances, key=lambda name: distances[name])
    return nearest if distances[nearest] <= 0.1 * mem_available else "neither"


def page_cache_is_the_cause(reported: float, needed: float, mem_free: float, mem_available: float) -> bool:
    """Say whether dropping the page cache lets a start pass: where the engine reads MemFree and enough is available."""
    return free_memory_source(reported, mem_free, mem_available) == "mem_free" and mem_available >= needed > reported


def judge_memory(evidence: Evidence) -> MemoryVerdict | None:
    """Return the verdict on a memory failure, or None where the evidence shows none."""
    for judge in (
        _judge_samples,
        _judge_start_check,
        _judge_profiling,
        _judge_first_call,
        _judge_too_small,
        _judge_grant,
        _judge_peak,
        _judge_exit,
    ):
        verdict = judge(evidence)
        if verdict is not None:
            return verdict
    return None


def _judge_start_check(evidence: Evidence) -> MemoryVerdict | None:
    match = _START_CHECK.search(evidence.log)
    if match is None:
        return None
    free, total, requested = float(match["free"]), float(match["total"]), float(match["requested"])
    numbers = {
        "free_gib": free,
        "total_gib": total,
        "requested_gib": requested,
        "short_by_gib": _round(requested - free),
        "max_utilization_now": math.floor(free / total * 100) / 100,
    }
    findings = [
        Finding(
            "FREE_MEMORY_BELOW_REQUEST",
            "error",
            f"vLLM asked for {requested} GiB of {total} GiB and {free} GiB was free.",
            " ".join(match[0].split()),
            "Name the processes and containers that hold the rest, stop what may stop, and wait until it is released; "
            "do not lower the fraction first.",
        )
    ]
    verdict = "does_not_fit"
    if evidence.configured_fraction is not None and not evidence.configured_fraction.strip():
        findings.append(
            Finding(
                "FRACTION_FROM_DEFAULT",
                "error",
                f"The configuration leaves the fraction empty; {match['fraction']} is somebody's default.",
                "",
                "State gpu_memory_utilization and kv_cache_memory_bytes; an empty value is an error, not a default.",
            )
        )
    orphan = next((p for p in evidence.processes if p.name.startswith("VLLM::") and not p.unit), None)
    if orphan is not None:
        verdict = "ghost_process"
        numbers["owner_gib"] = _round(orphan.mib / 1024)
        findings.append(
            Finding(
                "ORPHAN_ENGINECORE",
                "error",
                f"{orphan.name} (pid {orphan.pid}) holds {numbers['owner_gib']} GiB and belongs to no unit.",
                "",
                f"End process {orphan.pid} by its number; start vLLM in a container, so that its children end with it.",
            )
        )
    if len(evidence.free_at_boots) > 1 and _falls(evidence.free_at_boots):
        findings.append(
            Finding(
                "GHOST_MEMORY",
                "error",
                "Free memory is smaller at each try, although nothing changed: something is left behind.",
                " -> ".join(f"{value:g}" for value in evidence.free_at_boots),
                "Stop retrying, clean up on this box and start once; errors of the other ranks follow from this one.",
            )
        )
    if evidence.free_after_cleaning is not None:
        numbers["reclaimable_gib"] = _round(evidence.free_after_cleaning - free)
    if evidence.restarts >= 3:
        verdict = "crash_loop"
        numbers["restarts"] = evidence.restarts
        findings.append(
            Finding(
                "RESTART_LOOP",
                "error",
                f"The unit restarted {evidence.restarts} times for want of memory; each try holds what the next needs.",
                "",
                "Stop the unit. Let it give up after a few failures (StartLimitBurst). A host that answers ping but "
                "not ssh is out of memory, not off the network.",
            )
        )
    return MemoryVerdict(verdict, numbers, tuple(findings))


def _judge_profiling(evidence: Evidence) -> MemoryVerdict | None:
    match = _GREW.search(evidence.log)
    if match is None:
        return None
    grown = _round(float(match["after"]) - float(match["before"]))
    finding = Finding(
        "MEMORY_CHANGED_DURING_PROFILING",
        "error",
        f"{grown} GiB became free while vLLM measured: another process on the pool was still ending.",
        " ".join(match[0].split()),
        "Start one engine at a time, and only once free memory stands still (two readings 10 s apart within 0.5 GiB).",
    )
    return MemoryVerdict("retry_once_after_settle", {"delta_gib": grown}, (finding,))


def _judge_first_call(evidence: Evidence) -> MemoryVerdict | None:
    if evidence.exited_seconds_ago is None or not _FIRST_CUDA_CALL.search(evidence.log):
        return None
    finding = Finding(
        "MEMORY_NOT_RELEASED_AFTER_STOP",
        "error",
        f"The driver still holds what an engine that ended {evidence.exited_seconds_ago:g} s ago had.",
        "out of memory at the first CUDA call",
        "Wait until MemAvailable covers what the next engine needs (up to 4 minutes), then start it as it is.",
    )
    return MemoryVerdict("wait_and_retry", {}, (finding,))


def _judge_too_small(evidence: Evidence) -> MemoryVerdict | None:
    match = _TOO_SMALL.search(evidence.log)
    if match is None:
        if not _NO_CACHE.search(evidence.log):
            return None
        return MemoryVerdict("does_not_fit", {}, (_no_room("Weights and overhead leave nothing for the cache.", ""),))
    need, available, length = float(match["need"]), float(match["available"]), int(match["length"])
    numbers = {
        "kv_needed_gib": need,
        "kv_available_gib": available,
        "short_by_gib": _round(need - available),
        "bytes_per_token": round(need * (1 << 30) / length),
    }
    if match["longest"]:
        numbers["max_model_len_now"] = int(match["longest"])
    if evidence.total:
        numbers["utilization_short_by"] = round((need - available) / evidence.total, 4)
    message = f"The cache has {available} GiB and one request of {length} tokens needs {need} GiB."
    return MemoryVerdict("does_not_fit", numbers, (_no_room(message, " ".join(match[0].split())),))


def _no_room(message: str, evidence: str) -> Finding:
    return Finding(
        "KV_CACHE_TOO_SMALL",
        "error",
        message,
        evidence,
        "In this order: lower max_model_len, max_num_seqs, max_num_batched_tokens; use an fp8 cache; take a smaller "
        "checkpoint or a second box. Plan the bytes with kv_cache_memory_bytes; do not raise the fraction above 0.80.",
    )


def _judge_grant(evidence: Evidence) -> MemoryVerdict | None:
    match = _GRANT.search(evidence.log)
    if match is None:
        return None
    granted, used = float(match["granted"]), float(match["used"]) + float(match["cache"])
    if used <= granted:
        return None
    finding = Finding(
        "ENGINE_EXCEEDS_GRANT",
        "error",
        f"vLLM granted itself {granted} GiB and holds {_round(used)} GiB.",
        " ".join(match[0].split()),
        "State kv_cache_memory_bytes: the fraction alone does not hold on this build.",
    )
    return MemoryVerdict("exceeds_grant", {"granted_gib": granted, "used_gib": _round(used)}, (finding,))


def _judge_samples(evidence: Evidence) -> MemoryVerdict | None:
    worst = 0.0
    span = 0.0
    for index, (start, before) in enumerate(evidence.samples):
        for end, after in evidence.samples[index + 1 :]:
            if end - start <= _COLLAPSE_SECONDS and before - after > worst:
                worst, span = before - after, end - start
    if worst < _COLLAPSE_GIB:
        return None
    numbers = {"drop_gib": _round(worst), "drop_seconds": span}
    if evidence.total:
        numbers["peak_used_gib"] = _round(evidence.total - min(available for _seconds, available in evidence.samples))
    findings = [
        Finding(
            "HOST_MEMORY_COLLAPSE",
            "error",
            f"Available memory fell by {_round(worst)} GiB in {span:g} s while the engine started.",
            "",
            "Plan the boot's highest point, watch memory every 2 s while it starts, and stop the unit below 8 GiB.",
        )
    ]
    if _DRIVER_OUT.search(evidence.log):
        findings.append(
            Finding(
                "NV_ERR_NO_MEMORY",
                "error",
                "The driver could not allocate although the kernel called memory available.",
                "NV_ERR_NO_MEMORY",
                "MemAvailable is no safe signal while weights load: drop the page cache and keep MemFree up as well.",
            )
        )
    return MemoryVerdict("fail", numbers, tuple(findings))


def _judge_peak(evidence: Evidence) -> MemoryVerdict | None:
    if evidence.peak is None:
        return None
    over = evidence.peak - evidence.budget if evidence.budget is not None else 0.0
    left = evidence.total - evidence.peak if evidence.total is not None else math.inf
    if over <= 0 and left > _FREEZE_GIB:
        return None
    numbers = {"peak_gib": evidence.peak}
    if evidence.budget is not None:
        numbers |= {"budget_gib": evidence.budget, "overshoot_gib": _round(over)}
    if evidence.total is not None:
        numbers["left_gib"] = _round(left)
    finding = Finding(
        "BOOT_PEAK_UNSAFE",
        "error",
        f"At its highest point the engine's box had {evidence.peak} GiB in use.",
        "",
        "Lower max_num_batched_tokens, limit or skip multimodal profiling (--limit-mm-per-prompt, "
        "--skip-mm-profiling), state kv_cache_memory_bytes; queue no further task on a host that stopped answering.",
    )
    return MemoryVerdict("unsafe", numbers, (finding,))


def _judge_exit(evidence: Evidence) -> MemoryVerdict | None:
    if evidence.exit_code != 137:
        return None
    if evidence.kernel_oom:
        finding = Finding("OOM_KILLED", "error", "The kernel's OOM killer ended the process.", "exit code 137")
        return MemoryVerdict("oom_killed", {}, (finding,))
    finding = Finding(
        "KILLED_BY_UNKNOWN",
        "warning",
        "The process was ended by SIGKILL; that the kernel ran out of memory is not proven.",
        "exit code 137, no OOM line in the kernel log",
        "Look for who sends signals: a stop timeout, a watchdog, an operator.",
    )
    return MemoryVerdict("killed_unknown_sender", {}, (finding,))


def _falls(values: t.Sequence[float]) -> bool:
    return all(later < earlier for earlier, later in itertools.pairwise(values))


def _round(value: float) -> float:
    return round(value, 2)

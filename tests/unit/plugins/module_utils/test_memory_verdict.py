# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Memory failures that operators of GB10 boxes reported between 2026-02 and 2026-09, and what they meant."""

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._memory_verdict import (
    Evidence,
    Process,
    free_memory_source,
    judge_memory,
    page_cache_is_the_cause,
)


def start_check(free: float, total: float, fraction: float, requested: float, device: str = " cuda:0") -> str:
    return (
        f"ValueError: Free memory on device{device} ({free}/{total} GiB) on startup is less than\ndesired GPU memory "
        f"utilization ({fraction}, {requested} GiB). Decrease GPU memory utilization or reduce GPU memory used by "
        "other processes."
    )


NEGATIVE = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
    "the engine."
)
TOO_SMALL = (
    "ValueError: To serve at least one request with the model's max seq len (196608), 23.25 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (22.5 GiB). Based on the available memory, the estimated "
    "maximum model length is 190272."
)
GRANT = (
    "Free memory on device (113.35/121.69 GiB) on startup.\nDesired GPU memory utilization is (0.5, 60.84 GiB).\n"
    "Actual usage is 46.14 GiB for consumed memory (weights + non-torch) ...\n"
    "Current kv cache memory in use is 54.75 GiB."
)
FIRST_CALL = (
    "torch.AcceleratorError: CUDA error: out of memory\n"
    "  ... MemorySnapshot.__post_init__ -> torch.cuda.mem_get_info (init_device)"
)


@pytest.mark.parametrize(
    ("evidence", "verdict", "findings", "numbers"),
    [
        pytest.param(
            Evidence(log=start_check(24.7, 121.69, 0.8, 97.35)),
            "does_not_fit",
            ["FREE_MEMORY_BELOW_REQUEST"],
            {"short_by_gib": 72.65, "max_utilization_now": 0.20},
            id="other-servers-hold-the-memory",
        ),
        pytest.param(
            Evidence(log=start_check(36.75, 121.63, 0.85, 103.38), restarts=35),
            "crash_loop",
            ["FREE_MEMORY_BELOW_REQUEST", "RESTART_LOOP"],
            {"max_utilization_now": 0.30, "restarts": 35},
            id="eugr-257-restart-loop",
        ),
        pytest.param(
            Evidence(log=start_check(67.92, 121.69, 0.7, 85.18, device=""), configured_fraction=""),
            "does_not_fit",
            ["FREE_MEMORY_BELOW_REQUEST", "FRACTION_FROM_DEFAULT"],
            {"max_utilization_now": 0.55},
            id="vss-1743-empty-variable",
        ),
        pytest.param(
            Evidence(log=TOO_SMALL, total=121.69),
            "does_not_fit",
            ["KV_CACHE_TOO_SMALL"],
            {
                "kv_available_gib": 22.5,
                "kv_needed_gib": 23.25,
                "short_by_gib": 0.75,
                "bytes_per_token": 126976,
                "max_model_len_now": 190272,
                "utilization_short_by": 0.0062,
            },
            id="eugr-396-graphs-took-the-rest",
        ),
        pytest.param(
            Evidence(log=GRANT),
            "exceeds_grant",
            ["ENGINE_EXCEEDS_GRANT"],
            {"granted_gib": 60.84, "used_gib": 100.89},
            id="fraction-of-a-development-build",
        ),
        pytest.param(
            Evidence(
                log="AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current free memory "
                "90.17 GiB. This happens when other processes sharing the same container release GPU memory."
            ),
            "retry_once_after_settle",
            ["MEMORY_CHANGED_DURING_PROFILING"],
            {"delta_gib": 7.23},
            id="vllm-56830-memory-grew",
        ),
        pytest.param(
            Evidence(
                log="Loading weights took 549.60 seconds\nNVRM: NV_ERR_NO_MEMORY",
                total=121.688,
                samples=((10, 28.971), (14, 27.311), (16, 23.787), (19, 10.605), (21, 6.267)),
            ),
            "fail",
            ["HOST_MEMORY_COLLAPSE", "NV_ERR_NO_MEMORY"],
            {"drop_gib": 22.70, "drop_seconds": 11, "peak_used_gib": 115.42},
            id="vllm-56824-collapse",
        ),
        pytest.param(
            Evidence(budget=83.3, peak=112.0, total=119.0),
            "unsafe",
            ["BOOT_PEAK_UNSAFE"],
            {"overshoot_gib": 28.7, "peak_gib": 112.0, "budget_gib": 83.3},
            id="vllm-46307-profile-run",
        ),
        pytest.param(
            Evidence(log=FIRST_CALL, exited_seconds_ago=180),
            "wait_and_retry",
            ["MEMORY_NOT_RELEASED_AFTER_STOP"],
            {},
            id="stopped-but-not-released",
        ),
        pytest.param(
            Evidence(
                log=start_check(8.88, 121.69, 0.85, 103.44),
                processes=(Process("VLLM::EngineCore", 31877, 104277),),
            ),
            "ghost_process",
            ["FREE_MEMORY_BELOW_REQUEST", "ORPHAN_ENGINECORE"],
            {"owner_gib": 101.83},
            id="orphan-enginecore",
        ),
        pytest.param(
            Evidence(
                log=start_check(109.53, 121.69, 0.91, 110.74),
                free_at_boots=(112.15, 112.05, 111.95),
                free_after_cleaning=117.7,
            ),
            "does_not_fit",
            ["FREE_MEMORY_BELOW_REQUEST", "GHOST_MEMORY"],
            {"max_utilization_now": 0.90, "reclaimable_gib": 8.17},
            id="free-memory-shrinks-at-each-try",
        ),
        pytest.param(
            Evidence(exit_code=137), "killed_unknown_sender", ["KILLED_BY_UNKNOWN"], {}, id="exit-137-proves-no-oom"
        ),
        pytest.param(
            Evidence(exit_code=137, kernel_oom=True), "oom_killed", ["OOM_KILLED"], {}, id="exit-137-with-oom"
        ),
        pytest.param(
            Evidence(total=120.0, peak=113.0),
            "unsafe",
            ["BOOT_PEAK_UNSAFE"],
            {"left_gib": 7.0},
            id="eugr-defaults-freeze-the-head",
        ),
        pytest.param(Evidence(log=NEGATIVE), "does_not_fit", ["KV_CACHE_TOO_SMALL"], {}, id="eugr-388-negative-cache"),
    ],
)
def test_verdict(evidence: Evidence, verdict: str, findings: list[str], numbers: dict[str, float]) -> None:
    result = judge_memory(evidence)
    assert result is not None
    assert result.verdict == verdict
    assert [finding.id for finding in result.findings] == findings
    assert {name: result.numbers.get(name) for name in numbers} == numbers
    assert all(finding.remedy or finding.id == "OOM_KILLED" for finding in result.findings)


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(),
        Evidence(log="INFO Available KV cache memory: 54.75 GiB"),
        Evidence(log=GRANT.replace("60.84", "102.0")),
        Evidence(log=FIRST_CALL),
        Evidence(samples=((0, 30.0), (60, 6.0))),
        Evidence(budget=97.0, peak=96.0, total=121.69),
        # The head that was fitted to its other services kept 14 GiB.
        Evidence(total=121.69, peak=107.0),
        Evidence(exit_code=1),
    ],
)
def test_no_failure_no_verdict(evidence: Evidence) -> None:
    assert judge_memory(evidence) is None


def test_advice_never_raises_the_fraction() -> None:
    for log in (NEGATIVE, TOO_SMALL, start_check(24.7, 121.69, 0.8, 97.35)):
        result = judge_memory(Evidence(log=log))
        assert result is not None
        for finding in result.findings:
            assert "increase" not in finding.remedy.lower()
    order = ["max_model_len", "max_num_seqs", "max_num_batched_tokens", "fp8 cache", "smaller checkpoint", "second box"]
    negative = judge_memory(Evidence(log=NEGATIVE))
    assert negative is not None
    places = [" ".join(negative.findings[0].remedy.split()).find(word.split()[0]) for word in order]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("reported", "source", "cause"),
    [(63.5, "mem_free", True), (112.4, "mem_available", False), (90.0, "neither", False)],
)
def test_page_cache_is_the_cause_only_for_an_engine_that_reads_memfree(
    reported: float, source: str, cause: bool
) -> None:
    assert free_memory_source(reported, mem_free=66, mem_available=116) == source
    assert page_cache_is_the_cause(reported, needed=100, mem_free=66, mem_available=116) is cause


def test_page_cache_does_not_help_where_too_little_is_available() -> None:
    assert not page_cache_is_the_cause(63.5, needed=120, mem_free=66, mem_available=116)

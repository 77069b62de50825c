# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._boot_expectations import compare_with_plan, same_backend
from ansible_collections.gb10.fleet.plugins.module_utils._boot_log import BootLog, Log, parse_boot_logs
from tests.unit.plugins.module_utils.fixtures import boot_logs

PINNED = parse_boot_logs([Log("spark-1", boot_logs.V0_28_0_PINNED)])
PROFILED = parse_boot_logs([Log("spark-1", boot_logs.V0_20_2)])
CPU = parse_boot_logs([Log("spark-1", boot_logs.V0_32_0_CPU)])


def compare(
    parsed: BootLog, expects: dict[str, t.Any] | None = None, plan: dict[str, t.Any] | None = None
) -> list[tuple[str, str]]:
    return [(finding.id, finding.severity) for finding in compare_with_plan(parsed, expects, plan)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("FLASHINFER_CUTLASS", "FlashInferCutlassNvFp4LinearKernel", True),
        ("flashinfer-cutlass", "FLASHINFER_CUTLASS", True),
        ("marlin", "MarlinNvFp4LinearKernel", True),
        ("FLASHINFER_B12X", "FlashInferB12xNvFp4LinearKernel", True),
        ("cutlass", "CutlassFP8ScaledMMLinearKernel", True),
        ("FLASHINFER_CUTLASS", "VLLM_CUTLASS", False),
        ("MARLIN", "FLASHINFER_CUTLASS", False),
        ("FLASH_ATTN", "FLASHINFER", False),
        ("Flash Attention", "FLASH_ATTN", True),
        ("Triton", "TRITON_ATTN", True),
        ("FLASH_ATTN", "FLASH_ATTN_VLLM_V1", True),
        ("TRITON_ATTN", "TRITON_ATTN_VLLM_V1", True),
        ("FLASH_ATTN", "FlashAttentionBackend", True),
        ("TRITON_ATTN", "TritonAttentionBackend", True),
        ("FLASHINFER", "FlashInferBackend", True),
        ("FLASH_ATTN_MLA", "FlashAttention MLA", True),
        ("FLASH_ATTN", "FLASH_ATTN_MLA", False),
        ("FLASH_ATTN", "TRITON_ATTN", False),
        ("FLASH_ATTN", "FLEX_ATTENTION", False),
        ("TRITON_ATTN", "TRITON_MLA", False),
        ("FLASHMLA", "FLASH_ATTN_MLA", False),
    ],
)
def test_spellings_of_a_backend(one: str, other: str, same: bool) -> None:
    assert same_backend(one, other) is same


@pytest.mark.parametrize(
    ("expects", "found"),
    [
        ({"moe_backend": "FLASHINFER_CUTLASS", "linear_backend": "flashinfer_cutlass"}, []),
        ({"moe_backend": ["MARLIN", "FLASHINFER_CUTLASS"]}, []),
        ({"moe_backend": "MARLIN"}, [("BOOT_BACKEND_DIFFERS", "error")]),
        ({"attention_backend": "TRITON_ATTN", "gdn_backend": "FlashInfer"}, [("BOOT_BACKEND_DIFFERS", "error")]),
        ({"mla_prefill_backend": "FLASH_ATTN"}, [("BOOT_BACKEND_NOT_LOGGED", "warning")]),
        ({"colour": "blue"}, [("EXPECTATION_UNKNOWN", "warning")]),
        ({}, []),
        (None, []),
    ],
)
def test_expected_backends(expects: dict[str, t.Any] | None, found: list[tuple[str, str]]) -> None:
    assert compare(PINNED, expects) == found


def test_a_backend_that_a_boot_has_not_come_to_yet_is_not_missed() -> None:
    loading = parse_boot_logs([Log("spark-1", boot_logs.V0_28_0_PINNED.split("Using FlashInfer GDN")[0])])

    assert compare(loading, {"moe_backend": "MARLIN"}) == []


MOE = "({}) INFO 09-11 09:49:30 [nvfp4.py:239] Using '{}' NvFp4 MoE backend out of potential backends: ['MARLIN'].\n"
UNQUANTIZED = "(EngineCore pid=2) Using TRITON Unquantized MoE backend\n"
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
CUTLASS, MARLIN = "FLASHINFER_CUTLASS", "MARLIN"


@pytest.mark.parametrize(
    ("logs", "whose"),
    [
        (
            [MOE.format("EngineCore pid=2", CUTLASS) + READY, MOE.format("EngineCore pid=2", MARLIN)],
            "spark-2 (EngineCore)",
        ),
        (
            [MOE.format("Worker_TP0 pid=2", CUTLASS) + MOE.format("Worker_TP1 pid=3", MARLIN) + READY],
            "spark-1 (Worker_TP1)",
        ),
        ([MOE.format("Worker_TP0 pid=2", CUTLASS) + MOE.format("Worker_TP1 pid=3", CUTLASS) + READY], ""),
        ([MOE.format("EngineCore pid=2", CUTLASS) + READY, "(Worker_TP1 pid=2) still loading\n"], ""),
    ],
)
def test_every_rank_has_to_use_the_expected_backend(logs: list[str], whose: str) -> None:
    parsed = parse_boot_logs([Log(f"spark-{number}", text) for number, text in enumerate(logs, 1)])

    found = compare_with_plan(parsed, {"moe_backend": CUTLASS}, None)

    assert [one.id for one in found] == (["BOOT_BACKEND_DIFFERS"] if whose else [])
    assert all(f"backend of {whose} is MARLIN, not" in one.message for one in found)
    assert parsed.backend("moe") == CUTLASS


FP8 = "(EngineCore pid=2) INFO 09-11 09:49:30 [x.py:1] Selected {} for ModelOptFp8LinearMethod\n"
FP4 = "(EngineCore pid=2) INFO 09-11 09:49:30 [x.py:1] Using {} for NVFP4 GEMM\n"
CUTLASS_FP8, CUTLASS_FP4 = "CutlassFP8ScaledMMLinearKernel", "FlashInferCutlassNvFp4LinearKernel"


@pytest.mark.parametrize(
    ("text", "expects", "differs"),
    [
        (FP8.format(CUTLASS_FP8) + FP4.format(CUTLASS_FP4), {"linear_backend": CUTLASS}, False),
        (FP4.format(CUTLASS_FP4) + FP8.format(CUTLASS_FP8), {"linear_backend": CUTLASS}, False),
        (FP8.format(CUTLASS_FP8) + FP4.format(CUTLASS_FP4), {"linear_backend": CUTLASS_FP8}, False),
        (
            FP8.format("FlashInferFP8ScaledMMLinearKernel") + FP4.format("MarlinNvFp4LinearKernel"),
            {"linear_backend": "flashinfer"},
            True,
        ),
        (FP4.format(CUTLASS_FP4) + FP4.format("MarlinNvFp4LinearKernel"), {"linear_backend": CUTLASS}, False),
        (FP8.format(CUTLASS_FP8), {"linear_backend": "cutlass"}, False),
        (FP8.format(CUTLASS_FP8), {"linear_backend": CUTLASS}, True),
        (UNQUANTIZED + MOE.format("EngineCore pid=2", CUTLASS), {"moe_backend": CUTLASS}, False),
        (MOE.format("EngineCore pid=2", MARLIN) + UNQUANTIZED, {"moe_backend": "TRITON"}, True),
    ],
)
def test_of_several_precisions_fp4_counts(text: str, expects: dict[str, str], differs: bool) -> None:
    found = compare(parse_boot_logs([Log("spark-1", text + READY)]), expects)

    assert found == ([("BOOT_BACKEND_DIFFERS", "error")] if differs else [])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Using Flash Attention backend on V1 engine.", "FLASH_ATTN"),
        ("Using Triton backend on V1 engine.", "TRITON_ATTN"),
    ],
)
def test_the_attention_backend_of_0_10_2(line: str, name: str) -> None:
    assert compare(parse_boot_logs([Log("a", f"{line}\n{READY}")]), {"attention_backend": name}) == []


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        (1210288, []),
        (1186558, []),
        (1186500, [("BOOT_KV_POOL_DIFFERS", "error")]),
        (1234987, []),
        (1235100, [("BOOT_KV_POOL_DIFFERS", "error")]),
        (0, []),
        (None, []),
    ],
)
def test_a_pool_may_be_two_percent_off(tokens: int | None, found: list[tuple[str, str]]) -> None:
    assert compare(PINNED, plan={"kv_tokens": tokens}) == found


def test_an_instance_of_the_memory_plan_is_understood() -> None:
    plan = {
        "kv_cache_memory_bytes": 17179869184,
        "numbers": {
            "kv_tokens": {"value": 1161397, "unit": "tokens"},
            "kv_block_size": {"value": 2112, "unit": "tokens"},
            "weights": {"value": 22 << 30, "unit": "bytes"},
        },
    }

    assert compare(PINNED, plan=plan) == [("BOOT_KV_POOL_DIFFERS", "error"), ("BOOT_BLOCK_SIZE_DIFFERS", "warning")]


@pytest.mark.parametrize(
    ("parsed", "planned", "found"),
    [
        (PINNED, 17179869184, []),
        (PINNED, 17179869184 - 4096, [("BOOT_KV_BYTES_DIFFER", "error")]),
        (PROFILED, 17179869184, [("BOOT_KV_BYTES_NOT_PINNED", "error")]),
        (CPU, 17179869184, [("BOOT_KV_BYTES_DIFFER", "error")]),
        (CPU, 1 << 30, []),
        (PINNED, None, []),
    ],
)
def test_pinned_bytes(parsed: BootLog, planned: int | None, found: list[tuple[str, str]]) -> None:
    assert compare(parsed, plan={"kv_cache_memory_bytes": planned}) == found


@pytest.mark.parametrize(("planned", "found"), [(16 << 30, []), (15 << 30, [("BOOT_KV_BYTES_DIFFER", "error")])])
def test_pinned_bytes_that_only_the_worker_names(planned: int, found: list[tuple[str, str]]) -> None:
    text = "reserved 16.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped profiling"

    assert compare(parse_boot_logs([Log("a", text)]), plan={"kv_cache_memory_bytes": planned}) == found


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        ({"max_model_len": 131072, "vllm": "0.28.0", "weights": 22 << 30}, []),
        ({"max_model_len": 262144}, [("BOOT_CONTEXT_DIFFERS", "error")]),
        ({"vllm": "0.33.0"}, [("BOOT_VERSION_DIFFERS", "warning")]),
        ({"vllm": "v0.28.0+cu130"}, []),
        ({"weights": 20 << 30}, [("BOOT_WEIGHTS_ABOVE_PLAN", "warning")]),
        ({"kv_block_size": 2144}, []),
        ({"kv_tokens": "many", "numbers": []}, []),
    ],
)
def test_other_differences(plan: dict[str, t.Any], found: list[tuple[str, str]]) -> None:
    assert compare(PINNED, plan=plan) == found


def test_a_build_for_the_cpu_is_the_same_release() -> None:
    assert compare(CPU, plan={"vllm": "0.32.0"}) == []


def test_every_finding_is_documented() -> None:
    root = Path(__file__).resolve().parents[4]
    text = (root / "docs" / "findings.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in (root / "plugins" / "module_utils").glob("_boot_*.py")]
    used = {
        name for source in sources for name in re.findall(r'^\s+"([A-Z][A-Z0-9]*_[A-Z0-9_]+)",$', source, re.MULTILINE)
    }

    assert len(used) > 50
    assert sorted(name for name in used if f"| {name} |" not in text) == []

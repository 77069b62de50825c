# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._boot_log import Log, parse_boot_logs
from tests.unit.plugins.module_utils.fixtures import boot_logs


def parse(*texts: str) -> dict[str, t.Any]:
    """Parse logs, named by their place."""
    return parse_boot_logs([Log(f"box-{number}", text) for number, text in enumerate(texts, 1)]).as_dict()


def known(values: dict[str, t.Any]) -> dict[str, t.Any]:
    """Leave out what the log does not say."""
    return {name: value for name, value in values.items() if value is not None}


def ids(result: dict[str, t.Any]) -> list[str]:
    return [finding["id"] for finding in result["findings"]]


POOLS: dict[str, tuple[str, dict[str, t.Any]]] = {
    "0.10.2": (
        boot_logs.V0_10_2,
        {"tokens": 654112, "max_concurrency": 4.99, "max_model_len": 131072, "available_gib": 79.85},
    ),
    "0.20.2": (
        boot_logs.V0_20_2,
        {
            "tokens": 1529669,
            "max_concurrency": 5.84,
            "max_model_len": 262144,
            "available_gib": 53.28,
            "in_use_gib": 53.28,
            "block_size": 1600,
            "padding_percent": 0.88,
        },
    ),
    "0.27.1": (
        boot_logs.V0_27_1_TWO_RANKS,
        {"tokens": 240816, "max_concurrency": 1.22, "max_model_len": 196608, "available_gib": 28.48},
    ),
    "0.28.0": (
        boot_logs.V0_28_0_PINNED,
        {
            "tokens": 1210288,
            "max_concurrency": 9.23,
            "max_model_len": 131072,
            "pinned_gib": 16.0,
            "bytes": 17179869184,
            "block_size": 2144,
        },
    ),
    "0.33.0": (
        boot_logs.V0_33_0,
        {
            "tokens": 1210288,
            "max_concurrency": 9.23,
            "max_model_len": 131072,
            "pinned_gib": 16.0,
            "bytes": 17179869184,
            "block_size": 2144,
        },
    ),
    "0.32.0+cpu": (
        boot_logs.V0_32_0_CPU,
        {"tokens": 2097152, "max_concurrency": 4096.0, "max_model_len": 512, "pinned_gib": 1.0},
    ),
}


@pytest.mark.parametrize("version", POOLS)
def test_the_pool_in_every_form(version: str) -> None:
    text, pool = POOLS[version]

    result = parse(text)

    assert known(result["kv_cache"]) == pool
    assert (result["version"], result["state"]) == (version, "ready")
    assert result["device"] == ("cpu" if version.endswith("cpu") else "cuda")
    assert result["first_error"] is None


@pytest.mark.parametrize("version", POOLS)
@pytest.mark.parametrize(
    "before",
    ["2026-10-20T09:50:31.123456789Z ", "Oct 20 09:50:31 spark-1 vllm[17578]: ", "vllm-1  | ", "\x1b[1;36m"],
)
def test_the_same_log_through_container_engine_and_journal(version: str, before: str) -> None:
    text = POOLS[version][0]

    wrapped = parse("".join(before + line + "\n" for line in text.splitlines()))

    assert wrapped == parse(text)


@pytest.mark.parametrize(
    ("text", "backends"),
    [
        (
            boot_logs.V0_10_2,
            {"attention": "Flash Attention", "moe": "FlashInfer CUTLASS", "linear": "flashinfer-cutlass"},
        ),
        (
            boot_logs.V0_20_2,
            {"gdn": "Triton/FLA", "linear": "FlashInferCutlassNvFp4LinearKernel", "attention": "FLASHINFER"},
        ),
        (
            boot_logs.V0_27_1_TWO_RANKS,
            {"attention": "TRITON_ATTN", "moe": "MARLIN", "linear": "CutlassFP8ScaledMMLinearKernel"},
        ),
        (
            boot_logs.V0_28_0_PINNED,
            {
                "gdn": "FlashInfer",
                "linear": "FlashInferCutlassNvFp4LinearKernel",
                "moe": "FLASHINFER_CUTLASS",
                "attention": "FLASHINFER",
            },
        ),
        (boot_logs.V0_32_0_CPU, {}),
        ("Using CPU_MLA backend.", {"attention": "CPU_MLA"}),
        ("Using 'MARLIN' MxFp8 MoE backend (user-requested).", {"moe": "MARLIN"}),
        ("Using 'MARLIN' WNA16 MoE backend.", {"moe": "MARLIN"}),
        ("Using 'FLASHINFER_B12X' NvFp4 MoE backend", {"moe": "FLASHINFER_B12X"}),
        (
            "Using FlashInfer CUTLASS Unquantized MoE backend out of potential backends: []",
            {"moe": "FlashInfer CUTLASS"},
        ),
        ("Using MarlinLinearKernel for GPTQMarlinLinearMethod", {"linear": "MarlinLinearKernel"}),
        ("Using FlashInferMxFp4LinearKernel for MXFP4 GEMM", {"linear": "FlashInferMxFp4LinearKernel"}),
        ("Using FLASH_ATTN MLA prefill backend.", {"mla_prefill": "FLASH_ATTN"}),
        ("Using TRITON_MLA attention backend out of potential backends: ('TRITON_MLA',).", {"attention": "TRITON_MLA"}),
        ("Using FlashInfer for top-p & top-k sampling.", {"sampler": "FlashInfer"}),
        ("Using AttentionBackendEnum.FLASH_ATTN for MMEncoderAttention.", {}),
        ("Using ['PYNCCL'] all-reduce backends (in dispatch order) for group 'ep:0' out of potential backends: []", {}),
        ("Using MoEPrepareAndFinalizeNoDPEPModular", {}),
    ],
)
def test_backends(text: str, backends: dict[str, str]) -> None:
    assert parse(text)["backends"] == backends


def test_the_model_chooses_its_backend_before_its_draft_layers_do() -> None:
    result = parse(boot_logs.V0_28_0_PINNED)

    moe = [(entry["name"], entry["scheme"]) for entry in result["backends_all"] if entry["kind"] == "moe"]
    assert moe == [("FLASHINFER_CUTLASS", "NvFp4"), ("TRITON", "Unquantized")]
    assert result["backends"]["moe"] == "FLASHINFER_CUTLASS"


@pytest.mark.parametrize(
    ("text", "gib", "seconds"),
    [
        (boot_logs.V0_10_2, 14.9889, 51.315117),
        (boot_logs.V0_20_2, 22.05, 46.400619),
        (boot_logs.V0_27_1_TWO_RANKS, 14.62, 10.976225),
        (boot_logs.V0_32_0_CPU, 0.0, 0.4),
        ("Loading model weights took 12.5 GB", 12.5, None),
    ],
)
def test_weights_are_the_largest_of_all_ranks(text: str, gib: float, seconds: float | None) -> None:
    result = parse(text)

    assert (result["weights_gib"], result["weights_seconds"]) == (gib, seconds)


@pytest.mark.parametrize(
    ("text", "graphs"),
    [
        (boot_logs.V0_10_2, {"captured": True, "gib": 0.53, "seconds": 12.0}),
        (boot_logs.V0_20_2, {"captured": False, "gib": 0.52, "estimated_gib": 0.52, "piecewise": 16, "full": 4}),
        (boot_logs.V0_28_0_PINNED, {"captured": True, "mode": "FULL_AND_PIECEWISE", "gib": 0.36, "seconds": 9.0}),
        (boot_logs.V0_27_1_TWO_RANKS, {"captured": False, "mode": "NONE"}),
        (boot_logs.V0_32_0_CPU, {"captured": False, "mode": "NONE"}),
        ("Loading weights took 2.35 seconds", {}),
    ],
)
def test_graphs(text: str, graphs: dict[str, t.Any]) -> None:
    assert known(parse(text)["graphs"]) == graphs


@pytest.mark.parametrize("wrap", [False, True])
def test_the_account_of_memory_may_be_wrapped(wrap: bool) -> None:
    text = (
        boot_logs.V0_20_2.replace(". Desired", ".\nDesired").replace(" Actual", "\nActual")
        if wrap
        else boot_logs.V0_20_2
    )

    assert known(parse(text)["memory"]) == {
        "free_gib": 113.35,
        "total_gib": 121.69,
        "requested_gib": 79.1,
        "utilization": 0.65,
        "effective_utilization": 0.6457,
        "consumed_gib": 22.05,
        "activation_gib": 1.2,
        "non_torch_gib": 0.41,
    }


def test_the_account_of_memory_as_of_0_27_1() -> None:
    """A build of 2026-08 held 100.89 GiB on a grant of 60.84: the fraction did not bind there."""
    result = parse(
        "Free memory on device (113.35/121.69 GiB) on startup.\nDesired GPU memory utilization is (0.5, 60.84 GiB).\n"
        "Actual usage is 46.14 GiB for consumed memory (weights + non-torch), 1.2 GiB for peak activation.\n"
        "Current kv cache memory in use is 54.75 GiB.\n"
    )

    assert result["memory"]["consumed_gib"] == 46.14
    (found,) = (finding for finding in result["findings"] if finding["id"] == "BOOT_ABOVE_GRANT")
    assert "100.89 GiB, more than the 60.84 GiB" in found["message"]
    assert "BOOT_ABOVE_GRANT" not in ids(parse(boot_logs.V0_20_2))


def test_warnings_that_matter() -> None:
    result = parse(boot_logs.V0_32_0_CPU)

    assert ids(result) == ["ASYNC_SCHEDULING_DISABLED", "SCHEDULED_TOKENS_DERIVED", "UNKNOWN_ENVIRONMENT_VARIABLE"]
    assert result["findings"][2]["evidence"] == "VLLM_NVFP4_GEMM_BACKEND"
    assert result["async_scheduling"] is False
    assert parse(boot_logs.V0_20_2)["async_scheduling"] is True
    assert parse(boot_logs.V0_10_2)["async_scheduling"] is None


@pytest.mark.parametrize(
    ("text", "finding", "severity"),
    [
        ("WARNING Auto-initialization of reasoning token IDs failed", "REASONING_PARSER_NOT_ACTIVE", "warning"),
        (
            "Your GPU does not have native support for FP4 computation but FP4 quantization is being used.",
            *("FP4_RUNS_WEIGHTS_ONLY", "info"),
        ),
        (
            "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode; setting cudagraph_mode=PIECEWISE",
            *("CUDAGRAPH_MODE_LOWERED", "warning"),
        ),
        ("Add 3 padding layers, may waste at most 6.25% KV cache memory", "KV_LAYERS_PADDED", "info"),
        (
            "Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended, verify",
            "KV_SCALES_MISSING",
            "warning",
        ),
        (
            "[AutoTuner]: Skipped 10 unsupported tactic(s) for trtllm::fused_moe::gemm2",
            "AUTOTUNER_SKIPPED_TACTICS",
            "info",
        ),
        ("[Autotuner]: Skipped 10 unsupported tactic(s) for x (enable debug)", "AUTOTUNER_SKIPPED_TACTICS", "info"),
        ("No available shared memory broadcast block found in 60 seconds", "WAITED_FOR_PEERS", "info"),
        (
            "non-default args: {'pass_config': {'x': True}}\nInitializing a V1 LLM engine 'pass_config': {'x': False}",
            "SWITCH_REQUESTED_BUT_OFF",
            "warning",
        ),
    ],
)
def test_single_warnings(text: str, finding: str, severity: str) -> None:
    result = parse(text)

    assert [(entry["id"], entry["severity"]) for entry in result["findings"]] == [(finding, severity)]
    assert result["state"] == "loading"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", "unknown"),
        ("\n\n", "unknown"),
        ("INFO 09-11 09:48:50 [serve.py:225] Launching vLLM (v0.33.0) headless multiproc executor", "loading"),
        (boot_logs.V0_28_0_PINNED, "ready"),
        (boot_logs.NO_MEMORY, "failed"),
        (
            boot_logs.V0_28_0_PINNED + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "failed",
        ),
    ],
)
def test_state(text: str, state: str) -> None:
    assert parse(text)["state"] == state


def test_only_the_last_boot_of_a_log_counts() -> None:
    again = parse(boot_logs.NO_MEMORY + boot_logs.V0_28_0_PINNED)
    failed = parse(boot_logs.V0_28_0_PINNED + boot_logs.NO_MEMORY)

    assert (again["state"], again["kv_cache"]["tokens"]) == ("ready", 1210288)
    assert (failed["state"], failed["kv_cache"]["tokens"]) == ("failed", None)


def test_a_banner_and_its_version_line_are_one_boot() -> None:
    text = boot_logs.V0_20_2.replace("Asynchronous", "vLLM API server version 0.20.2\nAsynchronous")

    assert parse(text)["version"] == "0.20.2"
    assert parse(text)["kv_cache"] == parse(boot_logs.V0_20_2)["kv_cache"]


def test_pools_of_two_boxes_bind_by_the_smaller_one() -> None:
    result = parse(boot_logs.V0_28_0_PINNED, boot_logs.V0_28_0_PINNED.replace("1,210,288", "1,100,000"))

    assert result["kv_cache"]["tokens"] == 1100000


def test_secrets_of_the_command_line_do_not_leave_the_log() -> None:
    assert "sk-abcdefgh12345678" not in str(parse(boot_logs.V0_28_0_PINNED))


def test_bytes_that_the_worker_did_not_take_are_not_reported() -> None:
    """On a CPU, VLLM_CPU_KVCACHE_SPACE goes before --kv-cache-memory-bytes (vLLM 0.32.0, run on 2026-11-29)."""
    result = parse(
        "non-default args: {'kv_cache_memory_bytes': 67108864}\nExplicitly set (1.0/23.54) GiB for KV cache on node 0."
    )

    assert (result["kv_cache"]["bytes"], result["kv_cache"]["pinned_gib"]) == (None, 1.0)


def test_random_damage_never_does_more_than_change_the_answer() -> None:
    generator = random.Random(20261129)
    logs = [text for text, _pool in POOLS.values()] + [boot_logs.NO_MEMORY, boot_logs.RANK_1_LOUD]
    states = set()
    for _round in range(300):
        raw = bytearray(generator.choice(logs).encode())
        for _change in range(40):
            raw[generator.randrange(len(raw))] = generator.randrange(256)
        states.add(parse(raw.decode("utf-8", errors="replace"))["state"])
    assert states <= {"ready", "failed", "loading"}
    assert len(states) > 1

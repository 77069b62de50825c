# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""fixtures/kv_golden.csv has one row of each kind that vLLM's own code computed for a GB10 (2026-11-29): 645 of 2,400
rows over 16 models and the releases 0.22.0, 0.26.0, 0.28.0 and 0.33.0. `tools/kv_check` compares a full table.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import ModelGeometry
from ansible_collections.gb10.fleet.plugins.module_utils._model_layers import Attention, LayerCount
from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_cache import (
    KvFit,
    KvRequest,
    KvTooSmall,
    KvUnsupportedError,
    kv_layout,
)

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
GIB = 1 << 30
CONFIGS: dict[str, dict[str, t.Any]] = json.loads((FIXTURES / "kv_models.json").read_text(encoding="utf-8"))
MODELS = {name: ModelGeometry.from_config(config) for name, config in CONFIGS.items()}
with (FIXTURES / "kv_golden.csv").open(encoding="utf-8", newline="") as _file:
    GOLDEN = list(csv.DictReader(_file))
RELEASES = ("0.22.0", "0.25.1", "0.26.0", "0.28.0", "0.30.0")


def request_of(row: dict[str, str]) -> KvRequest:
    return KvRequest(
        vllm=row["vllm"],
        max_model_len=int(row["max_model_len"]),
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        kv_cache_dtype=row["kv_cache_dtype"],
        tensor_parallel_size=int(row["tp"]),
        num_speculative_tokens=int(row["num_speculative_tokens"]),
        prefix_caching=row["prefix_caching"] == "1",
        mamba_cache_dtype=row["mamba_cache_dtype"],
        mamba_ssm_cache_dtype=row["mamba_ssm_cache_dtype"],
    )


@pytest.mark.parametrize("model", sorted({row["model"] for row in GOLDEN}))
def test_agrees_with_vllm_to_the_token(model: str) -> None:
    rows = [row for row in GOLDEN if row["model"] == model]
    assert rows
    for row in rows:
        result = kv_layout(MODELS[model], request_of(row)).fit(int(row["kv_bytes"]))
        if row["need_gib"]:
            assert isinstance(result, KvTooSmall), row
            assert (result.need_gib, result.estimated_max_len) == (
                float(row["need_gib"]),
                int(row["estimated_max_len"]),
            ), row
        else:
            assert isinstance(result, KvFit), row
            for name, value in dataclasses.asdict(result).items():
                assert value == pytest.approx(float(row[name]), abs=1e-6), (name, row)


def tokens_in_window(layout: t.Any, gib: float) -> dict[int, float]:
    """Return tokens and concurrency of each number of blocks that a log prints as this many GiB."""
    low, high = (int((gib + shift) * GIB) // layout.bytes_per_block for shift in (-0.005, 0.005))
    found = {}
    for blocks in range(low, high + 1):
        result = layout.fit(blocks * layout.bytes_per_block)
        if isinstance(result, KvFit):
            found[result.tokens] = round(result.max_concurrency, 2)
    return found


QWEN35 = {"kv_cache_dtype": "fp8", "num_speculative_tokens": 3}
AEON_DRAFT = (LayerCount(Attention(8, 128, 128), 5),)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("model", "settings", "gib", "tokens", "block"),
    [
        # Qwen3.6-35B-A3B NVFP4 on a GB10, MTP 3, without and with prefix caching (field notes of 2026-07 and 2026-08).
        pytest.param(
            "qwen3.6-35b-a3b", {**QWEN35, "max_model_len": 262144, "prefix_caching": False}, 7.15, 617494, 2144
        ),
        pytest.param("qwen3.6-35b-a3b", {**QWEN35, "max_model_len": 131072}, 54.75, 4143236, 2144),
        # Qwen3.8-27B NVFP4 on a GB10, MTP 2 (same notes; the geometry of Qwen3.6-27B).
        pytest.param(
            "qwen3.6-27b",
            {"max_model_len": 262144, "kv_cache_dtype": "fp8", "num_speculative_tokens": 2},
            53.28,
            1529669,
            1600,
        ),
        # club-3090 #652 and #612, vLLM 0.24.0.
        pytest.param("qwen3.6-35b-a3b", {"max_model_len": 131072, "kv_cache_dtype": "fp8"}, 6.01, 569878, 2096),
        pytest.param("qwen3.6-35b-a3b", {"max_model_len": 131072, "kv_cache_dtype": "fp8"}, 5.98, 567978, 2096),
        # gb10-services AEON, DFlash with 10 draft tokens and float32 states.
        pytest.param(
            "qwen3.6-27b",
            {
                "max_model_len": 262144,
                "kv_cache_dtype": "fp8",
                "num_speculative_tokens": 10,
                "mamba_cache_dtype": "float32",
                "draft": AEON_DRAFT,
            },
            15.0,
            269589,
            1808,
        ),
    ],
)
def test_published_boot_logs(
    release: str, model: str, settings: dict[str, t.Any], gib: float, tokens: int, block: int
) -> None:
    layout = kv_layout(MODELS[model], KvRequest(vllm=release, **settings))
    assert tokens in tokens_in_window(layout, gib)
    assert layout.block_size == block


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("model", "settings", "kv_bytes", "tokens", "concurrency"),
    [
        ("qwen3.6-35b-a3b", {**QWEN35, "max_model_len": 131072}, 17179869184, 1210288, 9.23),
        (
            "qwen3.6-27b",
            {"max_model_len": 262144, "kv_cache_dtype": "fp8", "num_speculative_tokens": 2},
            21474836480,
            573440,
            2.19,
        ),
    ],
)
def test_published_logs_of_pinned_bytes(
    release: str, model: str, settings: dict[str, t.Any], kv_bytes: int, tokens: int, concurrency: float
) -> None:
    result = kv_layout(MODELS[model], KvRequest(vllm=release, **settings)).fit(kv_bytes)
    assert isinstance(result, KvFit)
    assert (result.tokens, round(result.max_concurrency, 2)) == (tokens, concurrency)


@pytest.mark.parametrize("release", [*RELEASES, "0.33.0"])
def test_published_refusal(release: str) -> None:
    """MiniMax-M2.7 on two boxes, eugr/spark-vllm-docker#396: 23.25 GiB needed, 190,272 tokens at "22.5 GiB"."""
    layout = kv_layout(MODELS["minimax-m2"], KvRequest(vllm=release, max_model_len=196608, tensor_parallel_size=2))
    result = layout.fit(int(22.5 * GIB))
    assert isinstance(result, KvTooSmall)
    assert result.need_gib == 23.25
    assert 190272 in {layout.longest(int((22.5 + step / 10000) * GIB)) for step in range(-50, 51)}


@pytest.mark.parametrize(("release", "found"), [("0.25.1", False), ("0.26.0", True), ("0.28.0", False)])
def test_published_log_that_tells_releases_apart(release: str, found: bool) -> None:
    """vllm-project/vllm#51041: DeepSeek-V4-Flash, MTP, two ranks, vLLM 0.26.0, 7.71 GiB."""
    layout = kv_layout(
        MODELS["deepseek-v4-flash"],
        KvRequest(release, 121344, kv_cache_dtype="fp8", tensor_parallel_size=2, num_speculative_tokens=1),
    )
    assert (tokens_in_window(layout, 7.71).get(150992) == 1.24) is found


def test_newest_release_without_flashinfer_is_as_before() -> None:
    settings: dict[str, t.Any] = {**QWEN35, "max_model_len": 131072}
    today = kv_layout(MODELS["qwen3.6-35b-a3b"], KvRequest("0.33.0", **settings)).fit(17179869184)
    triton = kv_layout(MODELS["qwen3.6-35b-a3b"], KvRequest("0.33.0", gdn_prefill_backend="triton", **settings))
    assert isinstance(today, KvFit)
    assert (today.tokens, today.block_size) == (1161397, 2176)
    assert triton.fit(17179869184) == dataclasses.replace(
        today,
        block_size=2144,
        bytes_per_block=24150016,
        num_blocks=711,
        tokens=1210288,
        max_concurrency=711 / 77,
        blocks_per_request=77,
    )


@pytest.mark.parametrize(
    ("release", "block"),
    [("0.25.1", 16), ("0.30.0", 16), ("0.31.0", 128), ("0.33.0", 128)],
)
def test_minimax_m3_adds_an_index_to_each_sparse_layer(release: str, block: int) -> None:
    layout = kv_layout(MODELS["minimax-m3"], KvRequest(release, 131072))
    assert layout.block_size == block
    # 60 layers of 4 heads x 128 x 2 (keys and values) x 2 bytes, and 57 index keys of 128 x 2 bytes.
    assert layout.bytes_per_block == block * (60 * 2048 + 57 * 256)
    assert layout.blocks_per_request == -(-131072 // block)


def test_fp8_index_stays_in_two_bytes_for_minimax_m3() -> None:
    layout = kv_layout(MODELS["minimax-m3"], KvRequest("0.28.0", 131072, kv_cache_dtype="fp8", tensor_parallel_size=2))
    assert layout.bytes_per_block == 16 * (60 * 512 + 57 * 256)


def plain(**fields: t.Any) -> ModelGeometry:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        **fields,
    }
    return ModelGeometry.from_config(config)


@pytest.mark.parametrize(("kv_bytes", "tokens", "concurrency"), [(67108864, 131072, 256.0), (1114112, 2176, 4.25)])
def test_cpu_engine_of_a_tiny_model(kv_bytes: int, tokens: int, concurrency: float) -> None:
    """What vLLM 0.32.0 printed on an x86 CPU (2026-11-29)."""
    tiny = plain(architectures=["Qwen3ForCausalLM"])
    result = kv_layout(tiny, KvRequest("0.32.0+cpu", 512, platform="cpu")).fit(kv_bytes)
    assert isinstance(result, KvFit)
    assert (result.tokens, result.max_concurrency, result.block_size) == (tokens, concurrency, 128)


def test_cpu_engine_with_an_fp8_cache() -> None:
    tiny = plain(architectures=["Qwen3ForCausalLM"])
    fp8 = kv_layout(tiny, KvRequest("0.32.0", 512, platform="cpu", kv_cache_dtype="fp8")).fit(67108864)
    assert isinstance(fp8, KvFit)
    assert fp8.tokens == 262144


def test_checkpoint_decides_the_dtype_where_the_user_does_not() -> None:
    quantised = plain(quantization_config={"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"})
    automatic = kv_layout(quantised, KvRequest("0.28.0", 4096))
    assert automatic.bytes_per_block * 2 == kv_layout(plain(), KvRequest("0.28.0", 4096)).bytes_per_block
    asked = kv_layout(quantised, KvRequest("0.28.0", 4096, kv_cache_dtype="bfloat16"))
    assert asked.bytes_per_block == automatic.bytes_per_block * 2


def test_one_block_is_kept_back_from_0_29() -> None:
    before, after = (kv_layout(plain(), KvRequest(release, 4096)) for release in ("0.28.0", "0.29.0"))
    exact = before.minimum_bytes()
    assert isinstance(before.fit(exact), KvFit)
    assert after.fit(exact) == KvTooSmall(exact, 4080)
    assert after.minimum_bytes() == exact + after.bytes_per_block


def test_window_keeps_what_is_in_flight() -> None:
    windowed = plain(architectures=["MistralForCausalLM"], sliding_window=1024)

    def blocks(release: str, **settings: t.Any) -> int:
        request = KvRequest(release, 131072, max_num_batched_tokens=2048, **settings)
        return kv_layout(windowed, request).blocks_per_request

    assert blocks("0.25.1") == -(-(1023 + 2048) // 16) + 1
    assert blocks("0.26.0") == -(-(1023 + 4096) // 16) + 1
    assert blocks("0.26.0", async_scheduling=False) == blocks("0.25.1")


def test_chunked_attention_keeps_one_chunk() -> None:
    chunked = plain(architectures=["Llama4ForCausalLM"], num_hidden_layers=4, attention_chunk_size=8192)
    layout = kv_layout(chunked, KvRequest("0.28.0", 131072, max_num_batched_tokens=2048))
    # Three groups of one chunked layer each, and the one full layer.
    assert layout.blocks_per_request == 3 * -(-(8192 + 4096) // 16) + 131072 // 16


def test_groups_are_padded_up_to_half_as_many_more() -> None:
    def bytes_per_block(full: int, sliding: int) -> int:
        kinds = ["full_attention"] * full + ["sliding_attention"] * sliding
        model = plain(num_hidden_layers=full + sliding, layer_types=kinds, sliding_window=128)
        return kv_layout(model, KvRequest("0.28.0", 4096)).bytes_per_block

    page = 16 * 256
    assert bytes_per_block(10, 14) == 14 * page
    assert bytes_per_block(10, 15) == 10 * page


def test_odd_pages_are_padded_from_0_29() -> None:
    model = plain(
        architectures=["Gemma4ForCausalLM"],
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=128,
        head_dim=64,
        global_head_dim=96,
    )
    layout = kv_layout(model, KvRequest("0.29.0", 4096))
    assert layout.bytes_per_block == 16 * 2 * 2 * 96 * 2
    with pytest.raises(KvUnsupportedError, match="do not divide"):
        kv_layout(model, KvRequest("0.28.0", 4096))


def test_draft_model_limits_the_context_from_0_33() -> None:
    config = {
        "architectures": ["DeepseekV32ForCausalLM"],
        "num_hidden_layers": 61,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 163840,
        "rope_scaling": {"type": "yarn", "factor": 40},
    }
    model = ModelGeometry.from_config(config)
    stretched = ModelGeometry.from_config({**config, "rope_scaling": None})

    def context(geometry: ModelGeometry, release: str, drafts: int) -> int:
        return kv_layout(geometry, KvRequest(release, 262144, num_speculative_tokens=drafts)).max_model_len

    assert context(model, "0.33.0", 1) == 163840
    assert context(model, "0.32.0", 1) == 262144
    assert context(model, "0.33.0", 0) == 262144
    assert context(stretched, "0.33.0", 1) == 262144


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.33.0", ""),
        ("v0.28.0", ""),
        ("0.27.1", ""),
        ("0.32.0+cpu", ""),
        ("0.34.0", "0.33.0"),
        ("0.33.1", "0.33.0"),
        ("0.33.0rc1", "0.32.0"),
        ("0.29.1rc1.dev17", "0.29.0"),
        ("0.26.1rc1.dev30+g5773c4e60", "0.26.0"),
    ],
)
def test_version_that_was_not_read_says_so(version: str, release: str) -> None:
    layout = kv_layout(plain(), KvRequest(version, 4096))
    if release:
        assert f"the rules of {release}, the nearest lower release" in layout.note
    else:
        assert layout.note == ""


V4 = "deepseek-v4-flash"


@pytest.mark.parametrize(
    ("model", "settings", "says"),
    [
        ("llama-3.3-70b", {"vllm": "0.21.0"}, "older than 0.22.0"),
        ("llama-3.3-70b", {"vllm": "0.1.dev18498"}, "older than 0.22.0"),
        ("llama-3.3-70b", {"vllm": "latest"}, "'latest' is not a vLLM version"),
        ("llama-3.3-70b", {"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype nvfp4 is not known"),
        ("llama-3.3-70b", {"num_speculative_tokens": 3}, "no MTP module of LlamaForCausalLM"),
        ("llama-3.3-70b", {"tensor_parallel_size": 3}, "does not divide the model's 64 heads"),
        ("llama-3.3-70b", {"max_model_len": 0}, "max_model_len is 0"),
        ("llama-3.3-70b", {"platform": "tpu"}, "platform tpu is not known"),
        ("qwen3.6-27b", {"platform": "cpu"}, "only models with full attention"),
        ("qwen3.6-27b", {"mamba_cache_dtype": "int8"}, "mamba_cache_dtype int8 is not known"),
        ("glm-5.2", {"vllm": "0.25.1"}, "refused by Transformers"),
        ("glm-5.2", {"vllm": "0.22.0"}, "no attention backend"),
        ("glm-5.2", {"kv_cache_dtype": "fp8_e5m2"}, "not known for sparse latent attention"),
        (V4, {"vllm": "0.22.0", "kv_cache_dtype": "fp8"}, "before 0.25.0 are not known"),
        (V4, {"vllm": "0.28.0"}, "refuses kv_cache_dtype auto for DeepSeek-V4"),
        (V4, {"vllm": "0.33.0", "kv_cache_dtype": "bfloat16"}, "kv_cache_dtype bfloat16 is not known for DeepSeek-V4"),
        ("minimax-m3", {"vllm": "0.22.0"}, "not in vLLM before 0.24.0"),
        ("kimi-linear-48b-a3b", {"vllm": "0.33.0", "mamba_ssm_cache_dtype": "bfloat16"}, "Kimi Delta Attention"),
    ],
)
def test_what_is_not_known_is_refused_by_name(model: str, settings: dict[str, t.Any], says: str) -> None:
    request = KvRequest(**{"vllm": "0.28.0", "max_model_len": 32768, **settings})
    with pytest.raises(KvUnsupportedError) as caught:
        kv_layout(MODELS[model], request)
    assert says in str(caught.value)


def test_kimi_delta_keeps_float32_whatever_it_is_told_before_0_30() -> None:
    def page(dtype: str) -> int:
        request = KvRequest("0.28.0", 32768, mamba_ssm_cache_dtype=dtype)
        return kv_layout(MODELS["kimi-linear-48b-a3b"], request).bytes_per_block

    assert page("float16") == page("auto")


def test_no_cache_is_ever_too_small_to_answer() -> None:
    layout = kv_layout(plain(), KvRequest("0.33.0", 4096))
    assert layout.fit(0) == KvTooSmall(4096 * 512, 0)
    assert layout.longest(layout.bytes_per_block * 3) == 32


@pytest.mark.parametrize("model", sorted(MODELS))
def test_bytes_for_sequences_hold_them(model: str) -> None:
    layout = kv_layout(MODELS[model], KvRequest("0.30.0", 32768, kv_cache_dtype="fp8"))
    for sequences in (1, 2, 7):
        result = layout.fit(layout.bytes_for(sequences))
        assert isinstance(result, KvFit)
        assert result.max_concurrency >= sequences

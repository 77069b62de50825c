# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a vLLM release will make of a command line."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_catalogue as catalogues
from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_lint import lint_args, lint_instance, notes

VERDICTS = json.loads((pathlib.Path(__file__).parent / "fixtures" / "vllm_verdicts.json").read_text(encoding="utf-8"))


def ids(version: str, *words: str, env: dict[str, str] | None = None) -> list[str]:
    return [finding.id for finding in lint_args(version, words, env).findings]


@pytest.mark.parametrize("version", VERDICTS["verdicts"])
def test_the_verdicts_of_the_real_parser(version: str) -> None:
    wrong = [
        (words, real)
        for words, real in VERDICTS["verdicts"][version]
        if lint_args(version, words).parses is not (real == "ok")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("version", "words", "parses"),
    [
        ("0.32.0", ["--kv-cache-memory", "1G"], True),
        ("0.32.0", ["--max_model_len", "512"], True),
        ("0.32.0", ["-tp", "2"], True),
        ("0.32.0", ["-tp=2"], True),
        ("0.32.0", ["-sc.method", "mtp"], True),
        ("0.32.0", ["--speculative-config.method=mtp", "--speculative-config.num_speculative_tokens=3"], True),
        ("0.32.0", ["--compilation-config.cudagraph_mode", "piecewise"], True),
        ("0.32.0", ["--compilation-config.cudagraph_mode", "PIECEWIZE"], False),
        ("0.32.0", ["--compilation-config.no_such_key", "1"], False),
        ("0.32.0", ["--kv-transfer-config", '{"kv_connector": "X"}'], False),
        ("0.32.0", ["--kv-transfer-config", '{"kv_connector": "X", "kv_role": "kv_both"}'], True),
        ("0.32.0", ["-O3"], True),
        ("0.32.0", ["-O", "2"], True),
        ("0.32.0", ["--device", "cuda"], False),
        ("0.26.0", ["--device", "cuda"], True),
        ("0.22.0", ["--device", "cuda"], False),
        ("0.32.0", ["--disable-prefix-caching"], False),
        ("0.33.0", ["--disable-prefix-caching"], True),
        ("0.33.0", ["--no-enable-prefix-caching"], True),
        ("0.33.0", ["--disable-log-requests"], True),
        ("0.32.0", ["--disable-log-requests"], False),
        ("0.16.0", ["--disable-log-requests"], True),
        ("0.33.0", ["--kv-cache-dtype", "bogus"], True),
        ("0.32.0", ["--kv-cache-dtype", "bogus"], False),
        ("0.32.0", ["--enforce-eager", "true"], False),
        ("0.32.0", ["owner/model", "--seed", "1"], True),
        ("0.32.0", ["--seed", "1", "owner/model"], True),
        ("0.32.0", ["owner/model", "other"], False),
        ("0.32.0", ["serve", "owner/model", "--seed", "1"], True),
        ("0.32.0", ["vllm", "serve", "--model", "owner/model"], True),
        ("0.10.2", ["vllm", "serve", "--model", "owner/model"], False),
        ("0.32.0", ["serve", "--served-model-name", "n"], False),
        ("0.16.0", ["serve", "--served-model-name", "n"], True),
        ("0.32.0", ["--enable-log-outputs"], False),
        ("0.32.0", ["--enable-log-outputs", "--enable-log-requests"], True),
        ("0.32.0", ["--max-model-len", "1.5K"], False),
        ("0.32.0", ["--max-model-len", "1.5k"], True),
        ("0.32.0", ["--max-model-len", "-1"], True),
        ("0.32.0", ["--lora-modules", "a=b", '{"name": "n", "path": "p"}'], True),
        ("0.32.0", ["--lora-modules", "a"], False),
        ("0.32.0", ["--lora-modules", '{"name": "n"}'], False),
        ("0.32.0", ["--help"], False),
        ("0.32.0", ["--seed"], False),
        ("0.32.0", ["--speculative-config.method"], False),
    ],
)
def test_accept_and_reject(version: str, words: list[str], parses: bool) -> None:
    assert lint_args(version, words).parses is parses


@pytest.mark.parametrize(
    ("version", "words", "finding", "says"),
    [
        ("0.32.0", ["--swap-space", "4"], "FLAG_REMOVED", "0.17.1 was the last release with it"),
        (
            "0.32.0",
            ["--disable-log-requests"],
            "FLAG_REMOVED",
            "0.16.0 was the last release with it (0.33.0 has it again)",
        ),
        ("0.32.0", ["--disable-log-requests"], "FLAG_REMOVED", "unless --enable-log-requests is given"),
        ("0.21.0", ["--linear-backend", "marlin"], "FLAG_TOO_NEW", "0.22.0 is the first release"),
        ("0.32.0", ["--mxfp4-layers", "moe"], "FLAG_ONLY_IN_FORK", "spark-vllm-docker"),
        ("0.32.0", ["--max-num-seqz", "4"], "FLAG_UNKNOWN", "Did you mean --max-num-seqs?"),
        ("0.22.0", ["--linear-backend", "flashinfer-b12x"], "FLAG_VALUE_INVALID", "vLLM 0.24.0 to 0.33.0 take it"),
        ("0.28.0", ["--moe-backend", "b12x"], "FLAG_VALUE_INVALID", "vLLM 0.29.0 to 0.33.0 take it"),
        ("0.28.0", ["--moe-backend", "marlyn"], "FLAG_VALUE_INVALID", "Did you mean marlin?"),
        ("0.32.0", ["--seed", "x"], "FLAG_VALUE_INVALID", "'x' is not a whole number"),
        ("0.32.0", ["--hf-overrides", "{bad}"], "FLAG_VALUE_INVALID", "'{bad}' is not JSON"),
        ("0.32.0", ["--device", "cuda"], "FLAG_AMBIGUOUS", "--device-ids"),
        ("0.26.0", ["--device", "cuda"], "FLAG_ABBREVIATED", "is taken for --device-ids"),
        ("0.32.0", ["--kv-cache-memory", "1G"], "FLAG_ABBREVIATED", "Write --kv-cache-memory-bytes."),
        ("0.32.0", ["--seed", "1", "--seed", "2"], "FLAG_TWICE", "the last one counts"),
        ("0.32.0", ["--enable-auto-tool-choice"], "FLAG_COMBINATION_INVALID", "it needs --tool-call-parser"),
        ("0.32.0", ["--tool-call-parser", "qwen3coder"], "PARSER_UNKNOWN", "Did you mean qwen3_coder?"),
        ("0.32.0", ["--tool-call-parser", "nemotron_v3"], "PARSER_UNKNOWN", "a reasoning parser of that name"),
        ("0.24.0", ["--tool-call-parser", "minimax"], "PARSER_UNKNOWN", "to 0.23.0 have it"),
        ("0.32.0", ["--reasoning-parser", "openai"], "PARSER_UNKNOWN", "a tool parser of that name"),
        ("0.33.0", ["--kv-cache-dtype", "fp9"], "KV_CACHE_DTYPE_UNKNOWN", "the server will not start"),
        ("0.33.0", ["--quantization", "nvfp4"], "QUANTIZATION_UNKNOWN", "the server will not start"),
        ("0.33.0", ["--attention-backend", "flash"], "ATTENTION_BACKEND_UNKNOWN", "the server will not start"),
        ("0.32.0", ["--enforce-eager", "true"], "FLAG_USAGE_INVALID", "'true'"),
        ("0.26.1rc1.dev30", ["--seed", "1"], "VLLM_VERSION_NEAREST", "those of 0.26.0, the nearest lower release"),
        ("0.1.dev18498", ["--seed", "1"], "VLLM_VERSION_UNKNOWN", "older than the oldest release"),
    ],
)
def test_what_a_finding_says(version: str, words: list[str], finding: str, says: str) -> None:
    found = [one for one in lint_args(version, words).findings if one.id == finding]
    assert len(found) == 1
    assert says in f"{found[0].message} {found[0].remedy}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gpu-memory-utilization", "7"], "7.0 is not at most 1"),
        (["--gpu-memory-utilization", "0"], "0.0 is not above 0"),
        (["--port", "99999999"], "99999999 is not at most 65535"),
        (["--tensor-parallel-size", "0"], "0 is not at least 1"),
        (["--max-model-len", "-5"], "-5 is not at least -1"),
        (["--max-num-batched-tokens", "4", "--max-num-seqs", "8"], "does not hold one token of each of 8 sequences"),
        (
            ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8", "--max-model-len", "16"],
            "without chunked prefill, a batch of 8 tokens does not hold a context of 16",
        ),
        (["--long-prefill-token-threshold", "32", "--max-model-len", "16"], "32 is more than --max-model-len 16"),
        (["-sc", '{"method": "bogus", "num_speculative_tokens": 1}'], 'method is "bogus", not one of'),
        (["-sc", '{"method": "dflsh", "num_speculative_tokens": 1}'], "Did you mean dflash?"),
        (["-sc", '{"method": ["mtp"], "num_speculative_tokens": 1}'], "method is"),
        (
            ["-sc", '{"method": "mtp", "num_speculative_tokens": 0}'],
            "num_speculative_tokens is 0, and has to be above 0",
        ),
        (["-sc", '{"method": "mtp"}'], "it does not say num_speculative_tokens"),
        (["-sc", '{"method": "mtp", "num_speculative_tokens": 1, "weights_gib": 2}'], "it has no key 'weights_gib'"),
        (["-sc", '{"method": "mtp", "num_speculative_token": 1}'], "Did you mean num_speculative_tokens?"),
        (["-sc", '{"method": "dflash", "num_speculative_tokens": 1}'], "it does not say model"),
        (["-sc", "[1]"], "[1] is not a mapping"),
        (["-sc", "{}"], "it does not say method"),
        (["-sc.method", "mtp", "--spec-method", "mtp", "--spec-tokens", "1"], "--speculative-config says method, too"),
        (["--spec-method", "eagle", "--spec-tokens", "2"], "it does not say model"),
    ],
)
def test_what_the_parser_takes_and_the_server_does_not(words: list[str], says: str) -> None:
    answer = lint_args("0.32.0", words)
    assert answer.parses is True
    (finding,) = answer.findings
    assert (finding.id, finding.severity) == ("CONFIG_REFUSED", "error")
    assert says in f"{finding.message} {finding.remedy}"


@pytest.mark.parametrize(
    "words",
    [
        ["-sc", '{"method": "mtp", "num-speculative-tokens": 1}'],
        ["-sc", '{"model": "ngram", "num_speculative_tokens": 1}'],
        ["-sc", '{"model": "owner/eagle", "num_speculative_tokens": 1, "revision": "main"}'],
        ["--spec-method", "ngram", "--spec-tokens", "2"],
        ["-sc", '{"method": "suffix"}'],
        ["--max-num-batched-tokens", "8", "--max-model-len", "16"],
        ["--max-num-batched-tokens", "4"],
        ["--max-model-len", "-1"],
    ],
)
def test_what_the_server_takes(words: list[str]) -> None:
    assert ids("0.32.0", *words) == []


def test_a_release_that_does_not_know_a_method_says_so() -> None:
    spec = '{"method": "dspark", "num_speculative_tokens": 4}'
    assert ids("0.33.0", "-sc", spec) == []
    assert ids("0.24.0", "-sc", spec) == ["CONFIG_REFUSED"]


@pytest.mark.parametrize("depth", [50, 100_000])
def test_json_however_deep_is_no_crash(depth: int) -> None:
    text = '{"a":' * depth + "1" + "}" * depth
    assert lint_args("0.32.0", ["--hf-overrides", text, "--kv-transfer-config", text]).parses is False


@pytest.mark.parametrize("word", ["--bogus", "--c"])
def test_a_word_that_is_like_nothing_gets_no_suggestion(word: str) -> None:
    (finding,) = lint_args("0.32.0", [f"{word}=1"]).findings
    assert "Did you mean" not in finding.remedy


@pytest.mark.parametrize(
    ("version", "name", "finding", "says"),
    [
        ("0.24.0", "VLLM_NVFP4_GEMM_BACKEND", "ENV_REMOVED", "0.23.0 was the last release that did"),
        ("0.24.0", "VLLM_USE_FLASHINFER_MOE_FP4", "ENV_REMOVED", "Use --moe-backend"),
        ("0.22.0", "VLLM_B12X_MOE_FP4_FORCE_A16", "ENV_TOO_NEW", "is the first release that does"),
        ("0.33.0", "VLLM_MXFP4_BACKEND", "ENV_UNKNOWN", "Only the image of"),
        ("0.33.0", "VLLM_LOGING_LEVEL", "ENV_UNKNOWN", "Did you mean VLLM_LOGGING_LEVEL?"),
    ],
)
def test_the_environment(version: str, name: str, finding: str, says: str) -> None:
    answer = lint_args(version, [], {name: "1", "VLLM_LOGGING_LEVEL": "INFO", "CUTE_DSL_ARCH": "sm_121a"})
    assert answer.parses is True
    assert [(one.id, one.severity, one.evidence) for one in answer.findings] == [(finding, "warning", name)]
    assert says in f"{answer.findings[0].message} {answer.findings[0].remedy}"


def test_an_unknown_variable_stops_a_strict_server() -> None:
    answer = lint_args("0.33.0", ["--fail-on-environ-validation"], {"VLLM_NO_SUCH": "1"})
    assert [(one.id, one.severity) for one in answer.findings] == [("ENV_UNKNOWN", "error")]


def test_a_parser_from_a_plugin_is_no_fault() -> None:
    answer = lint_args("0.33.0", ["--tool-call-parser", "mine", "--tool-parser-plugin", "mine.py"])
    assert [(one.id, one.severity) for one in answer.findings] == [("PARSER_UNKNOWN", "info")]


@pytest.mark.parametrize("backend", ["FLASHINFER", "flashinfer", "triton_attn", "auto"])
def test_attention_backends_in_any_case(backend: str) -> None:
    assert ids("0.33.0", "--attention-backend", backend) == []


def test_every_fault_is_reported_at_once() -> None:
    found = ids("0.33.0", "--swap-space", "4", "--seed", "x", "--moe-backend", "y", "--no-such-flag")
    assert sorted(found) == ["FLAG_REMOVED", "FLAG_UNKNOWN", "FLAG_VALUE_INVALID", "FLAG_VALUE_INVALID"]


def test_an_instance_with_a_flag_of_another_release() -> None:
    answer = lint_instance({"vllm": "0.33.0", "args": {"swap_space": 4}, "env": {"VLLM_MXFP4_USE_MARLIN": "1"}})
    assert answer.parses is False
    assert [one.id for one in answer.findings] == ["FLAG_REMOVED", "ENV_REMOVED"]


def test_an_instance_of_no_known_version() -> None:
    answer = lint_instance({"vllm": "nightly"})
    assert answer.parses is None
    assert [one.id for one in answer.findings] == ["VLLM_VERSION_UNKNOWN"]


def test_what_is_written_for_an_instance_is_read_without_a_finding() -> None:
    one: dict[str, t.Any] = {
        "checkpoint": {"repo": "owner/model", "revision": "f" * 40},
        "served_model_name": ["short", "owner/model"],
        "host": "127.0.0.1",
        "port": 8000,
        "max_model_len": 131072,
        "max_num_seqs": 8,
        "kv_cache_dtype": "fp8",
        "kv_cache_memory_bytes": 1 << 34,
        "gpu_memory_utilization": 0.6,
        "speculative": {"method": "ngram", "num_speculative_tokens": 2},
        "reasoning_parser": "qwen3",
        "tool_call_parser": "qwen3_coder",
        "args": {"enable_prefix_caching": False, "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}},
    }
    for release in catalogues.releases():
        assert lint_instance(one | {"vllm": release}).as_dict() == {
            "parses": True,
            "findings": [],
            "release": release,
            "exact": True,
        }


def test_every_note_has_a_source_and_a_date() -> None:
    for part in ("flags", "env"):
        for name, note in notes()[part].items():
            assert note["source"], name
            assert len(note["date"]) == len("2026-11-29"), name

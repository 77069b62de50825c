# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils import _known_findings

TODAY = "2026-11-29"
# A Gated DeltaNet hybrid with MTP and FULL CUDA graphs: the class that corrupted answers.
HYBRID: dict[str, t.Any] = {
    "name": "writer",
    "kind": "chat",
    "port": 8000,
    "checkpoint": {"repo": "example/Qwen3.6-35B-A3B-NVFP4", "revision": "0" * 40},
    "vllm": "0.27.1",
    "max_model_len": 4096,
    "max_num_seqs": 4,
    "tensor_parallel_size": 1,
    "speculative": {"method": "mtp", "num_speculative_tokens": 3},
    "args": {},
    "env": {},
}


def severities(**changes: t.Any) -> dict[str, str]:
    return {one.id: one.severity for one in _known_findings.known_findings({**HYBRID, **changes}, TODAY)}


def test_a_flag_that_the_release_does_not_have_is_an_error() -> None:
    assert severities(args={"swap_space": 4})["FLAG_REMOVED"] == "error"
    assert "FLAG_REMOVED" not in severities()


def test_a_dated_fact_is_found_and_says_when_it_was_verified() -> None:
    found = _known_findings.known_findings(HYBRID, TODAY)
    graphs = next(one for one in found if one.id == "FULL_GRAPHS_GATED_DELTANET_MTP")
    assert "verified 20" in _known_findings.sentence(graphs)
    eager = severities(args={"compilation_config": {"cudagraph_mode": "PIECEWISE"}})
    assert "FULL_GRAPHS_GATED_DELTANET_MTP" not in eager


def test_an_error_that_the_model_role_knows_of_is_a_warning() -> None:
    error = {"vllm": "0.22.0", "speculative": {"method": "ngram", "num_speculative_tokens": 3}}
    grave = [one for one in _known_findings.known_findings({**HYBRID, **error}, TODAY) if one.severity == "error"]
    assert [one.claim for one in grave] == [one.id for one in grave] != []
    limits = {"known_limits": [one.id for one in grave]}
    assert {severities(**error, evidence=limits)[one.id] for one in grave} == {"warning"}


@pytest.mark.parametrize(
    ("finding", "changes"),
    [
        ("FLAG_REMOVED", {"args": {"swap_space": 4}}),
        ("PARSER_UNKNOWN", {"tool_call_parser": "bogus"}),
        ("CONFIG_REFUSED", {"args": {"max_num_batched_tokens": 2}}),
    ],
)
def test_what_the_command_line_is_refused_for_is_nothing_to_live_with(finding: str, changes: dict[str, t.Any]) -> None:
    assert severities(**changes, evidence={"known_limits": [finding]})[finding] == "error"


def test_a_wrong_flag_does_not_make_the_others_look_absent() -> None:
    assert "NO_MAX_MODEL_LEN" not in severities(args={"swap_space": 4, "enforce_eager": "x"})


def test_everything_wrong_is_said_at_once() -> None:
    changes = {
        "args": {"swap_space": 4, "no_such": 1, "seed": "x", "attention_backend": "flash", "max_num_batched_tokens": 2},
        "tool_call_parser": "bogus",
        "reasoning_parser": "bogus",
        "speculative": {"method": "bogus", "num_speculative_tokens": 1, "no_such": 1},
    }
    found = [one for one in _known_findings.known_findings({**HYBRID, **changes}, TODAY) if one.severity == "error"]
    assert sorted(one.id for one in found) == [
        "ATTENTION_BACKEND_UNKNOWN",
        "CONFIG_REFUSED",
        "CONFIG_REFUSED",
        "CONFIG_REFUSED",
        "FLAG_REMOVED",
        "FLAG_UNKNOWN",
        "FLAG_VALUE_INVALID",
        "PARSER_UNKNOWN",
        "PARSER_UNKNOWN",
    ]


def test_an_error_is_not_swallowed_by_a_word_of_the_same_id() -> None:
    changes = {"tool_call_parser": "bogus", "reasoning_parser": "mine", "args": {"reasoning_parser_plugin": "mine.py"}}
    assert severities(**changes)["PARSER_UNKNOWN"] == "error"


@pytest.mark.parametrize(
    ("args", "measured", "is_said"),
    [
        ({"enable_lora": True, "max_loras": 64}, {}, True),
        ({"enable-lora": True}, {"overhead_gib": 12.5}, False),
        ({"enable_lora": False}, {}, False),
        ({"quantization": "fp8"}, {}, True),
        ({"worker_cls": "auto"}, {}, False),
    ],
)
def test_memory_that_nobody_can_compute_is_said(
    args: dict[str, t.Any], measured: dict[str, t.Any], is_said: bool
) -> None:
    assert (severities(args=args, measured=measured).get("MEMORY_NOT_PLANNED") == "warning") is is_said


@pytest.mark.parametrize(
    ("changes", "finding", "keys"),
    [
        ({"args": {"swap-space": 4}}, "FLAG_REMOVED", ("args", "swap-space")),
        ({"args": {"seed": "x"}}, "FLAG_VALUE_INVALID", ("args", "seed")),
        ({"args": {"enforce_eager": "yes"}}, "FLAG_VALUE_INVALID", ("args", "enforce_eager")),
        ({"tool_call_parser": "bogus"}, "PARSER_UNKNOWN", ("tool_call_parser",)),
        ({"speculative": {"method": "bogus", "num_speculative_tokens": 1}}, "CONFIG_REFUSED", ("speculative",)),
        ({"env": {"VLLM_NO_SUCH": "1"}}, "ENV_UNKNOWN", ("env", "VLLM_NO_SUCH")),
        ({}, "FULL_GRAPHS_GATED_DELTANET_MTP", ()),
    ],
)
def test_a_finding_leads_to_the_keys_that_it_is_about(
    changes: dict[str, t.Any], finding: str, keys: tuple[str, ...]
) -> None:
    instance = {**HYBRID, **changes}
    one = next(one for one in _known_findings.known_findings(instance, TODAY) if one.id == finding)
    assert _known_findings.written_as(one, instance) == keys


def test_an_ageing_drafter_is_no_news_where_the_box_restarts_it() -> None:
    ageing = {**HYBRID, "speculative": {"method": "dflash", "model": "example/drafter", "num_speculative_tokens": 8}}
    cured = {**ageing, "restart_after_hours": 20}

    def found(instance: dict[str, t.Any], *, watched: bool) -> bool:
        findings = _known_findings.known_findings(instance, TODAY, watched=watched)
        return "DFLASH_AGES_IN_20_HOURS" in {one.id for one in findings}

    assert found(ageing, watched=True)
    assert not found(cured, watched=True)
    assert found(cured, watched=False)
    assert found({**cured, "liveness": False}, watched=True)
    assert found({**cured, "restart_after_hours": 72}, watched=True)


def test_what_the_plan_will_set_is_not_missing() -> None:
    assert "KV_PIN_WITHOUT_UTIL" not in severities(kv_cache_memory_bytes=2**30)


def test_errors_come_first_and_nothing_is_merely_for_information() -> None:
    found = list(severities(args={"swap_space": 4}).values())
    assert found == sorted(found, key=lambda severity: severity != "error")
    assert "info" not in found

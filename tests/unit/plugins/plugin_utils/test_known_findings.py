# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

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
    limits = {"known_limits": ["FLAG_REMOVED"]}
    assert severities(args={"swap_space": 4}, evidence=limits)["FLAG_REMOVED"] == "warning"


def test_an_ageing_drafter_is_no_news_where_the_box_restarts_it() -> None:
    ageing = {**HYBRID, "speculative": {"method": "dflash", "model": "example/drafter", "num_speculative_tokens": 8}}
    cured = {**ageing, "restart_after_hours": 20}

    def found(instance: dict[str, t.Any], *, watched: bool) -> bool:
        findings = _known_findings.known_findings(instance, TODAY, watched=watched)
        return "DFLASH_AGES_IN_20_HOURS" in {one.id for one in findings}

    assert found(ageing, watched=True)
    assert not found(cured, watched=True)
    assert found(cured, watched=False)
    assert found({**cured, "restart_after_hours": 72}, watched=True)


def test_what_the_plan_will_set_is_not_missing() -> None:
    assert "KV_PIN_WITHOUT_UTIL" not in severities(kv_cache_memory_bytes=2**30)


def test_errors_come_first_and_nothing_is_merely_for_information() -> None:
    found = list(severities(args={"swap_space": 4}).values())
    assert found == sorted(found, key=lambda severity: severity != "error")
    assert "info" not in found

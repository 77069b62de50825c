# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The claims: their schema, when each speaks and when not, and what a finding of theirs says."""

from __future__ import annotations

import pathlib
import re
import typing as t

import pytest
import yaml

from ansible_collections.gb10.fleet.plugins.plugin_utils import _claims as claims
from ansible_collections.gb10.fleet.plugins.plugin_utils._claims import Claim, ClaimError

EXAMPLES = yaml.safe_load((pathlib.Path(__file__).parent / "fixtures" / "claims.yml").read_text(encoding="utf-8"))
BY_ID = {claim.id: claim for claim in claims.load()}
TODAY = "2026-11-29"


def data(**more: t.Any) -> dict[str, t.Any]:
    return {
        "id": "SOME_CLAIM",
        "scope": "vllm",
        "when": {"fact": "vllm", "is": "0.1.0"},
        "verdict": "bad",
        "severity": "error",
        "message": "m",
        "remedy": "r",
        "sources": [{"name": "s", "date": "2026-01-01"}],
        "verified": "2026-01-01",
        "recheck": "2026-06-01",
    } | more


def test_every_claim_has_an_example_and_every_example_a_claim() -> None:
    assert sorted(EXAMPLES) == sorted(BY_ID)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_claim_fires_and_keeps_quiet(name: str) -> None:
    when = BY_ID[name].when
    assert claims.holds(when, EXAMPLES[name]["fires"]) is True
    assert claims.holds(when, EXAMPLES[name]["quiet"]) is False


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_a_claim_says_is_complete(name: str) -> None:
    found = [one for one in claims.claims_for(EXAMPLES[name]["fires"], TODAY) if one.id == name]
    assert len(found) == 1
    assert found[0].claim == name
    assert not re.search(r"[{}]|None", re.sub(r'"[^"]*"', "", found[0].message))
    assert BY_ID[name].verified in found[0].evidence
    assert all(source.name in found[0].evidence and source.date in found[0].evidence for source in BY_ID[name].sources)


@pytest.mark.parametrize(
    "name",
    [
        "DRIVER_590_NOT_REQUIRED",
        "DRIVER_580_178_KERNEL_7",
        "UTILISATION_BINDS_BUT_VARIES",
        "NO_SM121_CUBIN_IS_NO_FAULT",
        "NVFP4_ENV_GONE_IN_0_24",
        "LINEAR_B12X_REFUSED_BEFORE_0_28",
        "B12X_DENSE_AUTO_FROM_0_28",
    ],
)
def test_contradictory_sources_are_both_named_and_decided(name: str) -> None:
    claim = BY_ID[name]
    assert len({source.says for source in claim.sources if source.says}) >= 2
    finding = next(one for one in claims.claims_for(EXAMPLES[name]["fires"], TODAY) if one.id == name)
    assert f"decided: {claim.decided}" in finding.evidence


def test_a_claim_past_its_date_is_stale_and_not_dropped() -> None:
    facts = {"driver": "590.48.01"}
    recheck = BY_ID["DRIVER_590_48_LEAKS"].recheck
    (on_the_day,) = claims.claims_for(facts, recheck)
    (after,) = claims.claims_for(facts, "2099-01-01")
    assert not on_the_day.message.startswith("(stale)")
    assert after.message == f"(stale) {on_the_day.message}"
    assert after.severity == on_the_day.severity == "error"
    assert after.evidence.startswith(f"stale: it was to be checked again by {recheck}")


def test_the_gravest_comes_first_and_the_same_facts_say_the_same() -> None:
    facts = {"driver": "590.48.01", "kernel": "6.17.0-1032-nvidia", "flags": {"gpu_memory_utilization": 0.83}}
    first = claims.claims_for(facts, TODAY)
    assert [one.severity for one in first] == sorted(
        (one.severity for one in first), key=["error", "warning", "info"].index
    )
    assert claims.claims_for(facts, TODAY) == first


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"id": "lower"}, "the id is not UPPER_SNAKE"),
        ({"scope": "moon"}, "the scope moon is not one of"),
        ({"verdict": "maybe"}, "the verdict maybe is not one of"),
        ({"severity": "fatal"}, "the severity fatal is not one of"),
        ({"message": ""}, "the message is empty"),
        ({"sources": []}, "the sources is empty"),
        ({"verified": "yesterday"}, "'yesterday' is not a date"),
        ({"recheck": "2025-01-01"}, "the re-check date is not after the verified date"),
        ({"decided": "so"}, "decided needs them"),
        ({"sources": [{"name": "s", "date": "2026-01-01", "says": "x"}]}, "need decided"),
        ({"colour": "red"}, "there is no key colour"),
    ],
)
def test_the_schema(wrong: dict[str, t.Any], says: str) -> None:
    with pytest.raises(ClaimError, match=re.escape(says)):
        Claim.from_data(data(**wrong))


def test_a_missing_key() -> None:
    without = data()
    del without["remedy"]
    with pytest.raises(ClaimError, match=re.escape("SOME_CLAIM: remedy is missing.")):
        Claim.from_data(without)


@pytest.mark.parametrize(
    ("condition", "facts", "answer"),
    [
        ({"fact": "a", "is": 1}, {}, None),
        ({"fact": "a.b", "is": 1}, {"a": {}}, False),
        ({"fact": "a.b", "given": False}, {"a": {}}, True),
        ({"fact": "a", "known": False}, {}, True),
        ({"not": {"fact": "a", "is": 1}}, {}, None),
        ({"not": {"fact": "a", "is": 1}}, {"a": 2}, True),
        ({"all": [{"fact": "a", "is": 1}, {"fact": "b", "is": 1}]}, {"a": 2}, False),
        ({"all": [{"fact": "a", "is": 1}, {"fact": "b", "is": 1}]}, {"a": 1}, None),
        ({"any": [{"fact": "a", "is": 1}, {"fact": "b", "is": 1}]}, {"a": 1}, True),
        ({"any": [{"fact": "a", "is": 1}, {"fact": "b", "is": 1}]}, {"a": 2}, None),
        ({"fact": "a", "is": "X"}, {"a": "x"}, True),
        ({"fact": "a", "below": "0.24.0"}, {"a": "0.24.0rc1"}, True),
        ({"fact": "a", "from": "0.24.0"}, {"a": "0.24.0+cu130"}, True),
        ({"fact": "a", "from": "580", "below": "581"}, {"a": "580.126.09"}, True),
        ({"fact": "a", "above": 0.8}, {"a": "0.85"}, True),
        ({"fact": "a", "above": 0.8}, {"a": "auto"}, None),
        ({"fact": "a", "below": "0.24.0"}, {"a": "nightly"}, None),
        ({"fact": "a", "below": "0.24.0"}, {"a": None}, False),
        ({"fact": "a", "below": {"fact": "b"}}, {"a": 1}, None),
        ({"fact": "a", "below": {"fact": "b"}}, {"a": 1, "b": 2}, True),
    ],
)
def test_conditions(condition: dict[str, t.Any], facts: dict[str, t.Any], answer: bool | None) -> None:
    assert claims.holds(condition, facts) is answer


def test_today_has_to_be_a_date() -> None:
    with pytest.raises(ClaimError, match="'tomorrow' is not a date"):
        claims.claims_for({}, "tomorrow")

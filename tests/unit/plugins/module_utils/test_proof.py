# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import collections.abc as c
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _boot_sources, _probe, _proof
from tests.unit.support import openai_server as fake

POOL = "(EngineCore pid=9) INFO 11-29 10:00:00 [kv_cache_utils.py:1147] GPU KV cache size: {:,} tokens\n"
BACKEND = "INFO 11-29 10:00:00 [nvfp4.py:239] Using 'EMULATION' NvFp4 MoE backend out of potential backends: ['x'].\n"
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"


def settings(**changes: t.Any) -> dict[str, t.Any]:
    found: dict[str, t.Any] = {
        "url": "http://127.0.0.1:1",
        "models": ["writer"],
        "kind": "chat",
        "secrets_file": "",
        "proof_timeout_s": 2,
        "checks": [],
        "expects": {},
        "planned": {"kv_tokens": 2176},
    }
    return {**found, **changes}


def log(*lines: str) -> c.Callable[[str], str]:
    return lambda _unit: "".join(lines)


@pytest.mark.parametrize(
    ("tokens", "ok"), [(2176, True), (2176 * 98 // 100 + 1, True), (2100, False), (1088, False), (2300, False)]
)
def test_a_pool_more_than_two_percent_off_the_plan_is_no_proof(tokens: int, ok: bool) -> None:
    with fake.OpenAIServer() as server:
        server.models = ["writer"]
        proof = _proof.prove("writer", settings(url=server.url), booted=True, read_log=log(POOL.format(tokens), READY))
        asked = len(server.requests)
    assert proof.ok is ok, proof.reason
    assert (asked > 0) is ok  # what did not boot as planned need not be asked
    if not ok:
        assert "vllm-writer.service did not boot as planned: The KV pool holds" in proof.reason


def test_another_backend_than_expected_is_no_proof() -> None:
    wanted = settings(expects={"moe_backend": "FLASHINFER_CUTLASS"})
    proof = _proof.prove("writer", wanted, booted=True, read_log=log(BACKEND, READY))
    assert not proof.ok
    assert "EMULATION" in proof.reason


def test_an_instance_that_was_not_booted_for_the_proof_is_only_asked() -> None:
    with fake.OpenAIServer() as server:
        server.models = ["writer"]
        proof = _proof.prove("writer", settings(url=server.url), booted=False, read_log=log(POOL.format(1)))
    assert proof.ok
    assert proof.boot == {}
    assert proof.probe["chat"]["text"]


def test_a_boot_that_left_no_log_is_unknown_and_not_wrong() -> None:
    def nothing(_unit: str) -> str:
        raise _boot_sources.BootSourceError("the journal shows nothing")

    found = _proof.boot_of("vllm-writer.service", settings(), nothing)
    assert found == {"state": "unknown", "reason": "the journal shows nothing", "findings": []}


def test_an_instance_that_does_not_answer_is_no_proof() -> None:
    proof = _proof.prove("writer", settings(), booted=False)
    assert not proof.ok
    assert proof.reason.startswith("vllm-writer.service does not answer as it should: ")


def test_a_rank_without_a_server_is_proven_by_its_head_and_its_boot() -> None:
    rank, agreed = settings(group={"rank": 1}), []

    def agree(name: str, **_options: object) -> str:
        agreed.append(name)
        return ""

    assert _proof.prove("writer", rank, booted=True, read_log=log(POOL.format(2176)), agree=agree).ok
    assert not _proof.prove("writer", rank, booted=True, read_log=log(POOL.format(1088)), agree=agree).ok
    # Nobody else is proven anew where this rank was not booted.
    assert _proof.prove("writer", rank, booted=False, agree=agree).ok
    assert agreed == ["writer"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_proven_when_the_others_are(rank: int) -> None:
    with fake.OpenAIServer() as server:
        server.models = ["writer"]
        asked = settings(url=server.url, group={"rank": rank})
        no = "rank 2 (spark-3) was not."
        proof = _proof.prove("writer", asked, booted=True, read_log=log(""), agree=lambda *_args, **_options: no)
    assert (proof.ok, proof.reason) == (False, no)


@pytest.mark.parametrize(("booted", "limits"), [(True, [7.0, 21.0]), (False, [7.0])])
def test_an_engine_that_others_keep_busy_is_given_more_time_and_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch, booted: bool, limits: list[float]
) -> None:
    given: list[float] = []

    def wait(_options: object, *, timeout: float, **_other: object) -> _probe.Verdict:
        given.append(timeout)
        return _probe.Verdict(ready=False, stage="busy", evidence={}, ttft_ms=None, findings=())

    monkeypatch.setattr(_probe, "wait_until_ready", wait)
    proof = _proof.prove("writer", settings(proof_timeout_s=7), booted=booted, read_log=log(POOL.format(2176)))
    assert (proof.ok, proof.busy, given) == (False, True, limits)


def test_a_deploy_asks_for_more_than_a_start() -> None:
    full = settings(checks=["chat", "tools"])
    assert _proof.options(full, full=True).checks == ("chat", "tools")
    assert _proof.options(full).checks == ()


def test_the_key_is_read_from_the_container_s_secrets(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "writer.env"
    path.write_text("# Rendered by gb10.fleet\nHF_TOKEN=one\nVLLM_API_KEY=two=three\n")
    assert _proof.secret(str(path), "VLLM_API_KEY") == "two=three"
    assert _proof.secret(str(path), "OTHER") == ""
    assert _proof.secret("", "VLLM_API_KEY") == ""

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _openai_api, _probe
from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import InputError
from ansible_collections.gb10.fleet.plugins.module_utils._probe import Options, Verdict, probe, wait_until_ready
from ansible_collections.gb10.fleet.plugins.module_utils._probe_findings import STAGES
from ansible_collections.gb10.fleet.plugins.module_utils._process_state import ProcessState
from tests.unit.support import openai_server as fake
from tests.unit.support.faults import FAULTS, get, post_all
from tests.unit.support.probing import SkipClock, free_port, ids, look, state, wait

if t.TYPE_CHECKING:
    import collections.abc

KEY = "sk-lab-0123456789"


@pytest.fixture
def server() -> collections.abc.Iterator[fake.OpenAIServer]:
    with fake.OpenAIServer() as running:
        yield running


def text_of(verdict: Verdict) -> str:
    return json.dumps(verdict.as_dict()) + verdict.summary + repr(verdict)


# every fault has its verdict


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_fault_is_called_by_its_name(
    server: fake.OpenAIServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probe, "HEALTH_WAIT_S", 0.3)
    fault = FAULTS[name]
    fault.set_up(server)
    verdict = look(server, model="lab/tiny", request_timeout=fault.patience, timeout=fault.timeout)
    assert verdict.stage == fault.stage, verdict.as_dict()
    assert not fault.finding or fault.finding in ids(verdict)
    assert verdict.ready is (fault.stage in {"ready", "degraded"})
    assert all(found.message and found.remedy for found in verdict.findings)
    # What leaves the probe can be printed and stored anywhere.
    assert json.dumps(verdict.as_dict(), ensure_ascii=False).encode("utf-8")
    assert verdict.summary.isprintable()
    assert verdict.summary.startswith(verdict.stage)


def test_every_stage_is_met_by_some_test() -> None:
    met = {fault.stage for fault in FAULTS.values()}
    met |= {"starting", "dead", "tls_failed", "auth_failed", "capability_failed", "out_of_time"}  # further down
    assert met == set(STAGES)


def test_a_verdict_is_frozen(server: fake.OpenAIServer) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        look(server).ready = False  # type: ignore[misc]


# process and port


@pytest.mark.parametrize(
    ("life", "stage", "finding"),
    [
        ("alive", "starting", "ENGINE_STARTING"),
        ("restarting", "starting", "PROCESS_RESTARTING"),
        ("gone", "dead", "PROCESS_GONE"),
        ("unknown", "unreachable", "NO_LISTENER"),
    ],
)
@pytest.mark.parametrize("closes", [False, True], ids=["refused", "port_proxy_closes"])
def test_a_closed_port_is_starting_or_dead_as_the_process_says(
    server: fake.OpenAIServer, life: str, stage: str, finding: str, closes: bool
) -> None:
    if closes:
        FAULTS["port_proxy_closes"].set_up(server)
    else:
        server.stop()
    verdict = look(server, process=state(life))
    assert (verdict.stage, ids(verdict)) == (stage, [finding])
    assert verdict.evidence["process"] == {"life": life, "detail": f"it is {life}"}


def test_without_a_process_nothing_is_claimed_about_it(server: fake.OpenAIServer) -> None:
    server.stop()
    assert (look(server).stage, look(server).evidence["process"]["life"]) == ("unreachable", "unknown")


@pytest.mark.parametrize(
    ("life", "stage", "findings"),
    [
        ("gone", "port_squatter", ["PORT_SQUATTER", "PROCESS_GONE"]),
        ("restarting", "port_squatter", ["PORT_SQUATTER", "PROCESS_RESTARTING"]),
    ],
)
def test_whoever_answers_for_a_process_that_is_not_there_is_a_stranger(
    server: fake.OpenAIServer, life: str, stage: str, findings: list[str]
) -> None:
    verdict = look(server, process=state(life))
    assert (verdict.ready, verdict.stage, ids(verdict)) == (False, stage, findings)
    assert not server.asked(fake.CHAT)


def test_a_proxy_in_front_of_an_engine_that_starts_is_no_squatter(server: fake.OpenAIServer) -> None:
    FAULTS["proxy_without_upstream"].set_up(server)
    assert look(server, process=state("alive")).stage == "starting"


def test_plain_http_under_an_https_url(server: fake.OpenAIServer) -> None:
    verdict = probe(Options(f"https://127.0.0.1:{server.port}"), timeout=60)
    assert (verdict.stage, ids(verdict)) == ("tls_failed", ["TLS_FAILED"])


@pytest.mark.parametrize("base_path", ["/llm", "/a/b"])
def test_a_base_path_is_kept(server: fake.OpenAIServer, base_path: str) -> None:
    server.base_path = base_path
    assert probe(Options(f"{server.url}/v1/"), timeout=5).stage == "ready"


def test_an_ipv6_literal() -> None:
    with fake.OpenAIServer("::1") as server:
        assert look(server).evidence["url"] == f"http://[::1]:{server.port}"


# keys


def test_a_right_key_lets_in(server: fake.OpenAIServer) -> None:
    server.api_key = KEY
    verdict = look(server, api_key=KEY)
    assert verdict.stage == "ready"
    assert KEY not in text_of(verdict)


@pytest.mark.parametrize(
    ("key", "stage", "finding"),
    [("", "auth_required", "AUTH_REQUIRED"), (KEY + "x", "auth_failed", "AUTH_FAILED")],
)
def test_401_means_alive_and_says_which_key_is_missing(
    server: fake.OpenAIServer, key: str, stage: str, finding: str
) -> None:
    server.api_key = KEY
    verdict = look(server, api_key=key)
    assert (verdict.stage, ids(verdict), verdict.evidence["health"]) == (stage, [finding], 200)


def test_a_gateway_without_a_version_gets_the_key_once_it_asks(server: fake.OpenAIServer) -> None:
    server.api_key = KEY
    server.script("GET", fake.VERSION, fake.status(404))
    assert look(server, api_key=KEY).stage == "ready"
    assert [request.headers.get("authorization") for request in server.asked(fake.MODELS)] == [None, f"Bearer {KEY}"]


def test_a_gateway_that_guards_completions_alone(server: fake.OpenAIServer) -> None:
    server.script("GET", fake.VERSION, fake.status(404))
    server.script(
        "POST", fake.CHAT, lambda x: fake.answer(x) if "authorization" in x.request.headers else fake.status(401)(x)
    )
    assert look(server, api_key=KEY).stage == "ready"


@pytest.mark.parametrize("name", [name for name in FAULTS if name.startswith("squatter")])
def test_a_squatter_never_sees_the_key(server: fake.OpenAIServer, name: str) -> None:
    FAULTS[name].set_up(server)
    look(server, api_key=KEY)
    assert server.requests
    assert not [request for request in server.requests if "authorization" in request.headers]


def _echo_in_model_list(server: fake.OpenAIServer) -> None:
    server.models = [f"lab/{KEY}", "lab/tiny"]


@pytest.mark.parametrize(
    "set_up",
    [
        post_all(fake.status(500, f"boom {KEY}")),
        post_all(fake.status(400, f"no {KEY}")),
        post_all(fake.say(f"the key is {KEY}")),
        post_all(fake.think(f"the key is {KEY}", None)),
        post_all(fake.body(f"not json {KEY}".encode())),
        get(fake.MODELS, fake.body(f"<html>{KEY}".encode())),
        get(fake.HEALTH, fake.raw(f"Authorization {KEY}\r\n".encode())),
        get(fake.VERSION, fake.body(f'{{"version": "{KEY}"}}'.encode())),
        _echo_in_model_list,
    ],
)
def test_a_server_that_echoes_the_key_does_not_make_us_tell_it(
    server: fake.OpenAIServer, set_up: t.Callable[[fake.OpenAIServer], None]
) -> None:
    set_up(server)
    lines: list[str] = []
    options = Options(server.url, api_key=KEY)
    verdict = wait_until_ready(options, timeout=180, progress=lines.append, sleep=lambda _s: None)
    assert lines
    assert KEY not in text_of(verdict) + "".join(lines)


# model


def test_a_wrong_model_is_told_what_is_served(server: fake.OpenAIServer) -> None:
    server.models = ["deepseek-ai/DeepSeek-V4-Flash", "alias"]
    verdict = look(server, model="deepseek-v4-flash")
    assert (verdict.stage, ids(verdict)) == ("wrong_model", ["WRONG_MODEL"])
    assert "deepseek-ai/DeepSeek-V4-Flash, alias" in verdict.summary
    assert not server.asked(fake.CHAT)


@pytest.mark.parametrize(("wanted", "asked"), [("alias", "alias"), ("", "lab/tiny")])
def test_any_served_id_will_do(server: fake.OpenAIServer, wanted: str, asked: str) -> None:
    server.models = ["lab/tiny", "alias"]
    assert look(server, model=wanted).stage == "ready"
    assert {request.json["model"] for request in server.asked(fake.CHAT)} == {asked}


def test_a_model_that_is_listed_and_not_there(server: fake.OpenAIServer) -> None:
    post_all(fake.status(404, "The model `lab/tiny` does not exist."))(server)
    assert look(server).stage == "wrong_model"


def test_an_adapter_has_the_length_of_its_base_model(server: fake.OpenAIServer) -> None:
    cards = [{"id": "lab/tiny", "max_model_len": 512}, {"id": "adapter", "max_model_len": None}]
    server.models.append("adapter")
    server.script("GET", fake.MODELS, fake.body(json.dumps({"data": cards}).encode()))
    assert look(server, model="adapter").evidence["max_model_len"] == 512


@pytest.mark.parametrize("cards", ['[{"id": 7}]', "[null, 3]", '[{"name": "x"}]'])
def test_cards_without_an_id_are_no_models(server: fake.OpenAIServer, cards: str) -> None:
    server.script("GET", fake.MODELS, fake.body(f'{{"data": {cards}}}'.encode()))
    assert ids(look(server)) == ["NO_MODEL_SERVED"]


@pytest.mark.parametrize("length", ['"512"', "-1", "true", "1e3", "null"])
def test_an_odd_context_length_is_no_length(server: fake.OpenAIServer, length: str) -> None:
    body = f'{{"data": [{{"id": "lab/tiny", "max_model_len": {length}}}]}}'
    server.script("GET", fake.MODELS, fake.body(body.encode()))
    server.max_model_len = None
    verdict = look(server)
    assert (verdict.stage, verdict.evidence["max_model_len"]) == ("ready", None)


def test_a_list_of_models_that_vllm_itself_cannot_give(server: fake.OpenAIServer) -> None:
    server.script("GET", fake.MODELS, fake.body(b"{}"))
    assert (look(server).stage, ids(look(server))) == ("bad_reply", ["REPLY_MALFORMED"])


@pytest.mark.parametrize(
    ("action", "stage"), [(fake.status(500), "engine_dead"), (fake.reset, "engine_dead"), (fake.endless, "bad_reply")]
)
def test_a_list_of_models_that_fails(server: fake.OpenAIServer, action: fake.Action, stage: str) -> None:
    server.script("GET", fake.MODELS, action)
    assert look(server).stage == stage


# waiting
def test_a_server_that_comes_up_is_waited_for() -> None:
    port = free_port()
    server: list[fake.OpenAIServer] = []
    clock = SkipClock({40: lambda: server.append(fake.OpenAIServer(port=port).start())})
    verdict, lines = wait(f"http://127.0.0.1:{port}", clock, process=state("alive"))
    server[0].stop()
    assert (verdict.stage, verdict.evidence["attempts"], verdict.evidence["waited_s"] >= 80) == ("ready", 41, True)
    assert [line.split(": ")[1] for line in lines] == ["starting"] * 3 + ["ready"]
    assert lines[0].startswith("0 s of 600 s: starting: At http://127.0.0.1:")


@pytest.mark.parametrize(
    ("life", "stage"), [("alive", "starting"), ("unknown", "unreachable"), ("restarting", "starting")]
)
def test_waiting_ends_at_the_deadline(life: str, stage: str) -> None:
    clock = SkipClock()
    verdict, lines = wait(f"http://127.0.0.1:{free_port()}", clock, timeout=20, process=state(life))
    assert (verdict.ready, verdict.stage) == (False, stage)
    assert ids(verdict)[-1] == "OUT_OF_TIME"
    assert sum(clock.sleeps) < 20
    assert f"still {stage} after" in lines[-1]


@pytest.mark.parametrize(
    "fault",
    ["wrong_model", "no_model", "auth_required", "squatter_ssh", "squatter_html", "squatter_404"],
)
def test_what_waiting_cannot_cure_ends_it_at_once(server: fake.OpenAIServer, fault: str) -> None:
    FAULTS[fault].set_up(server)
    clock = SkipClock()
    lines: list[str] = []
    options = Options(server.url, model="lab/tiny")
    verdict = wait_until_ready(options, timeout=600, progress=lines.append, clock=clock, sleep=clock.sleep)
    assert (verdict.stage, clock.sleeps, len(lines)) == (FAULTS[fault].stage, [], 1)


@pytest.mark.parametrize(("life", "stage"), [("alive", "hung"), ("unknown", "unreachable")])
def test_a_listener_that_accepts_nobody_hangs_where_its_process_is_alive(
    monkeypatch: pytest.MonkeyPatch, life: str, stage: str
) -> None:
    """As a stopped process does (SIGSTOP), once its clients have filled the queue of its port."""
    monkeypatch.setattr(_openai_api, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(_probe, "CONNECT_TIMEOUT_S", 0.2)
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for sock in [stack.enter_context(socket.socket()) for _ in range(4)]:
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        verdict = _probe.probe(Options(url, model="lab/tiny"), timeout=30, process=state(life))
    assert verdict.stage == stage
    assert ids(verdict)[-1] == ("SERVER_NOT_ANSWERING" if stage == "hung" else "HOST_UNREACHABLE")


def test_a_process_that_dies_while_starting_ends_the_wait() -> None:
    lives = iter(["alive"] * 5)
    clock = SkipClock()

    def dies() -> ProcessState:
        return ProcessState("alive" if next(lives, None) else "gone", "")

    verdict, lines = wait(f"http://127.0.0.1:{free_port()}", clock, process=dies)
    assert (verdict.stage, len(clock.sleeps)) == ("dead", 5)
    assert "dead: The process is gone" in lines[-1]


@pytest.mark.parametrize(
    "fault",
    ["health_lies_500", "engine_dead_health_503", "garbage_symbols", "garbage_salad", "empty", "not_json", "hang"],
)
def test_what_may_pass_gets_three_tries(server: fake.OpenAIServer, fault: str) -> None:
    FAULTS[fault].set_up(server)
    clock = SkipClock()
    verdict, lines = wait(server.url, clock, request_timeout=FAULTS[fault].patience)
    assert (verdict.stage, verdict.evidence["attempts"]) == (FAULTS[fault].stage, 3)
    assert [line.rsplit("(", 1)[1] for line in lines] == [f"failure {n} of 3 in a row)" for n in (1, 2, 3)]


def test_a_last_look_without_time_does_not_outweigh_the_one_before(server: fake.OpenAIServer) -> None:
    """What is left of the time after a pause may be too short to tell anything; what was seen is still so."""
    FAULTS["hang"].set_up(server)
    clock = SkipClock()
    end = clock() + 600
    clock.at[1] = lambda: vars(clock).update(skipped=clock.skipped + end - clock() - 0.2)
    verdict, lines = wait(server.url, clock, timeout=600, request_timeout=0.3)
    assert (verdict.stage, verdict.evidence["attempts"]) == ("hung", 2)
    assert verdict.summary.startswith("hung: There was no completion")
    assert "It was still hung after 600 s" in verdict.summary
    assert lines[-1].endswith("(failure 1 of 3 in a row)")


def test_a_passing_fault_is_forgiven_and_forgotten(server: fake.OpenAIServer) -> None:
    boom = fake.status(500, "boom")
    busy = fake.status(429, "")
    server.script("POST", fake.CHAT, boom, boom, busy, boom, boom, fake.answer)
    verdict, lines = wait(server.url, SkipClock())
    assert (verdict.stage, verdict.evidence["attempts"]) == ("ready", 6)
    assert [line.split(": ")[1] for line in lines] == ["engine_dead"] * 2 + ["busy"] + ["engine_dead"] * 2 + ["ready"]


def test_a_busy_engine_is_waited_for(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, *[fake.status(429, "")] * 10, fake.answer)
    verdict, _lines = wait(server.url, SkipClock())
    assert (verdict.stage, verdict.evidence["attempts"]) == ("ready", 11)


def test_a_line_comes_now_and_then_though_nothing_changes() -> None:
    clock = SkipClock()
    url = f"http://127.0.0.1:{free_port()}"
    _verdict, lines = wait(url, clock, timeout=100, every=10, process=state("alive"))
    assert 9 <= len(lines) <= 11


def test_bad_options_are_told_before_anything_is_waited_for() -> None:
    clock = SkipClock()
    with pytest.raises(InputError, match="url"):
        wait("spark-1", clock)
    assert clock.sleeps == []

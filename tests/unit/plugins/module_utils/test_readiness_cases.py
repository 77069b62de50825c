# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The readiness cases: what users reported of real boxes, replayed, each with the verdict that it has to get.

The numbers are those of the reports; texts and messages are made up here, with the same features.
"""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _probe
from ansible_collections.gb10.fleet.plugins.module_utils import _text_sanity as sanity
from ansible_collections.gb10.fleet.plugins.module_utils._engine_signs import (
    EngineStats,
    Gpu,
)
from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import Event, Reply, Stream
from ansible_collections.gb10.fleet.plugins.module_utils._probe_reply import from_reply, from_stream, tokens_per_second
from tests.unit.support import openai_server as fake
from tests.unit.support.faults import FAULTS, post_all
from tests.unit.support.probing import SkipClock, ids, look, wait

if t.TYPE_CHECKING:
    import collections.abc


@pytest.fixture
def server() -> collections.abc.Iterator[fake.OpenAIServer]:
    with fake.OpenAIServer() as running:
        running.max_model_len = 131072
        yield running


# 093: garbage of four kinds, and short answers that a check of entropy or of English words would call garbage

GARBAGE = [
    "'t't'd't't't't't't",
    "!!!!!!!!!!!!!!!!!!!!",
    ".eth.\u05e9\n\n7\n at\n of\nthe\nK\n\nK\n\u3002\n\u6e29\u5ea6.... Read the",
    "\u63d0\u5347K\n for.\n.\n\u3002.Q on, a..\n\n<tool_call>\n\n\n\nR..\n\n. for",
    "dockbundlebundlebundle",
]
HONEST = ["Oslo", "2026-11-29T00:00:00Z", "Okay"]


@pytest.mark.parametrize("text", GARBAGE)
def test_093_garbage_is_called_garbage(server: fake.OpenAIServer, text: str) -> None:
    post_all(fake.say(text))(server)
    assert look(server).stage == "garbage"
    assert not {sign.kind for sign in sanity.signs(text)} <= sanity.LEAK


@pytest.mark.parametrize("text", HONEST)
def test_093_short_answers_are_no_garbage(server: fake.OpenAIServer, text: str) -> None:
    post_all(fake.say(text))(server)
    assert sanity.signs(text) == ()
    # Where the answer can be checked, it is the judge: honest or not, this is not what was asked for.
    assert (look(server, checks=("chat",)).stage, look(server).stage) == ("ready", "wrong_answer")


def test_093_chinese_is_an_answer_to_a_chinese_question_and_to_no_other() -> None:
    answer, question = "\u5f88\u9ad8\u5174\u8ba4\u8bc6\u4f60\uff01", "\u4f60\u597d"
    assert sanity.signs(answer, prompt=question) == ()
    assert [sign.kind for sign in sanity.signs(answer, prompt="Hello")] == ["unexpected_script"]


# 094: every path is green, and the engine is wedged


def test_094_frozen_counters_at_high_utilisation_are_a_wedge(server: fake.OpenAIServer) -> None:
    server.metrics = fake.Metrics(generation_tokens=184223, running=3)
    post_all(lambda exchange: exchange.sleep(60))(server)
    gpu = "utilization.gpu [%], clocks.sm [MHz], power.draw [W]\n96 %, 2400 MHz, 22.00 W\n"
    verdict = look(server, request_timeout=0.3, gpu=lambda: gpu)
    assert (verdict.stage, verdict.evidence["health"]) == ("hung", 200)
    assert {"TOKENS_COUNTER_FROZEN", "GB10_LOW_POWER_STATE"} <= set(ids(verdict))
    assert verdict.evidence["counters"]["running"] == 3


def test_094_requests_that_wait_while_none_runs_are_a_wedge(server: fake.OpenAIServer) -> None:
    server.metrics = fake.Metrics(waiting=2)
    FAULTS["hang_in_queue"].set_up(server)
    assert "REQUESTS_WAIT_NONE_RUNS" in ids(look(server, request_timeout=0.3))
    log = (
        "INFO: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s\n"
        "Running: 0 reqs, Waiting: 3 reqs, GPU KV cache usage: 0.0%\n"
    )
    assert [stats.is_stuck for stats in EngineStats.all_from_log(log)] == [True]


# 096: the opposite mistake


def test_096_a_busy_engine_is_neither_dead_nor_given_up(server: fake.OpenAIServer) -> None:
    server.metrics.per_read = 50
    server.script("POST", fake.CHAT, *[fake.hang] * 4, fake.answer)
    verdict, lines = wait(server.url, SkipClock(), request_timeout=0.3)
    assert {line.split(": ")[1] for line in lines} == {"busy", "ready"}
    assert (verdict.ready, verdict.evidence["attempts"]) == (True, 5)


def test_096_a_health_path_that_times_out_is_only_slow(
    server: fake.OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probe, "HEALTH_WAIT_S", 0.3)
    server.script("GET", fake.HEALTH, fake.hang)
    verdict = look(server)
    assert (verdict.ready, ids(verdict)) == (True, ["HEALTH_SLOW"])


# 097: 401


def test_097_401_is_alive_and_unknown_until_a_key_is_given(server: fake.OpenAIServer) -> None:
    server.api_key = "sk-1"
    without, wrong, right = (look(server, api_key=key) for key in ("", "sk-2", "sk-1"))
    assert [verdict.stage for verdict in (without, wrong, right)] == ["auth_required", "auth_failed", "ready"]
    assert without.evidence["health"] == 200


# 098: the renamed field


def test_098_both_names_of_the_reasoning_field_are_read() -> None:
    message = {"role": "assistant", "content": "Jupiter", "tool_calls": []}
    for field in ("reasoning", "reasoning_content"):
        choice = {"message": message | {field: "They want the largest planet."}, "finish_reason": "stop"}
        body = {"choices": [choice], "usage": {"prompt_tokens": 17, "completion_tokens": 42}}
        found = from_reply(Reply(200, {}, json.dumps(body).encode(), 0.1))
        assert (found.content, found.reasoning_field, found.completion_tokens) == ("Jupiter", field, 42)


def test_098_the_first_thought_is_the_first_token() -> None:
    def chunk(at: float, finish: str | None = None, **delta: str) -> Event:
        return Event(at, json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}))

    thoughts = [chunk(0.1 * n, reasoning="hm ") for n in range(1, 300)]
    events = (chunk(0.05, role="assistant"), *thoughts, chunk(30.0, content="Jupiter"), chunk(30.1, "stop"))
    found = from_stream(Stream(Reply(200, {}, b"", 31.0), events, 0.0, done=True))
    assert found.timing is not None
    assert found.timing.first_token_s == 0.1


# 099: the whole answer in the reasoning field


def test_099_an_answer_in_the_reasoning_field_alone_fails(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, fake.think("\u5f88\u9ad8\u5174\uff01", None, field="reasoning_content"))
    verdict = look(server)
    assert (verdict.stage, ids(verdict)) == ("no_answer", ["ANSWER_IN_REASONING_CONTENT_NULL"])
    # It was asked once with thinking off and once as the server likes it.
    assert ["chat_template_kwargs" in request.json for request in server.asked(fake.CHAT)] == [True, False]


# 101, 102: a used-up budget


@pytest.mark.parametrize(
    "action",
    [
        fake.say("", "length", tokens=8153, reasoning=None),
        fake.say("", "length", tokens=26000, reasoning="so " * 32569),
        fake.think('Well, they said "h', None, "length"),
    ],
)
def test_101_102_a_used_up_budget_is_no_garbage_and_no_reason_to_restart(
    server: fake.OpenAIServer, action: fake.Action
) -> None:
    server.script("POST", fake.CHAT, action)
    verdict = look(server)
    assert (verdict.stage, ids(verdict)) == ("budget", ["TOKEN_BUDGET_EXHAUSTED"])


def test_102_the_probe_itself_allows_enough(server: fake.OpenAIServer) -> None:
    look(server)
    asked = server.asked(fake.CHAT)[0].json
    assert (asked["max_tokens"], asked["chat_template_kwargs"]["enable_thinking"]) == (256, False)


# 103: thoughts in the text


def test_103_leaked_thoughts_are_a_missing_parser_and_no_garbage(server: fake.OpenAIServer) -> None:
    def action(exchange: fake.Exchange) -> None:
        total = fake.honest_text(exchange.request.prompt)
        fake.say(f"Thinking Process:\n\n1.  **Read it:** a sum of two numbers.\n2.  ...\n</think>\n\n{total}")(exchange)

    server.script("POST", fake.CHAT, action)
    verdict = look(server)
    assert (verdict.ready, verdict.stage, ids(verdict)) == (True, "degraded", ["REASONING_IN_CONTENT"])
    assert "--reasoning-parser" in verdict.findings[0].remedy


# 104, 105, 107: tool calls


def test_104_a_call_in_the_streamed_text_is_a_lost_call(server: fake.OpenAIServer) -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'

    def action(exchange: fake.Exchange) -> None:
        lost = "tools" in exchange.request.json and exchange.request.streamed
        (fake.say(text, tool_calls=[]) if lost else fake.answer)(exchange)

    server.script("POST", fake.CHAT, action)
    verdict = look(server, checks=("chat", "answer", "tools"))
    assert (verdict.stage, ids(verdict)) == ("capability_failed", ["TOOL_CALL_IN_CONTENT"])
    assert verdict.evidence["checks"] == {"chat": "ok", "tools": "failed when streamed"}


def test_105_no_content_beside_a_tool_call_is_right(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, fake.answer)
    verdict = look(server, checks=("tools",))
    assert (verdict.stage, verdict.evidence["tools"]["text"]) == ("ready", "")
    assert verdict.evidence["tools"]["calls"] == ['get_weather({"city": "Kansas City"})']


def test_107_two_missing_flags_are_named(server: fake.OpenAIServer) -> None:
    words = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    refusal = fake.body(json.dumps({"object": "error", "message": words, "code": 400}).encode(), 400)
    server.script("POST", fake.CHAT, lambda x: (refusal if "tools" in x.request.json else fake.answer)(x))
    verdict = look(server, checks=("chat", "tools"))
    assert (verdict.stage, ids(verdict)) == ("capability_failed", ["TOOL_CHOICE_FLAGS_MISSING"])


# 108: a request that the API allows and the template refuses


def test_108_nothing_is_sent_that_a_template_may_refuse(server: fake.OpenAIServer) -> None:
    def picky(exchange: fake.Exchange) -> None:
        if "reasoning_effort" in exchange.request.json:
            exchange.send_error(400, "This template knows no reasoning effort of that name.")
        else:
            fake.answer(exchange)

    server.script("POST", fake.CHAT, picky)
    assert look(server).stage == "ready"


# 109: a parser that could not be set up


def test_109_an_inactive_parser_shows_in_the_text_too(server: fake.OpenAIServer) -> None:
    FAULTS["reasoning_leaks"].set_up(server)
    assert look(server).stage == "degraded"


# 110: the platform's low-power state


@pytest.mark.parametrize(
    ("row", "low"),
    [
        ("96 %, P0, 799 MHz, 2418 MHz, 3003 MHz, 19.50 W, 51", True),
        ("96 %, P0, 2281 MHz, 2418 MHz, 3003 MHz, 92.50 W, 70", False),
        ("96 %, P0, 2150 MHz, 2418 MHz, 3003 MHz, 92.50 W, 70", False),
    ],
)
def test_110_a_third_of_the_clock_under_load_is_no_power_cap(row: str, low: bool) -> None:
    names = "utilization.gpu,pstate,clocks.sm,clocks.applications.gr,clocks.max.gr,power.draw,temperature.gpu"
    gpu = Gpu.from_csv(f"{names}\n{row}\n")
    assert gpu is not None
    assert gpu.is_low_power is low


# 112: chunks are not tokens


def test_112_a_rate_is_of_the_servers_tokens() -> None:
    measured = [(283, 283, 24.8), (105, 345, 13.5)]  # chunks, tokens, seconds without and with speculation
    assert [tokens_per_second(tokens, seconds) for _, tokens, seconds in measured] == [11.4, 25.6]
    assert [tokens_per_second(chunks, seconds) for chunks, _, seconds in measured] == [11.4, 7.8]  # what it must not be
    assert [round(tokens / chunks, 2) for chunks, tokens, _ in measured] == [1.0, 3.29]


# 090, 119: from other categories, for the probe as well


def test_090_the_served_ids_are_named(server: fake.OpenAIServer) -> None:
    server.models = ["deepseek-ai/DeepSeek-V4-Flash"]
    verdict = look(server, model="deepseek-v4-flash")
    assert (verdict.stage, verdict.evidence["served_models"]) == ("wrong_model", ["deepseek-ai/DeepSeek-V4-Flash"])


def test_119_a_pooling_model_is_probed_in_its_own_way(server: fake.OpenAIServer) -> None:
    server.kind = "embedding"
    verdict = look(server)
    assert (verdict.stage, verdict.evidence["embeddings"]["path"]) == ("ready", "/v1/embeddings")
    assert verdict.summary == "ready: it turns texts into vectors"

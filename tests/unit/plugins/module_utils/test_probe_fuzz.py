# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever a server sends, a probe ends with a verdict."""

from __future__ import annotations

import json
import typing as t

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.support import openai_server as fake
from tests.unit.support.probing import look

if t.TYPE_CHECKING:
    import collections.abc

CALM = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        name: JSON | st.text(max_size=30)
        for name in ("content", "reasoning", "reasoning_content", "tool_calls", "role", "text")
    },
)
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "message": MESSAGE | JSON,
        "delta": MESSAGE | JSON,
        "text": JSON,
        "finish_reason": st.sampled_from(["stop", "length", "tool_calls", "error", None]) | JSON,
    },
)
ANSWER = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(CHOICE, max_size=2) | JSON, "usage": JSON, "error": JSON, "data": JSON}
)


@pytest.fixture
def server() -> collections.abc.Iterator[fake.OpenAIServer]:
    with fake.OpenAIServer() as running:
        yield running


def judged(server: fake.OpenAIServer, **options: t.Any) -> None:
    verdict = look(server, sleep=lambda _seconds: None, **options)
    assert verdict.ready is (verdict.stage in {"ready", "degraded"})
    assert json.dumps(verdict.as_dict(), ensure_ascii=False).encode("utf-8")
    assert verdict.summary.isprintable()


@CALM
@given(answer=ANSWER | JSON)
def test_any_json_for_an_answer(server: fake.OpenAIServer, answer: t.Any) -> None:
    for path in (fake.CHAT, fake.COMPLETIONS):
        server.script("POST", path, fake.body(json.dumps(answer).encode()))
    judged(server, checks=("chat", "completions", "answer", "tools", "structured"))


@CALM
@given(answers=st.lists(ANSWER | JSON | st.text(max_size=20), max_size=4))
def test_any_events_for_a_stream(server: fake.OpenAIServer, answers: list[t.Any]) -> None:
    def action(exchange: fake.Exchange) -> None:
        exchange.start_stream()
        for answer in answers:
            exchange.event(answer)
        exchange.end_stream()

    server.script("POST", fake.CHAT, action)
    judged(server, checks=("stream", "tools"))


@CALM
@given(data=st.binary(max_size=200), head=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]))
@pytest.mark.parametrize("path", [fake.HEALTH, fake.VERSION, fake.MODELS, fake.METRICS, fake.CHAT])
def test_any_bytes_on_the_wire(server: fake.OpenAIServer, path: str, data: bytes, head: bytes) -> None:
    server.script("POST" if path == fake.CHAT else "GET", path, fake.raw(head + data))
    judged(server)


@CALM
@given(cards=JSON, embeddings=JSON)
def test_any_json_for_models_and_vectors(server: fake.OpenAIServer, cards: t.Any, embeddings: t.Any) -> None:
    server.script("POST", fake.EMBEDDINGS, fake.body(json.dumps({"data": embeddings}).encode()))
    judged(server, checks=("embeddings",))
    server.script("GET", fake.MODELS, fake.body(json.dumps({"data": cards}).encode()))
    judged(server)


@CALM
@given(text=st.text(max_size=300), reason=st.sampled_from(["stop", "length"]))
def test_any_text_for_an_answer(server: fake.OpenAIServer, text: str, reason: str) -> None:
    server.script("POST", fake.CHAT, fake.say(text, reason))
    judged(server)

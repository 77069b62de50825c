# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _probe_reply as replies
from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import ApiError, Event, Reply, Stream
from ansible_collections.gb10.fleet.plugins.module_utils._probe_reply import ToolCall


def whole(data: t.Any) -> replies.Completion:
    return replies.from_reply(Reply(200, {}, json.dumps(data).encode(), 0.1))


def streamed(
    *chunks: t.Any, done: bool = True, failure: ApiError | None = None, every: float = 0.5
) -> replies.Completion:
    events = [Event(10.0 + every * (i + 1), c if isinstance(c, str) else json.dumps(c)) for i, c in enumerate(chunks)]
    return replies.from_stream(Stream(Reply(200, {}, b"", 9.0), tuple(events), 10.0, done, failure))


def delta(finish_reason: str | None = None, **fields: t.Any) -> dict[str, t.Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def message(finish_reason: t.Any = "stop", **fields: t.Any) -> dict[str, t.Any]:
    return {"choices": [{"message": fields, "finish_reason": finish_reason}]}


@pytest.mark.parametrize(
    ("data", "content", "reasoning", "field"),
    [
        (message(content="12"), "12", "", ""),
        (message(content=None), "", "", ""),
        (message(), "", "", ""),
        (message(content=7), "", "", ""),
        (message(content=[{"type": "text", "text": "1"}, {"type": "image"}, {"text": "2"}]), "12", "", ""),
        (message(content="12", reasoning="sum"), "12", "sum", "reasoning"),
        (message(content=None, reasoning_content="sum"), "", "sum", "reasoning_content"),
        (message(content="12", reasoning=None, reasoning_content="sum"), "12", "sum", "reasoning_content"),
        ({"choices": [{"text": " 12", "finish_reason": "stop"}]}, " 12", "", ""),
    ],
)
def test_text_is_found_where_it_is(data: t.Any, content: str, reasoning: str, field: str) -> None:
    found = whole(data)
    assert (found.content, found.reasoning, found.reasoning_field, found.problem) == (content, reasoning, field, "")


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        "text",
        7,
        {"choices": None},
        {"choices": {}},
        {"choices": [7]},
        {"choices": [{}]},
        message() | {"choices": []},
    ],
)
def test_an_answer_of_another_shape_is_a_problem(data: t.Any) -> None:
    assert whole(data).problem


@pytest.mark.parametrize(
    ("usage", "prompt", "completion"),
    [
        ({"prompt_tokens": 20, "completion_tokens": 3}, 20, 3),
        ({"prompt_tokens": 20}, 20, None),
        ({"prompt_tokens": "20", "completion_tokens": True}, None, None),
        ({"prompt_tokens": -1, "completion_tokens": 1.5}, None, None),
        (None, None, None),
        ([], None, None),
    ],
)
def test_only_whole_numbers_of_the_server_count(usage: t.Any, prompt: int | None, completion: int | None) -> None:
    found = whole(message(content="12") | {"usage": usage})
    assert (found.prompt_tokens, found.completion_tokens) == (prompt, completion)


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        (None, ()),
        ([], ()),
        ("f", ()),
        ([{"function": {"name": "f", "arguments": "{}"}}], (ToolCall("f", "{}"),)),
        ([{"function": {"name": "f", "arguments": {"a": 1}}}], (ToolCall("f", ""),)),
        ([{"function": None}, 7], (ToolCall("", ""), ToolCall("", ""))),
    ],
)
def test_tool_calls_are_read_as_the_model_wrote_them(calls: t.Any, found: tuple[ToolCall, ...]) -> None:
    completion = whole(message(content=None, tool_calls=calls))
    assert completion.tool_calls == found
    assert completion.is_empty is not bool(found)


def test_a_stream_is_put_together() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 345}}
    found = streamed(delta(role="assistant", content=""), delta(content="1"), delta(content="2"), delta("stop"), usage)
    assert (found.content, found.finish_reason, found.completion_tokens, found.problem) == ("12", "stop", 345, "")
    assert found.timing == replies.Timing(1.0, 1.5, 5)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_the_first_token_may_be_a_thought(field: str) -> None:
    found = streamed(delta(role="assistant", content=""), delta(**{field: "Hm"}), delta(content="12"), delta("stop"))
    assert found.timing is not None
    assert (found.timing.first_token_s, found.reasoning, found.reasoning_field) == (1.0, "Hm", field)


def test_a_streamed_raw_completion_has_text() -> None:
    chunks = [{"choices": [{"text": text, "finish_reason": end}]} for text, end in ((" 1", None), ("2", "stop"))]
    assert streamed(*chunks).content == " 12"


def test_a_streamed_tool_call_is_put_together() -> None:
    parts = [
        [{"index": 0, "function": {"name": "get_weather", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"city"'}}, {"index": 1, "function": {"name": "g"}}],
        [{"index": 0, "function": {"arguments": ': "Oslo"}'}}],
    ]
    found = streamed(*(delta(tool_calls=part) for part in parts), delta("tool_calls"))
    assert found.tool_calls == (ToolCall("get_weather", '{"city": "Oslo"}'), ToolCall("g", ""))
    assert not found.is_empty


def test_an_error_inside_of_a_stream_has_its_status() -> None:
    found = streamed(delta(content="1"), {"error": {"message": "EngineCore encountered an issue.", "code": 500}})
    assert (found.error_status, found.error_message) == (500, "EngineCore encountered an issue.")


@pytest.mark.parametrize("error", [None, "oops", {"code": "x"}, []])
def test_an_error_without_words_is_an_error(error: t.Any) -> None:
    found = streamed({"error": error})
    assert found.error_status == 500
    assert found.error_message


@pytest.mark.parametrize(
    ("completion", "words"),
    [
        (streamed(delta(content="12"), delta("stop"), done=False), "without [DONE]"),
        (streamed(delta(content="12")), "without a finish_reason"),
        (streamed(delta(content="12"), done=False, failure=ApiError("disconnected", "reset")), "broke off (reset)"),
        (streamed("{oops"), "no JSON object"),
        (streamed("[]"), "no JSON object"),
        (streamed(), "without a finish_reason"),
    ],
)
def test_a_stream_without_its_end_is_a_problem(completion: replies.Completion, words: str) -> None:
    assert words in completion.problem


@pytest.mark.parametrize(
    ("tokens", "seconds", "rate"),
    [(283, 24.8, 11.4), (345, 13.5, 25.6), (None, 1.0, None), (0, 1.0, None), (5, 0.0, None)],
)
def test_rates_are_of_tokens_and_never_of_chunks(tokens: int | None, seconds: float, rate: float | None) -> None:
    assert replies.tokens_per_second(tokens, seconds) == rate

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a completion says, read from whatever JSON a server sent: whole answers and streams, chat and raw text.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import (
    Reply,
    Stream,
    parse_json,
    pick,
    whole_number,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that landed in ``tool_calls``; ``arguments`` is the text that the model wrote."""

    name: str
    arguments: str


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """When the parts of a stream arrived, in seconds after the request."""

    first_token_s: float | None
    last_token_s: float | None
    chunks: int


@dataclasses.dataclass(frozen=True, slots=True)
class Completion:
    """One completion. ``problem`` says in words what is wrong with the shape of the answer, if anything is.

    ``error_status`` is the HTTP status that an error inside of a stream carries: vLLM has already said 200 by then.
    """

    content: str = ""
    reasoning: str = ""
    reasoning_field: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    timing: Timing | None = None
    problem: str = ""
    error_message: str = ""
    error_status: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether neither an answer nor a tool call came."""
        return not self.content.strip() and not self.tool_calls


def from_reply(reply: Reply) -> Completion:
    """Read a whole (unstreamed) answer of either completions endpoint."""
    data = reply.json()
    choice = pick(data, "choices", 0)
    if not isinstance(choice, dict):
        return Completion(problem="the answer is no JSON with a choice in it")
    message = choice.get("message")
    if message is None and isinstance(choice.get("text"), str):
        message = {"content": choice["text"]}
    if not isinstance(message, dict):
        return Completion(problem="the answer's choice holds no message")
    field, reasoning = _reasoning(message)
    calls = message.get("tool_calls")
    return Completion(
        content=_text(message.get("content")),
        reasoning=reasoning,
        reasoning_field=field,
        tool_calls=tuple(_tool_call(call) for call in calls) if isinstance(calls, list) else (),
        finish_reason=_text(choice.get("finish_reason")),
        prompt_tokens=_count(data, "prompt_tokens"),
        completion_tokens=_count(data, "completion_tokens"),
    )


def from_stream(stream: Stream) -> Completion:
    """Put the chunks of a stream together. Token counts come from the usage object alone: with speculative decoding
    one chunk carries several tokens, so that chunks count nothing."""
    content: list[str] = []
    reasoning: list[str] = []
    field = ""
    calls: dict[int, list[str]] = {}
    finish_reason = ""
    usage: t.Any = None
    first = last = None
    for event in stream.events:
        data = parse_json(event.data)
        if not isinstance(data, dict):
            return Completion(problem="an event of the stream is no JSON object")
        if "error" in data:
            return _stream_error(data)
        if isinstance(data.get("usage"), dict):
            usage = data
        choice = pick(data, "choices", 0)
        if not isinstance(choice, dict):
            continue  # the last chunk holds usage and no choice
        finish_reason = _text(choice.get("finish_reason")) or finish_reason
        delta = _delta(choice)
        text = _text(delta.get("content"))
        delta_field, thought = _reasoning(delta)
        field = delta_field or field
        content.append(text)
        reasoning.append(thought)
        called = _add_calls(calls, delta.get("tool_calls"))
        if text or thought or called:
            last = event.at - stream.started_at
            first = last if first is None else first
    return Completion(
        content="".join(content),
        reasoning="".join(reasoning),
        reasoning_field=field,
        tool_calls=tuple(ToolCall(*call) for _index, call in sorted(calls.items())),
        finish_reason=finish_reason,
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        timing=Timing(first, last, len(stream.events)),
        problem=_ending_problem(stream, finish_reason),
    )


def tokens_per_second(completion_tokens: int | None, seconds: float) -> float | None:
    """Return the rate of a completion, or None where the server did not count or no time passed."""
    if not completion_tokens or seconds <= 0:
        return None
    return round(completion_tokens / seconds, 1)


def _ending_problem(stream: Stream, finish_reason: str) -> str:
    if stream.failure is not None:
        return f"the stream broke off ({stream.failure.detail})"
    if not stream.done:
        return "the stream ended without [DONE]"
    return "" if finish_reason else "the stream ended without a finish_reason"


def _delta(choice: dict[str, t.Any]) -> dict[str, t.Any]:
    delta = choice.get("delta")
    return delta if isinstance(delta, dict) else {"content": choice.get("text")}


def _stream_error(data: dict[str, t.Any]) -> Completion:
    message = pick(data, "error", "message")
    code = whole_number(data, "error", "code")
    return Completion(
        error_message=message if isinstance(message, str) else "an error without a message",
        error_status=code or 500,
    )


def _text(value: t.Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # content in parts
        return "".join(part for item in value if isinstance(part := pick(item, "text"), str))
    return ""


def _reasoning(message: dict[str, t.Any]) -> tuple[str, str]:
    # vLLM renamed reasoning_content to reasoning; both are out there.
    for field in ("reasoning", "reasoning_content"):
        if text := _text(message.get(field)):
            return field, text
    return "", ""


def _tool_call(call: t.Any) -> ToolCall:
    arguments = pick(call, "function", "arguments")
    return ToolCall(_text(pick(call, "function", "name")), arguments if isinstance(arguments, str) else "")


def _add_calls(calls: dict[int, list[str]], deltas: t.Any) -> bool:
    if not isinstance(deltas, list) or not deltas:
        return False
    for position, delta in enumerate(deltas):
        index = whole_number(delta, "index")
        call = calls.setdefault(position if index is None else index, ["", ""])
        part = _tool_call(delta)
        call[0] += part.name
        call[1] += part.arguments
    return True


def _count(data: t.Any, name: str) -> int | None:
    count = whole_number(data, "usage", name)
    return count if count is not None and count >= 0 else None

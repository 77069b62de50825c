# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ways in which a server was seen to fail, each with the verdict that a probe owes it.

They can be met outside of tests, too::

    PYTHONPATH=. python -m tests.unit.support.faults --port 8000 --fault hang_mid_stream
"""

from __future__ import annotations

import argparse
import dataclasses
import threading
import typing as t

from tests.unit.support.openai_server import (
    CHAT,
    COMPLETIONS,
    HEALTH,
    METRICS,
    MODELS,
    VERSION,
    Action,
    OpenAIServer,
    answer,
    answer_body,
    begin_stream,
    body,
    close,
    cut_body,
    die,
    drip,
    endless,
    hang,
    honest_text,
    odd_chunks,
    queue,
    raw,
    redirect,
    reset,
    say,
    slow,
    status,
    stream_error,
    think,
)

SetUp = t.Callable[[OpenAIServer], None]


def post_all(*actions: Action) -> SetUp:
    """Return a set-up that scripts every completion of a server."""

    def set_up(server: OpenAIServer) -> None:
        for path in (CHAT, COMPLETIONS):
            server.script("POST", path, *actions)

    return set_up


def get(path: str, action: Action) -> SetUp:
    """Return a set-up that scripts one of the plain paths."""
    return lambda server: server.script("GET", path, action)


def _squatter(action: Action) -> SetUp:
    def set_up(server: OpenAIServer) -> None:
        for path in (HEALTH, VERSION, MODELS, METRICS):
            server.script("GET", path, action)

    return set_up


def _set(**values: t.Any) -> SetUp:
    return lambda server: vars(server).update(values)


def _busy(server: OpenAIServer) -> None:
    server.metrics.per_read = 50
    post_all(hang)(server)


def _long_prompt(server: OpenAIServer) -> None:
    server.metrics.running, server.metrics.kv_per_read = 1, 0.001
    post_all(hang)(server)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A way to fail, and what a probe that asks for the model lab/tiny has to call it.

    ``patience`` is the request timeout and ``timeout`` that of the whole probe; they show a hang soon enough.
    """

    set_up: SetUp
    stage: str
    finding: str = ""
    patience: float = 60.0
    timeout: float = 180.0


FAULTS: dict[str, Fault] = {
    "none": Fault(lambda _server: None, "ready"),
    # dead or dying engines
    "health_lies_500": Fault(post_all(status(500, "EngineCore encountered an issue.")), "engine_dead", "ENGINE_DEAD"),
    "dies_at_first_message": Fault(post_all(die), "engine_dead", "ENGINE_DEAD"),
    "engine_dead_health_503": Fault(_set(dead=True), "engine_dead", "ENGINE_DEAD"),
    "error_inside_stream": Fault(lambda s: s.script("POST", CHAT, answer, stream_error), "engine_dead", "ENGINE_DEAD"),
    "finish_reason_error": Fault(post_all(say("", "error")), "engine_dead", "ENGINE_DEAD"),
    "reset_at_completion": Fault(post_all(reset), "engine_dead", "CONNECTION_LOST"),
    "closed_at_completion": Fault(post_all(close), "engine_dead", "CONNECTION_LOST"),
    # hangs
    "hang": Fault(post_all(hang), "hung", "TOKENS_COUNTER_FROZEN", 0.3),
    "hang_in_queue": Fault(post_all(queue), "hung", "REQUESTS_WAIT_NONE_RUNS", 0.3),
    "hang_mid_stream": Fault(
        lambda s: s.script("POST", CHAT, answer, begin_stream(hang)), "hung", "COMPLETION_HUNG", 0.8
    ),
    "hang_mid_body": Fault(post_all(drip), "hung", "COMPLETION_HUNG", 0.3),
    "api_server_stuck": Fault(_squatter(hang), "hung", "SERVER_NOT_ANSWERING", 0.3, 1.5),
    "busy": Fault(_busy, "busy", "ENGINE_BUSY", 0.3),
    "long_prompt": Fault(_long_prompt, "busy", "ENGINE_BUSY", 0.3),
    "too_many_requests": Fault(post_all(status(429, "Too many")), "busy", "ENGINE_BUSY"),
    # slow but well
    "health_hangs_only": Fault(get(HEALTH, hang), "degraded", "HEALTH_SLOW"),
    "slow_first_token": Fault(post_all(slow(0.1)), "ready"),
    # not ours, or not for us
    "auth_required": Fault(_set(api_key="sk-lab"), "auth_required", "AUTH_REQUIRED"),
    "wrong_model": Fault(_set(models=["lab/other"]), "wrong_model", "WRONG_MODEL"),
    "no_model": Fault(_set(models=[]), "wrong_model", "NO_MODEL_SERVED"),
    "squatter_html": Fault(_squatter(body(b"<html>", 200, "text/html")), "port_squatter", "PORT_SQUATTER"),
    "squatter_404": Fault(_squatter(body(b"nope", 404, "text/plain")), "port_squatter", "PORT_SQUATTER"),
    "squatter_ssh": Fault(_squatter(raw(b"SSH-2.0-OpenSSH_9.6\r\n")), "port_squatter", "PORT_SQUATTER"),
    "squatter_redirect": Fault(_squatter(redirect("https://elsewhere/")), "port_squatter", "PORT_SQUATTER"),
    "proxy_without_upstream": Fault(_squatter(body(b"<h1>502", 502)), "unreachable", "UPSTREAM_UNAVAILABLE"),
    "port_proxy_closes": Fault(_squatter(close), "unreachable", "NO_LISTENER"),
    # garbage with HTTP 200
    "garbage_symbols": Fault(post_all(say("!!!!!!!!!!!!!!!!")), "garbage", "TEXT_SYMBOL_RUN"),
    "garbage_words": Fault(post_all(say("a a a a a a a a")), "garbage", "TEXT_REPETITION"),
    "garbage_syllables": Fault(post_all(say("lockhandlehandlehandle")), "garbage", "TEXT_REPETITION"),
    "garbage_nul": Fault(post_all(say("\0\0\0")), "garbage", "TEXT_NUL_BYTES"),
    "garbage_scripts": Fault(post_all(say("\u05d0\u6f22 12")), "garbage", "TEXT_UNEXPECTED_SCRIPT"),
    "garbage_broken_characters": Fault(post_all(say("\ufffd\ufffd 12")), "garbage", "TEXT_REPLACEMENT_CHARACTERS"),
    "garbage_controls": Fault(post_all(say("\x1b[2J 12")), "garbage", "TEXT_CONTROL_CHARACTERS"),
    "garbage_salad": Fault(post_all(say("purple if the velvet, walking")), "wrong_answer", "WRONG_ANSWER"),
    "garbage_when_streamed": Fault(
        lambda s: s.script("POST", CHAT, answer, say("$$$$$$$$$$")), "garbage", "TEXT_SYMBOL_RUN"
    ),
    "garbage_raw_only": Fault(lambda s: s.script("POST", COMPLETIONS, say("\0")), "garbage", "TEXT_NUL_BYTES"),
    # empty answers
    "empty": Fault(post_all(say("")), "no_answer", "EMPTY_ANSWER"),
    "empty_null": Fault(post_all(say(None)), "no_answer", "EMPTY_ANSWER"),
    "empty_budget": Fault(post_all(think("Hmm, so the user", None, "length")), "budget", "TOKEN_BUDGET_EXHAUSTED"),
    "answer_in_reasoning": Fault(post_all(think("12")), "no_answer", "ANSWER_IN_REASONING_CONTENT_NULL"),
    # answers that are none
    "not_json": Fault(post_all(body(b"12")), "bad_reply", "REPLY_MALFORMED"),
    "json_without_choices": Fault(post_all(body(b'{"choices": []}')), "bad_reply", "REPLY_MALFORMED"),
    "json_too_deep": Fault(post_all(body(b"[" * 100_000)), "bad_reply", "REPLY_MALFORMED"),
    "body_cut": Fault(post_all(cut_body), "engine_dead", "CONNECTION_LOST"),
    "body_endless": Fault(post_all(endless), "bad_reply", "REPLY_MALFORMED"),
    "stream_without_done": Fault(
        lambda s: s.script("POST", CHAT, answer, begin_stream(lambda x: x.chunk(b""))), "bad_reply", "STREAM_BROKEN"
    ),
    "stream_reset": Fault(lambda s: s.script("POST", CHAT, answer, begin_stream(reset)), "bad_reply", "STREAM_BROKEN"),
    "stream_not_json": Fault(
        lambda s: s.script("POST", CHAT, answer, begin_stream(lambda x: x.event("{oops"))), "bad_reply", "STREAM_BROKEN"
    ),
    "odd_chunks": Fault(post_all(odd_chunks), "ready"),
    "not_streamed": Fault(
        lambda s: s.script("POST", CHAT, lambda x: x.send(200, answer_body(x))), "degraded", "NOT_STREAMED"
    ),
    # markup and parsers
    "reasoning_leaks": Fault(
        lambda s: s.script("POST", CHAT, lambda x: say(f"<think>Easy.</think>{honest_text(x.request.prompt)}")(x)),
        "degraded",
        "REASONING_IN_CONTENT",
    ),
    "refuses": Fault(
        post_all(status(400, "Unexpected reasoning effort minimal")), "request_refused", "REQUEST_REFUSED"
    ),
}


def main() -> None:
    """Serve until stopped, with one fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", action="append", help="a served model id; may be given several times")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--fault", choices=sorted(FAULTS), default="none")
    args = parser.parse_args()
    with OpenAIServer(args.host, args.port) as server:
        server.models = args.model or server.models
        server.api_key = args.api_key
        FAULTS[args.fault].set_up(server)
        print(f"serving {', '.join(server.models)} at {server.url} with fault {args.fault}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()

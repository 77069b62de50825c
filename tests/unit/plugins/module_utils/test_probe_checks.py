# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import random
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import InputError
from ansible_collections.gb10.fleet.plugins.module_utils._probe import Options, Verdict
from tests.unit.support import openai_server as fake
from tests.unit.support.faults import post_all
from tests.unit.support.probing import ids, look

if t.TYPE_CHECKING:
    import collections.abc

KEY = "sk-lab-0123456789"


@pytest.fixture
def server() -> collections.abc.Iterator[fake.OpenAIServer]:
    with fake.OpenAIServer() as running:
        yield running


def text_of(verdict: Verdict) -> str:
    return json.dumps(verdict.as_dict()) + verdict.summary + repr(verdict)


# what is asked


def test_a_healthy_server_is_ready_after_three_completions(server: fake.OpenAIServer) -> None:
    verdict = look(server, model="lab/tiny")
    assert (verdict.ready, verdict.stage, verdict.rung, verdict.findings) == (True, "ready", "end", ())
    assert verdict.evidence["checks"] == {"chat": "ok", "stream": "ok", "completions": "ok"}
    assert verdict.ttft_ms is not None
    assert [r.path for r in server.requests if r.method == "POST"] == [fake.CHAT, fake.CHAT, fake.COMPLETIONS]


def test_requests_are_reproducible_and_ask_for_nothing_that_templates_refuse(server: fake.OpenAIServer) -> None:
    look(server)
    bodies = [request.json for request in server.requests if request.method == "POST"]
    assert all(body["temperature"] == 0 and body["seed"] == 1 and body["model"] == "lab/tiny" for body in bodies)
    assert not [body for body in bodies if "reasoning_effort" in body]
    chats = [body for body in bodies if "messages" in body]
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False} for body in chats)
    assert [body.get("stream_options") for body in chats] == [None, {"include_usage": True}]


def test_no_two_questions_are_alike(server: fake.OpenAIServer) -> None:
    look(server)
    look(server)
    prompts = [request.prompt for request in server.requests if request.method == "POST"]
    assert len(set(prompts)) >= 5


def test_a_seeded_generator_asks_the_same_again(server: fake.OpenAIServer) -> None:
    first, second = (look(server, rng=random.Random(7)).evidence["chat"]["prompt"] for _ in range(2))
    assert first == second


def test_a_nonce_may_be_echoed_instead(server: fake.OpenAIServer) -> None:
    verdict = look(server, question="echo")
    assert (verdict.stage, verdict.evidence["chat"]["text"]) == (
        "ready",
        verdict.evidence["chat"]["prompt"].rsplit(" ", 1)[1],
    )


@pytest.mark.parametrize(
    ("checks", "paths"),
    [
        (("chat",), [fake.CHAT]),
        (("answer",), [fake.CHAT]),
        (("stream", "answer"), [fake.CHAT]),
        (("chat", "stream"), [fake.CHAT, fake.CHAT]),
        (("completions",), [fake.COMPLETIONS]),
        (("chat", "completions"), [fake.CHAT, fake.COMPLETIONS]),
        (("tools",), [fake.CHAT, fake.CHAT, fake.CHAT]),
        (("structured", "stream"), [fake.CHAT, fake.CHAT]),
    ],
)
def test_checks_say_what_is_asked(server: fake.OpenAIServer, checks: tuple[str, ...], paths: list[str]) -> None:
    assert look(server, checks=checks).stage == "ready"
    assert [request.path for request in server.requests if request.method == "POST"] == paths


def test_the_first_token_may_be_measured_alone(server: fake.OpenAIServer) -> None:
    verdict = look(server, checks=("stream",))
    assert server.asked(fake.CHAT)[0].streamed
    assert verdict.ttft_ms == verdict.evidence["stream"]["ttft_ms"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checks": ("chats",)}, "checks does not know 'chats'"),
        ({"kind": "vision"}, "kind does not know 'vision'"),
        ({"question": "riddle"}, "question does not know"),
        ({"scripts": ("klingon",)}, "scripts does not know"),
        ({"kind": "base", "checks": ("tools",)}, "kind base has not"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"request_timeout": 0.0}, "request_timeout"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, t.Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Options("http://127.0.0.1:1", **options)


def test_the_key_is_not_in_the_options_text() -> None:
    assert KEY not in repr(Options("http://127.0.0.1:1", api_key=KEY))


# token budgets


def _strict(exchange: fake.Exchange) -> None:
    """Refuse, as older versions do, whatever does not fit the context; every character is a token here."""
    prompt = len(exchange.request.prompt) + 30
    wanted = exchange.request.json["max_tokens"]
    context = exchange.server.max_model_len or 128
    if prompt + wanted > context:
        message = f"This model's maximum context length is {context} tokens. However, you requested {prompt + wanted}"
        exchange.send_error(400, message)
    else:
        fake.answer(exchange)


@pytest.mark.parametrize("context", [100, 128, 512, 4096, 262144])
def test_a_small_context_can_be_probed(server: fake.OpenAIServer, context: int) -> None:
    server.max_model_len = context
    post_all(_strict)(server)
    assert look(server).stage == "ready"


def test_a_context_of_unknown_length_is_found_by_shrinking(server: fake.OpenAIServer) -> None:
    server.max_model_len = None
    post_all(_strict)(server)
    assert look(server, checks=("chat",)).stage == "ready"
    assert [request.json["max_tokens"] for request in server.asked(fake.CHAT)] == [256, 64, 16]


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        ("This model's maximum context length is 8 tokens. Please reduce the length of the input prompt.", 1),
        ("max_tokens is too large.", 3),
    ],
)
def test_a_context_that_holds_no_question(server: fake.OpenAIServer, message: str, asked: int) -> None:
    post_all(fake.status(400, message))(server)
    verdict = look(server)
    assert (verdict.stage, ids(verdict)) == ("request_refused", ["CONTEXT_TOO_SMALL"])
    assert len(server.asked(fake.CHAT)) == asked


def _thinks(needed: int, field: str = "reasoning") -> fake.Action:
    def action(exchange: fake.Exchange) -> None:
        enough = exchange.request.json["max_tokens"] >= needed
        text = fake.honest_text(exchange.request.prompt)
        fake.think("Let me see.", text if enough else None, "stop" if enough else "length", field)(exchange)

    return action


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_a_model_that_thinks_gets_room_for_it(server: fake.OpenAIServer, field: str) -> None:
    server.max_model_len = 131072
    server.script("POST", fake.CHAT, _thinks(2000, field))
    verdict = look(server)
    assert (verdict.stage, verdict.evidence["chat"]["reasoning_field"]) == ("ready", field)
    # Once is enough to learn it.
    assert [request.json["max_tokens"] for request in server.asked(fake.CHAT)] == [256, 4096, 4096]


def test_a_used_up_budget_is_not_death(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, _thinks(100_000))
    verdict = look(server, max_tokens=300)
    assert (verdict.stage, ids(verdict)) == ("budget", ["TOKEN_BUDGET_EXHAUSTED"])
    assert [request.json["max_tokens"] for request in server.asked(fake.CHAT)] == [256, 300]


def test_thoughts_in_the_text_get_room_too(server: fake.OpenAIServer) -> None:
    server.max_model_len = 131072

    def action(exchange: fake.Exchange) -> None:
        if exchange.request.json["max_tokens"] > 1000:
            fake.say(f"<think>Well.</think>{fake.honest_text(exchange.request.prompt)}")(exchange)
        else:
            fake.say("<think>Well, let me", "length")(exchange)

    server.script("POST", fake.CHAT, action)
    verdict = look(server)
    assert (verdict.ready, verdict.stage, ids(verdict)) == (True, "degraded", ["REASONING_IN_CONTENT"])


THOUGHT = " ".join(f"Let me look at the {place} part of it once more." for place in ("first", "second", "third"))


def _thinks_aloud(needed: int, *, cut: str = THOUGHT, end: str = "\n</think>\n\n") -> fake.Action:
    """Think in the text, as a model does whose template opens the thought, where no parser takes it out."""

    def action(exchange: fake.Exchange) -> None:
        budget = exchange.request.json["max_tokens"]
        if budget < needed:
            fake.say(cut, "length", tokens=budget)(exchange)
        else:
            fake.say(f"{THOUGHT}{end}{fake.honest_text(exchange.request.prompt)}", tokens=needed)(exchange)

    return action


@pytest.mark.parametrize(
    ("end", "stage", "findings"),
    [("\n</think>\n\n", "degraded", ["REASONING_IN_CONTENT"]), ("\nSo it is ", "ready", [])],
)
def test_thoughts_without_an_opening_tag_get_room_too(
    server: fake.OpenAIServer, end: str, stage: str, findings: list[str]
) -> None:
    server.max_model_len = 131072
    server.script("POST", fake.CHAT, _thinks_aloud(1000, end=end))
    verdict = look(server)
    assert (verdict.ready, verdict.stage, ids(verdict)) == (True, stage, findings)
    assert [request.json["max_tokens"] for request in server.asked(fake.CHAT)] == [256, 4096, 4096]


def test_words_without_end_get_room_once_and_are_no_answer(server: fake.OpenAIServer) -> None:
    server.max_model_len = 131072
    server.script("POST", fake.CHAT, _thinks_aloud(10**9))
    verdict = look(server)
    assert (verdict.stage, ids(verdict)) == ("wrong_answer", ["WRONG_ANSWER"])
    assert [request.json["max_tokens"] for request in server.asked(fake.CHAT)] == [256, 4096, 256, 256]


@pytest.mark.parametrize("cut", ["!!!!!!!!!!!!", "no no no no no no no no", "\u538b\u538b", "well\0"])
def test_what_no_model_writes_gets_no_room(server: fake.OpenAIServer, cut: str) -> None:
    server.max_model_len = 131072
    server.script("POST", fake.CHAT, _thinks_aloud(1000, cut=cut))
    assert look(server).stage == "garbage"
    assert len(server.asked(fake.CHAT)) == 1


def test_a_slow_server_gets_the_room_that_it_can_fill_in_time(server: fake.OpenAIServer) -> None:
    server.max_model_len = 131072
    server.script("POST", fake.CHAT, fake.slow(0.5, _thinks_aloud(10**9)), _thinks_aloud(300))
    assert look(server, checks=("chat", "answer"), request_timeout=2.0).stage == "degraded"
    first, second = (request.json["max_tokens"] for request in server.asked(fake.CHAT))
    # 256 tokens took half a second or more; there is one.
    assert (first, 300 < second <= 512) == (256, True)


def test_a_cut_text_is_enough_where_no_answer_is_wanted(server: fake.OpenAIServer) -> None:
    server.max_model_len = 131072
    server.script("POST", fake.CHAT, _thinks_aloud(1000))
    assert look(server, checks=("chat",)).stage == "ready"
    assert len(server.asked(fake.CHAT)) == 1


def test_a_tool_call_after_thoughts_in_the_text_is_waited_for(server: fake.OpenAIServer) -> None:
    server.max_model_len = 131072

    def action(exchange: fake.Exchange) -> None:
        cut = exchange.request.json.get("tools") and exchange.request.json["max_tokens"] < 1000
        (fake.say(THOUGHT, "length") if cut else fake.answer)(exchange)

    server.script("POST", fake.CHAT, action)
    assert look(server, checks=("tools",)).stage == "ready"


def test_thinking_is_left_on_where_it_cannot_be_switched_off(server: fake.OpenAIServer) -> None:
    def mistral(exchange: fake.Exchange) -> None:
        if "chat_template_kwargs" in exchange.request.json:
            exchange.send_error(400, "chat_template is not supported for Mistral tokenizers.", param="chat_template")
        else:
            fake.answer(exchange)

    server.script("POST", fake.CHAT, mistral)
    verdict = look(server)
    assert (verdict.stage, verdict.evidence["kind"]) == ("ready", "chat")
    assert verdict.evidence["thinking"].startswith("on")
    assert len(server.asked(fake.CHAT)) == 3


def test_a_parser_that_takes_answers_for_thoughts_when_thinking_is_off(server: fake.OpenAIServer) -> None:
    def action(exchange: fake.Exchange) -> None:
        text = fake.honest_text(exchange.request.prompt)
        off = "chat_template_kwargs" in exchange.request.json
        (fake.think(text, None) if off else fake.think("Let me see.", text))(exchange)

    server.script("POST", fake.CHAT, action)
    verdict = look(server)
    assert (verdict.stage, ids(verdict)) == ("degraded", ["ANSWER_IN_REASONING_CONTENT_NULL"])


def test_garbage_gets_no_second_try_however_it_ends(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, fake.say("<think>\0\0\0", "length"))
    assert look(server).stage == "garbage"
    assert len(server.asked(fake.CHAT)) == 1


# text and answers


def wrong(exchange: fake.Exchange) -> None:
    fake.say("I would say 999")(exchange)


@pytest.mark.parametrize(
    ("actions", "options", "stage", "findings"),
    [
        ([wrong, fake.answer], {}, "degraded", ["ANSWER_UNSTEADY"]),
        ([wrong, wrong, fake.answer], {}, "wrong_answer", ["WRONG_ANSWER"]),
        ([wrong, fake.answer, wrong], {}, "wrong_answer", ["WRONG_ANSWER"]),
        ([wrong], {}, "wrong_answer", ["WRONG_ANSWER"]),
        ([wrong], {"answer_severity": "warning"}, "degraded", ["WRONG_ANSWER"]),
        ([wrong], {"answer_severity": "info"}, "ready", ["WRONG_ANSWER"]),
        ([wrong], {"checks": ("chat", "stream")}, "ready", []),
    ],
)
def test_the_majority_of_three_answers_counts(
    server: fake.OpenAIServer, actions: list[fake.Action], options: dict[str, t.Any], stage: str, findings: list[str]
) -> None:
    server.script("POST", fake.CHAT, *actions)
    verdict = look(server, **options)
    assert (verdict.stage, ids(verdict)) == (stage, findings)


@pytest.mark.parametrize(
    ("text", "finish_reason", "stage"),
    [
        ("{} ! ! ! ! ! ! ! ! ! ! !", "stop", "ready"),
        ("{} !!!!!!!!!!!!", "stop", "degraded"),
        ("{0} {0} {0} {0} {0} {0}", "stop", "degraded"),
        ("{0} {0} {0} {0} {0} {0}", "length", "garbage"),
        ("{}\0", "stop", "garbage"),
        ("{}\u538b", "stop", "garbage"),
        ("{}<|im_end|>", "stop", "degraded"),
        ("{}\n<tool_call>", "stop", "degraded"),
    ],
)
def test_a_right_answer_excuses_a_loop_but_no_broken_characters(
    server: fake.OpenAIServer, text: str, finish_reason: str, stage: str
) -> None:
    def action(exchange: fake.Exchange) -> None:
        fake.say(text.format(fake.honest_text(exchange.request.prompt)), finish_reason)(exchange)

    server.script("POST", fake.CHAT, action)
    assert look(server, max_tokens=256).stage == stage


def test_a_model_that_loops_in_the_room_it_was_given_is_judged_by_what_it_said_before(
    server: fake.OpenAIServer,
) -> None:
    words = " ".join(
        random.Random(1).choices(["lock", "green", "walk", "gate", "piano", "paper", "fork", "moss"], k=60)
    )

    def rambles(exchange: fake.Exchange) -> None:
        budget = exchange.request.json["max_tokens"]
        fake.say(words if budget <= 256 else "so on " * 900, "length", tokens=budget)(exchange)

    server.max_model_len = 131072
    server.script("POST", fake.CHAT, rambles, rambles, fake.answer)
    verdict = look(server)
    assert (verdict.stage, ids(verdict)) == ("degraded", ["ANSWER_UNSTEADY"])


@pytest.mark.parametrize(("scripts", "stage"), [((), "garbage"), (("cjk",), "ready"), (("any",), "ready")])
def test_a_script_may_be_expected(server: fake.OpenAIServer, scripts: tuple[str, ...], stage: str) -> None:
    server.script("POST", fake.CHAT, lambda x: fake.say(f"\u662f {fake.honest_text(x.request.prompt)}")(x))
    assert look(server, scripts=scripts).stage == stage


def test_thoughts_may_be_in_any_script_but_not_broken(server: fake.OpenAIServer) -> None:
    def action(exchange: fake.Exchange, thought: str = "\u7b97\u4e00\u7b97") -> None:
        fake.think(thought, fake.honest_text(exchange.request.prompt))(exchange)

    server.script("POST", fake.CHAT, action)
    assert look(server).stage == "ready"
    server.script("POST", fake.CHAT, lambda exchange: action(exchange, "hm\0"))
    assert look(server).stage == "garbage"


@pytest.mark.parametrize(
    ("text", "stage", "finding"),
    [
        ("<think>\n\u55ef\uff0c\u52a0\u6cd5\u3002\n</think>\n\n{}", "degraded", "REASONING_IN_CONTENT"),
        ("\u55ef\uff0c\u52a0\u6cd5\u3002\n</think>\n\n{}", "degraded", "REASONING_IN_CONTENT"),
        ("<think>\n\u55ef\n</think>\n\n{} \u662f", "garbage", "TEXT_UNEXPECTED_SCRIPT"),
        ("<think>\n\u55ef\0\n</think>\n\n{}", "garbage", "TEXT_NUL_BYTES"),
        ("<think>\n\u55ef\n{}", "garbage", "TEXT_UNEXPECTED_SCRIPT"),
        ("{} \u662f", "garbage", "TEXT_UNEXPECTED_SCRIPT"),
    ],
)
def test_thoughts_in_the_text_may_be_in_any_script_too(
    server: fake.OpenAIServer, text: str, stage: str, finding: str
) -> None:
    server.script("POST", fake.CHAT, lambda x: fake.say(text.format(fake.honest_text(x.request.prompt)))(x))
    verdict = look(server)
    assert (verdict.stage, ids(verdict)[0]) == (stage, finding)


def test_thoughts_in_any_script_get_room_too(server: fake.OpenAIServer) -> None:
    server.max_model_len = 131072

    def action(exchange: fake.Exchange) -> None:
        enough = exchange.request.json["max_tokens"] > 1000
        text = f"<think>\u55ef</think>{fake.honest_text(exchange.request.prompt)}" if enough else "<think>\u55ef"
        fake.say(text, "stop" if enough else "length")(exchange)

    server.script("POST", fake.CHAT, action)
    verdict = look(server)
    assert (verdict.stage, ids(verdict)) == ("degraded", ["REASONING_IN_CONTENT"])


def test_no_words_need_to_be_english(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, fake.say("Got it."))
    assert look(server, checks=("chat",)).stage == "ready"


# raw completions beside chat


@pytest.mark.parametrize(
    ("action", "checks", "stage", "findings"),
    [
        (fake.status(404, "Not Found"), (), "degraded", ["COMPLETIONS_NOT_OFFERED"]),
        (fake.status(404, "Not Found"), ("chat", "completions"), "capability_failed", ["COMPLETIONS_NOT_OFFERED"]),
        (fake.say("no no no no no no no"), (), "degraded", ["TEXT_REPETITION"]),
        (fake.say("\u538b"), (), "degraded", ["TEXT_UNEXPECTED_SCRIPT"]),
        (fake.say("\ufffd\ufffd"), (), "garbage", ["TEXT_REPLACEMENT_CHARACTERS"]),
        (fake.say("<think>Hm"), (), "ready", []),
        (fake.say(""), (), "ready", []),
        (fake.say("what a strange thing to ask"), (), "ready", []),
    ],
)
def test_raw_text_of_a_chat_model_is_judged_for_broken_characters(
    server: fake.OpenAIServer, action: fake.Action, checks: tuple[str, ...], stage: str, findings: list[str]
) -> None:
    server.script("POST", fake.COMPLETIONS, action)
    verdict = look(server, checks=checks)
    assert (verdict.stage, ids(verdict)) == (stage, findings)


# kinds


def test_a_base_model_is_asked_for_raw_completions(server: fake.OpenAIServer) -> None:
    server.kind = "base"
    verdict = look(server)
    assert (verdict.stage, verdict.evidence["kind"]) == ("ready", "base")
    assert verdict.evidence["checks"] == {"completions": "ok", "stream": "ok"}


def test_a_base_model_may_be_wrong_but_not_silent(server: fake.OpenAIServer) -> None:
    server.kind = "base"
    server.script("POST", fake.COMPLETIONS, wrong)
    assert (look(server).stage, ids(look(server))) == ("degraded", ["WRONG_ANSWER"])
    server.script("POST", fake.COMPLETIONS, fake.say(""))
    assert (look(server).stage, ids(look(server))) == ("no_answer", ["EMPTY_ANSWER"])
    server.script("POST", fake.COMPLETIONS, fake.say("!!!!!!!!!!!!"))
    assert look(server).stage == "garbage"


def test_a_chat_model_without_its_template_passes_only_where_the_kind_is_left_open(server: fake.OpenAIServer) -> None:
    server.kind = "base"
    assert (look(server, kind="chat").stage, ids(look(server, kind="chat"))) == ("request_refused", ["REQUEST_REFUSED"])


def test_a_broken_chat_template_is_no_base_model(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, fake.status(400, "can only concatenate str (not 'dict') in chat template"))
    assert (look(server).stage, look(server).evidence["kind"]) == ("request_refused", "chat")


@pytest.mark.parametrize(("served", "path"), [("embedding", fake.EMBEDDINGS), ("pooling", fake.POOLING)])
@pytest.mark.parametrize("options", [{}, {"kind": "embedding"}, {"checks": ("embeddings",)}])
def test_an_embedding_model_is_not_asked_to_chat(
    server: fake.OpenAIServer, served: t.Any, path: str, options: dict[str, t.Any]
) -> None:
    server.kind = served
    verdict = look(server, **options)
    assert (verdict.stage, verdict.ttft_ms, verdict.evidence["kind"]) == ("ready", None, "embedding")
    assert verdict.evidence["embeddings"] == {"path": path, "dimensions": [32, 32, 32], "prompt_tokens": 24}
    assert bool(server.asked(fake.CHAT)) is not bool(options)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_that_does_nothing_at_all(server: fake.OpenAIServer, status: int) -> None:
    for path in (fake.CHAT, fake.COMPLETIONS, fake.EMBEDDINGS, fake.POOLING):
        server.script("POST", path, fake.status(status, "Not Found"))
    assert (look(server).stage, ids(look(server))) == ("request_refused", ["EMBEDDINGS_NOT_OFFERED"])


def _vectors(*vectors: t.Any) -> fake.Action:
    return fake.body(json.dumps({"data": [{"embedding": v, "data": v} for v in vectors]}).encode())


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (_vectors([0.1, 0.2], [0.1, 0.2], [0.1, 0.2]), "two different texts gave the same vector"),
        (_vectors([0.1, 0.2], [-0.1, 0.2], [0.3, 0.2]), "the same text gave two different vectors"),
        (_vectors([0, 0], [0, 0], [0, 0]), "all zero"),
        (_vectors([0.1, 0.2], [0.1, 0.2], [0.1]), "differ in length"),
        (_vectors([float("nan")] * 2, [0.1, 0.2], [0.2, 0.1]), "not finite"),
        (_vectors([None, 0.1], [None, 0.1], [None, 0.2]), "not finite"),
        (_vectors([], [], []), "empty"),
        (_vectors(None, None, None), "empty"),
        (_vectors([0.1, 0.2]), "1 vectors came for 3 texts"),
        (fake.body(b"{}"), "0 vectors came"),
        (fake.body(b"oops"), "0 vectors came"),
    ],
)
def test_vectors_that_cannot_be_right(server: fake.OpenAIServer, action: fake.Action, words: str) -> None:
    server.kind = "embedding"
    server.script("POST", fake.EMBEDDINGS, action)
    verdict = look(server)
    assert (verdict.stage, ids(verdict)) == ("garbage", ["EMBEDDING_INVALID"])
    assert words in verdict.summary


@pytest.mark.parametrize(
    ("vectors", "stage"),
    [
        (([[0.1, 0.2], [0.3, 0.4]], [[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6]]), "ready"),
        (([0.5], [0.5], [0.5]), "ready"),
        (([float("inf")], [0.5], [0.5]), "garbage"),
        (([[0.1, None]], [[0.1, 0.2]], [[0.5, 0.6]]), "garbage"),
    ],
)
def test_a_pooler_may_answer_in_many_shapes(server: fake.OpenAIServer, vectors: t.Any, stage: str) -> None:
    server.kind = "pooling"
    server.script("POST", fake.POOLING, _vectors(*vectors))
    assert look(server).stage == stage


@pytest.mark.parametrize("indexed", [True, False])
def test_vectors_belong_to_texts_by_their_index(server: fake.OpenAIServer, indexed: bool) -> None:
    vectors = [[0.3, 0.1], [0.1, 0.2], [0.1, 0.2]]
    rows = [{"index": 2 - place, "embedding": vector} for place, vector in enumerate(vectors)]
    if not indexed:
        rows = [{"embedding": vector} for vector in reversed(vectors)]
    server.kind = "embedding"
    server.script("POST", fake.EMBEDDINGS, fake.body(json.dumps({"data": rows}).encode()))
    assert look(server).stage == "ready"


# capabilities


ALL_CHECKS = ("chat", "stream", "completions", "answer", "tools", "structured")


def test_every_capability_of_a_healthy_server(server: fake.OpenAIServer) -> None:
    verdict = look(server, checks=ALL_CHECKS)
    assert (verdict.stage, verdict.findings) == ("ready", ())
    assert set(verdict.evidence["checks"].values()) == {"ok"}
    assert verdict.evidence["tools"]["calls"] == ['get_weather({"city": "Kansas City"})']
    assert len(server.asked(fake.CHAT)[2].json["tools"]) == 2


def _for_tools(action: fake.Action, *, streamed: bool | None = None) -> fake.Action:
    def choose(exchange: fake.Exchange) -> None:
        ours = "tools" in exchange.request.json and streamed in {None, exchange.request.streamed}
        (action if ours else fake.answer)(exchange)

    return choose


FLAGS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


@pytest.mark.parametrize(
    ("action", "finding"),
    [
        (fake.status(400, FLAGS), "TOOL_CHOICE_FLAGS_MISSING"),
        (fake.status(400, "nope"), "TOOL_REQUEST_FAILED"),
        (fake.status(500, "boom"), "TOOL_REQUEST_FAILED"),
        (fake.body(b"{}"), "TOOL_REQUEST_FAILED"),
        (fake.say(""), "TOOL_REQUEST_FAILED"),
        (fake.say('<tool_call>\n{"name": "get_weather"}\n</tool_call>'), "TOOL_CALL_IN_CONTENT"),
        (fake.say("It is sunny."), "TOOL_NOT_CALLED"),
        (fake.call("get_stock", '{"city": "Oslo"}'), "TOOL_CALL_INVALID"),
        (fake.call("get_weather", '{"city": "Os'), "TOOL_CALL_INVALID"),
        (fake.call("get_weather", '["Oslo"]'), "TOOL_CALL_INVALID"),
        (fake.call("get_weather", '{"city": ""}'), "TOOL_CALL_INVALID"),
        (fake.call("get_weather", '{"town": "Oslo"}'), "TOOL_CALL_INVALID"),
    ],
)
def test_a_tool_call_that_does_not_arrive(server: fake.OpenAIServer, action: fake.Action, finding: str) -> None:
    server.script("POST", fake.CHAT, _for_tools(action))
    verdict = look(server, checks=ALL_CHECKS)
    assert (verdict.stage, verdict.rung, ids(verdict)) == ("capability_failed", "capability", [finding])
    assert verdict.evidence["checks"] | {"tools": "failed"} == verdict.evidence["checks"]
    assert verdict.evidence["checks"]["structured"] == "ok"


def test_a_tool_parser_that_fails_only_when_streamed(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, _for_tools(fake.say("<tool_call>x</tool_call>"), streamed=True))
    verdict = look(server, checks=("tools",))
    assert (verdict.stage, verdict.evidence["checks"]["tools"]) == ("capability_failed", "failed when streamed")


def test_content_next_to_a_tool_call_is_no_fault(server: fake.OpenAIServer) -> None:
    call = {"function": {"name": "get_local_time", "arguments": '{"city": "Oslo"}'}}
    action = fake.say("Let me look.", "tool_calls", tool_calls=[call])
    server.script("POST", fake.CHAT, _for_tools(action, streamed=False))
    assert look(server, checks=("tools",)).stage == "ready"


@pytest.mark.parametrize(
    ("action", "stage"), [(fake.die, "engine_dead"), (fake.hang, "hung"), (fake.status(429, ""), "busy")]
)
def test_an_engine_that_dies_of_a_tool_call_is_dead(server: fake.OpenAIServer, action: fake.Action, stage: str) -> None:
    server.script("POST", fake.CHAT, _for_tools(action))
    assert look(server, checks=("tools",), request_timeout=0.5).stage == stage


def _for_schema(action: fake.Action) -> fake.Action:
    return lambda exchange: (action if "response_format" in exchange.request.json else fake.answer)(exchange)


@pytest.mark.parametrize(
    ("action", "finding"),
    [
        (fake.status(400, "nope"), "STRUCTURED_OUTPUT_FAILED"),
        (fake.say("{", "length"), "STRUCTURED_OUTPUT_INVALID"),
        (fake.say("12"), "STRUCTURED_OUTPUT_INVALID"),
        (fake.say('```json\n{"sum": 12, "is_even": true}\n```'), "STRUCTURED_OUTPUT_INVALID"),
        (fake.say('{"sum": "12", "is_even": true}'), "STRUCTURED_OUTPUT_INVALID"),
        (fake.say('{"sum": 12, "is_even": 1}'), "STRUCTURED_OUTPUT_INVALID"),
        (fake.say('{"sum": 12}'), "STRUCTURED_OUTPUT_INVALID"),
        (fake.say('{"sum": 12, "is_even": true, "x": 1}'), "STRUCTURED_OUTPUT_INVALID"),
    ],
)
def test_json_that_is_not_what_was_asked_for(server: fake.OpenAIServer, action: fake.Action, finding: str) -> None:
    server.script("POST", fake.CHAT, _for_schema(action))
    verdict = look(server, checks=("structured",))
    assert (verdict.stage, ids(verdict)) == ("capability_failed", [finding])


def test_every_capability_that_fails_is_named(server: fake.OpenAIServer) -> None:
    both = _for_schema(fake.say("12"))
    server.script("POST", fake.CHAT, lambda x: (fake.status(400, FLAGS) if "tools" in x.request.json else both)(x))
    verdict = look(server, checks=("tools", "structured", "embeddings"))
    assert ids(verdict) == ["TOOL_CHOICE_FLAGS_MISSING", "STRUCTURED_OUTPUT_INVALID", "EMBEDDINGS_NOT_OFFERED"]
    assert FLAGS in verdict.summary

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A soak against a real HTTP server that fails in the ways that were seen under load."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import itertools
import json
import pathlib
import random
import re
import threading
import time
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _box,
    _deploy_record,
    _group_files,
    _instance,
    _liveness,
    _openai_api,
    _soak,
    _soak_engine,
    _soak_load,
    _status,
    _watch,
)
from ansible_collections.gb10.fleet.plugins.module_utils._engine_metrics import Drafts, EngineMetrics
from ansible_collections.gb10.fleet.plugins.module_utils._probe_questions import Question
from ansible_collections.gb10.fleet.plugins.module_utils._soak_load import Plan, Result, payload
from ansible_collections.gb10.fleet.plugins.module_utils._soak_report import KERNEL, KNOWN, Seen, percentiles, report
from tests.unit.support import openai_server as fake
from tests.unit.support.faults import FAULTS

ROOT = pathlib.Path(__file__).parents[4]
# So many questions are asked one at a time before the load: two to see whether the server is ready, then these.
ALONE = _soak_load._SUMS_ALONE + _soak_load._SENTENCES_ALONE + _soak_load._COUNTS_ALONE
READY = 2 + ALONE
VOCABULARY = ["lock", "foo", "vector", "quick", "random", "green", "walk", "gate", "piano", "paper", "fork", "moss"]
WORDS = " ".join(random.Random(1).choices(VOCABULARY, k=60))
ACTIVE = "ActiveState=active\nSubState=running\nInvocationID=a\nMainPID=7\n"


@pytest.fixture
def server() -> c.Iterator[fake.OpenAIServer]:
    with fake.OpenAIServer() as running:
        yield running


class World:
    """What a soak sees of a box."""

    def __init__(self, kind: str = "chat") -> None:
        self.kind = kind
        self.units: c.Iterator[str] = itertools.repeat(ACTIVE)
        self.kernel = "usb 1-1: new device\n"
        self.said: list[str] = []
        self.sysroot = pathlib.Path("/nonexistent")

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "systemctl":
            return 0, next(self.units), ""
        return (0, self.kernel, "") if self.kernel else (1, "", "no journal")

    def soak(self, server: fake.OpenAIServer, **changes: t.Any) -> dict[str, t.Any]:
        given: dict[str, t.Any] = {"requests": 40, "concurrency": 4, "request_timeout": 5.0, "max_tokens": 64} | changes
        request = _soak.Request(instance="writer", url=server.url, model="lab/tiny", kind=self.kind, **given)
        return _soak.Soak(request, tell=self.said.append, run=self.run, sysroot=self.sysroot).run()


def ids(found: dict[str, t.Any]) -> list[str]:
    return [one["id"] for one in found["findings"]]


def sometimes(fault: fake.Action, *, every: int = 5) -> fake.Action:
    """Answer honestly but for every nth request of the load, after the questions that come first."""
    return loaded(fault, skip=READY, every=every)


def loaded(
    fault: fake.Action, then: fake.Action = fake.answer, *, skip: int = 0, every: int = 5, of: int = 40
) -> fake.Action:
    """Have every nth request of the load go wrong, and no other: what happens above a certain concurrency only."""
    numbers, lock = itertools.count(1), threading.Lock()

    def action(exchange: fake.Exchange) -> None:
        with lock:
            number = next(numbers) - skip
        (fault if 0 < number <= of and number % every == 0 else then)(exchange)

    return action


def test_a_healthy_server_passes_with_figures(server: fake.OpenAIServer) -> None:
    world = World()
    found = world.soak(server)
    assert (found["verdict"], found["requests"], found["failed_requests"]) == ("passed", 40, 0)
    assert found["garbage"] == found["wrong"] == found["engine_restarts"] == 0
    assert set(found["latency_ms"]["first_token"]) == {"p50", "p95", "p99", "max"}
    assert found["completion_tokens"] > 40
    assert found["acceptance"] is None
    assert ids(found) == []
    assert any("of 40 requests" in line for line in world.said) or found["took_s"] < 2.1


def test_no_two_requests_can_be_answered_by_a_cache(server: fake.OpenAIServer) -> None:
    World().soak(server)
    soaked = [request.json for request in server.asked(fake.CHAT) if "cache_salt" in request.json]
    assert len(soaked) == len({request["cache_salt"] for request in soaked}) == ALONE + 40
    assert len({request["messages"][-1]["content"] for request in soaked}) > 20


def test_no_more_tokens_are_asked_for_than_the_context_holds(server: fake.OpenAIServer) -> None:
    server.max_model_len = 2048
    found = World().soak(server, max_tokens=4096)
    assert (found["verdict"], found["failed_requests"]) == ("passed", 0)


def test_a_prefix_that_fills_the_context_is_refused_before_the_load(server: fake.OpenAIServer) -> None:
    server.max_model_len = 4096
    with pytest.raises(_soak.SoakError, match=r"a context of 4096 tokens has no room .* shared_prefix 4000; lower it"):
        World().soak(server, shared_prefix=4000)
    assert not any("cache_salt" in request.json for request in server.asked(fake.CHAT))
    assert World().soak(server, shared_prefix=3800, requests=4)["verdict"] == "passed"


def test_a_server_that_refuses_every_question_says_nothing_about_its_engine(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, *[fake.answer] * 2, fake.status(400, "This model's maximum context length is 9."))
    found = World().soak(server)
    assert (found["verdict"], ids(found), found["requests"]) == ("inconclusive", ["SOAK_NOT_READY"], 0)
    assert "HTTP 400: This model's maximum context length is 9." in found["because"]


KEY = "sk-very-secret"


def echo_key(answer: c.Callable[[str], fake.Action]) -> fake.Action:
    """Answer the salted requests of a soak with the header that carries the key."""

    def action(exchange: fake.Exchange) -> None:
        soaked = "cache_salt" in (exchange.request.json or {})
        said = exchange.request.headers.get("authorization", "")
        (answer(f"{'x' * 180} {said}") if soaked else fake.answer)(exchange)

    return action


@pytest.mark.parametrize(
    "answer", [lambda said: fake.status(500, said), fake.say, lambda said: fake.raw(f"{said}\r\n\r\n".encode())]
)
def test_a_key_that_the_server_echoes_is_in_no_report(
    server: fake.OpenAIServer, answer: c.Callable[[str], fake.Action]
) -> None:
    server.api_key = KEY
    server.script("POST", fake.CHAT, echo_key(answer))
    request = _soak.Request(url=server.url, requests=4, concurrency=2)
    found = _soak.Soak(request, api_key=KEY, run=World().run).run()
    assert found["samples"]
    # What is kept of a text ends after 200 characters, and is not to end within the key either.
    assert "sk-very" not in json.dumps(found)


@pytest.mark.parametrize("wants_key", [True, False])
def test_a_server_that_is_no_vllm_has_the_key_only_where_it_asked_for_it(
    server: fake.OpenAIServer, wants_key: bool
) -> None:
    server.script("GET", fake.VERSION, fake.status(404, "Not Found"))
    server.api_key = KEY if wants_key else ""
    request = _soak.Request(url=server.url, requests=4, concurrency=2)
    assert _soak.Soak(request, api_key=KEY, run=World().run).run()["failed_requests"] == 0
    soaked = [one.headers for one in server.asked(fake.CHAT) if "cache_salt" in one.json]
    assert {"authorization" in headers for headers in soaked} == {wants_key}


LONG_ID = f"/root/.cache/huggingface/hub/models--lab--tiny/snapshots/{'0123456789abcdef' * 6}"


@pytest.mark.parametrize(("model", "key"), [(LONG_ID, ""), ("qwen-local", "local"), ("chat", "chat")])
@pytest.mark.parametrize("named", [True, False])
def test_the_server_is_asked_for_its_model_and_not_for_what_is_shown_of_its_name(
    server: fake.OpenAIServer, model: str, key: str, named: bool
) -> None:
    server.models, server.api_key = [model], key
    request = _soak.Request(url=server.url, model=model if named else "", requests=6, concurrency=2)
    found = _soak.Soak(request, api_key=key, run=World().run).run()
    assert (found["verdict"], found["failed_requests"]) == ("passed", 0)


def test_a_model_that_cannot_add_without_load_either_is_not_blamed_on_the_load(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, *[fake.answer] * 2, fake.say("1000"))
    world = World()
    found = world.soak(server)
    assert (found["verdict"], ids(found)) == ("inconclusive", ["SOAK_SUMS_NOT_JUDGED"])
    assert "40 of 40 sums are wrong, and 0 of 8 of them right when asked again alone" in found["because"]
    assert "sentences and counts are wrong without load, too" in found["because"]
    assert (found["wrong"], found["asked_again"], found["right_alone"]) == (40, 8, 0)
    assert "asked 8 of 8 wrong answers again, one at a time" in world.said


def test_a_model_whose_thoughts_are_nearly_as_long_as_its_budget_is_not_broken_by_the_load(
    server: fake.OpenAIServer,
) -> None:
    def thinks(exchange: fake.Exchange) -> None:
        fake.say(fake.honest_text(exchange.request.prompt), tokens=40, reasoning="Hm, so")(exchange)

    longer = fake.say("", "length", tokens=64, reasoning="Hm, so")
    server.script("POST", fake.CHAT, *[thinks] * READY, loaded(longer, thinks))
    found = World().soak(server)
    assert (found["verdict"], ids(found)) == ("inconclusive", ["SOAK_ANSWERS_CUT"])


def misses(share: float, seed: int) -> fake.Action:
    """Answer as a small model does that is well: of all sums it gets some wrong, the same ones whenever it is asked."""

    def action(exchange: fake.Exchange) -> None:
        asked = re.search(r"What is (\d+) plus (\d+)", exchange.request.prompt)
        if asked and random.Random(f"{seed} {asked[1]} {asked[2]}").random() < share:
            fake.say(str(int(asked[1]) + int(asked[2]) + 1))(exchange)
        else:
            fake.answer(exchange)

    return action


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.03, 0.05])
def test_a_model_that_always_misses_the_same_sums_is_not_broken_by_the_load(
    server: fake.OpenAIServer, share: float, seed: int
) -> None:
    server.script("POST", fake.CHAT, *[fake.answer] * 2, misses(share, seed))
    found = World().soak(server, requests=200, concurrency=8)
    # Which sums are asked is chance: by rare luck a tenth of them are missed, which is too much to judge by.
    assert found["verdict"] == ("passed" if found["wrong"] <= 13 else "inconclusive"), found["because"]
    assert (found["asked_again"], found["right_alone"]) == (min(found["wrong"], 8), 0)


def test_what_is_wrong_under_load_and_right_alone_fails_beside_what_the_model_always_misses(
    server: fake.OpenAIServer,
) -> None:
    server.script("POST", fake.CHAT, *[fake.answer] * READY, loaded(fake.say("1000"), of=200, then=misses(0.03, 1)))
    found = World().soak(server, requests=200)
    assert (found["verdict"], ids(found)) == ("failed", ["SOAK_WRONG_ANSWERS"])
    assert 0 < found["right_alone"] <= found["asked_again"]


def test_an_engine_that_dies_of_being_asked_again_has_failed(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, *[fake.answer] * READY, *[fake.say("1000")] * 40, fake.die)
    found = World().soak(server)
    assert "SOAK_REQUESTS_FAILED" in ids(found)
    assert (found["verdict"], found["asked_again"]) == ("failed", 1)


def test_what_is_wrong_is_asked_again_though_the_load_has_used_up_the_time(server: fake.OpenAIServer) -> None:
    server.script(
        "POST", fake.CHAT, *[fake.answer] * READY, loaded(fake.slow(0.1, fake.say("1000")), every=2, of=10**6)
    )
    found = World().soak(server, requests=4000, timeout=3.0)
    assert "SOAK_OUT_OF_TIME" in ids(found)
    assert found["asked_again"] > 8


def salad(exchange: fake.Exchange) -> None:
    """Answer sums honestly, and whatever is longer with words that a broken drafter makes of it."""
    words = "purple if the velvet seven ran of under quickly sing"
    (fake.answer if " plus " in exchange.request.prompt else fake.say(words))(exchange)


def test_long_answers_that_are_a_salad_of_words_under_load_fail_the_soak(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, *[fake.answer] * READY, salad)
    found = World().soak(server)
    assert (found["verdict"], ids(found)) == ("failed", ["SOAK_WRONG_ANSWERS"])


def test_a_model_that_cannot_count_is_not_asked_to_under_load(server: fake.OpenAIServer) -> None:
    def modest(exchange: fake.Exchange) -> None:
        count = "Count from" in exchange.request.prompt
        (fake.say("I am small and know only a few things.") if count else fake.answer)(exchange)

    server.script("POST", fake.CHAT, modest)
    assert World().soak(server)["verdict"] == "passed"
    assert sum("Count from" in request.prompt for request in server.asked(fake.CHAT)) == 2
    server.script("POST", fake.CHAT, fake.answer)
    assert World().soak(server)["verdict"] == "passed"
    assert sum("Count from" in request.prompt for request in server.asked(fake.CHAT)) > 6


def test_questions_that_fail_because_somebody_took_the_engine_away_are_not_held_against_it(
    server: fake.OpenAIServer,
) -> None:
    world = World()
    world.units = itertools.chain([ACTIVE], itertools.repeat(ACTIVE.replace("ID=a", "ID=b")))
    server.script("POST", fake.CHAT, *[fake.answer] * 5, fake.status(500, "gone"), fake.answer)
    found = world.soak(server, requests=400)
    assert (found["verdict"], ids(found)) == ("inconclusive", ["SOAK_INTERRUPTED"])


def test_a_shared_prefix_stands_before_every_question_and_is_not_salted() -> None:
    plan = Plan("m", "chat", 1, 1, 64, 5.0, shared_prefix=400)
    bodies = [payload(plan, Question(f"What is {n} plus 1?", str(n + 1)), f"s{n}")[1] for n in (1, 2)]
    assert bodies[0]["messages"][0] == bodies[1]["messages"][0]
    assert len(bodies[0]["messages"][0]["content"].split()) > 300
    assert not any("cache_salt" in body for body in bodies)
    assert payload(plan, Question("What?", ""), "s", alone=True)[1]["cache_salt"] == "s"
    path, body = payload(dataclasses.replace(plan, kind="base"), Question("What?", ""), "s")
    assert path == fake.COMPLETIONS
    assert body["prompt"].endswith("What?\nAnswer:")


@pytest.mark.parametrize(
    ("fault", "verdict", "finding"),
    [
        (fake.say("!!!!!!!!!!!!!!!!"), "failed", "SOAK_GARBAGE"),
        (fake.say("\0\0"), "failed", "SOAK_GARBAGE"),
        (fake.say(""), "failed", "SOAK_GARBAGE"),
        (fake.say("1000"), "failed", "SOAK_WRONG_ANSWERS"),
        (fake.status(500, "EngineCore encountered an issue."), "failed", "SOAK_REQUESTS_FAILED"),
        (fake.begin_stream(fake.reset), "failed", "SOAK_REQUESTS_FAILED"),
        (fake.stream_error, "failed", "SOAK_REQUESTS_FAILED"),
        # Alone it ends in time, so that words, silence or thoughts without end are those of the load.
        (fake.say(WORDS, "length", tokens=64), "failed", "SOAK_WRONG_ANSWERS"),
        (fake.say("", "length", tokens=64), "failed", "SOAK_WRONG_ANSWERS"),
        (fake.say("", "length", tokens=64, reasoning=WORDS), "failed", "SOAK_WRONG_ANSWERS"),
        (fake.say("", "length", tokens=1), "failed", "SOAK_WRONG_ANSWERS"),
        (fake.say("9", "length", tokens=1), "failed", "SOAK_WRONG_ANSWERS"),
    ],
)
def test_what_goes_wrong_now_and_then_is_found(
    server: fake.OpenAIServer, fault: fake.Action, verdict: str, finding: str
) -> None:
    server.script("POST", fake.CHAT, sometimes(fault))
    found = World().soak(server)
    assert (found["verdict"], ids(found)[:1]) == (verdict, [finding] if finding else []), found["because"]
    assert found["samples"]


@pytest.mark.parametrize("text", [WORDS, "", "\n\n"])
@pytest.mark.parametrize("share", [0.2, 0.45])
def test_words_without_end_or_none_at_all_are_no_excuse_for_an_answer(
    server: fake.OpenAIServer, share: float, text: str
) -> None:
    rng = random.Random(1)

    def action(exchange: fake.Exchange) -> None:
        (fake.say(text, "length", tokens=64) if rng.random() < share else fake.answer)(exchange)

    # It does so without load as well.
    server.script("POST", fake.CHAT, *[fake.answer] * READY, action)
    assert World().soak(server, requests=120)["verdict"] != "passed"


@pytest.mark.parametrize(
    "thought", [lambda: fake.say("", "length", tokens=64, reasoning="Hm."), lambda: fake.say("So I", "length")]
)
def test_a_model_whose_thoughts_do_not_always_fit_its_budget_is_not_broken_by_the_load(
    server: fake.OpenAIServer, thought: c.Callable[[], fake.Action]
) -> None:
    def action(exchange: fake.Exchange) -> None:
        # How long it thinks depends on the question, and a little on what else is in the batch.
        longest = random.Random(exchange.request.prompt).random() + random.Random(len(server.requests)).random() / 50
        (thought() if longest > 0.93 else fake.answer)(exchange)

    server.script("POST", fake.CHAT, *[fake.answer] * 2, action)
    found = World().soak(server, requests=120)
    # Too many of them may leave too little to judge.
    assert found["verdict"] != "failed", found["because"]


def styled(style: c.Callable[[str], str], *, sentences: bool = True) -> fake.Action:
    """Have right answers written in a style."""

    def action(exchange: fake.Exchange) -> None:
        text = fake.honest_text(exchange.request.prompt)
        plain = "Write one sentence" in exchange.request.prompt and not sentences
        fake.say(text if plain or exchange.request.path.endswith("/v1/completions") else style(text))(exchange)

    return action


def of_sentences(sentence: str) -> fake.Action:
    return styled(lambda text: sentence if text.startswith("There is") else text)


WIDE = {ord("0") + digit: 0xFF10 + digit for digit in range(10)}
EXPLAINED = "To find it we go step by step, from one to the next, until we have all of them, and then it is: {}"


@pytest.mark.parametrize(
    ("honest", "scripts"),
    [
        (styled("**{}**".format), ()),
        (styled("```text\n{}\n```".format), ()),
        (styled("Sure! Here you go:\n\n{}\n\nLet me know if you need anything else!".format), ()),
        (styled(EXPLAINED.format), ()),
        (
            styled(lambda text: "\n".join(f"{n}. {one}" for n, one in enumerate(text.split(", "), 1)), sentences=False),
            (),
        ),
        (styled(lambda text: text.translate(WIDE)), ()),
        (styled("Okay, let me see.\n</think>\n\n{}".format), ()),
        (styled("<think>\n\u597d\u7684\n</think>\n\n{}".format), ()),
        (of_sentences("Das Meer ist weit und tief."), ()),
        (of_sentences("\u5927\u6d77\u662f\u5730\u7403\u4e0a\u6700\u5927\u7684\u6c34\u4f53\u3002"), ("cjk",)),
    ],
)
def test_an_honest_style_passes(server: fake.OpenAIServer, honest: fake.Action, scripts: tuple[str, ...]) -> None:
    server.script("POST", fake.CHAT, honest)
    found = World().soak(server, max_tokens=256, scripts=scripts)
    assert (found["verdict"], found["wrong"]) == ("passed", 0), found["because"]


@pytest.mark.parametrize(
    "fault",
    [
        styled(lambda text: f"{text} {' '.join(VOCABULARY)} drift lamp"),
        styled("-{}".format, sentences=False),
        of_sentences("lock h\u00e4mdle f\u00f4o lamp quartz moss"),
        of_sentences("lock foo el vector de quick la green se"),
    ],
)
def test_words_that_nobody_would_say_are_found_under_load(server: fake.OpenAIServer, fault: fake.Action) -> None:
    server.script("POST", fake.CHAT, loaded(fault, skip=READY, every=1, of=60))
    found = World().soak(server, requests=60)
    assert (found["verdict"], ids(found)) == ("failed", ["SOAK_WRONG_ANSWERS"]), found["because"]


def test_answers_that_are_cut_before_they_begin_prove_nothing(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, *[fake.answer] * 2, fake.say("", "length", tokens=64, reasoning="Hm, so"))
    found = World().soak(server)
    assert (found["verdict"], ids(found)) == ("inconclusive", ["SOAK_ANSWERS_CUT"])


def test_answers_that_are_cut_short_of_the_budget_by_the_server_prove_nothing(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, *[fake.answer] * 2, fake.say("", "length", tokens=9))
    found = World().soak(server)
    assert (found["verdict"], ids(found)) == ("inconclusive", ["SOAK_SUMS_NOT_JUDGED"])
    assert "cut at 9 of 64 tokens" in found["samples"][0]["detail"]


def goes_on(exchange: fake.Exchange) -> None:
    """Answer as a base model does: rightly, and then with the question and its answer again, up to the budget."""
    asked = exchange.request.json
    question, answer = asked["prompt"].removesuffix("\nAnswer:"), fake.honest_text(asked["prompt"])
    # Not all of the probe's twelve tokens, so that it is no loop to anybody.
    again = 12 if asked["max_tokens"] > 12 else 0
    fake.say(f" {answer}\n" + f"{question}\nAnswer: {answer}\n" * again, "length", tokens=asked["max_tokens"])(exchange)


def salad_for_ever(exchange: fake.Exchange) -> None:
    budget = exchange.request.json["max_tokens"]
    (fake.say(WORDS, "length", tokens=budget) if budget > 12 else fake.answer)(exchange)


@pytest.mark.parametrize(
    ("load", "then", "verdict", "findings"),
    [
        (goes_on, goes_on, "passed", []),
        (salad_for_ever, goes_on, "failed", ["SOAK_WRONG_ANSWERS"]),
        (loaded(salad_for_ever, goes_on), goes_on, "failed", ["SOAK_WRONG_ANSWERS"]),
        (salad_for_ever, salad_for_ever, "failed", ["SOAK_WRONG_ANSWERS"]),
    ],
)
def test_a_base_model_may_go_on_as_long_as_it_begins_rightly(
    server: fake.OpenAIServer, load: fake.Action, then: fake.Action, verdict: str, findings: list[str]
) -> None:
    server.kind = "base"
    server.script("POST", fake.COMPLETIONS, *[goes_on] * READY, *[load] * 40, then)
    found = World(kind="base").soak(server)
    assert (found["verdict"], ids(found)) == (verdict, findings), found["because"]


def test_a_base_model_that_writes_nothing_but_words_proves_nothing(server: fake.OpenAIServer) -> None:
    server.kind = "base"
    server.script("POST", fake.COMPLETIONS, salad_for_ever)
    found = World(kind="base").soak(server)
    assert (found["verdict"], ids(found)) == ("inconclusive", ["SOAK_SUMS_NOT_JUDGED"])


def test_a_server_that_is_not_ready_is_not_loaded(server: fake.OpenAIServer) -> None:
    FAULTS["wrong_model"].set_up(server)
    found = World().soak(server)
    assert (found["verdict"], ids(found), found["requests"]) == ("inconclusive", ["SOAK_NOT_READY"], 0)


def test_a_server_that_dies_is_not_asked_hundreds_of_times(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, *[fake.answer] * READY, fake.die)
    found = World().soak(server, requests=4000)
    assert found["verdict"] == "failed"
    assert found["requests"] < 100
    assert "SOAK_OUT_OF_TIME" not in ids(found)


def test_an_engine_that_dies_by_itself_ends_the_soak_and_fails_it(server: fake.OpenAIServer) -> None:
    world = World()
    again = ACTIVE.replace("ID=a", "ID=b") + "NRestarts=1\n"
    world.units = itertools.chain([ACTIVE] * 2, itertools.repeat(again))
    server.script("POST", fake.CHAT, fake.slow(0.2))
    found = world.soak(server, requests=400)
    assert "SOAK_ENGINE_RESTARTED" in ids(found)
    assert (found["verdict"], found["engine_restarts"]) == ("failed", 1)
    assert found["requests"] < 400


def test_a_restart_by_hand_ends_the_soak_and_says_nothing_about_the_engine(server: fake.OpenAIServer) -> None:
    world = World()
    world.units = itertools.chain([ACTIVE], itertools.repeat(ACTIVE.replace("ID=a", "ID=b")))
    # What fails then is the doing of whoever restarted it, and not the engine's.
    server.script("POST", fake.CHAT, *[fake.answer] * 20, fake.die)
    found = world.soak(server, requests=4000)
    assert (found["verdict"], ids(found), found["failed_requests"]) == ("inconclusive", ["SOAK_INTERRUPTED"], 0)
    assert found["because"].endswith("somebody stopped or restarted it.")


def test_garbage_before_an_interruption_still_fails_the_soak(server: fake.OpenAIServer) -> None:
    world = World()
    world.units = itertools.chain([ACTIVE] * 2, itertools.repeat(ACTIVE.replace("ID=a", "ID=b")))
    slow = fake.slow(0.1)
    numbers = itertools.count(1)

    def action(exchange: fake.Exchange) -> None:
        (fake.say("!!!!!!!!!!!!!!!!") if next(numbers) == READY + 1 else slow)(exchange)

    server.script("POST", fake.CHAT, action)
    found = world.soak(server, requests=4000)
    assert (found["verdict"], ids(found)) == ("failed", ["SOAK_GARBAGE", "SOAK_INTERRUPTED"])


def test_an_engine_that_is_taken_away_while_it_is_asked_again_leaves_what_the_load_has_shown(
    server: fake.OpenAIServer, tmp_path: pathlib.Path
) -> None:
    world = World()
    world.sysroot = tmp_path

    def action(exchange: fake.Exchange) -> None:
        begin_switch(tmp_path)
        fake.die(exchange)

    server.script("POST", fake.CHAT, *[fake.answer] * READY, *[fake.say("1000")] * 40, action)
    found = world.soak(server)
    assert (found["verdict"], found["requests"], found["wrong"]) == ("failed", 40, 40)
    assert ids(found) == ["SOAK_WRONG_ANSWERS", "SOAK_INTERRUPTED"]
    assert found["asked_again"] == 0


def test_a_deployment_that_begins_ends_the_soak(server: fake.OpenAIServer, tmp_path: pathlib.Path) -> None:
    world = World()
    world.sysroot = tmp_path

    def action(exchange: fake.Exchange) -> None:
        begin_switch(tmp_path)
        fake.slow(0.1)(exchange)

    server.script("POST", fake.CHAT, *[fake.answer] * READY, action)
    found = world.soak(server, requests=4000)
    assert (found["verdict"], ids(found)) == ("inconclusive", ["SOAK_INTERRUPTED"])
    assert found["because"].endswith("a deployment began.")
    assert found["requests"] < 4000


# the engine, seen from outside

DOWN = ACTIVE.replace("ActiveState=active", "ActiveState=inactive").replace("SubState=running", "SubState=dead")
ENDING = ACTIVE.replace("ActiveState=active", "ActiveState=deactivating")
PAUSING = ACTIVE.replace("ActiveState=active", "ActiveState=activating").replace("=running", "=auto-restart")
STARTED = ACTIVE.replace("ID=a", "ID=b")


def begin_switch(root: pathlib.Path) -> None:
    path = root / "var/lib/gb10-fleet/switch.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"to": "new", "before": "old", "boot_id": "1"}', encoding="utf-8")


def engine(root: pathlib.Path, *states: str) -> _soak_engine.Engine:
    """Return an engine whose unit goes through these states, one at each question, and stays in the last one."""
    shown = itertools.chain([ACTIVE, *states], itertools.repeat(states[-1]))
    found = _soak_engine.Engine("writer", lambda _argv: (0, next(shown), ""), sysroot=root, sleep=lambda _s: None)
    assert not found.disturbed
    return found


def counted(root: pathlib.Path, name: str) -> None:
    """Have the watch of the instance count one more of what it does."""
    file = _watch.StateFile("writer", root / str(_watch.FOLDER).lstrip("/"))
    with file.alone():
        file.write(_liveness.State().counted(name))


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ([ACTIVE], ""),
        ([PAUSING], ""),
        ([ENDING, ENDING, PAUSING], ""),
        ([STARTED + "NRestarts=1\n"], ""),
        ([DOWN + "Result=start-limit-hit\n"], ""),
        ([DOWN], "somebody stopped or restarted it"),
        ([ENDING], "somebody stopped or restarted it"),
        ([ENDING, ENDING, DOWN], "somebody stopped or restarted it"),
        ([STARTED + "NRestarts=0\n"], "somebody stopped or restarted it"),
    ],
)
def test_who_took_the_engine_away_is_told_from_an_engine_that_died(
    tmp_path: pathlib.Path, states: list[str], reason: str
) -> None:
    found = engine(tmp_path, *states)
    found.look()
    assert found.disturbed == (states != [ACTIVE])
    assert found.interruption() == reason


@pytest.mark.parametrize(
    ("name", "reason"), [("planned", "the watch restarted it as planned"), ("restarts", ""), ("stops", "")]
)
def test_only_a_planned_restart_of_the_watch_is_an_interruption(tmp_path: pathlib.Path, name: str, reason: str) -> None:
    found = engine(tmp_path, STARTED)
    counted(tmp_path, name)
    found.look()
    assert found.interruption() == reason


def test_an_engine_that_ended_with_another_rank_of_its_group_has_died(tmp_path: pathlib.Path) -> None:
    found = engine(tmp_path, STARTED)
    folder = tmp_path / str(_group_files.FOLDER).lstrip("/")
    _group_files.GroupFiles("writer", folder).write(_group_files.Asked("a", "rank 1 is gone", own=False))
    found.look()
    assert (found.disturbed, found.interruption()) == (True, "")


def test_the_time_is_kept(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, fake.slow(0.2))
    found = World().soak(server, requests=4000, timeout=3.0)
    assert (found["verdict"], ids(found)) == ("inconclusive", ["SOAK_OUT_OF_TIME"])


def test_the_questions_that_are_asked_one_by_one_keep_to_the_time_as_well(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, *[fake.answer] * 4, fake.slow(30.0))
    began = time.monotonic()
    found = World().soak(server, request_timeout=20.0, timeout=2.0)
    assert time.monotonic() - began < 10
    assert (found["verdict"], ids(found), found["requests"]) == ("inconclusive", ["SOAK_OUT_OF_TIME"], 0)


def test_a_slip_in_a_count_without_load_does_not_keep_a_model_from_counting_and_is_kept(
    server: fake.OpenAIServer,
) -> None:
    slips = itertools.chain([True], itertools.repeat(False))

    def action(exchange: fake.Exchange) -> None:
        slip = "Count from" in exchange.request.prompt and next(slips)
        (fake.say("1, 2, 3") if slip else fake.answer)(exchange)

    server.script("POST", fake.CHAT, action)
    client = _openai_api.Client(_openai_api.Endpoint.from_url(server.url), clock=time.monotonic)
    plan = dataclasses.replace(PLAN, model="lab/tiny")
    alone, kinds = _soak_load.Alone(client, plan, seed=1, until=time.monotonic() + 60).before()
    assert kinds == ("sums", "sentences", "counts")
    assert [one.outcome for one in alone if one.kind == "counts"] == ["wrong", *["right"] * 4]
    assert len(alone) == ALONE


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("NVRM: Xid (PCI:000f:01:00): 13, pid=4711, name=VLLM::EngineCor, Graphics Exception", True),
        ("Out of memory: Killed process 4711 (VLLM::Worker) total-vm:1kB", True),
        ("python3 invoked oom-killer: gfp_mask=0x140cca", True),
        ("NVRM: nvAssertOkFailedNoLog: Assertion failed: NV_ERR_NO_MEMORY (0x51)", True),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.142", False),
        ("oom_reaper is not what this line is about", False),
    ],
)
def test_what_the_kernel_says(server: fake.OpenAIServer, line: str, counts: bool) -> None:
    assert bool(KERNEL.search(line)) == counts
    world = World()
    world.kernel = f"{line}\n"
    found = world.soak(server, requests=4)
    assert ids(found) == (["SOAK_KERNEL_LOG"] if counts else [])
    assert found["kernel"] == ([line] if counts else [])


def test_a_kernel_log_that_cannot_be_read_is_unknown_and_no_fault(server: fake.OpenAIServer) -> None:
    world = World()
    world.kernel = ""
    found = world.soak(server, requests=4)
    assert (found["verdict"], found["kernel"], ids(found)) == ("passed", None, ["SOAK_KERNEL_LOG_UNREADABLE"])


# the report, from what was seen

PLAN = Plan("m", "chat", 2, 1, 64, 5.0)
WELL = (Result("right", "a", whole_s=1.0, completion_tokens=3), Result("sane", "b", whole_s=3.0, completion_tokens=5))
LEAKY = Result("right", "a", text="24<|im_end|>", detail="special tokens (<|im_end|>)")


def metrics(drafts: Drafts | None, **more: int) -> EngineMetrics:
    counted: dict[str, t.Any] = {"preemptions": 0, "prefix_queries": 100, "prefix_hits": 20, "corrupted_requests": None}
    return EngineMetrics(drafts, 0.1, **{**counted, **more})


@pytest.mark.parametrize(
    ("before", "after", "expects", "verdict", "finding"),
    [
        (metrics(Drafts(1, 3, 2)), metrics(Drafts(101, 303, 202)), True, "passed", ""),
        (metrics(Drafts(1, 3, 2)), metrics(Drafts(101, 303, 2)), True, "failed", "SOAK_DRAFTS_NONE_ACCEPTED"),
        (metrics(Drafts(1, 3, 2)), metrics(Drafts(1, 3, 2)), True, "failed", "SOAK_NO_DRAFTS"),
        (metrics(None), metrics(None), True, "failed", "SOAK_NO_DRAFTS"),
        (metrics(None), metrics(None), False, "passed", ""),
        (metrics(None), metrics(None, corrupted_requests=2), False, "failed", "SOAK_CORRUPTED_REQUESTS"),
        (metrics(None), metrics(None, preemptions=3), False, "passed", "SOAK_PREEMPTED"),
        (None, None, False, "inconclusive", "SOAK_METRICS_UNREADABLE"),
        (metrics(None), None, True, "inconclusive", "SOAK_METRICS_UNREADABLE"),
    ],
)
def test_what_the_counters_say(
    before: EngineMetrics | None, after: EngineMetrics | None, expects: bool, verdict: str, finding: str
) -> None:
    seen = Seen(results=WELL, took_s=2.0, before=before, after=after, kernel=(), expects_drafts=expects)
    found = report(PLAN, seen)
    assert (found["verdict"], ids(found)) == (verdict, [finding] if finding else [])


def reported(
    *results: Result, alone: tuple[Result, ...] = (), again: tuple[Result, ...] = (), **seen: t.Any
) -> dict[str, t.Any]:
    """Return the report of a soak that saw nothing beside these answers."""
    plan = dataclasses.replace(PLAN, requests=len(results))
    given: dict[str, t.Any] = {"took_s": 2.0, "before": metrics(None), "after": metrics(None), "kernel": ()} | seen
    return report(plan, Seen(results=results, alone=alone, again=again, **given))


def many(right: int, wrong: int = 0, kind: t.Any = "sums", *, other: t.Any = "wrong") -> tuple[Result, ...]:
    well = Result("sane" if kind == "sentences" else "right", "a", kind=kind)
    return (*[well] * right, *[Result(other, "b", detail="x", kind=kind)] * wrong)


@pytest.mark.parametrize(
    ("outcome", "finding"), [("garbage", "SOAK_GARBAGE"), ("failed", "SOAK_REQUESTS_FAILED"), ("wrong", "")]
)
def test_what_is_broken_without_load_is_no_better_for_it(outcome: str, finding: str) -> None:
    found = reported(*many(40), alone=many(0, 6, other=outcome))
    assert (found["verdict"], ids(found)) == ("failed" if finding else "passed", [finding] if finding else [])
    if finding:
        assert found["because"].startswith("6 of 6 ")
        assert found["because"].endswith(" without load.")
        assert found["samples"]


SHORT = dataclasses.replace(many(0, 1, other="cut")[0], unfinished=True)


@pytest.mark.parametrize(
    ("right", "cut", "without_load", "verdict"),
    [
        (21, 19, (SHORT, *many(5)), "passed"),
        (20, 20, (SHORT, *many(5)), "inconclusive"),
        (0, 1, (SHORT,), "inconclusive"),
        # A budget that is large enough without load is so under load, too.
        (36, 4, many(6), "passed"),
        (35, 5, many(6), "inconclusive"),
        (21, 19, many(6), "inconclusive"),
    ],
)
def test_half_of_the_answers_cut_prove_nothing_and_fewer_where_none_is_cut_without_load(
    right: int, cut: int, without_load: tuple[Result, ...], verdict: str
) -> None:
    assert reported(*many(right), *[SHORT] * cut, alone=without_load)["verdict"] == verdict


@pytest.mark.parametrize(
    ("again", "verdict"),
    [
        (many(8), "failed"),
        ((SHORT, SHORT, *many(6)), "failed"),
        ((SHORT, SHORT, SHORT, *many(5)), "passed"),
        ((SHORT,) * 8, "passed"),
    ],
)
def test_what_is_cut_under_load_and_not_without_is_the_fault_of_the_load(
    again: tuple[Result, ...], verdict: str
) -> None:
    assert reported(*many(90), *[SHORT] * 10, alone=many(6), again=again)["verdict"] == verdict


@pytest.mark.parametrize(
    ("answers", "again", "verdict", "because"),
    [
        # What is right alone is blamed on the load beyond what rounding may tip.
        (many(98, 2), many(2), "passed", ""),
        (many(97, 3), many(3), "failed", "3 of 100 sums are wrong, and 3 of 3 of them right when asked again alone."),
        (many(18, 2), many(2), "passed", ""),
        (many(17, 3), many(3), "failed", "3 of 20 sums are wrong, and 3 of 3 of them right when asked again alone."),
        (many(45, 5, "sentences"), many(5, 0, "sentences"), "passed", ""),
        (many(44, 6, "sentences"), many(6, 0, "sentences"), "failed", "6 of 6 of them right when asked again alone."),
        (many(53, 13, "counts"), many(8, 0, "counts"), "passed", ""),
        (many(52, 14, "counts"), many(8, 0, "counts"), "failed", "8 of 8 of them right when asked again alone."),
        # So many were asked again that stand for all that were wrong.
        (many(190, 10), many(2, 6), "passed", ""),
        (
            many(160, 40),
            many(2, 6),
            "failed",
            "40 of 200 sums are wrong, and 2 of 8 of them right when asked again alone.",
        ),
        # What is wrong in any case is the model's, and too much of it leaves nothing to judge.
        (many(95, 5), many(0, 5), "passed", ""),
        (many(90, 10), many(0, 8), "passed", ""),
        (many(89, 11), many(0, 8), "inconclusive", "0 of 8 of them right when asked again alone."),
        (many(89, 11), many(0, 8, other="cut"), "inconclusive", "0 of 8 of them right when asked again alone."),
        (many(25, 25, "sentences"), many(0, 8, "sentences"), "passed", ""),
        (
            many(24, 26, "sentences"),
            many(0, 8, "sentences"),
            "inconclusive",
            "0 of 8 of them right when asked again alone.",
        ),
        # Each kind is judged by itself, and nothing is known of what could not be asked again.
        (many(97, 3), many(3, 0, "counts"), "inconclusive", "and 0 of 0 of them right when asked again alone."),
        (many(98, 2), (), "passed", ""),
    ],
)
def test_wrong_answers_are_blamed_on_the_load_where_they_are_right_without(
    answers: tuple[Result, ...], again: tuple[Result, ...], verdict: str, because: str
) -> None:
    found = reported(*answers, alone=many(6), again=again)
    assert found["verdict"] == verdict, found["because"]
    assert found["because"].endswith(because)
    assert found["asked_again"] == len(again)


@pytest.mark.parametrize("sure", [1.0, 0.97, 0.95, 0.92, 0.9])
def test_a_model_that_counts_as_well_with_load_as_without_rarely_fails(sure: float) -> None:
    rng = random.Random(7)

    def counts(number: int) -> tuple[Result, ...]:
        wrong = sum(rng.random() > sure for _each in range(number))
        return many(number - wrong, wrong, "counts")

    failed = 0
    for _each in range(200):
        answers = counts(66)
        wrong = sum(one.outcome == "wrong" for one in answers)
        found = reported(*many(334), *answers, alone=many(6), again=counts(min(8, wrong)))
        failed += found["verdict"] == "failed"
    assert failed <= 4


def test_what_the_load_has_broken_for_good_is_its_fault() -> None:
    broken = reported(*many(40, 60), alone=many(6), again=many(0, 8))
    assert (broken["verdict"], ids(broken)) == ("failed", ["SOAK_WRONG_ANSWERS"])
    assert reported(*many(40, 60), alone=many(5, 1), again=many(0, 8))["verdict"] == "inconclusive"
    assert reported(*many(50, 50), alone=many(6), again=many(0, 8))["verdict"] == "inconclusive"


def test_a_model_that_can_do_nothing_longer_than_a_sum_proves_nothing() -> None:
    plan = dataclasses.replace(PLAN, kinds=("sums",))
    alone = (*many(6), *many(0, 2, "sentences"))
    seen = Seen(results=WELL, alone=alone, took_s=2.0, before=metrics(None), after=metrics(None), kernel=())
    assert report(plan, seen)["verdict"] == "inconclusive"
    assert report(dataclasses.replace(plan, kinds=("sums", "counts")), seen)["verdict"] == "passed"


def test_of_many_wrong_answers_a_few_of_each_kind_are_asked_again_from_the_whole_load() -> None:
    wrong = [dataclasses.replace(one, whole_s=float(place)) for place, one in enumerate(many(0, 100))]
    counts, garbage = many(0, 3, "counts"), many(0, 9, other="garbage")
    chosen = _soak_load.to_ask_again([*wrong, *counts, *garbage, *many(5)])
    assert [one.whole_s for one in chosen] == [0.0, 12.0, 25.0, 37.0, 50.0, 62.0, 75.0, 87.0, 0.0, 0.0, 0.0]
    assert chosen[-3:] == counts


@pytest.mark.parametrize(
    ("alone", "verdict", "finding"),
    [(LEAKY, "passed", "SOAK_MARKUP_LEAKED"), (WELL[0], "inconclusive", "SOAK_MARKUP_UNDER_LOAD")],
)
def test_markup_beside_right_answers_is_said_once_and_is_the_load_s_fault_only_where_it_is_not_there_without(
    alone: Result, verdict: str, finding: str
) -> None:
    found = reported(*[LEAKY] * 3, *many(7), alone=(alone,))
    assert (found["verdict"], ids(found)) == (verdict, [finding])
    assert found["findings"][0]["message"] == "3 of 10 answers are well, and have markup beside them."


def test_acceptance_and_hit_rate_are_those_of_the_soak_alone() -> None:
    before, after = metrics(Drafts(100, 300, 10)), metrics(Drafts(200, 600, 220), prefix_queries=200, prefix_hits=70)
    found = report(PLAN, Seen(results=WELL, took_s=2.0, before=before, after=after, kernel=()))
    assert (found["acceptance"]["acceptance"], found["acceptance"]["mean_length"]) == (0.7, 3.1)
    assert (found["prefix_hit_rate"], found["tokens_per_second"]) == (0.5, 4.0)
    assert found["latency_ms"] == {
        "first_token": None,
        "per_token": None,
        "whole": {"p50": 1000.0, "p95": 3000.0, "p99": 3000.0, "max": 3000.0},
    }


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([None, None], None),
        ([0.002], {"p50": 2.0, "p95": 2.0, "p99": 2.0, "max": 2.0}),
        ([n / 1000 for n in range(100, 0, -1)], {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}),
    ],
)
def test_percentiles_are_values_that_were_measured(
    seconds: list[float | None], expected: dict[str, float] | None
) -> None:
    assert percentiles(seconds) == expected


def test_every_finding_is_documented_as_it_is() -> None:
    lines = (ROOT / "docs" / "findings.md").read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| SOAK_")]
    assert {row[0]: row[1:] for row in cells} == {
        name: [known.severity, known.meaning, known.remedy] for name, known in KNOWN.items()
    }


# the deploy record

REPORT = report(PLAN, Seen(results=WELL, took_s=2.0, before=metrics(None), after=metrics(None), kernel=()))


ENOUGH = {"verdict": "passed", "requests": 400, "concurrency": 8}
HEADLESS = {"rank": 1, "members": [{"rank": 0, "box": "spark-1"}, {"rank": 1, "box": "spark-2"}]}


@pytest.mark.parametrize(
    ("speculative", "soak", "proven", "because"),
    [
        (False, None, True, "it answered"),
        (True, None, False, "no soak has shown"),
        (True, {"verdict": "inconclusive", "because": "x"}, False, "proved nothing"),
        (True, {"verdict": "failed", "because": "3 of 400 answers are garbage."}, False, "3 of 400"),
        (False, {"verdict": "failed", "because": "3 of 400 answers are garbage."}, False, "3 of 400"),
        (True, ENOUGH, True, "400 requests, 8 at a time"),
    ],
)
def test_what_speculates_is_proven_by_a_soak_alone(
    speculative: bool, soak: dict[str, t.Any] | None, proven: bool, because: str
) -> None:
    found = _deploy_record.proven({"speculative": speculative}, soak)
    assert found["proven"] == proven
    assert because in found["because"]


@pytest.mark.parametrize(
    ("sequences", "soak", "proven"),
    [
        (64, {**ENOUGH, "requests": 1, "concurrency": 1}, False),
        (64, {**ENOUGH, "requests": 100}, True),
        (64, {**ENOUGH, "requests": 99}, False),
        (64, {**ENOUGH, "requests": 120, "cut": 21}, False),
        (64, {**ENOUGH, "requests": 120, "failed_requests": 21}, False),
        (64, {**ENOUGH, "concurrency": 7}, False),
        (4, {**ENOUGH, "concurrency": 4}, True),
        (4, {**ENOUGH, "concurrency": 3}, False),
        (None, {**ENOUGH, "concurrency": 4}, False),
    ],
)
def test_a_soak_that_is_too_small_proves_nothing_of_what_speculates_and_says_what_would(
    sequences: int | None, soak: dict[str, t.Any], proven: bool
) -> None:
    settings = {"speculative": True, "max_num_seqs": sequences}
    found = _deploy_record.proven(settings, soak)
    assert found["proven"] is proven
    if not proven:
        assert "its soak was too small" in found["because"]
        assert f"it takes 100, {min(8, sequences or 8)} at a time" in found["because"]
    assert _deploy_record.proven({**settings, "speculative": False}, soak)["proven"]


def test_the_head_of_a_serving_group_proves_the_ranks_that_nobody_can_ask() -> None:
    settings = {"speculative": True, "group": HEADLESS}
    assert _deploy_record.proven(settings, None) == {
        "proven": True,
        "because": "it serves with the head of its serving group, which answers for all ranks",
    }
    assert not _deploy_record.proven({**settings, "group": {**HEADLESS, "rank": 0}}, None)["proven"]


def place(root: pathlib.Path, record: dict[str, t.Any] | None) -> pathlib.Path:
    path = root / _instance.RECORD_FOLDER / "writer.json"
    path.parent.mkdir(parents=True)
    if record is not None:
        path.write_text(json.dumps(record), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("record", "reason"), [(None, "there is no deploy record to"), ({"spec": "other"}, "of another engine")]
)
def test_a_verdict_belongs_to_the_engine_that_was_soaked(
    tmp_path: pathlib.Path, record: dict[str, t.Any] | None, reason: str
) -> None:
    path = place(tmp_path, record)
    text = path.read_text("utf-8") if record else None
    kept = _deploy_record.keep_soak("writer", {"spec": "s1"}, REPORT, at=0, sysroot=tmp_path)
    assert reason in kept["not_recorded"]
    assert kept["not_proven"]
    assert (path.read_text("utf-8") if record else None) == text


def test_a_verdict_is_added_to_the_record_and_nothing_is_lost(tmp_path: pathlib.Path) -> None:
    path = place(tmp_path, {"spec": "s1", "argv": ["vllm"], "proven": False, "because": "it speculates"})
    settings = {"spec": "s1", "speculative": True}
    report = {**REPORT, **ENOUGH}
    kept = _deploy_record.keep_soak("writer", settings, report, at=0, sysroot=tmp_path)
    assert kept == {"not_recorded": "", "not_proven": ""}
    record = json.loads(path.read_text("utf-8"))
    assert (record["argv"], record["proven"]) == (["vllm"], True)
    assert (record["soak"]["verdict"], record["soak"]["spec"], record["soak"]["at"]) == (
        "passed",
        "s1",
        "1970-01-01T00:00:00Z",
    )


@pytest.mark.parametrize(
    ("soak", "taken"),
    [
        ({"spec": "s1", **ENOUGH}, (True, True)),
        ({"spec": "s1", "verdict": "passed", "requests": 9, "concurrency": 3}, (True, False)),
        ({"spec": "s1", "verdict": "failed", "because": "x"}, (True, False)),
        ({"spec": "s0", "verdict": "passed"}, (False, False)),
        (None, (False, False)),
        ("not a report", (False, False)),
    ],
)
def test_a_new_record_of_the_same_engine_takes_its_soak_over(soak: object, taken: tuple[bool, bool]) -> None:
    found = _deploy_record.carried({"soak": soak}, {"speculative": True}, "s1")
    assert ("soak" in found, found["proven"]) == taken


def test_a_verdict_outlives_the_engines_that_served_in_between() -> None:
    record: dict[str, t.Any] = {"soak": {"spec": "s1", "verdict": "failed", "because": "3 of 400 answers are garbage."}}
    for spec in ("s2", "s3"):
        record = _deploy_record.carried(record, {}, spec)
        assert (record["proven"], record.get("soak")) == (True, None)
    back = _deploy_record.carried(record, {}, "s1")
    assert (back["proven"], back["because"]) == (False, "its soak failed: 3 of 400 answers are garbage.")
    assert "earlier_soaks" not in back


def test_verdicts_of_earlier_engines_do_not_pile_up() -> None:
    record: dict[str, t.Any] = {}
    for number in range(20):
        record = {**_deploy_record.carried(record, {}, f"s{number}"), "soak": {"spec": f"s{number}", **ENOUGH}}
    assert [one["spec"] for one in record["earlier_soaks"]] == ["s18", "s17", "s16", "s15", "s14"]


PASSED = {"verdict": "passed", "requests": 400, "concurrency": 8}
SMALL = {"verdict": "passed", "requests": 10, "concurrency": 2}
FAILED = {"verdict": "failed", "requests": 400, "concurrency": 8}
UNSURE = {"verdict": "inconclusive", "requests": 40, "concurrency": 8}
UNASKED = {"verdict": "inconclusive", "requests": 0, "concurrency": 8}


@pytest.mark.parametrize(
    ("recorded", "report", "stands"),
    [
        (None, UNSURE, ""),
        (None, UNASKED, "nothing was asked"),
        (UNSURE, UNASKED, "nothing was asked"),
        (PASSED, UNASKED, "nothing was asked"),
        (PASSED, UNSURE, "it is inconclusive, and the verdict of 2026 stands (passed)"),
        (FAILED, UNSURE, "it is inconclusive, and the verdict of 2026 stands (failed)"),
        (UNSURE, UNSURE, ""),
        (UNSURE, SMALL, ""),
        (SMALL, SMALL, ""),
        (PASSED, SMALL, "it was too small, and the verdict of 2026 stands (passed)"),
        (FAILED, SMALL, "it was too small, and the verdict of 2026 stands (failed)"),
        (FAILED, PASSED, ""),
        (PASSED, FAILED, ""),
        (PASSED, PASSED, ""),
    ],
)
def test_a_verdict_is_replaced_by_one_that_says_more_and_by_no_other(
    tmp_path: pathlib.Path, recorded: dict[str, t.Any] | None, report: dict[str, t.Any], stands: str
) -> None:
    soak = {"spec": "s1", "at": "2026", **recorded} if recorded else None
    path = place(tmp_path, {"spec": "s1", "soak": soak, "proven": True})
    kept = _deploy_record.keep_soak("writer", {"spec": "s1"}, {**REPORT, **report}, at=0, sysroot=tmp_path)
    assert kept["not_recorded"].startswith(stands)
    assert bool(kept["not_recorded"]) == bool(stands)
    after = json.loads(path.read_text("utf-8"))["soak"]
    assert after == soak if stands else after["at"] == "1970-01-01T00:00:00Z"


def test_an_inconclusive_verdict_of_another_engine_is_nobody_s() -> None:
    assert _deploy_record.stands({}, {"spec": "s0", **PASSED}, UNSURE, "s1") == ""


# the job on the box


def test_the_job_soaks_what_the_box_knows_and_leaves_its_report(
    server: fake.OpenAIServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.api_key = "sk-1"
    (tmp_path / "writer.env").write_text("VLLM_API_KEY=sk-1\n")
    settings = {
        "url": server.url,
        "models": ["lab/tiny"],
        "kind": "chat",
        "spec": "s1",
        "secrets_file": str(tmp_path / "writer.env"),
    }
    monkeypatch.setattr(_instance, "settings", lambda name: settings)
    monkeypatch.setattr(_status, "FOLDER", tmp_path)
    for function in (_status.StatusFile.__init__, _soak.leave):
        monkeypatch.setattr(function, "__defaults__", (tmp_path,))
    defaults = {"run": World().run, "tell": print, "api_key": "", "sysroot": tmp_path}
    monkeypatch.setattr(_soak.Soak.__init__, "__kwdefaults__", defaults)
    recorded: list[str] = []

    def keep(name: str, *_rest: object, **_more: object) -> dict[str, str]:
        recorded.append(name)
        return {"not_recorded": "", "not_proven": "it speculates"}

    monkeypatch.setattr(_deploy_record, "keep_soak", keep)
    request = _soak.Request(instance="writer", requests=9, concurrency=3)
    assert _box.main(["soak", json.dumps(_soak.as_plain(request))]) == 0
    name = _status.job_name("soak", "writer")
    status = _status.StatusFile(name).read()
    assert status is not None
    assert status.stage == _status.DONE
    assert status.message.startswith("passed: 9 of 9 requests, 3 at a time: every answer was sane")
    assert status.message.endswith("; not proven: it speculates")
    assert _soak.left(name, tmp_path)["verdict"] == "passed"
    assert recorded == ["writer"]
    assert "sk-1" not in (tmp_path / "soak" / f"{name}.json").read_text("utf-8")


def test_a_job_for_an_instance_that_is_not_there_says_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_instance, "settings", lambda name: {})
    monkeypatch.setattr(_status, "FOLDER", tmp_path)
    monkeypatch.setattr(_status.StatusFile.__init__, "__defaults__", (tmp_path,))
    assert _box.main(["soak", '{"instance": "nobody"}']) == 1
    status = _status.StatusFile(_status.job_name("soak", "nobody")).read()
    assert status is not None
    assert (status.failed, status.message) == (True, "this box has no instance nobody; deploy it first")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kind": "embedding"}, "writer serves vectors (kind embedding), and a soak judges answers"),
        ({"kind": "chat", "group": HEADLESS}, "not its head, and answers nobody; soak the head on spark-1"),
        ({"kind": "chat"}, "a switch of this box is under way"),
    ],
)
def test_what_a_soak_cannot_judge_is_refused_and_loses_no_proof(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, t.Any], says: str
) -> None:
    monkeypatch.setattr(
        _instance, "settings", lambda name: {"url": "http://127.0.0.1:9", "models": ["lab/tiny"], **settings}
    )
    monkeypatch.setattr(_status.StatusFile.__init__, "__defaults__", (tmp_path,))
    monkeypatch.setattr(_soak_engine, "switch_under_way", lambda: True)
    monkeypatch.setattr(_deploy_record, "keep_soak", None)
    assert _box.main(["soak", '{"instance": "writer"}']) == 1
    status = _status.StatusFile(_status.job_name("soak", "writer"), tmp_path).read()
    assert status is not None
    assert status.failed
    assert says in status.message

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import threading
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _heartbeat, _probe
from ansible_collections.gb10.fleet.plugins.module_utils._engine_signs import Counters
from tests.unit.support import openai_server as fake

SETTINGS: dict[str, t.Any] = {"url": "http://127.0.0.1:8000", "models": ["writer"], "kind": "chat"}
IDLE = Counters(generation_tokens=100, prompt_tokens=100, steps=100, running=0, waiting=0)
LOADED = dataclasses.replace(IDLE, running=2)


class Head:
    """A head whose questions meet these verdicts one after another, the last of them again and again."""

    def __init__(self, *stages: str, counters: Counters | None = IDLE, **settings: t.Any) -> None:
        self.stages = list(stages)
        self.counters = counters
        self.per_read = 0
        self.asked: list[_probe.Options] = []
        self.lived = 0
        self.now = 1000.0
        self.made = _heartbeat.Heartbeat(
            {**SETTINGS, **settings},
            every_s=15,
            api_key=lambda: "secret",
            probe=self.probe,
            read=self.read,
            lives=self.lives,
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def probe(self, options: _probe.Options) -> _probe.Verdict:
        self.asked.append(options)
        stage = self.stages.pop(0) if len(self.stages) > 1 else self.stages[0]
        self.now += 22 if stage == "hung" else 0
        return _probe.Verdict(stage in {"ready", "degraded"}, stage, {}, None, ())

    def read(self) -> Counters | None:
        if self.counters and self.per_read:
            steps = self.counters.steps + self.per_read
            self.counters = dataclasses.replace(self.counters, steps=steps)
        return self.counters

    def lives(self) -> None:
        self.lived += 1

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def heartbeat(*stages: str, **settings: t.Any) -> tuple[_heartbeat.Heartbeat, list[_probe.Options]]:
    """Return the heartbeat of an idle head, and what it asks."""
    head = Head(*stages, **settings)
    return head.made, head.asked


@pytest.mark.parametrize("stage", ["ready", "degraded", "busy", "out_of_time", "garbage", "budget", "auth_failed"])
def test_an_engine_that_computes_lives(stage: str) -> None:
    head = Head(stage)
    head.made.beat()
    assert head.made.failed == ""
    assert (len(head.asked), head.lived) == (1, 1)


@pytest.mark.parametrize("stage", ["hung", "dead", "engine_dead", "unreachable"])
def test_an_engine_that_does_not_answer_is_asked_again_before_it_is_given_up(stage: str) -> None:
    head = Head(stage)
    head.made.beat()
    assert head.made.failed.startswith("it does not complete any more")
    assert (len(head.asked), head.lived) == (3, 0)
    # docs/serving-groups.md: three questions of 22 s and two pauses of 5 s.
    assert head.now - 1000 <= 76


def test_two_strikes_are_forgiven() -> None:
    made, asked = heartbeat("hung", "hung", "ready", "hung", "hung", "ready")
    made.beat()
    made.beat()
    assert made.failed == ""
    assert len(asked) == 6


def test_a_head_whose_tokens_move_is_not_asked() -> None:
    head = Head("hung", counters=LOADED)
    head.per_read = 1
    head.made.beat()
    assert (head.asked, head.made.failed, head.lived) == ([], "", 1)


def test_a_step_of_an_engine_that_was_started_again_meanwhile_is_no_sign_of_life() -> None:
    head = Head("ready", counters=LOADED)
    head.per_read = 1
    head.made._sleep = lambda _seconds: head.made.forget()
    head.made.beat()
    assert (head.asked, head.lived) == ([], 0)


def test_work_of_before_the_beat_is_no_sign_of_life() -> None:
    head = Head("ready", counters=LOADED)
    head.made.beat()
    head.counters = dataclasses.replace(LOADED, steps=9000)
    head.made.beat()
    assert len(head.asked) == 2


def test_a_head_with_requests_is_ended_after_a_whole_period_without_progress() -> None:
    head = Head("hung", counters=LOADED, liveness={"period_s": 600})
    head.made.beat()
    assert head.made.failed
    assert 600 <= head.now - 1000 <= 640
    # Where nobody can tell whether there are requests, or no watch says how long a period is, it is the same.
    head = Head("hung", counters=None)
    head.made.beat()
    assert head.now - 1000 >= _heartbeat.PATIENCE_S


def test_a_head_with_requests_that_works_again_is_spared() -> None:
    head = Head("hung", counters=LOADED)

    def sleep(seconds: float) -> None:
        head.now += seconds
        head.per_read = int(head.now > 1100)

    head.made._sleep = sleep
    head.made.beat()
    assert (head.made.failed, head.lived) == ("", 1)
    assert len(head.asked) >= 3


def test_the_last_step_of_an_engine_does_not_take_it_out_of_doubt() -> None:
    head = Head("hung")
    asked = head.made._probe

    def probe(options: _probe.Options) -> _probe.Verdict:
        if not head.asked:
            head.counters = dataclasses.replace(IDLE, steps=101)
        return asked(options)

    head.made._probe = probe
    head.made.beat()
    assert head.made.failed
    assert len(head.asked) == 4


def test_a_head_that_is_dead_beyond_doubt_gets_no_longer_for_its_requests() -> None:
    head = Head("dead", counters=LOADED)
    head.made.beat()
    assert len(head.asked) == 3


def test_a_head_that_stops_serving_is_not_asked_on() -> None:
    head = Head("hung", counters=LOADED)
    head.made.beat(lambda: False)
    assert (len(head.asked), head.made.failed) == (1, "")


def test_the_asking_goes_on_whatever_it_meets(capsys: pytest.CaptureFixture[str]) -> None:
    lives = threading.Event()
    made = _heartbeat.Heartbeat(
        SETTINGS,
        every_s=0.01,
        probe=lambda _options: _probe.Verdict(True, "ready", {}, None, ()),
        read=lambda: IDLE,
        lives=lives.set,
        sleep=lambda _seconds: None,
    )
    met = iter([OSError("Cannot allocate memory"), MemoryError()])

    def serves() -> bool:
        if (error := next(met, None)) is not None:
            raise error
        return True

    made.run(serves)
    assert lives.wait(timeout=10)
    assert "Cannot allocate memory" in capsys.readouterr().err


def test_a_head_that_computes_a_long_prompt_is_not_ended() -> None:
    head = Head("hung", counters=LOADED)

    def read() -> Counters | None:
        # A chunk of a prompt fills the KV cache, and gives no token.
        head.counters = dataclasses.replace(LOADED, kv_usage=head.now / 10000) if head.now < 2000 else LOADED
        return head.counters

    head.made._read = read
    head.made.beat()
    assert (head.made.failed, head.asked, head.lived) == ("", [], 1)
    head.now = 3000
    head.made.beat()
    assert head.made.failed


def test_counters_are_read_from_the_engine() -> None:
    with fake.OpenAIServer() as server:
        server.metrics = fake.Metrics(running=2, generation_tokens=1000)
        read = _heartbeat.reader(server.url)
        assert read() == Counters(generation_tokens=1000, prompt_tokens=0, steps=500, running=2, waiting=0)
        server.script("GET", fake.METRICS, fake.status(503))
        assert read() is None
    assert read() is None


def test_a_question_to_an_engine_that_was_started_again_meanwhile_does_not_count() -> None:
    made, _asked = heartbeat("dead")

    def probe(_options: _probe.Options) -> _probe.Verdict:
        made.forget()
        return _probe.Verdict(False, "dead", {}, None, ())

    made._probe = probe
    made.beat()
    assert made.failed == ""


@pytest.mark.parametrize(
    ("kind", "checks"), [("chat", ("chat",)), ("base", ("completions",)), ("embedding", ("embeddings",))]
)
def test_the_question_is_short_and_of_the_kind_of_the_model(kind: str, checks: tuple[str, ...]) -> None:
    made, asked = heartbeat("ready", kind=kind)
    made.beat()
    (options,) = asked
    assert (options.checks, options.model, options.api_key) == (checks, "writer", "secret")
    assert options.request_timeout == _heartbeat.REQUEST_S

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from tests.unit.support import openai_server as fake
from tests.unit.support.faults import FAULTS, post_all
from tests.unit.support.probing import ids, look, state

if t.TYPE_CHECKING:
    import collections.abc


@pytest.fixture
def server() -> collections.abc.Iterator[fake.OpenAIServer]:
    with fake.OpenAIServer() as running:
        yield running


# figures


def test_tokens_are_the_servers_and_not_the_chunks(server: fake.OpenAIServer) -> None:
    server.script("POST", fake.CHAT, lambda x: fake.say(fake.honest_text(x.request.prompt), tokens=345)(x))
    seen = look(server).evidence["stream"]
    assert (seen["completion_tokens"], seen["chunks"]) == (345, 4)


def test_a_server_that_does_not_count(server: fake.OpenAIServer) -> None:
    message = {"choices": [{"message": {"content": "Got it."}, "finish_reason": "stop"}]}
    server.script("POST", fake.CHAT, fake.body(json.dumps(message).encode()))
    verdict = look(server, checks=("chat",))
    assert (verdict.stage, ids(verdict)) == ("degraded", ["USAGE_MISSING"])
    assert verdict.evidence["chat"]["completion_tokens"] is None


WEDGED_GPU = """\
utilization.gpu [%], clocks.sm [MHz], clocks.applications.gr [MHz], power.draw [W]
96 %, 799 MHz, 2418 MHz, 19.5 W
"""


@pytest.mark.parametrize(("fault", "stage"), [("hang", "hung"), ("busy", "busy")])
def test_the_gpu_is_looked_at_when_nothing_comes(server: fake.OpenAIServer, fault: str, stage: str) -> None:
    FAULTS[fault].set_up(server)
    verdict = look(server, gpu=lambda: WEDGED_GPU, request_timeout=0.3)
    assert verdict.stage == stage
    assert "GB10_LOW_POWER_STATE" in ids(verdict)
    assert verdict.evidence["gpu"]["power"] == 19.5


@pytest.mark.parametrize("shown", [None, "", "No devices were found\n"])
def test_a_machine_without_a_gpu_is_no_trouble(server: fake.OpenAIServer, shown: str | None) -> None:
    FAULTS["hang"].set_up(server)
    assert "gpu" not in look(server, gpu=lambda: shown, request_timeout=0.3).evidence


def test_a_hang_without_counters_is_still_a_hang(server: fake.OpenAIServer) -> None:
    FAULTS["hang"].set_up(server)
    server.script("GET", fake.METRICS, fake.status(404))
    verdict = look(server, request_timeout=0.3)
    assert (verdict.stage, ids(verdict)) == ("hung", ["COMPLETION_HUNG"])
    assert "cannot be read" in verdict.summary


def test_others_tokens_show_that_a_stream_which_stopped_is_only_slow(server: fake.OpenAIServer) -> None:
    FAULTS["hang_mid_stream"].set_up(server)
    server.metrics.per_read = 50
    assert look(server, request_timeout=0.8).stage == "busy"


def test_a_process_that_dies_while_it_answers(server: fake.OpenAIServer) -> None:
    for action in (fake.reset, fake.hang):
        post_all(action)(server)
        lives = iter(["alive", "gone"])
        verdict = look(server, process=lambda lives=lives: state(next(lives))(), request_timeout=0.3)
        assert verdict.stage == "dead"
        assert "while answering" in verdict.summary


# time


@pytest.mark.parametrize("timeout", [0.0, 1.5])
def test_too_little_time_says_nothing_about_the_engine(server: fake.OpenAIServer, timeout: float) -> None:
    FAULTS["hang"].set_up(server)
    verdict = look(server, timeout=timeout, request_timeout=120.0)
    assert (verdict.ready, verdict.stage, ids(verdict)) == (False, "out_of_time", ["OUT_OF_TIME"])


def test_a_stuck_api_server_within_too_little_time(server: fake.OpenAIServer) -> None:
    FAULTS["api_server_stuck"].set_up(server)
    assert look(server, timeout=0.6).stage == "out_of_time"

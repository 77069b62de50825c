# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _heartbeat, _probe

SETTINGS: dict[str, t.Any] = {"url": "http://127.0.0.1:8000", "models": ["writer"], "kind": "chat"}


def heartbeat(*stages: str, **settings: t.Any) -> tuple[_heartbeat.Heartbeat, list[_probe.Options]]:
    """Return a heartbeat whose questions meet these verdicts, one after another."""
    left = list(stages)
    asked: list[_probe.Options] = []

    def probe(options: _probe.Options) -> _probe.Verdict:
        asked.append(options)
        stage = left.pop(0)
        return _probe.Verdict(stage in {"ready", "degraded"}, stage, {}, None, ())

    made = _heartbeat.Heartbeat({**SETTINGS, **settings}, every_s=15, api_key=lambda: "secret", probe=probe)
    return made, asked


@pytest.mark.parametrize("stage", ["ready", "degraded", "busy", "out_of_time", "garbage", "budget", "auth_failed"])
def test_an_engine_that_computes_lives(stage: str) -> None:
    made, asked = heartbeat(stage)
    made.beat()
    assert made.failed == ""
    assert len(asked) == 1


@pytest.mark.parametrize("stage", ["hung", "dead", "engine_dead", "unreachable"])
def test_an_engine_that_does_not_answer_is_asked_again_before_it_is_given_up(stage: str) -> None:
    made, asked = heartbeat(stage, stage)
    made.beat()
    assert made.failed.startswith("it does not complete any more")
    assert len(asked) == _heartbeat.STRIKES


def test_one_strike_is_forgiven() -> None:
    made, asked = heartbeat("hung", "ready", "hung", "ready")
    made.beat()
    made.beat()
    assert made.failed == ""
    assert len(asked) == 4


def test_a_question_to_an_engine_that_was_started_again_meanwhile_does_not_count() -> None:
    made, _asked = heartbeat()

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

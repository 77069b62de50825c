# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Asks the head of a serving group for a short completion, again and again while it serves.

A rank that hangs (a stopped process, a cable that is out) leaves the head's ``/health`` at 200: only a step of the
engine needs all ranks. Where the tokens of clients move while it is looked at, that is such a step and nothing is asked
for. An engine that is busy is told from one that hangs by its token counters, see _probe.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import sys
import threading
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _engine_signs, _openai_api, _probe, _watch

# Less than 10 s would prove nothing, see _probe_session.FAIR_WAIT_S.
REQUEST_S: t.Final = 20.0
_PROBE_S: t.Final = 30.0
STRIKES: t.Final = 3
# How long tokens of clients are waited for before a question to an engine with requests, and after one that failed.
PAUSE_S: t.Final = 5.0
_CHEAP_S: t.Final = 5.0
# How long an engine with requests may show no progress, where the box has no watch that says so.
PATIENCE_S: t.Final = 300.0
_MAX_TOKENS: t.Final = 10
# Verdicts that only an engine gets that does not compute; everything else, garbage included, was computed.
_DEAD: t.Final = ("dead", "engine_dead", "hung", "unreachable", "starting")
_CHECKS: t.Final[c.Mapping[str, tuple[str, ...]]] = {
    "chat": ("chat",),
    "base": ("completions",),
    "embedding": ("embeddings",),
}

Probe = c.Callable[[_probe.Options], _probe.Verdict]
Read = c.Callable[[], "_engine_signs.Counters | None"]


def probe_once(options: _probe.Options) -> _probe.Verdict:
    """Ask once."""
    return _probe.probe(options, timeout=_PROBE_S)


def reader(url: str) -> Read:
    """Return how to read the counters of an engine; None where it does not tell them."""
    client = _openai_api.Client(_openai_api.Endpoint.from_url(url), clock=time.monotonic)

    def read() -> _engine_signs.Counters | None:
        try:
            reply = client.get("/metrics", _openai_api.Deadline.after(_CHEAP_S, time.monotonic))
        except _openai_api.ApiError:
            return None
        found = reply.body.decode("utf-8", "replace")
        return _engine_signs.Counters.from_metrics(found) if reply.status == 200 else None

    return read


class Heartbeat:
    """The heartbeat of one instance; ``failed`` says why its engine does not compute, once that is certain.

    ``lives`` is called at each sign of life.
    """

    def __init__(
        self,
        settings: c.Mapping[str, t.Any],
        *,
        every_s: float,
        api_key: c.Callable[[], str] = str,
        probe: Probe = probe_once,
        read: Read | None = None,
        lives: c.Callable[[], None] = lambda: None,
        clock: c.Callable[[], float] = time.monotonic,
        sleep: c.Callable[[float], None] = time.sleep,
    ) -> None:
        self.failed = ""
        self._api_key = api_key
        self._settings = settings
        self._every_s = every_s
        self._probe = probe
        self._read = read or reader(str(settings["url"]))
        self._lives = lives
        self._clock = clock
        self._sleep = sleep
        self._patience_s = float((settings.get("liveness") or {}).get("period_s", PATIENCE_S))
        self._starts = 0

    def run(self, serves: c.Callable[[], bool]) -> None:
        """Ask in a thread of its own, while ``serves`` says that there is somebody to ask."""

        def beat_on() -> None:
            pause = threading.Event()
            while not pause.wait(self._every_s):
                try:
                    if serves():
                        self.beat(serves)
                except Exception as error:  # noqa: BLE001 - nobody begins the asking anew: it goes on, whatever it met
                    sys.stderr.write(f"no heartbeat this time: {error!r}\n")

        threading.Thread(target=beat_on, daemon=True, name="heartbeat").start()

    def beat(self, serves: c.Callable[[], bool] = lambda: True) -> None:
        """Look and ask until there is a sign of life, or too many questions in a row have failed.

        An engine that had requests before the first question gets a whole period without progress, too. Its own figures
        would not do for that: where it hangs, they hold the questions.
        """
        start, strikes, began = self._starts, 0, self._clock()
        before = self._read()
        loaded = before is None or before.running + before.waiting > 0
        works = before is not None and loaded and self._works(before)
        while not works:
            verdict = self._probe(self._options())
            if start != self._starts:  # the question was to an engine that is gone by now
                return
            if verdict.stage not in _DEAD:
                break
            strikes += 1
            spared = loaded and _watch.sign_of(verdict) == "hang" and self._clock() - began < self._patience_s
            if strikes >= STRIKES and not spared:
                self.failed = f"it does not complete any more ({verdict.summary})"
                return
            now = self._read()
            works = self._works(now)
            if start != self._starts or not serves():
                return
            if now and before and now.worked_since(before):
                # Perhaps its last step: the strikes begin anew, and so does the patience.
                strikes, began, before = 0, self._clock(), now
        if start == self._starts:
            self._lives()

    def _works(self, before: _engine_signs.Counters | None) -> bool:
        """Wait a moment, and return whether the engine made a step meanwhile."""
        if before is None:
            self._sleep(PAUSE_S)
            return False
        return _engine_signs.works_now(before, self._read, within_s=PAUSE_S, sleep=self._sleep)

    def forget(self) -> None:
        """Begin anew: the engine was started again."""
        self._starts += 1
        self.failed = ""

    def _options(self) -> _probe.Options:
        settings = self._settings
        return _probe.Options(
            url=settings["url"],
            model=settings["models"][0],
            kind=settings["kind"],
            api_key=self._api_key(),
            checks=_CHECKS.get(settings["kind"], ("chat",)),
            max_tokens=_MAX_TOKENS,
            request_timeout=REQUEST_S,
        )

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Asks the head of a serving group for a short completion, again and again while it serves.

A rank that hangs (a stopped process, a cable that is out) leaves the head's ``/health`` at 200: only a completion needs
all ranks. An engine that is busy is told from one that hangs by its token counters, see _probe.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import threading
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _probe

# Less than 10 s would prove nothing, see _probe_session.FAIR_WAIT_S.
REQUEST_S: t.Final = 20.0
_PROBE_S: t.Final = 30.0
STRIKES: t.Final = 2
_MAX_TOKENS: t.Final = 16
# Verdicts that only an engine gets that does not compute; everything else, garbage included, was computed.
_DEAD: t.Final = ("dead", "engine_dead", "hung", "unreachable", "starting")
_CHECKS: t.Final[c.Mapping[str, tuple[str, ...]]] = {
    "chat": ("chat",),
    "base": ("completions",),
    "embedding": ("embeddings",),
}

Probe = c.Callable[[_probe.Options], _probe.Verdict]


def probe_once(options: _probe.Options) -> _probe.Verdict:
    """Ask once."""
    return _probe.probe(options, timeout=_PROBE_S)


class Heartbeat:
    """The heartbeat of one instance; ``failed`` says why its engine does not compute, once that is certain."""

    def __init__(
        self,
        settings: c.Mapping[str, t.Any],
        *,
        every_s: float,
        api_key: c.Callable[[], str] = str,
        probe: Probe = probe_once,
    ) -> None:
        self.failed = ""
        self._api_key = api_key
        self._settings = settings
        self._every_s = every_s
        self._probe = probe
        self._strikes = 0
        self._starts = 0

    def run(self, serves: c.Callable[[], bool]) -> None:
        """Ask in a thread of its own, while ``serves`` says that there is somebody to ask."""

        def beat_on() -> None:
            pause = threading.Event()
            while not pause.wait(self._every_s):
                if serves():
                    self.beat()

        threading.Thread(target=beat_on, daemon=True, name="heartbeat").start()

    def beat(self) -> None:
        """Ask until there is an answer, or too many in a row have failed."""
        start = self._starts
        while True:
            verdict = self._probe(self._options())
            if start != self._starts:  # the question was to an engine that is gone by now
                return
            if verdict.stage not in _DEAD:
                self._strikes = 0
                return
            self._strikes += 1
            if self._strikes >= STRIKES:
                self.failed = f"it does not complete any more ({verdict.summary})"
                return

    def forget(self) -> None:
        """Begin anew: the engine was started again."""
        self._starts += 1
        self._strikes, self.failed = 0, ""

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

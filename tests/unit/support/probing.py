# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the tests of the probe share: one look at the scriptable server, a wait without waiting, and small stand-ins."""

from __future__ import annotations

import dataclasses
import socket
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._probe import Options, Verdict, probe, wait_until_ready
from ansible_collections.gb10.fleet.plugins.module_utils._process_state import ProcessState

if t.TYPE_CHECKING:
    from tests.unit.support import openai_server as fake


def split(given: dict[str, t.Any]) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """Tell the options of a probe from the arguments of the function that probes."""
    fields = {field.name for field in dataclasses.fields(Options)}
    options = {name: value for name, value in given.items() if name in fields}
    return options, {name: value for name, value in given.items() if name not in fields}


def look(server: fake.OpenAIServer, timeout: float = 180.0, **given: t.Any) -> Verdict:
    """Probe the server. What is no option goes to probe() itself."""
    options, rest = split(given)
    return probe(Options(server.url, **options), timeout=timeout, **rest)


def ids(verdict: Verdict) -> list[str]:
    """Return what was found, by name."""
    return [found.id for found in verdict.findings]


def state(life: str) -> t.Callable[[], ProcessState]:
    """Return a check that always says the same of its process."""
    return lambda: ProcessState(t.cast("t.Any", life), f"it is {life}")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        return int(probe_socket.getsockname()[1])


class SkipClock:
    """A clock that runs as usual, but jumps where the program sleeps; ``at`` names what happens at a given jump."""

    def __init__(self, at: dict[int, t.Callable[[], t.Any]] | None = None) -> None:
        self.skipped = 0.0
        self.sleeps: list[float] = []
        self.at = at or {}

    def __call__(self) -> float:
        return time.monotonic() + self.skipped

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.skipped += seconds
        self.at.get(len(self.sleeps), lambda: None)()


def wait(url: str, clock: SkipClock, timeout: float = 600.0, **given: t.Any) -> tuple[Verdict, list[str]]:
    """Wait for a server on that clock; return the verdict and the lines of progress."""
    lines: list[str] = []
    options, rest = split(given)
    verdict = wait_until_ready(
        Options(url, **options), timeout=timeout, progress=lines.append, clock=clock, sleep=clock.sleep, **rest
    )
    return verdict, lines

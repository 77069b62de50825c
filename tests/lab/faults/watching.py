# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of an engine that serves and does not end: only an answer tells that something is wrong."""

from __future__ import annotations

import collections.abc as c
import itertools

from tests.lab.faults.bench import Bench
from tests.lab.faults.entry import SHARED, By, Collection, End, Fault, When

WATCHING = Collection(When.SERVING)

# Name of the engine's fault, what it does, and the words in which the watch has to call it.
_RESTARTED = (
    ("hang", "completions never come, `/health` says 200", ("hung:", "token counters stand still")),
    ("hang_in_queue", "requests wait and none runs, `/health` says 200", ("hung:", "wait and none runs")),
    ("hang_mid_body", "answers begin and never end", ("hung:",)),
    ("health_lies_500", "completions fail, `/health` says 200", ("engine_dead:", "HTTP 500", "/health then: 200")),
    ("engine_dead_health_503", "the engine is dead and its API server lives", ("engine_dead:", "/health says 503")),
    ("closed_at_completion", "connections are closed at a completion", ("engine_dead:", "was cut off")),
    ("garbage_nul", "answers turn into NUL bytes", ("garbage:", "nul bytes")),
    ("garbage_words", "answers turn into one word", ("garbage:", "repetition ('a'")),
    ("garbage_salad", "answers turn wrong", ("wrong_answer:", "purple if the velvet")),
    ("empty", "answers turn empty", ("no_answer:", "The answer is empty")),
    ("api_server_stuck", "the API server says nothing any more", ("hung:", "did not answer")),
    ("port_closes", "the port is closed and the process lives", ("restarting it",)),
)
# The same, where a restart would be a false alarm or of no use.
_LEFT_ALONE = (
    ("busy", "tokens move and completions are late", ("ActiveState=active",)),
    ("health_hangs_only", "`/health` is slow, completions come", ("ActiveState=active",)),
    ("wrong_model", "another model is served than was asked for", ("not cured by a restart", "is not served here")),
    ("auth_required", "the engine wants a key that nobody has", ("not cured by a restart", "HTTP 401")),
    ("long_prompt", "a long prompt is computed: no token moves, and nobody else is answered", ("ActiveState=active",)),
)
_LOOKS = 4


def look(bench: Bench, *, wait: bool = False) -> None:
    """Have the watch look now, as its timer would have it in a while."""
    bench.run(f"systemctl start {'' if wait else '--no-block'} gb10-fleet-watch@{bench.name}.service", check=False)


def seen_by_the_watch(name: str) -> c.Callable[[Bench], str]:
    """Return how to give a serving engine a fault that the watch restarts it for."""

    def inject(bench: Bench) -> str:
        since, before = bench.now(), bench.container()
        bench.fault(f"{name} 0")
        look(bench)
        bench.wait_until_it_serves(other_than=before)
        return bench.journal(since)

    return inject


def left_alone(name: str) -> c.Callable[[Bench], str]:
    """Return how to give a serving engine a fault that is no reason for a restart."""

    def inject(bench: Bench) -> str:
        since = bench.now()
        bench.fault(name)
        for _ in range(_LOOKS):
            look(bench, wait=True)
        bench.fault("")
        said = bench.journal(since)
        assert "restarting it" not in said, said
        return f"{said}\nActiveState={bench.systemd()['ActiveState']}"

    return inject


WATCHING.faults += [
    Fault(
        f"watch_{name}", what, When.SERVING, By.WATCH, ("restarting it", *says), End.HEALED, seen_by_the_watch(name), on
    )
    for (name, what, says), on in zip(_RESTARTED, itertools.cycle(SHARED), strict=False)
]
WATCHING.faults += [
    Fault(f"watch_{name}", what, When.SERVING, By.WATCH, says, End.UNTOUCHED, left_alone(name), on)
    for (name, what, says), on in zip(_LEFT_ALONE, itertools.cycle(SHARED[1:]), strict=False)
]


@WATCHING.add(
    "the engine's process is stopped (SIGSTOP)",
    by=By.WATCH,
    says=("restarting it", "hung:", "/v1/models did not answer"),
    end=End.HEALED,
)
def watch_frozen(bench: Bench) -> str:
    since, before = bench.now(), bench.container()
    bench.run("docker kill --signal STOP vllm-$NAME")
    look(bench)
    bench.wait_until_it_serves(other_than=before)
    return bench.journal(since)


@WATCHING.add(
    "the first token takes three seconds",
    by=By.WATCH,
    says=("ready: it answered", "ActiveState=active"),
    end=End.HEALED,
    bench="a",
)
def first_token_takes_3_s(bench: Bench) -> str:
    since = bench.now()
    bench.fault("first_token_takes_3_s")
    bench.restart()
    return f"{bench.journal(since)}\n{left_alone('first_token_takes_3_s')(bench)}"

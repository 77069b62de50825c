# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _instance, _watch_timers


class Systemd:
    """A systemd that knows what the test says of its units; the others are inactive."""

    def __init__(
        self,
        states: dict[str, str],
        stale: frozenset[str] = frozenset(),
        error: str = "",
        masked: frozenset[str] = frozenset(),
    ) -> None:
        self.masked = masked
        self.states = states
        self.stale = stale
        self.error = error
        self.did: list[str] = []

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[1] == "show":
            reload = "yes" if argv[-1] in self.stale else "no"
            load = "masked" if argv[-1] in self.masked else "loaded"
            state = self.states.get(argv[-1], "inactive")
            return 0, f"LoadState={load}\nActiveState={state}\nNeedDaemonReload={reload}\n", ""
        self.did.append(" ".join(argv[1:]))
        return (1, "", self.error) if self.error else (0, "", "")


ENGINE, TIMER, SERVICE = "vllm-writer.service", "gb10-fleet-watch@writer.timer", "gb10-fleet-watch@writer.service"
BOTH = {ENGINE: "active", TIMER: "active"}


@pytest.mark.parametrize(
    ("states", "stale", "wanted", "did"),
    [
        (BOTH, set(), True, []),
        ({ENGINE: "active"}, set(), True, [f"restart {TIMER}"]),
        ({ENGINE: "activating"}, set(), True, [f"restart {TIMER}"]),
        # a timer takes up a new period by itself, and an engine is not touched for its unit's text
        (BOTH, {TIMER}, True, ["daemon-reload"]),
        (BOTH, {ENGINE}, True, ["daemon-reload"]),
        (BOTH, {SERVICE}, True, ["daemon-reload"]),
        (BOTH, set(), False, [f"stop {TIMER}"]),
        (BOTH, {ENGINE, TIMER}, False, ["daemon-reload", f"stop {TIMER}"]),
        ({ENGINE: "active"}, set(), False, []),
        # an engine that is down brings its timer along when it is started
        ({}, set(), True, []),
        ({TIMER: "active"}, set(), True, [f"stop {TIMER}"]),
        ({ENGINE: "failed", TIMER: "active"}, set(), True, [f"stop {TIMER}"]),
    ],
)
def test_timers_follow_their_engines_and_the_setting(
    states: dict[str, str], stale: set[str], wanted: bool, did: list[str]
) -> None:
    told, done = (Systemd(states, frozenset(stale)) for _each in range(2))
    would = _watch_timers.converge(told.run, ["writer"], wanted=wanted, check_mode=True)
    outcome = _watch_timers.converge(done.run, ["writer"], wanted=wanted, check_mode=False)
    assert (told.did, done.did) == ([], did)
    assert would == outcome
    assert outcome.changed == bool(did)


def test_a_systemd_that_refuses_is_told() -> None:
    systemd = Systemd({ENGINE: "active"}, error="no such unit\n")
    with pytest.raises(_instance.UnitError, match=r"`systemctl restart gb10-fleet-watch@writer.timer` failed: no such"):
        _watch_timers.converge(systemd.run, ["writer"], wanted=True, check_mode=False)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_masked_timer_is_left_alone_and_told_of_where_it_is_missed(wanted: bool) -> None:
    systemd = Systemd({ENGINE: "active"}, error="Unit is masked.", masked=frozenset({TIMER}))
    outcome = _watch_timers.converge(systemd.run, ["writer"], wanted=wanted, check_mode=False)
    assert (systemd.did, outcome.changed, outcome.after) == ([], False, {"writer": False})
    said = (
        f"nobody watches vllm-writer, because {TIMER} is masked; "
        f"`systemctl unmask {TIMER}` and site.yml have it watched again."
    )
    assert outcome.notes == ((said,) if wanted else ())


def test_a_masked_timer_that_runs_still_is_stopped_with_the_watch_alone() -> None:
    for wanted, did in ((True, []), (False, [f"stop {TIMER}"])):
        systemd = Systemd(BOTH, masked=frozenset({TIMER}))
        _watch_timers.converge(systemd.run, ["writer"], wanted=wanted, check_mode=False)
        assert systemd.did == did


def test_a_diff_shows_the_timers_by_name() -> None:
    assert _watch_timers.lines({"writer": True, "reader": False}) == (
        "gb10-fleet-watch@writer.timer: runs\ngb10-fleet-watch@reader.timer: stopped\n"
    )

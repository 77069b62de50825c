# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Brings the timers that watch instances into the wanted state, without touching the engines.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses

from ansible_collections.gb10.fleet.plugins.module_utils import _docker, _instance


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """Whether anything was (or would be) changed, and which timers ran before and run after, by instance.

    ``notes`` are sentences on engines that ought to be watched and are not.
    """

    changed: bool
    before: c.Mapping[str, bool]
    after: c.Mapping[str, bool]
    notes: tuple[str, ...] = ()


def timer_name(instance: str) -> str:
    """Return the timer that watches an instance."""
    return f"gb10-fleet-watch@{instance}.timer"


def service_name(instance: str) -> str:
    """Return the service that the timer starts."""
    return f"gb10-fleet-watch@{instance}.service"


def converge(run: _docker.Run, instances: c.Sequence[str], *, wanted: bool, check_mode: bool) -> Outcome:
    """Have the timers of the instances run, or none of them; an engine that is down needs none.

    A timer that somebody has masked is left alone: systemd would refuse to start it, and that somebody meant it.
    """
    units = {name: _instance.show(run, _instance.unit_name(name)) for name in instances}
    timers = {name: _instance.show(run, timer_name(name)) for name in instances}
    before = {name: timer.serving for name, timer in timers.items()}
    due = {name: wanted and not unit.down for name, unit in units.items()}
    masked = {name for name, timer in timers.items() if due[name] and not before[name] and timer.masked}
    after = {name: due[name] and name not in masked for name in instances}
    services = [_instance.show(run, service_name(name)) for name in instances]
    stale = any(unit.needs_reload for unit in (*units.values(), *timers.values(), *services))
    # One that runs takes up a new period when systemd reads its file (timer_coldplug in systemd's src/core/timer.c).
    begun = [name for name in instances if after[name] and not before[name]]
    ended = [name for name in instances if before[name] and not after[name]]
    if not check_mode:
        if stale:
            _systemctl(run, "daemon-reload")
        if begun:
            _systemctl(run, "restart", *(timer_name(name) for name in begun))
        if ended:
            _systemctl(run, "stop", *(timer_name(name) for name in ended))
    notes = tuple(
        f"nobody watches {_instance.container_name(name)}, because {timer_name(name)} is masked; "
        f"`systemctl unmask {timer_name(name)}` and site.yml have it watched again."
        for name in instances
        if name in masked
    )
    return Outcome(stale or bool(begun or ended), before, after, notes)


def lines(timers: c.Mapping[str, bool]) -> str:
    """Return the timers as a diff shows them."""
    return "".join(f"{timer_name(name)}: {'runs' if runs else 'stopped'}\n" for name, runs in timers.items())


def _systemctl(run: _docker.Run, *arguments: str) -> None:
    code, _out, err = run(["systemctl", *arguments])
    if code != 0:
        raise _instance.UnitError(f"`systemctl {' '.join(arguments)}` failed: {err.strip()}")

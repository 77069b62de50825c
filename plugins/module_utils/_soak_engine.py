# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine of a soak, seen from outside: did it end, and did it end by itself or because somebody ended it?

An engine that dies under load is what a soak is made to find. One that a deployment, a planned restart or a person took
away says nothing about its answers.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import pathlib
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _generation, _group_files, _instance, _watch

# What ended by itself has nothing left that could be waited for; only an engine that is told to end takes its time.
_SETTLES_S: t.Final = 30.0
_POLL_S: t.Final = 1.0

Run = c.Callable[[list[str]], tuple[int, str, str]]


def switch_under_way(sysroot: pathlib.Path = pathlib.Path("/")) -> bool:
    """Return whether the box is on its way from one generation to another."""
    return _generation.Store(sysroot).under_way


class Engine:
    """The unit of an instance during a soak. Without an instance there is nothing to see, and nothing is amiss."""

    def __init__(
        self,
        instance: str,
        run: Run,
        *,
        sysroot: pathlib.Path = pathlib.Path("/"),
        sleep: c.Callable[[float], None] = time.sleep,
    ) -> None:
        self._instance = instance
        self._run = run
        self._sysroot = sysroot
        self._sleep = sleep
        self._watch = _watch.StateFile(instance, sysroot / str(_watch.FOLDER).lstrip("/"))
        self._groups = sysroot / str(_group_files.FOLDER).lstrip("/")
        self._counts = self._watch.read().counts if instance else {}
        self._first = self._show()
        self._starts = [self._first.invocation] if self._first else []
        self._switched = self._leaving = False

    @property
    def ends(self) -> int:
        """How often the engine ended or was started anew."""
        return max(len(self._starts) - 1, int(self._leaving))

    @property
    def disturbed(self) -> bool:
        """Whether it is not, or will not be for long, the engine that it was in the beginning."""
        return self._switched or self.ends > 0

    def look(self) -> None:
        """Note every start of the engine, every end, and a deployment that begins."""
        if not self._instance:
            return
        if not self.disturbed and switch_under_way(self._sysroot):
            self._switched = True
        unit = self._show()
        if unit is None:
            return
        self._leaving = self._leaving or unit.active_state == "deactivating" or unit.pausing
        start = "down" if unit.active_state in {"inactive", "failed"} else unit.invocation
        if start not in self._starts:
            self._starts.append(start)

    def interruption(self) -> str:
        """Return who took the engine away, in words; empty where it ended by itself, or did not end at all."""
        if not self.disturbed:
            return ""
        if self._switched:
            return "a deployment began"
        self._settle()
        if self._found_dead() or self._died():
            return ""
        if self._counted("planned"):
            return "the watch restarted it as planned"
        return "a deployment began" if switch_under_way(self._sysroot) else "somebody stopped or restarted it"

    def _found_dead(self) -> bool:
        """Whether the watch found it dead or hanging, or the daemon of its serving group lost another rank."""
        groups = _group_files.GroupFiles(self._instance, self._groups)
        asked = self._first is not None and groups.asked(self._first.invocation) is not None
        return asked or self._counted("restarts", "stops")

    def _counted(self, *names: str) -> bool:
        counts = self._watch.read().counts
        return any(counts.get(name, 0) > self._counts.get(name, 0) for name in names)

    def _died(self) -> bool:
        """Whether systemd starts it again, or would: it counts such starts, and begins anew when it is told to start.

        An engine of which nobody can tell has died: that is what a soak looks for.
        """
        first, unit = self._first, self._show()
        if first is None or unit is None:
            return True
        return unit.pausing or unit.restarts > first.restarts or unit.result == "start-limit-hit"

    def _settle(self) -> None:
        """Wait until the engine has ended: how it went down is not known before."""
        for _each in range(int(_SETTLES_S / _POLL_S)):
            self.look()
            unit = self._show()
            if unit is None or unit.active_state != "deactivating":
                return
            self._sleep(_POLL_S)

    def _show(self) -> _instance.Unit | None:
        if not self._instance:
            return None
        try:
            return _instance.show(self._run, _instance.unit_name(self._instance))
        except _instance.UnitError:
            return None

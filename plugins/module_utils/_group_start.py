# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the unit of a serving group's rank does beyond that of a single box: meet the others, follow the head, say why.

Each function runs in a process of the unit (ExecStartPre, ExecStartPost, ExecStopPost) and talks to the rank's daemon
through files, see _group_files.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import re
import signal
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _boot_log,
    _command,
    _group_files,
    _instance,
    _process_state,
)
from ansible_collections.gb10.fleet.plugins.module_utils._group_rules import Ended

_POLL_S: t.Final = 1.0
_SAY_EVERY_S: t.Final = 60.0
_LOOK_EVERY_S: t.Final = 5.0
# A rank that has just left waits this long for the daemon's word on a new start before it says that there is none.
_DAEMON_S: t.Final = 20.0
_JOURNAL_LINES: t.Final = 4000
_JOURNAL_S: t.Final = 15.0
_OWN_WORDS: t.Final = re.compile(
    r"waiting for the (?:other ranks|head's first completion) \(|the engine of this rank is gone:"
)
_KILLED: t.Final = {"137": "killed (exit status 137)", "143": "told to end (exit status 143)"}
_KILL: t.Final = f"its container was {_KILLED['137']}"


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """How to wait: the files of the rank, the token of this start, who is told of it, and the clock."""

    files: _group_files.GroupFiles
    token: str
    say: c.Callable[[str], None]
    clock: c.Callable[[], float] = time.monotonic
    sleep: c.Callable[[float], None] = time.sleep


def meet(wait: Wait, obstacle: c.Callable[[], str]) -> str:
    """Wait until all ranks start together; return an empty text then, else why this start is refused.

    It waits as long as it takes: a rank that waits holds no memory, and a box that is being repaired, or a cable that
    is out, is no reason to give up. ``obstacle`` says what stands in the way of this rank's own start.
    """
    since = wait.clock()
    said, said_at, looked_at = "", float("-inf"), float("-inf")
    hindered, took_s = "", 0.0
    while True:
        begins = wait.files.round(wait.token) is not None
        # Looking at memory and containers is not free, so it is done seldom, and once more before the engine starts;
        # but not where a look takes long: the round would be over for the others before it ends, again and again.
        if hindered or (begins and took_s < _LOOK_EVERY_S) or wait.clock() - looked_at >= _LOOK_EVERY_S:
            began_at = wait.clock()
            hindered, looked_at = obstacle(), wait.clock()
            took_s = looked_at - began_at
        wait.files.write(_group_files.Gate(wait.token, not hindered, since, wait.clock()))
        if hindered:
            # The others do not wait in a round that this rank has not come into; it needs another one.
            wait.files.withdraw(wait.token)
        view = wait.files.view(wait.clock())
        if view is not None and view.token == wait.token:
            if view.refused:
                return view.refused
            # A look may take long, and the round be over meanwhile.
            if begins and not hindered and wait.files.round(wait.token) is not None:
                wait.files.write(_group_files.Gate(wait.token, True, since, wait.clock(), left=True))
                return ""
        reason = hindered or _waiting_for(view, wait, since)
        if reason and (_kind(reason) != _kind(said) or wait.clock() - said_at >= _SAY_EVERY_S):
            wait.say(f"waiting for the other ranks ({wait.clock() - since:.0f} s): {reason}")
            said, said_at = reason, wait.clock()
        wait.sleep(_POLL_S)


def _waiting_for(view: _group_files.View | None, wait: Wait, since: float) -> str:
    if view is None:
        late = wait.clock() - since > _DAEMON_S
        return "gb10-fleet-peer of this instance does not run; see `systemctl status gb10-fleet-peer@*`" if late else ""
    return view.waiting


def _kind(reason: str) -> str:
    """Return a reason without the numbers in it, which change every second."""
    return "".join(char for char in reason if not char.isdigit())


def follow(wait: Wait, *, timeout_s: float, process: c.Callable[[], _process_state.ProcessState]) -> str:
    """Wait until the head of this rank's round serves; return an empty text then, else why this start has failed.

    A rank without the head's HTTP server is ready when the head has answered a completion, for which it was needed.
    """
    started = wait.clock()
    said_at = float("-inf")
    while True:
        joined = wait.files.round(wait.token)
        view = wait.files.view(wait.clock())
        if joined and view and view.head_serves and view.head_round == joined.name:
            return ""
        state = process()
        if state.life == "gone":
            return f"the engine of this rank is gone: {state.detail}"
        waited = wait.clock() - started
        if waited >= timeout_s:
            return f"the head has not answered a completion within {waited:.0f} s"
        if wait.clock() - said_at >= _SAY_EVERY_S:
            wait.say(f"waiting for the head's first completion ({waited:.0f} s of {timeout_s:.0f} s)")
            said_at = wait.clock()
        wait.sleep(_POLL_S)


def agree(
    instance: str,
    *,
    timeout_s: float,
    tell: c.Callable[[str], None],
    files: _group_files.GroupFiles | None = None,
    show: c.Callable[[], _instance.Unit] | None = None,
    clock: c.Callable[[], float] = time.monotonic,
    sleep: c.Callable[[float], None] = time.sleep,
) -> str:
    """Say that this rank is proven, and wait until all others of its round are; return why they are not.

    Until then each of them may still go back, and would wait for this one, which serves something else, for ever.
    """
    files = files or _group_files.GroupFiles(instance)
    show = show or (lambda: _instance.show(_command.run, _instance.unit_name(instance)))
    unit = show()
    files.write(_group_files.Proven(unit.invocation))
    until, said = clock() + timeout_s, ""
    while True:
        now, view = show(), files.view(clock())
        if now.invocation != unit.invocation or not now.serving:
            asked = files.asked(unit.invocation)
            why = f": {asked.cause}" if asked else ""
            return f"{unit.name} was proven, and has ended while the other ranks were still being proven{why}."
        waiting = view.proving if view and view.token == unit.invocation else "what the other ranks do"
        if not waiting:
            return ""
        if clock() >= until:
            return f"{unit.name} was proven, and {waiting} was not known to be within {timeout_s:.0f} s."
        if waiting != said:
            said = waiting
            tell(f"{unit.name} is proven for its part; waiting for {waiting}")
        sleep(_POLL_S)


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """How systemd says that the unit ended: the environment of ExecStopPost (systemd.exec(5), SERVICE_RESULT)."""

    token: str
    result: str
    code: str
    status: str
    failure: str = ""
    order: str = ""

    @property
    def ordered(self) -> bool:
        """Whether a job of systemd's ended it."""
        return bool(self.order)

    def cause(self) -> str:
        """Return in words how the engine ended."""
        if self.ordered:
            return "it was stopped by an order to systemd"
        if self.failure:
            return self.failure
        if self.code == "exited" and self.status in _KILLED:
            return f"its container was {_KILLED[self.status]}"
        if self.code == "exited":
            return f"its engine ended by itself with exit status {self.status}"
        return f"its engine ended ({self.result}, {self.code} {self.status})"


@dataclasses.dataclass(frozen=True, slots=True)
class Signal:
    """A signal that the container was sent, and when, in seconds since the epoch."""

    name: str
    at: float

    def cause(self) -> str:
        """Return in words what it did to the engine."""
        return _KILL if self.name == "SIGKILL" else f"its container was told to end ({self.name})"


def first_signal(container: str, joined: _group_files.Round | None, now: float) -> Signal | None:
    """Return the first signal that a container was sent since its round began, as Docker Engine remembers it.

    A rank that is told to end takes seconds for it, and the other ranks fail meanwhile: who left first is told by when
    it was told to, not by when it had ended.
    """
    if joined is None:
        return None
    since = now - max(0.0, time.monotonic() - joined.at)
    filters = ["--filter", "type=container", "--filter", "event=kill", "--filter", f"container={container}"]
    form = "{{.TimeNano}} {{.Actor.Attributes.signal}}"
    argv = ["docker", "events", f"--since={since:.3f}", f"--until={now:.3f}", *filters, "--format", form]
    _code, out, _err = _command.run(argv, timeout_s=_JOURNAL_S)
    first = re.match(r"(\d+) (\d+)$", out, re.MULTILINE)
    if first is None:
        return None
    try:
        name = signal.Signals(int(first[2])).name
    except ValueError:
        name = f"signal {first[2]}"
    return Signal(name, int(first[1]) / 1e9)


def ended(
    files: _group_files.GroupFiles,
    how: Exit,
    error: _boot_log.BootError | None,
    now: float,
    signalled: Signal | None = None,
) -> Ended | None:
    """Keep how this rank left its round, for the daemons of all ranks; None where it was in none."""
    asked = files.asked(how.token)
    # A restart, of the daemon or of a person, wants the unit up again; a stop does not, also over the daemon's restart.
    if how.order == "stop":
        files.write(_group_files.Stopped(how.token))
    joined = files.round(how.token)
    if joined is None:
        return None
    cause, own, at = (asked.cause, asked.own, asked.at or now) if asked else (how.cause(), True, now)
    blameless = asked.blameless if asked else how.ordered
    if signalled is not None and signalled.at < at:
        # Somebody told it to end before its daemon found a reason to.
        by_itself = how.code == "exited" and how.status not in _KILLED and not (how.ordered or how.failure)
        cause, own, at = signalled.cause() if asked or by_itself else cause, True, signalled.at
        blameless = blameless and not asked
    record = Ended(
        round=joined.name,
        cause=cause,
        own=own,
        at=at,
        error=error.message if error else "",
        error_at=(_seconds(error.stamp) or now) if error else 0.0,
        echo=bool(error and error.echo),
        blameless=blameless,
    )
    files.write(record)
    return record


def first_error(token: str) -> _boot_log.BootError | None:
    """Return the first error that the engine of that start wrote into the journal."""
    argv = ["journalctl", f"_SYSTEMD_INVOCATION_ID={token}", "--output=short-unix", "--no-pager", "--quiet"]
    _code, text, _err = _command.run([*argv, f"--lines={_JOURNAL_LINES}"], timeout_s=_JOURNAL_S)
    return _boot_log.parse_boot_logs([_boot_log.Log("", without_own_words(text))]).first


def without_own_words(journal: str) -> str:
    """Return a unit's journal without what this program said there of other ranks: their errors are not this one's."""
    return "\n".join(line for line in journal.splitlines() if not _OWN_WORDS.search(line))


def order(unit: str) -> str:
    """Return the job of systemd's that ends the unit, "stop" or "restart", empty where none does.

    It is the order of a person, a playbook, the daemon, or the shutdown of the box.
    """
    argv = ["systemctl", "list-jobs", "--no-legend", "--no-pager", "--full", unit]
    _code, out, _err = _command.run(argv, timeout_s=_JOURNAL_S)
    jobs = [line.split() for line in out.splitlines()]
    orders = (job[2] for job in jobs if len(job) > 2 and job[1] == unit)
    return next((one for one in orders if one in ("stop", "restart")), "")


def _seconds(stamp: str) -> float:
    """Return the time stamp of a journal line in seconds since the epoch, 0 where it is none."""
    try:
        return float(stamp)
    except ValueError:
        return 0.0

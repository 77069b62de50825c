# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The daemon beside each rank of a serving group: publishes its state, watches the others, and stops what is alone.

It starts nothing: systemd does, and the start gate waits for this daemon's word that all ranks start together. It ends
an engine by restarting its unit, so that what comes next is again systemd's start with its gate and its start limit.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import dataclasses
import functools
import pathlib
import sys
import threading
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _command,
    _generation,
    _group_files,
    _group_rules,
    _group_start,
    _heartbeat,
    _instance,
    _journal,
    _sd_notify,
    _status,
)
from ansible_collections.gb10.fleet.plugins.module_utils._group_link import Link, StateServer

# systemd starts the daemon again, except after this exit status: the instance is gone, or no rank of a group any more.
NOT_NEEDED: t.Final = 3
_EVERY_S: t.Final = 1.0
# How old a look at the own rank may be to be told to others: after that, this daemon is as silent as it is blind.
_OLD_S: t.Final = 10.0
# How long the story of a round waits for what the other ranks have to say.
_STORY_S: t.Final = 15.0
# And how long at most for a rank that is heard and whose engine has not ended yet: systemd kills it after 90 s.
_LEAVING_S: t.Final = 180.0
_SYSTEMCTL_S: t.Final = 20.0
# A headless rank takes 11 s to end in order (vLLM 0.32.0, measured 2026-11-29), on a busy box more.
_ENGINE_STOP_S: t.Final = 30
# Whether a rank's last word is about its present stage: what a failed start said is over when the next one begins.
_HAS_FAILED: t.Final[c.Mapping[str, bool]] = {
    "given-up": True,
    "ending": True,
    "pausing": True,
    "gating": False,
    "booting": False,
}
_BEFORE_MAIN: t.Final = ("start-pre", "condition")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A serving group as the settings of its instance on this box describe it. Times in seconds."""

    name: str
    spec: str
    rank: int
    members: tuple[_group_rules.Member, ...]
    port: int
    silence_s: float
    heartbeat_s: float
    tries: int

    @classmethod
    def read(cls, settings: c.Mapping[str, t.Any]) -> Group | None:
        """Read the settings; None where the instance is not a rank of a group."""
        group = settings.get("group")
        if not group:
            return None
        return cls(
            name=str(group["name"]),
            spec=str(group["spec"]),
            rank=int(group["rank"]),
            members=tuple(
                _group_rules.Member(int(one["rank"]), str(one["box"]), str(one["address"])) for one in group["members"]
            ),
            port=int(group["peer_port"]),
            silence_s=float(group["silence_seconds"]),
            heartbeat_s=float(group["heartbeat_seconds"]),
            tries=int(settings["start_limit_burst"]),
        )

    @property
    def own(self) -> _group_rules.Member:
        """This box's member."""
        return next(one for one in self.members if one.rank == self.rank)

    @property
    def others(self) -> tuple[_group_rules.Member, ...]:
        """The other boxes' members."""
        return tuple(one for one in self.members if one.rank != self.rank)


def stage_of(unit: _instance.Unit, files: _group_files.GroupFiles) -> _group_rules.Stage:
    """Return what a rank is doing, by its unit and by what was left of its present start."""
    if unit.pausing:
        return "pausing"
    if unit.given_up and not files.stopped(unit.invocation):
        return "given-up"
    if unit.active_state in ("inactive", "failed"):
        return "stopped"
    if unit.active_state == "deactivating":
        return "ending"
    if unit.sub_state in _BEFORE_MAIN:
        gate = files.gate(unit.invocation)
        return "open" if gate is not None and gate.open and not gate.silent_s() else "gating"
    return "serving" if unit.active_state == "active" else "booting"


class Daemon:
    """One rank's daemon."""

    def __init__(
        self, instance: str, settings: c.Mapping[str, t.Any], group: Group, api_key: c.Callable[[], str]
    ) -> None:
        self.instance = instance
        self.unit = _instance.unit_name(instance)
        self.group = group
        self._files = _group_files.GroupFiles(instance)
        self._links = [Link(one, instance, group.port, group.own.address) for one in group.others]
        self._heartbeat = _heartbeat.Heartbeat(
            settings, every_s=group.heartbeat_s, api_key=api_key, lives=self._computes
        )
        self._lock = threading.Lock()
        self._ordered_token = self._hung_token = ""
        self._state = self._observe()
        self._looked_at = time.monotonic()
        self._ended_round = ""
        self._ended_at = 0.0
        self._left_at = 0.0
        self._told_round = ""
        self._asked_token = ""
        self._stopped_token = ""
        self._server: StateServer | None = None
        self._complaints: set[str] = set()
        self._stalled_s = 0.0
        self._forgiven = self._files.forgiven()

    def run(self, still_needed: c.Callable[[], bool]) -> None:
        """Work until the daemon is not needed any more, or has to start anew."""
        for link in self._links:
            link.run()
        if self.group.rank == 0:
            self._heartbeat.run(self._serves)
        say(
            f"watching {', '.join(map(str, self.group.others))} of serving group {self.group.name}, "
            f"answering at {self._where}"
        )
        while still_needed():
            # A port that is taken is no reason to watch nobody: it is tried for as long as it takes.
            self._answer()
            self.step()
            time.sleep(_EVERY_S)

    @property
    def _where(self) -> str:
        return f"{self.group.own.address}:{self.group.port}"

    def _answer(self) -> None:
        """Answer the other ranks, once there is a port for it."""
        if self._server is not None:
            return
        try:
            self._server = StateServer(self.group.own.address, self.group.port, self.published)
            self._server.run()
        except OSError as error:
            self._complain(f"the other ranks cannot be answered at {self._where}", error)

    def _complain(self, what: str, error: OSError) -> None:
        """Say once that something does not work, which is tried again."""
        line = f"{what}, which is tried again: {error.strerror or error}"
        if line not in self._complaints:
            self._complaints.add(line)
            say(line)

    def _write(self, word: _group_files.Word) -> bool:
        """Leave word for the other processes of this rank, if there is room; the engine is ended without it, too."""
        try:
            self._files.write(word)
        except OSError as error:
            self._complain("no word can be left for the unit", error)
            return False
        return True

    def published(self) -> c.Mapping[str, t.Any] | None:
        """Return the state as others read it, None where it is too old to be told."""
        with self._lock:
            if time.monotonic() - self._looked_at > _OLD_S:
                return None
            return dataclasses.replace(self._state, now=time.time()).as_dict()

    def _serves(self) -> bool:
        with self._lock:
            return self._state.stage == "serving"

    def _computes(self) -> None:
        """Leave word for the liveness watch, which need not ask the same."""
        with self._lock:
            token = self._state.token
        # It runs in the thread of the heartbeat, which has to go on; without the word the watch asks for itself.
        with contextlib.suppress(OSError):
            self._files.write(_group_files.Beat(token, time.monotonic()))

    def _observe(self) -> _group_rules.RankState:
        unit = _instance.show(functools.partial(_command.run, timeout_s=_SYSTEMCTL_S), self.unit)
        stage = stage_of(unit, self._files)
        joined = self._files.round(unit.invocation)
        # A stopped rank has no round, whatever its last start went into.
        name = joined.name if joined and stage in ("open", "booting", "serving") else ""
        last = _status.StatusFile(self.instance).read()
        said = last.message if last and last.failed is _HAS_FAILED.get(stage) else ""
        return _group_rules.RankState(
            instance=self.instance,
            spec=self.group.spec,
            rank=self.group.rank,
            token=unit.invocation,
            stage=stage,
            round=name,
            sees={link.member.rank: token for link in self._links if (token := link.seen().token)},
            said=(self._hung_gate(unit) if stage == "gating" else "") or said,
            ended=self._files.ended(),
            now=time.time(),
            proving=_generation.Store().under_way and not self._files.proven(unit.invocation),
            blameless=stage in ("ending", "pausing") and self._ends_blameless(unit, stage),
        )

    def _hung_gate(self, unit: _instance.Unit) -> str:
        """Return that the start gate hangs, and where, for the other ranks; the gate itself cannot say it."""
        gate = self._files.gate(unit.invocation)
        silent_s = gate.silent_s() if gate is not None else 0.0
        if not silent_s:
            return ""
        line = f"its start gate has hung for {silent_s:.0f} s in a look at Docker Engine and at the memory"
        if self._hung_token != unit.invocation:
            self._hung_token = unit.invocation
            _journal.warning(self.unit, f"{self.group.own} is not ready to start: {line}")
        return line

    def _ends_blameless(self, unit: _instance.Unit, stage: _group_rules.Stage) -> bool:
        """Return whether this rank's engine is being ended for no fault of any rank, as far as is known yet."""
        asked = self._files.asked(unit.invocation)
        if asked is not None:
            return asked.blameless
        if self._ordered_token != unit.invocation and stage == "ending" and _group_start.order(self.unit):
            self._ordered_token = unit.invocation
        return self._ordered_token == unit.invocation

    def step(self) -> None:
        """Look once, and do what has to be done; systemd ends a daemon that does not come here any more."""
        _sd_notify.alive()
        looked_at = time.monotonic()
        before, state = self._state, self._observe()
        _sd_notify.alive()
        if state.token != before.token:
            for link in self._links:
                link.forgive()
            self._heartbeat.forget()
        with self._lock:
            self._state, self._looked_at = state, looked_at
        others = [link.seen() for link in self._links]
        self._begin_counting_anew(before, state, others)
        self._tell_stall()
        waiting = refused = ""
        if state.stage == "open" and not state.round:
            meeting = _group_rules.meet(state, others)
            waiting, refused = meeting.waiting, meeting.refused
            if meeting.round:
                joined = _group_files.Round(state.token, meeting.round, meeting.tokens, time.monotonic())
                if self._write(joined):
                    say(f"all ranks are ready: round {meeting.round} begins")
        elif state.in_round:
            self._watch(state, others)
        elif state.stage in ("open", "gating"):
            self._withdraw(state, others)
        self._view(state, others, waiting, refused)
        self._tell()

    def _tell_stall(self) -> None:
        """Say for how long this box did not let its own daemon run: the others may have ended their engines for it."""
        stalled_s = max(link.stalled_s for link in self._links)
        if stalled_s > self._stalled_s:
            say(f"this box stalled for {stalled_s - self._stalled_s:.0f} s; that is no silence of the other ranks")
            self._stalled_s = stalled_s

    def _withdraw(self, state: _group_rules.RankState, others: c.Sequence[_group_rules.Seen]) -> None:
        """Take back a round before the engine is in it: the gate has closed again, or another rank has left."""
        if self._files.round(state.token) is None:
            return
        loss = self._lost(state, others) if state.stage == "open" else None
        if state.stage == "gating" or loss is not None:
            say(f"the round is over before the engine started: {loss.cause if loss else 'the gate has closed again'}")
            try:
                self._files.withdraw(state.token)
            except OSError as error:
                self._complain("the round cannot be withdrawn", error)

    def _lost(self, state: _group_rules.RankState, others: c.Sequence[_group_rules.Seen]) -> _group_rules.Loss | None:
        joined = self._files.round(state.token)
        tokens, began = (joined.tokens, joined.at) if joined else ((), 0.0)
        age_s = time.monotonic() - began
        return _group_rules.lost(state, tokens, others, silence_s=self.group.silence_s, age_s=age_s)

    def _watch(self, state: _group_rules.RankState, others: c.Sequence[_group_rules.Seen]) -> None:
        loss = self._lost(state, others)
        if loss is not None:
            self._end(state, loss.cause, own=False, blameless=loss.blameless)
        elif self._heartbeat.failed:
            self._end(state, self._heartbeat.failed, own=True)

    def _begin_counting_anew(
        self, before: _group_rules.RankState, state: _group_rules.RankState, others: c.Sequence[_group_rules.Seen]
    ) -> None:
        """Forget the starts that came to nothing, once one has served, or somebody has stopped this rank."""
        if not self._forgiven.times:
            return
        ranks = [state, *(one.state for one in others if one.state is not None)]
        served = state.in_round and any(one.stage == "serving" and one.round == state.round != "" for one in ranks)
        # Between the two halves of a restart a unit is stopped, too, for a moment.
        if served or (state.stage in ("stopped", "given-up") and state.stage == before.stage):
            self._count(_group_files.Forgiven())

    def _count(self, forgiven: _group_files.Forgiven) -> None:
        """Remember it, also over a restart of this daemon."""
        self._forgiven = forgiven
        self._write(forgiven)

    def _forgives(self, state: _group_rules.RankState) -> bool:
        """Return whether the end of this start is not held against the rank: only so many that have not served are.

        A box that is starved by each boot of the other one, say, would else go on with that for ever.
        """
        if (state.stage == "serving" and state.round) or self._forgiven.token == state.token:
            return True
        if self._forgiven.times >= self.group.tries:
            return False
        self._count(_group_files.Forgiven(state.token, self._forgiven.times + 1))
        return True

    def _end(self, state: _group_rules.RankState, cause: str, *, own: bool, blameless: bool = False) -> None:
        """End the engine and start anew; the gate then waits until the others are there again."""
        first = self._files.asked(state.token) is None and self._asked_token != state.token
        self._asked_token = state.token
        if first:
            say(f"ending the engine: {cause}")
            self._write(_group_files.Asked(state.token, cause, own, time.time(), blameless))
            try:
                _status.StatusFile(self.instance).write(_status.Status("group", cause, failed=True, at=time.time()))
            except OSError as error:
                self._complain("the status cannot be written", error)
        if blameless and self._forgives(state):
            # A link that is down, or another rank that is stopped, is no failed try of this rank.
            _command.run(["systemctl", "reset-failed", self.unit], timeout_s=_SYSTEMCTL_S)
            _sd_notify.alive()
        # try-restart, and not over another job: what a person or a playbook is stopping stays stopped.
        argv = ["systemctl", "try-restart", "--no-block", "--job-mode=fail", self.unit]
        code, _out, err = _command.run(argv, timeout_s=_SYSTEMCTL_S)
        if code != 0:
            say(f"the unit could not be restarted, which is tried again: {err.strip()}")
        if self._stopped_token != state.token:
            self._stopped_token = state.token
            # systemd gives an engine that still boots no order of its own, and time that a rank alone should not have.
            # An order that seems to have failed may have been queued, and what ends the unit otherwise is as slow.
            stop = ["docker", "stop", "--time", str(_ENGINE_STOP_S), _instance.container_name(self.instance)]
            threading.Thread(target=_command.run, args=(stop,), daemon=True, name="stop").start()

    def _view(
        self, state: _group_rules.RankState, others: c.Sequence[_group_rules.Seen], waiting: str, refused: str
    ) -> None:
        """Leave word for the gate and for the readiness of this rank."""
        head = next((one.state for one in others if one.member.rank == 0 and one.silent_s <= _STORY_S), None)
        proving = [one for one in others if one.state and one.state.proving and one.state.round == state.round != ""]
        self._write(
            _group_files.View(
                token=state.token,
                waiting=waiting,
                refused=refused,
                head_round=head.round if head else "",
                head_serves=bool(head and head.stage == "serving"),
                proving=", ".join(str(one.member) for one in proving),
                at=time.monotonic(),
            )
        )

    def _tell(self) -> None:
        """Say in the unit's journal why the last round ended, once all ranks have said what they know, or cannot."""
        ended = self._files.ended()
        if ended is None or ended.round in (self._told_round, self._files.told()):
            return
        if self._ended_round != ended.round:
            self._ended_round, self._ended_at = ended.round, time.monotonic()
            self._left_at = self._ended_at
        records, leaving = {self.group.own: ended}, False
        for link in self._links:
            seen = link.seen()
            if seen.state is not None and seen.state.ended is not None and seen.state.ended.round == ended.round:
                there = seen.state.ended
                records[link.member] = dataclasses.replace(
                    there, at=there.at - link.offset_s, error_at=there.error_at - link.offset_s
                )
            elif seen.state is not None and seen.silent_s <= _group_rules.FRESH_S:
                leaving |= seen.state.stage == "ending" or seen.state.round == ended.round
        now = time.monotonic()
        if leaving:
            self._left_at = now
        missing = len(records) < len(self.group.members)
        if missing and now - self._left_at < _STORY_S and now - self._ended_at < _LEAVING_S:
            return
        where = f"here; {self._unheard(records)}" if missing else "on all boxes"
        line = _group_rules.story(records)
        _journal.error(self.unit, f"serving group {self.group.name} has stopped {where}: {line}")
        self._told_round = ended.round
        try:
            self._files.tell(ended.round)
        except OSError as error:
            self._complain("what was told cannot be remembered", error)

    def _unheard(self, heard: c.Container[_group_rules.Member]) -> str:
        """Return whose end of the round is not known: nobody can say of it that it has stopped."""
        missing = [link.seen() for link in self._links if link.member not in heard]
        there = [str(one.member) for one in missing if one.silent_s <= _group_rules.FRESH_S]
        silent = [str(one.member) for one in missing if one.silent_s > _group_rules.FRESH_S]
        words = [f"nothing was heard of {', '.join(silent)}"] if silent else []
        return " and ".join([*words, *([f"not known is how {', '.join(there)} left"] if there else [])])


def run(instance: str, settings: c.Mapping[str, t.Any], api_key: c.Callable[[], str]) -> int:
    """Be the daemon of an instance; return the exit status."""
    _sd_notify.alive()
    group = Group.read(settings)
    if group is None:
        say(f"{instance} is not a rank of a serving group on this box; nothing to watch")
        return NOT_NEEDED
    program = pathlib.Path(sys.argv[0])
    version = _stamp(program)

    def still_needed() -> bool:
        # systemd starts it again with the new program, or the new settings.
        return _stamp(program) == version and _instance.settings(instance) == settings

    Daemon(instance, settings, group, api_key).run(still_needed)
    return 0


def _stamp(path: pathlib.Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)


def say(line: str) -> None:
    """Write one line to the journal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Brings the unit of an instance into the wanted state, by what is running and not by what was written.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import pathlib
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _docker, _group_files, _instance, _status

_POLL_S: t.Final = 0.5
_SETTLE_S: t.Final = 5.0
_LEFTOVER_STOP_S: t.Final = 30
# How much longer than its start gate another rank of a serving group may take until it is ready to start.
_MEETING_S: t.Final = 120.0
_SETTINGS_SUFFIXES: t.Final = (".json", ".env")


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """How to act on the box: the command runner, and whether anything may be changed."""

    run: _docker.Run
    check_mode: bool = False
    sysroot: pathlib.Path = pathlib.Path("/")
    status_folder: pathlib.Path = _status.FOLDER
    clock: c.Callable[[], float] = time.monotonic
    sleep: c.Callable[[float], None] = time.sleep


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a step. ``before`` and ``after`` are the state of the unit in one line each, for a diff.

    ``booted`` is whether the engine did not run already as it should when the step began.
    """

    changed: bool
    message: str
    instance: _instance.Instance
    before: str
    after: str
    finished: bool = True
    failed: bool = False
    booted: bool = False

    def as_dict(self) -> dict[str, t.Any]:
        """Return what a module returns of it."""
        return {"finished": self.finished, "progress": self.message, "instance": self.instance.as_dict()}


def started(box: Box, name: str, spec: str, *, begin: bool, step_s: float, keep_trying: bool = False) -> Outcome:
    """Serve ``spec``: begin with it where ``begin`` says so, then wait up to ``step_s`` seconds for it.

    Args:
        keep_trying: For what has served before: all tries of systemd are waited for, and it is not stopped after them.
    """
    found = _instance.observe(box.run, name, box.sysroot)
    unit, before = found.unit, line(found)
    if serves(found, spec):
        return _enabled(box, found)
    if box.check_mode:
        return Outcome(True, f"{unit.name} would be started", found, before, wanted_line(found, spec))
    _check_usable(unit)
    if begin:
        _begin(box, found, spec)
    deadline = box.clock() + step_s
    while True:
        found = _instance.observe(box.run, name, box.sysroot)
        if serves(found, spec):
            return Outcome(True, f"{unit.name} answered a completion", found, before, line(found), booted=True)
        if failure := failure_of(found, keep_trying=keep_trying) or _overdue(box, found):
            if not keep_trying:
                _systemctl(box, "stop", unit.name)
            said = _why(box, name, failure, was_stopped=not keep_trying)
            return Outcome(True, said, found, before, line(found), failed=True, booted=True)
        if box.clock() >= deadline:
            said = _progress(box, name)
            return Outcome(True, said, found, before, line(found), finished=False, booted=True)
        box.sleep(_POLL_S)


def _enabled(box: Box, found: _instance.Instance) -> Outcome:
    """Have what serves as it should start at the next boot as well; that is no reason to start it anew."""
    unit, before = found.unit, line(found)
    if unit.enabled:
        return Outcome(False, f"{unit.name} serves what it should", found, before, before)
    after = wanted_line(found, found.running_spec)
    if box.check_mode:
        return Outcome(True, f"{unit.name} would be enabled", found, before, after)
    _systemctl(box, "enable", unit.name)
    return Outcome(True, f"{unit.name} serves what it should, and was enabled", found, before, after)


def _check_usable(unit: _instance.Unit) -> None:
    """Refuse a unit that systemd cannot start, whatever is done."""
    if unit.load_state == "not-found":
        raise _instance.UnitError(f"there is no {unit.name} on this box; the role vllm_server writes it")
    # What has to be read again may be another one by now.
    if unit.unusable and not unit.needs_reload:
        raise _instance.UnitError(
            f"systemd cannot use {unit.name} as it is on this box ({unit.load_state}): `systemctl cat {unit.name}` "
            f"shows it with its drop-ins, and `systemd-analyze verify {unit.name}` says what is wrong; cure that, and "
            "run this again"
        )


def stopped(box: Box, name: str, *, remove: bool) -> Outcome:
    """End the engine in order, and with ``remove`` take away its unit and its settings."""
    found = _instance.observe(box.run, name, box.sysroot)
    unit, before = found.unit, line(found)
    unit_file = box.sysroot / _instance.UNIT_FOLDER / unit.name
    if unit_file.exists() and not _instance.is_ours(unit_file):
        raise _instance.UnitError(f"{unit_file} was not written by gb10.fleet, so it is left alone; remove it yourself")
    running = not unit.down or found.running
    files = _files(box, name, unit_file) if remove else []
    if not running and not files and not (unit.enabled and remove):
        return Outcome(False, f"{unit.name} is stopped", found, before, before)
    if box.check_mode:
        return Outcome(True, f"{unit.name} would be stopped", found, before, f"{unit.name}: inactive")
    if remove and unit.load_state != "not-found":
        disabled(box, found)
    elif running:
        _systemctl(box, "stop", unit.name)
    for path in files:
        path.unlink(missing_ok=True)
    if files:
        # A start that is cut short makes its unit fail, which nobody needs explained; what is gone has no state.
        box.run(["systemctl", "stop", f"gb10-fleet-explain@{name}.service"])
        _systemctl(box, "daemon-reload")
        box.run(["systemctl", "reset-failed", f"gb10-fleet-explain@{name}.service"])
    if remove or unit.given_up:
        box.run(["systemctl", "reset-failed", unit.name])
    _status.StatusFile(name, box.status_folder).forget()
    found = _instance.observe(box.run, name, box.sysroot)
    return Outcome(True, f"{unit.name} was {'removed' if remove else 'stopped'}", found, before, line(found))


def disabled(box: Box, found: _instance.Instance) -> None:
    """Stop an instance, and have no boot start it again; where it cannot be disabled, it is stopped all the same."""
    unit = found.unit
    running = not unit.down or found.running
    # What systemd cannot read it does not stop either, unless it runs.
    now = [] if unit.unusable and not running else ["--now"]
    try:
        _systemctl(box, "disable", *now, unit.name)
    except _instance.UnitError:
        if now:
            box.run(["systemctl", "stop", unit.name])
        raise


def remove_leftover(run: _docker.Run, instance: str, tell: c.Callable[[str], None]) -> None:
    """Remove the container of an earlier run that did not end in order (power loss, a killed client)."""
    name = _instance.container_name(instance)
    left = _docker.container(run, name)
    if left is not None:
        tell(f"removing the container {name} that is left from an earlier run (exit status {left.exit_code})")
        run(["docker", "stop", "--time", str(_LEFTOVER_STOP_S), name])
        run(["docker", "rm", "--force", name])


def serves(found: _instance.Instance, spec: str) -> bool:
    """Return whether the wanted engine is running and has answered."""
    return found.unit.serving and found.running_spec == spec


def failure_of(found: _instance.Instance, *, keep_trying: bool = False) -> str:
    """Return in a few words how a start has failed, empty where it has not (yet), or where systemd tries again."""
    unit = found.unit
    if unit.given_up:
        return f"systemd reports {unit.result}"
    if unit.pausing:
        if keep_trying:
            return ""
        return "the first start failed" if unit.restarts > 0 else f"the first start failed ({unit.result})"
    return "it was stopped by somebody else" if unit.active_state == "inactive" else ""


def _overdue(box: Box, found: _instance.Instance) -> str:
    """Return why a rank of a serving group has waited for the others for too long, empty where it has not.

    By itself a rank waits as long as it takes; whoever deploys it wants to hear that another one does not come.
    """
    if not found.settings.get("group") or found.unit.sub_state != "start-pre":
        return ""
    since = _group_files.waiting_since(found.name, found.unit.invocation)
    limit_s = float(found.settings.get("gate_timeout_s", 0)) + _MEETING_S
    if since is None or time.monotonic() - since < limit_s:
        return ""
    view = _group_files.GroupFiles(found.name).view()
    waiting = view.waiting if view is not None and view.token == found.unit.invocation else ""
    return f"the other ranks did not come: {waiting or _progress(box, found.name)}"


def line(found: _instance.Instance) -> str:
    """Return the state of an instance in one line."""
    spec = f", {short(found.running_spec)}" if found.running_spec else ""
    boot = ", disabled" if found.unit.serving and not found.unit.enabled else ""
    return f"{found.unit.name}: {found.unit.active_state}{spec}{boot}"


def wanted_line(found: _instance.Instance, spec: str) -> str:
    """Return what that line is to be, where an instance is to serve something."""
    return f"{found.unit.name}: active, {short(spec)}"


def short(spec: str) -> str:
    """Return a fingerprint as people compare it."""
    return f"spec {spec[:12]}"


def _begin(box: Box, found: _instance.Instance, spec: str) -> None:
    unit = found.unit
    if unit.needs_reload:
        _systemctl(box, "daemon-reload")
    if not unit.enabled:
        _systemctl(box, "enable", unit.name)
    # A start that is under way may be of what was there before: only one of the same spec is waited for.
    if unit.starting and found.running_spec == spec and not unit.needs_reload:
        return
    _status.StatusFile(found.name, box.status_folder).forget()
    # It also forgets the starts so far: an edit of the inventory is not held against the unit's start limit.
    box.run(["systemctl", "reset-failed", unit.name])
    _systemctl(box, "restart", "--no-block", unit.name)
    _settle(box, unit)


def _settle(box: Box, before: _instance.Unit) -> None:
    """Wait until systemd has taken the job up, so that the state before it is not read as its outcome."""
    deadline = box.clock() + _SETTLE_S
    while box.clock() < deadline:
        now = _instance.show(box.run, before.name)
        if now.invocation != before.invocation or now.active_state == "deactivating":
            return
        box.sleep(_POLL_S / 5)


def _progress(box: Box, name: str) -> str:
    last = _status.StatusFile(name, box.status_folder).read()
    return last.message if last else "starting"


def _why(box: Box, name: str, failure: str, *, was_stopped: bool) -> str:
    last = _status.StatusFile(name, box.status_folder).read()
    reason = (last.message if last and last.failed else failure).rstrip(".")
    unit = _instance.unit_name(name)
    what = "did not come up and was stopped" if was_stopped else "did not come up"
    return f"{unit} {what}: {reason}. The engine's log: `journalctl -u {unit} -n 200`."


def _files(box: Box, name: str, unit_file: pathlib.Path) -> list[pathlib.Path]:
    folder = box.sysroot / _instance.INSTANCE_FOLDER
    # The unit comes last: as long as it is there, whoever goes on after a kill finds what is left.
    candidates = [*(folder / f"{name}{suffix}" for suffix in _SETTINGS_SUFFIXES), unit_file]
    return [path for path in candidates if path.exists()]


def _systemctl(box: Box, *arguments: str) -> None:
    code, _out, err = box.run(["systemctl", *arguments])
    if code != 0:
        raise _instance.UnitError(f"`systemctl {' '.join(arguments)}` failed: {err.strip()}")

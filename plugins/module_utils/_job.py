# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A long job of a module, run by a transient systemd unit of the box so that it outlives the playbook.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import os
import pathlib
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _docker, _instance, _status

_POLL_S: t.Final = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A job by its name (of its unit and of its status file), what it runs, and the secrets that it may see."""

    name: str
    description: str
    argv: tuple[str, ...]
    secrets: c.Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of waiting for a job."""

    message: str
    finished: bool = True
    failed: bool = False


def wait(run: _docker.Run, job: Job, *, begin: bool, step_s: float, folder: pathlib.Path = _status.FOLDER) -> Outcome:
    """Begin a job, or join the one that is under way, and wait up to ``step_s`` seconds for it."""
    status = _status.StatusFile(job.name, folder)
    if begin and not under_way(run, job):
        status.forget()
        _start(run, job, folder)
    deadline = time.monotonic() + step_s
    while True:
        last = status.read()
        if last and last.failed:
            return Outcome(last.message, failed=True)
        if last and last.stage == _status.DONE:
            return Outcome(last.message)
        # Asked in this order: a job that ended between the two questions has said its last word before the second.
        if not under_way(run, job) and not _has_ended(status):
            return Outcome(f"it ended without a word; see `journalctl -u {job.name}`", failed=True)
        if time.monotonic() >= deadline:
            return Outcome(last.message if last else "starting", finished=False)
        time.sleep(_POLL_S)


def _has_ended(status: _status.StatusFile) -> bool:
    last = status.read()
    return last is not None and (last.failed or last.stage == _status.DONE)


def under_way(run: _docker.Run, job: Job) -> bool:
    """Return whether a job is at work now."""
    return _instance.show(run, f"{job.name}.service").active_state in {"active", "activating"}


def _start(run: _docker.Run, job: Job, folder: pathlib.Path) -> None:
    argv = ["systemd-run", f"--unit={job.name}", "--collect", "--quiet", f"--description={job.description}"]
    if job.secrets:
        path = _secrets_file(job, folder)
        # Removed by systemd, which does so however the job ends: stopped, killed for memory, or by itself.
        argv += [f"--property=EnvironmentFile={path}", f"--property=ExecStopPost=-/usr/bin/rm --force {path}"]
    code, _out, err = run([*argv, *job.argv])
    if code != 0:
        raise _instance.UnitError(f"`systemd-run` could not start {job.name}: {err.strip()}")


def _secrets_file(job: Job, folder: pathlib.Path) -> pathlib.Path:
    """Write the secrets where only root can read them; /run does not outlive the box's uptime."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = folder / f"{job.name}.env"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in sorted(job.secrets.items()))
    return path

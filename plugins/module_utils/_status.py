# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The last word of a long-running job on a box, kept in /run so that a module can show it while it waits.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import typing as t

FOLDER: t.Final = pathlib.Path("/run/gb10-fleet")
# The stage of a job that has done what it was started for.
DONE: t.Final = "done"


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """What a job said last. ``at`` is in seconds since the epoch."""

    stage: str
    message: str
    failed: bool
    at: float


class StatusFile:
    """The status of one job, replaced as a whole so that a reader never sees half of it."""

    def __init__(self, job: str, folder: pathlib.Path = FOLDER) -> None:
        self._path = folder / f"{job}.json"

    def write(self, status: Status) -> None:
        """Replace the status."""
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(dataclasses.asdict(status)), encoding="utf-8")
        new.replace(self._path)

    def read(self) -> Status | None:
        """Return the status, or None where the job has not said anything (since the boot of the box)."""
        try:
            return Status(**json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def forget(self) -> None:
        """Remove the status of an earlier run."""
        self._path.unlink(missing_ok=True)


def job_name(kind: str, subject: str) -> str:
    """Return the name of the job of a kind ("pull") on a subject: its status file and its transient unit share it."""
    return f"gb10-fleet-{kind}-{hashlib.sha256(subject.encode()).hexdigest()[:12]}"

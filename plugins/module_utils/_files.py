# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Text files that are owned as a whole: compared, shown as a difference, and replaced without a moment of half of it.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import dataclasses
import fcntl
import os
import pathlib
import stat


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A file as it has to be."""

    path: pathlib.Path
    text: str
    mode: int


def differs(wanted: Wanted) -> bool:
    """Return whether the file is missing or has another text or other permissions."""
    try:
        mode = stat.S_IMODE(wanted.path.stat().st_mode)
        return mode != wanted.mode or wanted.path.read_bytes() != wanted.text.encode()
    except FileNotFoundError:
        return True


def difference(wanted: Wanted) -> dict[str, str]:
    """Return what Ansible shows with --diff."""
    before = wanted.path.read_text(encoding="utf-8", errors="replace") if wanted.path.exists() else ""
    name = str(wanted.path)
    return {"before_header": name, "after_header": name, "before": before, "after": wanted.text}


def write(wanted: Wanted) -> None:
    """Replace the file: a reader, or a box that loses power, has the old text or the new one."""
    new = wanted.path.with_name(f".{wanted.path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(wanted.text)
        file.flush()
        os.fchmod(file.fileno(), wanted.mode)
        os.fsync(file.fileno())
    new.replace(wanted.path)
    sync_folder(wanted.path.parent)


def sync_folder(folder: pathlib.Path) -> None:
    """Bring the names in a folder to the disk: what was put there or renamed outlives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: pathlib.Path) -> c.Iterator[None]:
    """Hold a lock that only one process has at a time; whoever comes later waits."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

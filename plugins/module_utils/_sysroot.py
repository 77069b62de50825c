# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads files below a folder that stands for the root of the file system, and keeps in mind what it could not read.

A file that is not there is an answer; one that may not be read is none. So the first is None, and the second is None
and on the list of what was unreadable, for whoever judges to say "unknown".

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import pathlib


def refusal(root: str) -> str:
    """Return why a folder cannot stand for the root of the file system, or nothing where it can.

    A folder that is not there would read as a box that has nothing.
    """
    if not root.startswith("/"):
        return f"sysroot: {root!r} does not begin with /; write the whole path of a folder on the box."
    try:
        is_folder = pathlib.Path(root).is_dir()
    except (OSError, ValueError):
        is_folder = False
    return "" if is_folder else f"sysroot: there is no folder {root!r} on the box; leave it out to read the box itself."


class Sysroot:
    """The files of a box. ``unreadable`` collects, by path, why something could not be read."""

    def __init__(self, root: pathlib.Path = pathlib.Path("/")) -> None:
        self.root = root
        self.unreadable: dict[str, str] = {}

    def at(self, path: str) -> pathlib.Path:
        """Return where a path of the box lies."""
        return self.root / path.lstrip("/")

    def name(self, path: pathlib.Path) -> str:
        """Return the path as the box knows it."""
        return f"/{path.relative_to(self.root)}"

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None where it is not there or cannot be read."""
        try:
            return self.at(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.unreadable[path] = error.strerror or str(error)
            return None

    def text(self, path: str) -> str | None:
        """Return the content of a file as text without the space around it, or None as read does."""
        data = self.read(path)
        return None if data is None else data.decode("utf-8", errors="replace").strip()

    def exists(self, path: str) -> bool:
        """Return whether something is there, as far as one may look."""
        try:
            self.at(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self.unreadable[path] = error.strerror or str(error)
            return False
        return True

    def size(self, path: str) -> int | None:
        """Return the size of a regular file, or None where there is none."""
        try:
            found = self.at(path)
            return found.stat().st_size if found.is_file() else None
        except OSError:
            return None

    def listing(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted; none where it is not there or cannot be read."""
        try:
            return tuple(sorted(entry.name for entry in self.at(path).iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            self.unreadable[path] = error.strerror or str(error)
            return ()

    def could_read(self, paths: c.Iterable[str]) -> bool:
        """Return whether none of the paths has turned out to be unreadable."""
        return not any(path in self.unreadable for path in paths)

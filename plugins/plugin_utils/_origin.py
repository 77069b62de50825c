# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where in the inventory a value was written, so that a complaint about it can name the file and the line.

ansible-core tags every value that it loads from YAML with its origin (since 2.19). The tag is not a public
interface, so this is the one place that reads it; without it, complaints still name the host and the key.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import functools
import pathlib
import re
import typing as t

try:
    from ansible._internal._datatag._tags import Origin
except ImportError:  # an ansible-core that moved it
    Origin = None  # type: ignore[assignment,misc]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A place in a file: the path as a person would type it, and the line (from 1)."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def place_of(value: object, *, start: pathlib.Path | None = None) -> Place | None:
    """Return where ``value`` was written, or None where ansible-core does not say.

    ``start`` is the folder that paths are given relative to; the working directory where it is left out.
    """
    if Origin is None:
        return None
    origin: t.Any = Origin.get_tag(value)
    if origin is None or not origin.path or origin.line_num is None:
        return None
    path = pathlib.Path(str(origin.path))
    base = start or pathlib.Path.cwd()
    return Place(str(path.relative_to(base)) if path.is_relative_to(base) else str(path), int(origin.line_num))


def as_written(value: object) -> str:
    """Return the word in the file that YAML has made a number of; empty where nobody can tell."""
    origin: t.Any = Origin.get_tag(value) if Origin is not None else None
    if origin is None or not origin.path or origin.line_num is None or origin.col_num is None:
        return ""
    lines = _lines(str(origin.path))
    line = lines[origin.line_num - 1] if 0 < origin.line_num <= len(lines) else ""
    match = re.match(r"[^\s,\]}#]+", line[origin.col_num - 1 :])
    return match[0] if match else ""


@functools.lru_cache(maxsize=64)
def _lines(path: str) -> tuple[str, ...]:
    try:
        return tuple(pathlib.Path(path).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        return ()


def place_of_error(error: BaseException) -> Place | None:
    """Return where the template or secret stands that ansible-core could not resolve."""
    one: BaseException | None = error
    while one is not None:
        place = place_of(getattr(one, "obj", None))
        if place is not None:
            return place
        one = one.__cause__
    return None


def place_on_the_way(path: c.Iterable[str | int], data: object) -> Place | None:
    """Return the place of the deepest key or value on the way into ``data`` (true and null carry none)."""
    place: Place | None = None
    node: t.Any = data
    for step in path:
        if isinstance(node, dict):
            written = next((key for key in node if key == step), None)
            place = place_of(written) or place
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            break
        place = place_of(node) or place
    return place

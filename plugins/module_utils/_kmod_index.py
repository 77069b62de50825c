# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Looks a name up in modules.dep.bin, which is what modprobe reads; modules.dep beside it is for people.

The file is a tree of names, with a common beginning or one character at each node, and offsets in big-endian words
whose upper bits say what the node has. Pure.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import struct
import typing as t

_MAGIC: t.Final = 0xB007F457
_MAJOR: t.Final = 2
_HAS_PREFIX, _HAS_VALUES, _HAS_CHILDREN, _OFFSET = 0x80000000, 0x40000000, 0x20000000, 0x0FFFFFFF


class IndexDamagedError(Exception):
    """The file is no index, or is cut off."""


def lookup(data: bytes, name: str) -> str:
    """Return the first line that the index has for a name, spelt as the kernel does; empty where it has none."""
    try:
        magic, version, node = struct.unpack_from(">III", data)
        if magic != _MAGIC or version >> 16 != _MAJOR:
            raise IndexDamagedError("it does not begin as an index of modules does")
        return _search(data, node, name.encode())
    except (struct.error, ValueError, IndexError):
        raise IndexDamagedError("it is cut off") from None


def _search(data: bytes, node: int, rest: bytes) -> str:
    while at := node & _OFFSET:
        if node & _HAS_PREFIX:
            end = data.index(0, at)
            prefix, at = data[at:end], end + 1
            if not rest.startswith(prefix):
                return ""
            rest = rest[len(prefix) :]
        first, last, children = 1, 0, 0
        if node & _HAS_CHILDREN:
            first, last, children = data[at], data[at + 1], at + 2
            at = children + 4 * (last - first + 1)
        if not rest:
            return _value(data, at) if node & _HAS_VALUES else ""
        if not first <= rest[0] <= last:
            return ""
        (node,) = struct.unpack_from(">I", data, children + 4 * (rest[0] - first))
        rest = rest[1:]
    return ""


def _value(data: bytes, at: int) -> str:
    """Return the first value, which is the one of the best priority, and comes after it."""
    count, _priority = struct.unpack_from(">II", data, at)
    start = at + 8
    return data[start : data.index(0, start)].decode("utf-8", errors="replace") if count else ""

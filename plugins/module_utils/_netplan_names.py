# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a netplan file says something of an interface: by its name, or by what it matches.

Python's standard library has no parser of YAML, so definitions are found by how they look, in block style and in flow
style. What stands behind an anchor is not seen.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import fnmatch
import re
import typing as t

_COMMENT: t.Final = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
# "match:" with a mapping in braces, or with the lines below it that are further in.
_MATCH: t.Final = re.compile(
    r"(?P<flow>\bmatch[\"']?\s*:\s*\{(?P<inline>[^}]*)\})"
    r"|^(?P<indent>[ \t]*)match[ \t]*:[ \t]*\n(?P<block>(?:(?P=indent)[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)*)",
    re.MULTILINE,
)
_CONDITION: t.Final = re.compile(
    r"(?:^|[{,])\s*[\"']?(?P<key>name|macaddress|driver)[\"']?\s*:[ \t]*"
    r"(?P<value>\[[^\]]*\]|\"[^\"]*\"|'[^']*'|\n(?:[ \t]*-[^\n]*(?:\n|\Z))+|[^,}\n]*)",
    re.MULTILINE,
)
_WORD: t.Final = re.compile(r"[^\s,\"'\[\]]+(?:\[[^\]\s]*\][^\s,\"'\[\]]*)*")


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """What netplan can know an interface by."""

    name: str
    mac: str = ""
    driver: str = ""


def defines(netplan: str, link: Link) -> bool:
    """Return whether a netplan file has a definition for an interface."""
    text = _COMMENT.sub("", netplan)
    name = rf"[\"']?{re.escape(link.name)}[\"']?"
    if re.search(rf"(?:^|[{{,])\s*{name}\s*:", text, re.MULTILINE):
        return True
    found = (match["inline"] if match["flow"] else match["block"] for match in _MATCH.finditer(text))
    return any(_matches(conditions, link) for conditions in found)


def _matches(conditions: str, link: Link) -> bool:
    """Return whether all that a definition matches by is true of an interface; by nothing that is known, it is not."""
    said = [(one["key"], one["value"]) for one in _CONDITION.finditer(conditions)]
    return bool(said) and all(_holds(key, value, link) for key, value in said)


def _holds(key: str, value: str, link: Link) -> bool:
    words: c.Sequence[str] = _WORD.findall(value)
    if key == "macaddress":
        return bool(link.mac) and any(word.lower() == link.mac.lower() for word in words)
    known = link.name if key == "name" else link.driver
    return any(fnmatch.fnmatchcase(known, word) for word in words)

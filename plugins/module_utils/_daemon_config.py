# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Adds settings to Docker Engine's configuration, which belongs to whoever runs the box. Nothing is replaced. Pure.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import json
import typing as t


class ConfigError(Exception):
    """The file cannot be read as a configuration. The text says where and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """A setting that the file has, and has otherwise."""

    key: str
    found: t.Any
    wanted: t.Any


@dataclasses.dataclass(frozen=True, slots=True)
class Merged:
    """What comes of it: the text of the file, which is the old one where nothing was to be added."""

    text: str
    conflicts: tuple[Conflict, ...]


def merge(path: str, text: str, wanted: c.Mapping[str, t.Any]) -> Merged:
    """Add what is wanted to the text of a configuration, an empty one included."""
    have = parse(path, text) if text.strip() else {}
    conflicts: list[Conflict] = []
    merged = _merged(have, wanted, "", conflicts)
    return Merged(text if merged == have else json.dumps(merged, indent=4) + "\n", tuple(conflicts))


def parse(path: str, text: str) -> dict[str, t.Any]:
    """Return a configuration, or say where it is none."""
    try:
        found = json.loads(text, object_pairs_hook=_without_twins)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}:{error.lineno}: it is not valid JSON ({error.msg}, column {error.colno}); correct it by hand"
        ) from None
    except _TwinError as error:
        raise ConfigError(f"{path}: it has the key {error} twice; keep one of them") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}:1: it is no JSON object; it has to begin with a brace")
    return found


class _TwinError(Exception):
    """A key stands twice in one object, of which Docker Engine takes the last."""


def _without_twins(pairs: list[tuple[str, t.Any]]) -> dict[str, t.Any]:
    found: dict[str, t.Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwinError(key)
        found[key] = value
    return found


def _merged(have: t.Any, wanted: t.Any, key: str, conflicts: list[Conflict]) -> t.Any:
    if isinstance(have, dict) and isinstance(wanted, c.Mapping):
        added = dict(have)
        for name, value in wanted.items():
            place = f"{key}.{name}" if key else name
            added[name] = _merged(have[name], value, place, conflicts) if name in have else value
        return added
    if isinstance(have, list) and isinstance(wanted, list):
        return _with_words(have, wanted, key, conflicts)
    if have != wanted:
        conflicts.append(Conflict(key, have, wanted))
    return have


def _with_words(have: list[t.Any], wanted: list[t.Any], key: str, conflicts: list[Conflict]) -> list[t.Any]:
    """Add to a list. Its words may be settings themselves ("native.cgroupdriver=cgroupfs"), which then stand once."""
    added = list(have)
    for word in wanted:
        name, equals, _value = str(word).partition("=")
        others = [one for one in added if equals and str(one).startswith(f"{name}=") and one != word]
        if others:
            conflicts.append(Conflict(key, others[0], word))
        elif word not in added:
            added.append(word)
    return added

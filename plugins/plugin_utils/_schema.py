# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks inventory data against a small schema and says what is wrong, where, and what to do about it.

Ansible's own argument specs convert what they are given ("8000" becomes 8000, "yes" becomes true) and report a
nested fault without its place. An inventory that decides what a machine serves deserves better: nothing is
converted, every fault is reported at once, each with the path of keys that leads to it.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import datetime
import difflib
import re
import typing as t
import unicodedata

Path = tuple[str | int, ...]
_SHOWN_LENGTH: t.Final = 60
# Control and format characters (U+202E shows a line backwards), line and paragraph separators.
_UNSEEN: t.Final = frozenset({"Cc", "Cf", "Zl", "Zp"})


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One fault: the keys that lead to it, what is wrong, what to do, and the value that was found there."""

    path: Path
    what: str
    remedy: str
    value: object = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a value may be. ``check`` returns a sentence for a value of the right type that is wrong all the same."""

    name: str
    types: tuple[type, ...]
    example: str
    keys: c.Mapping[str, Kind] | None = None
    required: frozenset[str] = frozenset()
    elements: Kind | None = None
    check: c.Callable[[t.Any], str | None] | None = None
    faults: c.Callable[[t.Any], c.Iterator[tuple[Path, str, str]]] | None = None
    """Yields every fault inside a value of the right type: the keys that lead to it, the sentence, the remedy."""
    remedy: str = ""


def text(example: str, *, pattern: str = "", meaning: str = "", remedy: str = "") -> Kind:
    """A string; with ``pattern`` (matched as a whole), ``meaning`` says in words what the pattern demands."""
    compiled = re.compile(pattern, re.ASCII) if pattern else None

    def check(value: str) -> str | None:
        if not value.strip():
            return "is empty"
        if control_character(value):
            return "has a line break or another control character in it"
        return None if compiled is None or compiled.fullmatch(value) else f"is not {meaning}"

    return Kind(name="a string", types=(str,), example=example, check=check, remedy=remedy)


def flag(example: str) -> Kind:
    """A truth value."""
    return Kind(name="true or false", types=(bool,), example=example, remedy="write true or false, without quotes")


def whole(example: str, *, low: int, high: int, remedy: str = "") -> Kind:
    """A whole number from ``low`` to ``high``, both included."""

    def check(value: int) -> str | None:
        return None if low <= value <= high else f"is not between {low} and {high}"

    return Kind(name="a whole number", types=(int,), example=example, check=check, remedy=remedy)


def fraction(example: str, *, high: float, remedy: str = "") -> Kind:
    """A number above 0 and up to ``high``."""

    def check(value: float) -> str | None:
        return None if 0 < value <= high else f"is not above 0 and at most {high:g}"

    return Kind(name="a number", types=(int, float), example=example, check=check, remedy=remedy)


def mapping(
    example: str, keys: c.Mapping[str, Kind] | None = None, required: c.Iterable[str] = (), remedy: str = ""
) -> Kind:
    """A mapping; with ``keys``, no other key is allowed."""
    return Kind(
        name="a mapping", types=(dict,), example=example, keys=keys, required=frozenset(required), remedy=remedy
    )


def sequence(example: str, elements: Kind | None = None, remedy: str = "") -> Kind:
    """A list."""
    return Kind(name="a list", types=(list,), example=example, elements=elements, remedy=remedy)


def any_of(example: str, *kinds: Kind, remedy: str = "") -> Kind:
    """Any of several kinds, told apart by their Python types."""
    return Kind(
        name=" or ".join(kind.name for kind in kinds),
        types=tuple(one for kind in kinds for one in kind.types),
        example=example,
        check=lambda value: next(
            (kind.check(value) for kind in kinds if isinstance(value, kind.types) and kind.check), None
        ),
        remedy=remedy,
    )


def problems(value: object, kind: Kind, path: Path = (), *, partial: bool = False) -> c.Iterator[Problem]:
    """Yield every fault of ``value``, deepest places included, in the order in which a reader meets them.

    A ``partial`` value is laid over another one later, so nothing that is missing in it is a fault.
    """
    is_bool_for_number = isinstance(value, bool) and bool not in kind.types
    if is_bool_for_number or not isinstance(value, kind.types):
        yield Problem(path, f"{shown(value)} is {kind_of(value)}, not {kind.name}", _advice(kind), value)
        return
    if kind.check and (complaint := kind.check(value)):
        # A mapping may hold what nobody should read on a screen; its complaint names the key that it is about.
        what = complaint if isinstance(value, dict) else f"{shown(value)} {complaint}"
        yield Problem(path, what, _advice(kind), value)
        return
    for keys, what, remedy in kind.faults(value) if kind.faults else ():
        yield Problem((*path, *keys), what, remedy or _advice(kind), _written_key(value, keys))
    if isinstance(value, dict):
        yield from _mapping_problems(value, kind, path, partial)
    elif isinstance(value, list) and kind.elements:
        for index, element in enumerate(value):
            yield from problems(element, kind.elements, (*path, index), partial=partial)


def _mapping_problems(value: dict[t.Any, t.Any], kind: Kind, path: Path, partial: bool) -> c.Iterator[Problem]:
    for key in value:
        if not isinstance(key, str):
            yield Problem((*path, str(key)), f"the key {key!r} is not a string", "put the key in quotes", key)
    if kind.keys is None:
        return
    for key, element in value.items():
        if key in kind.keys:
            yield from problems(element, kind.keys[key], (*path, key), partial=partial)
        elif isinstance(key, str):
            yield Problem((*path, key), f"there is no key {key!r} here", nearest(key, kind.keys), key)
    for key in sorted(kind.required - set(value)) if not partial else ():
        yield Problem((*path, key), "is missing", f"add it, for example: {key}: {kind.keys[key].example}", value)


def _written_key(value: t.Any, keys: Path) -> object:
    """Return the last of some keys as it was written, which knows its line where the value (a number) may not."""
    written: object = value
    for step in keys:
        if not isinstance(value, dict):
            break
        written = next((key for key in value if key == step), written)
        value = value.get(step)
    return written


def control_character(value: str) -> bool:
    """Return whether a text holds what would end a line, what a terminal would obey, or what turns words around."""
    return any(unicodedata.category(char) in _UNSEEN for char in value)


def nearest(name: str, known: c.Iterable[str]) -> str:
    """Return advice for a name that is not known: the names like it, or all where none is like it."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    # Half a name is less like the whole than a slip of the finger: role for model_role.
    close = close or [one for one in names if name and name in re.split(r"[^A-Za-z0-9]", one)][:3]
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"the known ones are {', '.join(names)}" if names else "none is known here"


def kind_of(value: object) -> str:
    """Return in words what a YAML value is."""
    if value is None:
        return "nothing"
    for python_type, words in (
        (bool, "true or false"),
        (str, "a string"),
        (int, "a whole number"),
        (float, "a number"),
        (dict, "a mapping"),
        (list, "a list"),
    ):
        if isinstance(value, python_type):
            return words
    return "a date" if isinstance(value, datetime.date) else "a value of another kind"


def shown(value: object) -> str:
    """Return a value as it can stand in a sentence: short, and unmistakable where it begins and ends."""
    plain = repr(str(value)) if isinstance(value, str) else str(value)
    return plain if len(plain) <= _SHOWN_LENGTH else f"{plain[: _SHOWN_LENGTH - 3]}..."


def dotted(path: Path) -> str:
    """Return a path as a person would write it: model_roles[0].port."""
    parts: list[str] = []
    for step in path:
        parts.append(f"[{step}]" if isinstance(step, int) else f".{step}" if parts else step)
    return "".join(parts)


def _advice(kind: Kind) -> str:
    return kind.remedy or f"write it like this: {kind.example}"

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""JSON from a file that nobody vouches for: bounded in size, nesting and memory, and errors in one sentence.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import json
import typing as t


class JsonError(ValueError):
    """The text is not the JSON that was expected; the message says why, without naming the file."""


def shown(text: object, limit: int = 120) -> str:
    """Return a name from a hostile file in a form that is safe to print: one line, printable, not endless."""
    plain = "".join(char if char.isprintable() else "?" for char in str(text)[: limit + 1])
    return plain if len(plain) <= limit else plain[:limit] + "..."


def load_object(raw: bytes, *, max_containers: int, unique_keys: bool = False) -> dict[str, t.Any]:
    """Parse one JSON object; raise JsonError for anything else.

    ``max_containers`` bounds lists and objects before parsing, because each costs dozens of bytes of memory for two
    bytes of text. ``unique_keys`` refuses an object that says the same thing twice.
    """
    containers = raw.count(b"[") + raw.count(b"{")
    if containers > max_containers:
        raise JsonError(f"it holds {containers} lists and objects, more than the {max_containers} that are read")
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique if unique_keys else None)
    except UnicodeDecodeError:
        raise JsonError("it is not UTF-8 text") from None
    except RecursionError:
        raise JsonError("it is nested too deeply") from None
    except json.JSONDecodeError as exc:
        raise JsonError(f"it is not valid JSON ({exc.msg}, line {exc.lineno} column {exc.colno})") from None
    except ValueError as exc:
        raise JsonError(f"it is not valid JSON ({shown(exc)})") from None
    if not isinstance(value, dict):
        raise JsonError(f"it holds a {type(value).__name__} where an object is expected")
    return value


def mapping(value: object) -> dict[str, t.Any]:
    """Return the value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def strings(value: object) -> tuple[str, ...]:
    """Return the strings of a list, or a lone string as a list of one; anything else is dropped."""
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def integer(value: object) -> int | None:
    """Return the value where it is a whole number of a size that a model could have, else None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 1 << 48 else None


def _unique(pairs: list[tuple[str, t.Any]]) -> dict[str, t.Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("the same key appears twice in one object")
    return result

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads the value of a flag the way the converter in vLLM's parser would, and says why it would not.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import json
import re
import typing as t

if t.TYPE_CHECKING:
    import collections.abc as c

    from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_catalogue import Catalogue, Flag

_DECIMAL: t.Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: t.Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SUFFIXED: t.Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_JSON_STRING: t.Final = re.compile(r'("(?:[^"\\]|\\.)*")')
_JSON_SUFFIXED: t.Final = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
_TRUTH: t.Final = frozenset({"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0"})


def size(text: str, *, tera: bool = True) -> int:
    """Return a number that may end in k, m, g, t (decimal) or K, M, G, T (binary)."""
    match = _SUFFIXED.fullmatch(text.strip())
    if match:
        number, suffix = match.groups()
        if suffix in "tT" and not tera:
            raise ValueError(f"{text!r} ends in a suffix that this release does not know")
        if suffix in _DECIMAL:
            return int(float(number) * _DECIMAL[suffix])
        if "." in number:
            raise ValueError(f"{text!r} has decimals before the binary suffix {suffix}")
        return int(number) * _BINARY[suffix]
    return int(text)


def convert(flag: Flag, text: str, catalogue: Catalogue) -> t.Any:
    """Return the value that a flag's converter makes of a word, or raise ValueError with the reason."""
    if flag.optional and text in {"", "None"}:
        value: t.Any = None
    elif flag.kind.startswith("config:"):
        value = _config(flag.kind.removeprefix("config:"), text, catalogue)
    else:
        converter = _CONVERTERS.get(flag.kind, str)
        try:
            value = size(text, tera=catalogue.parser.tera_suffix) if converter is size else converter(text)
        except ValueError as error:
            raise ValueError(_reason(flag.kind, text, error)) from error
    if flag.choices is not None and value not in flag.choices:
        known = ", ".join(str(one) for one in flag.choices if one is not None)
        raise ValueError(f"{text!r} is not one of {known}")
    return value


def _reason(kind: str, text: str, error: ValueError) -> str:
    if kind.startswith("human_readable_int"):
        detail = str(error)
        return detail if "suffix" in detail else f"{text!r} is not a whole number, nor one with a suffix such as 6G"
    words = {"int": "a whole number", "float": "a number", "json": "JSON", "json_or_str": "JSON"}
    return f"{text!r} is not {words.get(kind, kind)}"


def _size_or_auto(text: str) -> int:
    return -1 if text.strip() == "-1" or text.strip().lower() == "auto" else size(text)


def _json_or_str(text: str) -> t.Any:
    if not re.match(r"(?s)^\s*{.*}\s*$", text):
        return text
    return json.loads(text)


_CONVERTERS: t.Final[dict[str, c.Callable[[str], t.Any]]] = {
    "int": int,
    "float": float,
    "json": json.loads,
    "json_or_str": _json_or_str,
    "human_readable_int": size,
    "human_readable_int_or_auto": _size_or_auto,
    "backend_name": lambda text: text.lower().replace("-", "_"),
    "comma_list": lambda text: text.split(","),
    "parse_reasoning_parser": lambda text: "" if text.lower() == "none" else text,
}


def _config(name: str, text: str, catalogue: Catalogue) -> t.Any:
    """Read the JSON of a configuration class and check it against what the catalogue knows of the class."""
    if catalogue.parser.json_suffixes:
        parts = _JSON_STRING.split(text)
        parts[::2] = [_JSON_SUFFIXED.sub(lambda match: str(size(match.group())), part) for part in parts[::2]]
        text = "".join(parts)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not JSON") from error
    complaint = mismatch({"config": name}, value, catalogue.configs)
    if complaint:
        raise ValueError(complaint)
    return value


def mismatch(shape: t.Any, value: t.Any, configs: c.Mapping[str, t.Any], where: str = "") -> str:
    """Return why a JSON value does not have a shape (see docs/flags.md), or an empty string where it has."""
    if isinstance(shape, str):
        return "" if _is_a(shape, value) else f"{where or 'it'} is {json.dumps(value)}, not {_WORDS[shape]}"
    ((kind, detail),) = shape.items()
    handler = _SHAPES[kind]
    return handler(detail, value, configs, where)


_WORDS: t.Final = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}


def _is_a(shape: str, value: t.Any) -> bool:  # noqa: PLR0911 - one line a type
    # pydantic converts where nothing is lost: "3" and 3.0 are whole numbers, 1 and "yes" are true.
    if shape == "null":
        return value is None
    if shape == "str":
        return isinstance(value, str)
    if shape == "bool":
        return isinstance(value, bool) or value in (0, 1) or (isinstance(value, str) and value.lower() in _TRUTH)
    if shape == "int":
        if isinstance(value, str):
            return bool(re.fullmatch(r"\s*[+-]?\d+(_\d+)*(\.0+)?\s*", value))
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if shape == "float":
        if isinstance(value, str):
            return bool(
                re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|\s*[+-]?(inf|infinity|nan)\s*", value)
            )
        return isinstance(value, int | float)
    return True


def _number(kind: str) -> c.Callable[[t.Any, t.Any, c.Mapping[str, t.Any], str], str]:
    tests: dict[str, tuple[str, c.Callable[[float, float], bool]]] = {
        "ge": ("at least", lambda value, limit: value >= limit),
        "gt": ("above", lambda value, limit: value > limit),
        "le": ("at most", lambda value, limit: value <= limit),
        "lt": ("below", lambda value, limit: value < limit),
    }

    def check(limits: t.Any, value: t.Any, _configs: c.Mapping[str, t.Any], where: str) -> str:
        if not _is_a(kind, value):
            return f"{where or 'it'} is {json.dumps(value)}, not {_WORDS[kind]}"
        for name, limit in limits.items():
            words, holds = tests[name]
            if not holds(float(value), limit):
                return f"{where or 'it'} is {json.dumps(value)}, and has to be {words} {limit}"
        return ""

    return check


def _enum(values: t.Any, value: t.Any, _configs: c.Mapping[str, t.Any], where: str) -> str:
    known = ", ".join(str(one) for one in values)
    return "" if value in values else f"{where or 'it'} is {json.dumps(value)}, not one of {known}"


def _names(names: t.Any, value: t.Any, _configs: c.Mapping[str, t.Any], where: str) -> str:
    plain = value if value is None or isinstance(value, str | int) else json.dumps(value)
    if plain in names or (isinstance(plain, str) and plain.upper() in names):
        return ""
    return f"{where or 'it'} is {json.dumps(value)}, not one of {', '.join(str(one) for one in names)}"


def _code(known: t.Any, value: t.Any, configs: c.Mapping[str, t.Any], where: str) -> str:
    if (value is None and known["null"]) or (isinstance(value, str) and known["text"]):
        return ""
    complaint = mismatch(known["then"], value, configs, where)
    if complaint and isinstance(value, str):
        # What the code does to text is mostly this.
        return mismatch(known["then"], value.lower().replace("-", "_"), configs, where) and complaint
    return complaint


def _list(shape: t.Any, value: t.Any, configs: c.Mapping[str, t.Any], where: str) -> str:
    if not isinstance(value, list):
        return f"{where or 'it'} is {json.dumps(value)}, not a list"
    found = (mismatch(shape, one, configs, f"{where}[{index}]") for index, one in enumerate(value))
    return next(filter(None, found), "")


def _map(shape: t.Any, value: t.Any, configs: c.Mapping[str, t.Any], where: str) -> str:
    if not isinstance(value, dict):
        return f"{where or 'it'} is {json.dumps(value)}, not a mapping"
    found = (mismatch(shape, one, configs, f"{where}.{key}".lstrip(".")) for key, one in value.items())
    return next(filter(None, found), "")


def _any_of(shapes: t.Any, value: t.Any, configs: c.Mapping[str, t.Any], where: str) -> str:
    complaints = [mismatch(shape, value, configs, where) for shape in shapes]
    return "" if "" in complaints else complaints[0]


def _config_class(name: t.Any, value: t.Any, configs: c.Mapping[str, t.Any], where: str) -> str:
    if not isinstance(value, dict):
        return f"{where or 'it'} is {json.dumps(value)}, not a mapping of {name}"
    config = configs[name]
    for key, one in value.items():
        path = f"{where}.{key}".lstrip(".")
        if key in config["fields"]:
            complaint = mismatch(config["fields"][key], one, configs, path)
            if complaint:
                return complaint
        elif config["extra"] == "forbid":
            return f"{path} is no key of {name}; it has {', '.join(config['fields'])}"
    for key, other in config.get("needs", {}).items():
        if value.get(key) is not None and value.get(other) is None:
            return f"{where}.{key} needs {other} beside it".lstrip(".")
    missing = [key for key in config.get("required", ()) if key not in value]
    return f"{missing[0]} is missing in {name}" if missing else ""


_SHAPES: t.Final[dict[str, c.Callable[[t.Any, t.Any, c.Mapping[str, t.Any], str], str]]] = {
    "int": _number("int"),
    "float": _number("float"),
    "enum": _enum,
    "names": _names,
    "code": _code,
    "list": _list,
    "map": _map,
    "any_of": _any_of,
    "config": _config_class,
}

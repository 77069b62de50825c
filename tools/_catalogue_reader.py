# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds the argument parser of the vLLM on the module path and writes what it knows as JSON.

Run by tools/vllm_catalogue in a process of its own, with the unpacked wheel on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import json
import pathlib
import re
import sys
import types
import typing as t

import _stand_in

_ACTIONS: t.Final = {
    "BooleanOptionalAction": "bool",
    "EnableDisableAction": "bool",
    "_StoreTrueAction": "true",
    "_StoreFalseAction": "false",
    "_AppendAction": "append",
    "_HelpAction": "help",
}


def first(*paths: str) -> t.Any:
    """Return the first of several ``module:name`` that this release has, or None."""
    for path in paths:
        module, _, name = path.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        if "_is_stand_in" not in getattr(found, "__dict__", {}):
            return found
    return None


def serve_parser() -> argparse.ArgumentParser:
    """Return the parser of ``vllm serve``. The module that makes it has moved often; the serve command knows where."""
    source = pathlib.Path(importlib.import_module("vllm").__path__[0], "entrypoints", "cli", "serve.py").read_text(
        encoding="utf-8"
    )
    found = re.search(r"^from (vllm[\w.]*\.cli_args) import", source, re.MULTILINE)
    if not found:
        raise SystemExit("vllm/entrypoints/cli/serve.py no longer says where make_arg_parser comes from")
    flexible = first("vllm.utils.argparse_utils:FlexibleArgumentParser", "vllm.utils:FlexibleArgumentParser")
    parser: argparse.ArgumentParser = importlib.import_module(found[1]).make_arg_parser(flexible(prog="vllm serve"))
    return parser


def converter(function: t.Any) -> tuple[str, bool, type | None]:
    """Return the name of an argument's converter, whether it takes "" and "None" for nothing, and its config class."""
    if function is None:
        return "str", False, None
    name = function.__name__
    if name in ("_optional_type", "_parse_type"):
        inner, optional, config = converter(inspect.getclosurevars(function).nonlocals["return_type"])
        return inner, optional or name == "_optional_type", config
    if name == "parse_dataclass":
        config = inspect.signature(function).parameters["cls"].default
        return f"config:{config.__name__}", False, config
    if name == "<lambda>":
        source = inspect.getsource(function)
        known = {r'\.lower\(\)\.replace\("-", "_"\)': "backend_name", r'split\(","\)': "comma_list"}
        name = next((kind for pattern, kind in known.items() if re.search(pattern, source)), "unknown")
    return {"loads": "json", "union_dict_and_str": "json_or_str"}.get(name, name), False, None


def is_plain(value: t.Any) -> bool:
    """Tell whether a value goes into JSON as it is."""
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    return value is None or type(value) in (str, int, float, bool)


def describe(action: argparse.Action, spellings: list[str], configs: dict[str, type]) -> tuple[str, dict[str, t.Any]]:
    """Return an option's long name and its entry in the catalogue; note its config class in ``configs``."""
    kind = type(action).__name__
    negative = getattr(action, "negative_option_strings", None)
    if negative is None:
        negative = {one for one in spellings if one.startswith("--no-")} if kind == "BooleanOptionalAction" else set()
    visible = getattr(action, "visible_option_strings", spellings)
    positive = [one for one in spellings if one not in negative]
    name = next((one for one in positive if one.startswith("--")), spellings[0])
    entry: dict[str, t.Any] = {}
    if len(positive) > 1:
        entry["alias"] = [one for one in positive if one != name]
    if negative:
        entry["off"] = sorted(negative, key=lambda one: (one not in visible, one))
    if kind != "_StoreAction":
        entry["action"] = _ACTIONS.get(kind, kind)
    if action.nargs != 0:
        entry["type"], optional, config = converter(action.type)
        if config is not None:
            configs[config.__name__] = config
        entry |= {"optional": True} if optional else {}
        entry |= {"nargs": action.nargs} if action.nargs is not None else {}
        entry |= {"const": action.const} if action.const is not None else {}
    if action.choices is not None:
        entry["choices"] = list(action.choices)
    if action.default not in (None, argparse.SUPPRESS, []) and is_plain(action.default):
        entry["default"] = action.default
    return name, entry


class Shapes:
    """Turns pydantic's core schemas of the config classes into the small language of the catalogue.

    A shape is a string (any, str, int, float, bool, null), or one of {"enum": values}, {"names": enum members' names,
    in any case}, {"list": shape}, {"map": shape}, {"any_of": shapes}, {"config": class name}, {"int" or "float":
    limits}. Wherever vLLM runs code of its own before a value is checked, the shape is any: what that code takes is not
    known.
    """

    def __init__(self) -> None:
        self.configs: dict[str, t.Any] = {}
        self._refs: dict[str, dict[str, t.Any]] = {}

    def add(self, config: type) -> None:
        """Note the shape of a config class and of the classes that it holds."""
        from pydantic import TypeAdapter  # noqa: PLC0415 - pydantic is there only where a wheel is read

        schema = t.cast("dict[str, t.Any]", TypeAdapter(config).core_schema)
        if schema["type"] == "definitions":
            self._refs = {one["ref"]: one for one in schema["definitions"]}
            schema = schema["schema"]
        self.shape(schema)

    def shape(self, schema: dict[str, t.Any]) -> t.Any:
        """Return the shape of a core schema."""
        kind = schema["type"]
        if kind in ("str", "bool"):
            return kind
        if kind == "none":
            return "null"
        if kind in ("default", "function-after", "model"):
            return self.shape(schema["schema"])
        if kind in ("list", "set", "frozenset"):
            return {"list": self.shape(schema["items_schema"]) if "items_schema" in schema else "any"}
        handler = getattr(self, f"_{kind.replace('-', '_')}", None)
        return "any" if handler is None else handler(schema)

    def _definition_ref(self, schema: dict[str, t.Any]) -> t.Any:
        target = self._refs.get(schema["schema_ref"])
        return "any" if target is None else self.shape(target)

    def _nullable(self, schema: dict[str, t.Any]) -> t.Any:
        return self.any_of([self.shape(schema["schema"]), "null"])

    def _union(self, schema: dict[str, t.Any]) -> t.Any:
        choices = [one[0] if isinstance(one, tuple) else one for one in schema["choices"]]
        return self.any_of([self.shape(one) for one in choices])

    def _literal(self, schema: dict[str, t.Any]) -> t.Any:
        return {"enum": list(schema["expected"])}

    def _enum(self, schema: dict[str, t.Any]) -> t.Any:
        values = [one.value for one in schema["members"]]
        return {"enum": values} if is_plain(values) else "any"

    def _int(self, schema: dict[str, t.Any]) -> t.Any:
        limits = {key: schema[key] for key in ("ge", "gt", "le", "lt") if key in schema}
        return {schema["type"]: limits} if limits else schema["type"]

    _float = _int

    def _dict(self, schema: dict[str, t.Any]) -> t.Any:
        return {"map": self.shape(schema["values_schema"]) if "values_schema" in schema else "any"}

    @staticmethod
    def any_of(shapes: list[t.Any]) -> t.Any:
        """Return one shape for several."""
        if "any" in shapes:
            return "any"
        flat: list[t.Any] = []
        for one in shapes:
            for part in one["any_of"] if isinstance(one, dict) and "any_of" in one else [one]:
                if part not in flat:
                    flat.append(part)
        return flat[0] if len(flat) == 1 else {"any_of": flat}

    def _dataclass(self, schema: dict[str, t.Any]) -> t.Any:
        name = schema["cls"].__name__
        if name not in self.configs:
            self.configs[name] = {}
            inner = schema["schema"]
            while inner["type"] != "dataclass-args":
                inner = inner["schema"]
            fields = {
                field["name"]: self._field(schema["cls"], field) for field in inner["fields"] if field.get("init", True)
            }
            extra = (schema.get("config") or {}).get("extra_fields_behavior")
            self.configs[name] = {"extra": extra or "ignore", "fields": dict(sorted(fields.items()))}
        return {"config": name}

    def _field(self, owner: type, field: dict[str, t.Any]) -> t.Any:
        """Return the shape of a field. A before-validator on an enum takes the members' names in vLLM."""
        shape = self.shape(field["schema"])
        if shape != "any":
            return shape
        hint = next((one.type for one in dataclasses.fields(owner) if one.name == field["name"]), None)
        options = t.get_args(hint) if t.get_origin(hint) in (t.Union, types.UnionType) else (hint,)
        members = next((one for one in options if isinstance(one, enum.EnumMeta)), None)
        if members is None:
            return "any"
        names = {"names": sorted(members.__members__)}
        return self.any_of([names, "null"]) if type(None) in options else names


def registry(*paths: str) -> list[str] | None:
    """Return the names in a parser registry, eager or lazy."""
    manager = first(*paths)
    if manager is None:
        return None
    names: set[str] = set()
    for attribute in dir(manager):
        value = getattr(manager, attribute)
        if attribute.endswith("_parsers") and isinstance(value, dict):
            names.update(value)
    return sorted(names) or None


def read() -> dict[str, t.Any]:
    """Return what the vLLM on the module path knows."""
    parser = serve_parser()
    spellings: dict[int, list[str]] = {}
    for spelling, action in parser._option_string_actions.items():
        spellings.setdefault(id(action), []).append(spelling)
    configs: dict[str, type] = {}
    flags = dict(
        describe(action, spellings.get(id(action), list(action.option_strings)), configs)
        for action in parser._actions
        if action.option_strings
    )
    shapes = Shapes()
    for config in configs.values():
        shapes.add(config)
    backends = first(
        "vllm.v1.attention.backends.registry:AttentionBackendEnum",
        "vllm.attention.backends.registry:AttentionBackendEnum",
        "vllm.attention.backends.registry:_Backend",
        "vllm.platforms.interface:_Backend",
    )
    quantization = first("vllm.model_executor.layers.quantization:QuantizationMethods")
    env = first("vllm.envs:environment_variables")
    return {
        "flags": dict(sorted(flags.items())),
        "configs": dict(sorted(shapes.configs.items())),
        "tool_parsers": registry(
            "vllm.tool_parsers:ToolParserManager", "vllm.entrypoints.openai.tool_parsers:ToolParserManager"
        ),
        "reasoning_parsers": registry("vllm.reasoning:ReasoningParserManager"),
        "quantization": None if quantization is None else sorted(t.get_args(quantization)),
        "attention_backends": None if backends is None else sorted(backends.__members__),
        "env": None if env is None else sorted(name for name in env if name.startswith("VLLM_")),
    }


if __name__ == "__main__":
    _stand_in.install()
    pathlib.Path(sys.argv[1]).write_text(json.dumps(read()), encoding="utf-8")
    for name, reason in sorted(_stand_in.replaced.items()):
        print(f"stand-in for {name}: {reason.splitlines()[0]}", file=sys.stderr)

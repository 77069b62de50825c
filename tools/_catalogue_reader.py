# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds the argument parser of the vLLM on the module path and writes what it knows as JSON.

Run by tools/vllm_catalogue in a process of its own, with the unpacked wheel on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import ast
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

# Schemas that say nothing of their own about JSON, and the key of the one inside.
_WRAPPERS: t.Final = {
    "default": "schema",
    "function-after": "schema",
    "model": "schema",
    "lax-or-strict": "lax_schema",
    "json-or-python": "json_schema",
}
# What the engine itself gives to SpeculativeConfig.
_FROM_THE_ENGINE: t.Final = frozenset(
    f"{whose}_{what}_config" for whose in ("target", "draft") for what in ("model", "parallel")
)
# The classes that flags are handed on to one by one, whose limits the parser does not know.
_HOLDERS: t.Final = (
    "Cache",
    "Model",
    "Scheduler",
    "Parallel",
    "LoRA",
    "MultiModal",
    "Load",
    "Observability",
    "UVAOffload",
)
# What SchedulerConfig refuses, by the words of its error.
_SCHEDULER_RULES: t.Final = {
    "batch_holds_context": "smaller than max_model_len",
    "batch_holds_sequences": "be greater than or equal to max_num_seqs",
    "active_within_sequences": "be greater than max_num_seqs",
    "threshold_within_context": "than the max_model_len",
}
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


def source_of(*parts: str) -> str:
    """Return the text of a file of the package, or an empty string where this release has no such file."""
    path = pathlib.Path(importlib.import_module("vllm").__path__[0], *parts)
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def cli_module() -> t.Any:
    """Return the module that makes the parser of ``vllm serve``. It has moved often; the serve command knows where."""
    found = re.search(r"^from (vllm[\w.]*\.cli_args) import", source_of("entrypoints", "cli", "serve.py"), re.MULTILINE)
    if not found:
        raise SystemExit("vllm/entrypoints/cli/serve.py no longer says where make_arg_parser comes from")
    return importlib.import_module(found[1])


def traits(flexible: t.Any, cli: t.Any) -> dict[str, t.Any]:
    """Return how this release's parser rewrites a command line before argparse reads it, and its checks afterwards."""

    def rewritten(*words: str) -> list[str] | None:
        try:
            return t.cast("list[str]", flexible(prog="vllm serve").parse_args(list(words)))
        except ValueError:
            return None

    original = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = lambda _self, args=None, _namespace=None: args  # type: ignore
    try:
        level, dotted, model = rewritten("-O3"), rewritten("-O.x=1"), rewritten("serve", "--model", "m")
        needs_model = rewritten("serve", "--served-model-name", "n") is None
        suffix = rewritten("--a.b", "1k")
    finally:
        argparse.ArgumentParser.parse_args = original  # type: ignore[method-assign]
    arg_utils = importlib.import_module("vllm.engine.arg_utils")
    checks = inspect.getsource(cli)
    rules = {
        "log_outputs": "--enable-log-outputs requires",
        "sse_keep_alive": "--sse-keep-alive-interval must be",
        "per_request_metrics": "--enable-per-request-metrics requires",
        "multi_port_lb": "validate_multi_port_external_lb_args(args)",
        "grpc_port": "validate_grpc_port_arg(args)",
        "reasoning_effort_map": "validate_reasoning_effort_map(getattr",
    }
    try:
        tera = arg_utils.human_readable_int("1t") == 10**12
    except (ValueError, KeyError):
        tera = False
    return {
        "level": level[0] if level and level[0] != "-O" else f"-O.{next(iter(json.loads(level[1])))}" if level else "",
        "dotted_level": dotted[0] if dotted and dotted[0] in ("-O", "-cc") else "",
        "serve_model": "rejected" if model is None else "moved" if model == ["serve", "m"] else "kept",
        "serve_needs_model": needs_model,
        "dotted_suffixes": suffix == ["--a", '{"b": 1000}'],
        "json_suffixes": hasattr(arg_utils, "_expand_json_human_readable_numbers"),
        "tera_suffix": tera,
        "rules": [name for name, text in rules.items() if text in checks],
    }


def auto_order() -> dict[str, list[str]]:
    """Return the order in which ``auto`` tries the NVFP4 kernels, read from the source without running it."""
    moe = ast.parse(source_of("model_executor", "layers", "fused_moe", "oracle", "nvfp4.py"))
    linear = ast.parse(source_of("model_executor", "kernels", "linear", "__init__.py"))
    found = {"nvfp4_moe": moe_order(moe), "nvfp4_linear": linear_order(linear)}
    return {name: order for name, order in found.items() if order}


def moe_order(tree: ast.Module) -> list[str]:
    """Return the backends of the first ``AVAILABLE_BACKENDS = [NvFp4MoeBackend.X, ...]``, as they are logged."""
    logged: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "NvFp4MoeBackend":
            for one in node.body:
                if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant):
                    logged[ast.unparse(one.targets[0])] = str(one.value.value)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.List):
            continue
        if ast.unparse(node.targets[0]) == "AVAILABLE_BACKENDS":
            names = [one.attr for one in node.value.elts if isinstance(one, ast.Attribute)]
            return [logged.get(name, name) for name in names]
    return []


def linear_order(tree: ast.Module) -> list[str]:
    """Return the kernel classes of ``_POSSIBLE_NVFP4_KERNELS`` for CUDA."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_POSSIBLE_NVFP4_KERNELS":
            table = t.cast("ast.Dict", node.value)
            for key, kernels in zip(table.keys, table.values, strict=True):
                if key is not None and ast.unparse(key).endswith(".CUDA"):
                    return [ast.unparse(one) for one in t.cast("ast.List", kernels).elts]
    return []


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

    A shape is a string (any, str, int, float, bool, null), or one of {"enum": values}, {"names": [enum members' names,
    in any case, and other values]}, {"list": shape}, {"map": shape}, {"any_of": shapes}, {"config": class name},
    {"int" or "float": limits}. {"code": {"then": shape, "text": bool, "null": bool}} is where vLLM runs code of its own
    before a value is checked: the class was asked whether that code takes any text, and null.
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
        if kind in _WRAPPERS:
            return self.shape(schema[_WRAPPERS[kind]])
        if kind in ("function-before", "function-wrap"):
            inner = self.shape(schema["schema"])
            return "any" if inner == "any" else {"code": {"then": inner}}
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
        names = sorted(one.name for one in schema["members"])
        return {"enum": values} if is_plain(values) else {"names": names}

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
            required = sorted(one["name"] for one in inner["fields"] if one["schema"]["type"] != "default")
            fields = {
                field["name"]: self._field(schema["cls"], field) for field in inner["fields"] if field.get("init", True)
            }
            extra = (schema.get("config") or {}).get("extra_fields_behavior")
            self.configs[name] = {"extra": extra or "ignore", "fields": dict(sorted(fields.items()))}
            if required:
                self.configs[name]["required"] = required
            for key, other in (("kv_connector", "kv_role"), ("ec_connector", "ec_role")):
                if key in fields and other in fields and not self._takes(schema["cls"], {key: "Example"}):
                    self.configs[name]["needs"] = {key: other}
        return {"config": name}

    def _field(self, owner: type, field: dict[str, t.Any]) -> t.Any:
        """Return the shape of a field; where vLLM's code reads an enum's names, say which it takes."""
        shape = self.shape(field["schema"])
        if not isinstance(shape, dict) or "code" not in shape:
            return shape
        hint = next((one.type for one in dataclasses.fields(owner) if one.name == field["name"]), None)
        options = t.get_args(hint) if t.get_origin(hint) in (t.Union, types.UnionType) else (hint,)
        members: t.Any = next((one for one in options if isinstance(one, enum.EnumMeta)), None)
        name = field["name"]
        if members is None:
            text, null = (self._takes(owner, {name: value}) for value in ("no-such-word", None))
            return {"code": {"then": shape["code"]["then"], "text": text, "null": null}}
        taken = [one for one in ("auto", "none", "", None) if self._takes(owner, {name: one})]
        values = [one.value for one in members.__members__.values() if type(one.value) in (int, str)]
        names = sorted(members.__members__)
        return {"names": names + [one for one in [*values, *taken] if one not in names]}

    @staticmethod
    def _takes(owner: type, value: dict[str, t.Any]) -> bool:
        from pydantic import TypeAdapter  # noqa: PLC0415 - pydantic is there only where a wheel is read

        try:
            TypeAdapter(owner).validate_json(json.dumps(value))
        except Exception:  # noqa: BLE001 - whatever vLLM's code raises, it does not take the value
            return False
        return True


def limits(flags: dict[str, dict[str, t.Any]]) -> dict[str, dict[str, float]]:
    """Return for flags with a number the limits that only a config class puts to it, after the parser has taken it."""
    found: dict[str, dict[str, float]] = {}
    for holder in _HOLDERS:
        owner = first(*(f"vllm.config{part}:{holder}Config" for part in ("", f".{holder.lower()}", ".offload")))
        fields = {**(getattr(owner, "__pydantic_fields__", None) or {})}
        for name, field in fields.items():
            flag = f"--{name.replace('_', '-')}"
            known = {
                key: value
                for one in field.metadata
                for key in ("ge", "gt", "le", "lt")
                if isinstance(value := getattr(one, key, None), int | float)
            }
            if known and flag in flags and flag not in found:
                found[flag] = known
    return dict(sorted(found.items()))


def config_rules() -> list[str]:
    """Return which rules between two flags the scheduler's config checks, after the parser has taken them."""
    text = source_of("config", "scheduler.py") or source_of("config", "__init__.py")
    return [name for name, words in _SCHEDULER_RULES.items() if words in text]


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


def literal(*paths: str) -> list[str] | None:
    """Return the values of a ``Literal``."""
    found = first(*paths)
    return (sorted(t.get_args(found)) or None) if found is not None else None


def read() -> dict[str, t.Any]:
    """Return what the vLLM on the module path knows."""
    flexible = first("vllm.utils.argparse_utils:FlexibleArgumentParser", "vllm.utils:FlexibleArgumentParser")
    cli = cli_module()
    parser: argparse.ArgumentParser = cli.make_arg_parser(flexible(prog="vllm serve"))
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
    speculative = first("vllm.config.speculative:SpeculativeConfig", "vllm.config:SpeculativeConfig")
    if speculative is not None:
        # The flag takes any JSON; the class refuses later what it does not know.
        shapes.add(speculative)
        fields = shapes.configs["SpeculativeConfig"]["fields"]
        shapes.configs["SpeculativeConfig"]["fields"] = {
            name: shape for name, shape in fields.items() if name not in _FROM_THE_ENGINE
        }
    backends = first(
        "vllm.v1.attention.backends.registry:AttentionBackendEnum",
        "vllm.attention.backends.registry:AttentionBackendEnum",
        "vllm.attention.backends.registry:_Backend",
        "vllm.platforms.interface:_Backend",
    )
    env = first("vllm.envs:environment_variables")
    return {
        "parser": traits(flexible, cli),
        "flags": dict(sorted(flags.items())),
        "configs": dict(sorted(shapes.configs.items())),
        "limits": limits(flags),
        "config_rules": config_rules(),
        "tool_parsers": registry(
            "vllm.tool_parsers:ToolParserManager", "vllm.entrypoints.openai.tool_parsers:ToolParserManager"
        ),
        "reasoning_parsers": registry("vllm.reasoning:ReasoningParserManager"),
        "reasoning_efforts": literal("vllm.renderers.params:ReasoningEffort"),
        "quantization": literal("vllm.model_executor.layers.quantization:QuantizationMethods"),
        "kv_cache_dtypes": literal("vllm.config.cache:CacheDType", "vllm.config:CacheDType"),
        "load_formats": literal("vllm.model_executor.model_loader:LoadFormats"),
        "attention_backends": None if backends is None else sorted(backends.__members__),
        "auto": auto_order(),
        "env": None if env is None else sorted(name for name in env if name.startswith("VLLM_")),
    }


if __name__ == "__main__":
    _stand_in.install()
    pathlib.Path(sys.argv[1]).write_text(json.dumps(read()), encoding="utf-8")
    for name, reason in sorted(_stand_in.replaced.items()):
        print(f"stand-in for {name}: {reason.splitlines()[0]}", file=sys.stderr)

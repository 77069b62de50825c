# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes the command line of an instance, in the words of the vLLM release that will read it.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import json
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_catalogue as catalogues

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_catalogue import Flag

# The keys of an instance that are a flag of their own, in the order in which the command line shows them.
_KEYS: t.Final = (
    "revision",
    "host",
    "port",
    "served_model_name",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "headless",
    "max_model_len",
    "max_num_seqs",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
    "speculative",
    "reasoning_parser",
    "tool_call_parser",
)
_FLAG_OF_KEY: t.Final = {"speculative": "speculative_config"}
_SWITCHES: t.Final = frozenset({"bool", "true", "false"})


class FlagError(ValueError):
    """Flags that the release does not have or cannot read; ``findings`` says which, one by one."""

    def __init__(self, findings: c.Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(" ".join(f"{finding.message} {finding.remedy}".strip() for finding in self.findings))


def render_args(instance: c.Mapping[str, t.Any]) -> list[str]:
    """Return the argv that follows ``vllm serve``: the model, then every flag once, always in the same order.

    Raises FlagError where the instance asks for something that its vLLM does not have.
    """
    version = str(instance["vllm"])
    try:
        catalogue, _exact = catalogues.catalogue_for(version)
    except catalogues.UnknownVersionError as error:
        raise FlagError([Finding("VLLM_VERSION_UNKNOWN", "error", str(error), evidence=version)]) from error
    findings: list[Finding] = []
    argv: list[str] = []
    seen: dict[str, str] = {}
    for key, value in wanted_flags(instance):
        flag = catalogue.find(key)
        if flag is None:
            findings.append(missing_flag(key, version))
        elif flag.name in seen:
            message = f"{flag.name} is given twice, as {seen[flag.name]} and as {key}."
            findings.append(Finding("FLAG_TWICE", "error", message, evidence=key, remedy=f"Remove {key}."))
        else:
            seen[flag.name] = key
            try:
                argv += _words(flag, catalogues.long_name(key), value)
            except ValueError as error:
                findings.append(
                    Finding("FLAG_VALUE_INVALID", "error", f"{flag.name}: {error}", evidence=f"{key}={value!r}")
                )
    if findings:
        raise FlagError(findings)
    repo = instance.get("checkpoint", {}).get("repo")
    return [str(repo), *argv] if repo else argv


def wanted_flags(instance: c.Mapping[str, t.Any]) -> list[tuple[str, t.Any]]:
    """Return the flags that an instance asks for, by name, in the order of the command line."""
    given = {"revision": instance.get("checkpoint", {}).get("revision")} | dict(instance)
    wanted = [(_FLAG_OF_KEY.get(key, key), given[key]) for key in _KEYS if given.get(key) is not None]
    if instance.get("tool_call_parser"):
        wanted.append(("enable_auto_tool_choice", True))
    args = _merge_dotted(instance.get("args") or {})
    return wanted + [(key, args[key]) for key in sorted(args, key=catalogues.long_name) if args[key] is not None]


def missing_flag(name: str, version: str) -> Finding:
    """Return the finding on a flag that a release does not have: where it exists, and what is like it here."""
    catalogue, _exact = catalogues.catalogue_for(version)
    flag = catalogues.long_name(name)
    like = catalogues.nearest(flag, catalogue.flags)
    remedy = f"Did you mean {like}?" if like else "Remove it."
    having = catalogues.releases_with(flag)
    mine = catalogues.version_key(catalogue.version)
    older = [one for one in having if catalogues.version_key(one) < mine]
    newer = [one for one in having if catalogues.version_key(one) > mine]
    if older:
        again = f" ({newer[0]} has it again)" if newer else ""
        message = f"vLLM {version} has no flag {flag} any more: {older[-1]} was the last release with it{again}."
        return Finding("FLAG_REMOVED", "error", message, evidence=flag, remedy=remedy)
    if newer:
        message = f"vLLM {version} has no flag {flag} yet: {newer[0]} is the first release with it."
        remedy = f"Remove it, or use an image with vLLM {newer[0]} or newer."
        return Finding("FLAG_TOO_NEW", "error", message, evidence=flag, remedy=remedy)
    message = f"vLLM {version} has no flag {flag}, nor has any release whose flags are known."
    return Finding("FLAG_UNKNOWN", "error", message, evidence=flag, remedy=remedy)


def _merge_dotted(args: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Fold ``compilation_config.cudagraph_mode: PIECEWISE`` into the mapping of ``compilation_config``."""
    merged: dict[str, t.Any] = {}
    for key in sorted(args, key=str):
        base, *rest = str(key).split(".")
        if not rest:
            merged[base] = dict(args[key]) if isinstance(args[key], c.Mapping) else args[key]
            continue
        place = merged.setdefault(base, {})
        for step in rest[:-1]:
            place[step] = dict(place.get(step, {}))
            place = place[step]
        place[rest[-1]] = args[key]
    return merged


def _words(flag: Flag, written: str, value: t.Any) -> list[str]:
    """Return the words that give ``value`` to a flag."""
    if isinstance(value, bool) and flag.nargs == "?":
        return [flag.name] if value else []
    if isinstance(value, bool):
        return _switch(flag, written, value)
    if flag.action in _SWITCHES:
        raise ValueError(f"it is switched on or off, so write true or false, not {value!r}.")
    if flag.takes_json and not isinstance(value, str):
        return [flag.name, compact_json(value)]
    if isinstance(value, c.Mapping):
        raise ValueError(f"it takes {flag.kind}, not a mapping.")
    values = [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]
    if flag.action == "append":
        return [word for one in values for word in _value_word(flag.name, one)]
    if flag.nargs == "+":
        return [flag.name, *values] if values else []
    if len(values) != 1:
        raise ValueError(f"it takes one value, not the list {list(value)!r}.")
    return _value_word(flag.name, values[0])


def _switch(flag: Flag, written: str, value: bool) -> list[str]:
    if flag.action not in _SWITCHES:
        raise ValueError(f"it takes a value ({flag.kind}), not {str(value).lower()}.")
    on = written not in flag.off
    if on and value:
        return [flag.name]
    if not on and value:
        return [flag.off[0]]
    if not on:
        raise ValueError(f"{written}: false says it twice around; write {flag.name.lstrip('-')}: true.")
    # A flag that can only be switched on is off when it is absent.
    return [flag.off[0]] if flag.off else []


def _value_word(name: str, value: str) -> list[str]:
    # A value with a dash in front would be read as a flag if it stood alone.
    return [f"{name}={value}"] if value.startswith("-") else [name, value]


def compact_json(value: t.Any) -> str:
    """Return JSON without spaces, keys in the order given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which flags of vLLM a model role may not set, or only with a word about it, as data/flag_policy.yml has them.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import functools
import pathlib
import re
import typing as t

import yaml

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding

_GIB: t.Final = 1 << 30
_POLICY: t.Final = pathlib.Path(__file__).parent / "data" / "flag_policy.yml"
_ON_A_DISK: t.Final = ("/", "./", "../", "~")
_SAYS_NOTHING: t.Final = frozenset({"auto", "vllm"})


@functools.cache
def policy() -> dict[str, t.Any]:
    """Return data/flag_policy.yml."""
    data: dict[str, t.Any] = yaml.safe_load(_POLICY.read_text(encoding="utf-8"))
    return data


def _changes_nothing(content: object, rule: c.Mapping[str, t.Any]) -> bool:
    if content is None or content is False:
        return True
    # True == 1 in Python, and a switch that is on is not a count of one.
    return content is not True and content in rule.get("unless", ())


def refusal(name: str, content: object) -> str:
    """Return why a flag (with underscores, without dots) cannot be set to this, or an empty string."""
    rule = policy()["refused"].get(name)
    if rule is not None and not _changes_nothing(content, rule):
        return str(rule["because"])
    rule = policy()["refused_values"].get(name)
    if rule is not None and str(content).lower() in rule["values"]:
        return str(rule["because"])
    return ""


def geometry_overrides(content: object) -> list[str]:
    """Return the keys of hf_overrides, at any depth, that make another model of the checkpoint than was planned."""
    if not isinstance(content, c.Mapping):
        return []
    deeper = [one for value in content.values() for one in geometry_overrides(value)]
    return [str(key) for key in content if re.search(policy()["geometry"], str(key))] + deeper


def extra_bytes(args: c.Mapping[str, t.Any]) -> dict[str, int]:
    """Return the memory that flags ask for beside weights and cache, by flag."""
    found = {}
    for name, rule in policy()["counted_gib"].items():
        size = number(args.get(name))
        if size > 0 and not (name == "kv_offloading_size" and args.get("kv_offloading_backend") == "lmcache"):
            found[name] = int(size * _GIB) * rule["times"]
    return found


def number(content: object) -> float:
    """Return a number that may be written as text, 0 where it is none."""
    if isinstance(content, bool):
        return 0
    try:
        value = float(content)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0
    return value if 0 < value < 1e15 else 0


def not_planned(args: c.Mapping[str, t.Any], measured: c.Mapping[str, t.Any]) -> list[Finding]:
    """Return a warning for every flag whose memory the plan does not count; none where the overhead was measured."""
    if measured.get("overhead_gib"):
        return []
    found = []
    for name, rule in policy()["not_planned"].items():
        if name in args and not _changes_nothing(args[name], rule):
            message = f"args.{name} takes memory that no plan can compute, and that is not counted."
            remedy = "State measured.overhead_gib from a boot with it, and leave room until then."
            found.append(Finding("MEMORY_NOT_PLANNED", "warning", message, name, remedy))
    return found


def remote(args: c.Mapping[str, t.Any], repo: str) -> c.Iterator[tuple[str, str]]:
    """Yield the flags that name a repository which is not the checkpoint's: it is not pinned and not downloaded."""
    for name in policy()["remote"]:
        content = args.get(name)
        for one in content if isinstance(content, list) else [content]:
            place = str(one).partition("=")[2] if name == "lora_modules" and isinstance(one, str) else one
            if isinstance(place, c.Mapping):
                place = place.get("path")
            if isinstance(place, str) and place not in {repo, *_SAYS_NOTHING} and not place.startswith(_ON_A_DISK):
                yield name, place

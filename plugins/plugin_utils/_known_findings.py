# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is known against an instance before any box is asked: its command line, and the dated facts that it runs into.

Pure: the day comes in as an argument.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import (
    _claims,
    _flag_policy,
    _instance_facts,
    _vllm_cli,
    _vllm_lint,
)

_KEY_OF_FLAG: t.Final = {"speculative_config": "speculative", "enable_auto_tool_choice": "tool_call_parser"}
# The plan gives every instance a fraction that fits its box; until then this one stands for it.
_LEAST_UTILIZATION: t.Final = 0.01


def known_findings(instance: c.Mapping[str, t.Any], today: str, *, watched: bool = True) -> tuple[Finding, ...]:
    """Return the errors and warnings of an instance, the errors first.

    ``watched`` is whether the box's liveness watch is on, which alone carries out ``restart_after_hours``; an
    instance may be left out of it.

    A claim of severity error that the model role itself names in ``evidence.known_limits`` is a warning: whoever wrote
    the role knew. What the command line is refused for stays an error.
    """
    planned = {**instance, "gpu_memory_utilization": instance.get("gpu_memory_utilization", _LEAST_UTILIZATION)}
    if not watched or not instance.get("liveness", True):
        planned.pop("restart_after_hours", None)
    found = list(dict.fromkeys(_vllm_lint.lint_instance(planned).findings))
    linted = {one.id for one in found}
    claims = _claims.claims_for(_instance_facts.instance_facts(planned), today)
    found += [one for one in claims if one.id not in linted]
    found += _flag_policy.not_planned(_vllm_cli.plain_args(instance.get("args") or {}), instance.get("measured") or {})
    return _judged(instance, found)


def checkpoint_findings(
    instance: c.Mapping[str, t.Any], checkpoint: c.Mapping[str, t.Any], today: str
) -> tuple[Finding, ...]:
    """Return what is known against an instance only since its checkpoint was read (checkpoint_info)."""
    before = {one.id for one in _claims.claims_for(_instance_facts.instance_facts(instance), today)}
    facts = _instance_facts.instance_facts(instance, {"checkpoint": checkpoint})
    return _judged(instance, (one for one in _claims.claims_for(facts, today) if one.id not in before))


def _judged(instance: c.Mapping[str, t.Any], findings: c.Iterable[Finding]) -> tuple[Finding, ...]:
    limits = _known_limits(instance)
    judged = [
        # A flag that the parser refuses is refused, whatever anybody knew: only a dated fact can be lived with.
        dataclasses.replace(one, severity="warning") if one.severity == "error" and one.claim in limits else one
        for one in findings
    ]
    return tuple(sorted((one for one in judged if one.severity != "info"), key=lambda one: one.severity != "error"))


def written_as(finding: Finding, instance: c.Mapping[str, t.Any]) -> tuple[str, ...]:
    """Return the keys of an instance that a finding is about; none where it is about the whole."""
    words = re.split(r"[ =]", finding.evidence, maxsplit=1)
    name = words[0] if words else ""
    if name in (instance.get("env") or {}):
        return ("env", name)
    # A flag that is switched off stands there under another name.
    plain = name.lstrip("-").replace("-", "_").partition(".")[0]
    own = _KEY_OF_FLAG.get(plain, plain)
    if own in instance and own not in {"args", "env", "name"}:
        return (own,)
    args = [str(key) for key in instance.get("args") or {}]
    spelt = (key for key in args if key.replace("-", "_").partition(".")[0] in {plain, f"no_{plain}"})
    return next((("args", key) for key in spelt), ())


def sentence(finding: Finding) -> str:
    """Return a finding as one sentence or two, with its id to look it up by and the day on which it was last true."""
    words = " ".join(part for part in (finding.message, finding.remedy) if part)
    verified = re.search(r"\bverified \d{4}-\d\d-\d\d", finding.evidence) if finding.claim else None
    return f"{words} [{finding.id}{', ' + verified[0] if verified else ''}]"


def _known_limits(instance: c.Mapping[str, t.Any]) -> frozenset[str]:
    evidence = instance.get("evidence")
    limits = evidence.get("known_limits") if isinstance(evidence, dict) else None
    return frozenset(map(str, limits)) if isinstance(limits, list) else frozenset()

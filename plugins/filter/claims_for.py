# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filters that judge an instance by what is known of its versions."""

from __future__ import annotations

import collections.abc as c
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, Severity
from ansible_collections.gb10.fleet.plugins.plugin_utils import (
    _claims,
    _driver_facts,
    _expected_backend,
    _instance_facts,
)

DOCUMENTATION = r"""
name: claims_for
short_description: Say what is known of the versions that an instance runs on
version_added: 0.1.0
author: gb10.fleet maintainers
description:
  - Judges an instance, or facts, by the collection's claims, which are dated facts about versions with their sources.
  - A claim that is past its re-check date is marked as stale, and not dropped.
  - Nothing is looked up and no clock is read. The same facts on the same day give the same findings.
positional: _input, today, observed
options:
  _input:
    description:
      - An instance (it says C(vllm) and maybe C(checkpoint)), or a mapping of facts.
      - Or the result of M(gb10.fleet.driver_info). Then driver and kernel are judged as they run now, and as the
        next boot would load them.
    type: dict
    required: true
  today:
    description: The day to judge by, as YYYY-MM-DD.
    type: str
    required: true
  observed:
    description:
      - What was observed beside it, as far as it is known. C(driver), C(kernel), C(nodes), C(reported_vllm),
        C(gateway) with C(wants) and C(served), C(daily_restart), and C(checkpoint), the result of
        M(gb10.fleet.checkpoint_info).
    type: dict
"""

EXAMPLES = r"""
- name: Judge an instance
  ansible.builtin.set_fact:
    findings: "{{ instance | gb10.fleet.claims_for('2026-11-29', {'driver': '580.142'}) }}"

- name: Judge the driver of a box that serves together with another one
  ansible.builtin.set_fact:
    findings: "{{ driver_info_result | gb10.fleet.claims_for('2026-11-29', {'nodes': 2}) }}"

- name: Judge a driver and a kernel before they are installed
  ansible.builtin.set_fact:
    findings: "{{ {'driver': '590.48.01', 'kernel': '6.17.0-1032-nvidia'} | gb10.fleet.claims_for('2026-11-29') }}"
"""

RETURN = r"""
_value:
  description: The findings, the gravest first. Each names its claim; its evidence names sources and dates.
  type: list
  elements: dict
"""


def claims_for(
    value: c.Mapping[str, t.Any], today: str, observed: c.Mapping[str, t.Any] | None = None
) -> list[dict[str, str]]:
    """Return what the claims say of an instance or of facts."""
    if not isinstance(value, c.Mapping):
        raise AnsibleFilterError("gb10.fleet.claims_for: give it an instance or a mapping of facts.")
    try:
        if _driver_facts.is_driver_result(value):
            return [finding.as_dict() for finding in _of_driver(value, str(today), observed or {})]
        if "flags" in value or "vllm" not in value:
            facts = _instance_facts.with_observed(value, observed or {})
        else:
            facts = _instance_facts.instance_facts(value, observed)
        return [finding.as_dict() for finding in _claims.claims_for(facts, str(today))]
    except _claims.ClaimError as error:
        raise AnsibleFilterError(f"gb10.fleet.claims_for: {error}") from error


def _of_driver(value: c.Mapping[str, t.Any], today: str, observed: c.Mapping[str, t.Any]) -> list[Finding]:
    """Return what the claims say of the driver that runs and of the one to come, each finding once."""
    found: dict[Finding, None] = {}
    for pair in _driver_facts.driver_facts(value):
        found |= dict.fromkeys(_claims.claims_for(_instance_facts.with_observed(pair, observed), today))
    return sorted(found, key=lambda finding: t.get_args(Severity).index(finding.severity))


def expected_backends(
    instance: c.Mapping[str, t.Any], scheme: str | None, families: c.Mapping[str, str] | None = None
) -> dict[str, t.Any]:
    """Return what the boot log of an instance has to show, in the words of ``expects``."""
    if not isinstance(instance, c.Mapping) or "vllm" not in instance:
        raise AnsibleFilterError("gb10.fleet.expected_backends: the instance does not say which vllm: it is for.")
    flags = _instance_facts.instance_facts(instance)["flags"]
    kernels = _expected_backend.Kernels(families or {})
    found = _expected_backend.expected_backends(str(instance["vllm"]), scheme, kernels=kernels, flags=flags)
    return {"expects": found.as_expects(), "why": {"moe_backend": found.moe.why, "linear_backend": found.linear.why}}


class FilterModule:
    """Filters of what is known."""

    def filters(self) -> dict[str, c.Callable[..., t.Any]]:
        """Return the filters by name."""
        return {"claims_for": claims_for, "expected_backends": expected_backends}

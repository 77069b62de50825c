# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: memory_plan_text
version_added: 0.1.0
short_description: Show a memory plan as a bar and a table
author:
  - gb10.fleet maintainers (!UNKNOWN)
description:
  - Turns what P(gb10.fleet.memory_plan#filter) returned into lines that a person can read.
options:
  _input:
    description:
      - A plan that P(gb10.fleet.memory_plan#filter) returned.
    type: dict
    required: true
seealso:
  - plugin: gb10.fleet.memory_plan
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Show a plan
  ansible.builtin.debug:
    msg: "{{ (plan | gb10.fleet.memory_plan_text).splitlines() }}"
"""

RETURN = r"""
_value:
  description: The lines of the plan, joined by newlines.
  type: str
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_text import plan_text


def memory_plan_text(plan: t.Any) -> str:
    """Return the lines of a plan; see DOCUMENTATION."""
    try:
        return plan_text(plan)
    except (KeyError, TypeError):
        raise AnsibleFilterError(
            "gb10.fleet.memory_plan_text: this is no plan; pass on what the filter gb10.fleet.memory_plan returned."
        ) from None


class FilterModule:
    """The filter gb10.fleet.memory_plan_text."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Return the filter under its name."""
        return {"memory_plan_text": memory_plan_text}

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks the fabrics of an inventory on the controller; no connection is opened."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gb10.fleet.plugins.plugin_utils import _fabric_input, _fabric_sentence
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import Problem, nearest

_display = Display()


class ActionModule(ActionBase):
    """See plugins/modules/resolve_fabric.py for what it takes and returns."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Check every fabric once, or fail with every problem in one message."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        own = str(variables.get("inventory_hostname"))
        _result, options = self.validate_argument_spec(
            {
                "boxes": {"type": "list", "elements": "str", "default": [own]},
                "show": {"type": "bool", "default": False},
            }
        )
        hostvars = variables["hostvars"]
        sentences: dict[str, None] = {}  # a set that keeps its order: a group's fault is said once, not once a box
        members: dict[str, list[str]] = {}
        for box in options["boxes"]:
            if "fabric" not in hostvars[box]:
                continue
            try:
                members[box] = self._members(hostvars[box]["fabric"], hostvars)
            except _fabric_input.FabricInputError as error:
                fabric = hostvars[box]["fabric"]
                sentences.update(dict.fromkeys(_fabric_sentence.sentence(one, fabric) for one in error.problems))
            except AnsibleError as error:
                reason = str(error).splitlines()[0]
                sentences[f"the inventory of {box}: fabric: a template in it cannot be resolved ({reason})."] = None
        if sentences:
            return {**result, "failed": True, "msg": "\n".join(sentences)}
        said = [f"{names[0]} is in a fabric with {', '.join(names[1:])}" for names in _different(members.values())]
        for line in said if options["show"] else ():
            _display.display(f"  {line}")
        return {**result, "changed": False, "members": members, "msg": said}

    def _members(self, fabric: t.Any, hostvars: t.Any) -> list[str]:
        """Return the members of a fabric; FabricInputError says what is wrong with it."""
        if fabric == {}:
            return []
        wanted = _fabric_input.read(fabric)
        unknown = [
            Problem(
                ("fabric", "members", member.rank),
                f"the inventory knows no box {member.box!r}",
                nearest(member.box, list(hostvars)),
                fabric["members"][member.rank],
            )
            for member in wanted.members
            if member.box not in hostvars
        ]
        if unknown:
            raise _fabric_input.FabricInputError(unknown)
        addresses = {member.box: hostvars[member.box].get("ansible_host") for member in wanted.members}
        return [member.box for member in _fabric_input.read(fabric, addresses).members]


def _different(lists: t.Iterable[list[str]]) -> list[tuple[str, ...]]:
    """Return every list once, without those of boxes that have no fabric."""
    return list(dict.fromkeys(tuple(one) for one in lists if one))

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks the fabrics of an inventory on the controller; no connection is opened."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gb10.fleet.plugins.action.resolve_model_roles import numbers_read_otherwise
from ansible_collections.gb10.fleet.plugins.plugin_utils import _fabric_input, _fabric_sentence, _origin
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_rank import addresses_of, shares_of
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import Problem

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
        groups = variables.get("groups", {})
        every = frozenset(groups.get("all", hostvars))
        known = _Known(every, frozenset(groups.get("sparks", every)))
        sentences: dict[str, None] = {}  # a set that keeps its order: a group's fault is said once, not once a box
        addresses: dict[str, dict[str, list[str]]] = {}
        for box in options["boxes"]:
            if "fabric" not in hostvars[box]:
                continue
            fabric: t.Any = None
            try:
                fabric = hostvars[box]["fabric"]
                addresses[box] = _members(box, fabric, hostvars, known)
            except _fabric_input.FabricInputError as error:
                wrong = (_fabric_sentence.sentence(one, fabric, box) for one in error.problems)
                sentences.update(dict.fromkeys(wrong))
            except AnsibleError as error:
                reason = str(error).splitlines()[0]
                place = _origin.place_of_error(error) or f"the inventory of {box}"
                sentences[f"{place}: fabric: a template or secret in it cannot be resolved ({reason})."] = None
        if sentences:
            return {**result, "failed": True, "msg": "\n".join(sentences)}
        said = list(dict.fromkeys(_said(its) for its in addresses.values() if its))
        for line in said if options["show"] else ():
            _display.display(f"  {line}")
        return {
            **result,
            "changed": False,
            "members": {box: list(its) for box, its in addresses.items()},
            "addresses": {box: its[box] for box, its in addresses.items() if box in its},
            "msg": said,
        }


class _Known(t.NamedTuple):
    """The hosts of the inventory, and those of them that the playbooks run on."""

    all: frozenset[str]
    boxes: frozenset[str]


def _members(box: str, fabric: t.Any, hostvars: t.Any, known: _Known) -> dict[str, list[str]]:
    """Return the members of a fabric with their addresses; FabricInputError says what is wrong with it."""
    if fabric == {}:
        return {}
    if otherwise := list(numbers_read_otherwise(fabric, ("fabric",))):
        raise _fabric_input.FabricInputError(otherwise)
    wanted = _fabric_input.read(fabric)
    if found := list(_fabric_input.strangers(wanted, fabric, known.all, known.boxes)):
        raise _fabric_input.FabricInputError(found)
    addresses = {member.box: hostvars[member.box].get("ansible_host") for member in wanted.members}
    found = [_fabric_sentence.problem_of(one, fabric) for one in shares_of(fabric, {}, addresses).errors]
    if box in {member.box for member in wanted.members}:
        found += [one for member in wanted.members for one in _disagrees(member, fabric, hostvars[member.box])]
    if found:
        raise _fabric_input.FabricInputError(found)
    return addresses_of(fabric, addresses)


def _disagrees(member: _fabric_input.Member, fabric: t.Any, variables: t.Any) -> t.Iterator[Problem]:
    """Yield that a member goes by another fabric, or none: each box is set up by the one that reaches it."""
    its = variables.get("fabric")
    if its == fabric:
        return
    what = f"{member.box} is a member, and " + ("no fabric reaches it" if not its else "another fabric reaches it")
    remedy = "say it once, in the group_vars of a group that holds all members"
    yield Problem(("fabric", "members", member.rank), what, remedy, fabric["members"][member.rank])


def _said(members: t.Mapping[str, t.Sequence[str]]) -> str:
    """Return in one sentence who is in a fabric, and at which addresses."""
    first, *others = (f"{box} ({', '.join(addresses)})" for box, addresses in members.items())
    return f"{first} is in a fabric with {', '.join(others)}"

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which groups of an inventory set a variable themselves, where Ansible shows a box only the one that has won.

ansible-core has no public interface for that, so this is the one place that looks behind ``hostvars``; without it
nothing is known of any group.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils import _origin

try:
    from ansible.vars import plugins as _vars
except ImportError:  # an ansible-core that moved it
    _vars = None  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """Where a group sets a variable: file and line (empty where that is not known), and the groups that it is part of.

    What it sets goes before what those set, as everybody knows who makes a group part of another one.
    """

    place: str
    above: frozenset[str] = frozenset()


def groups_that_set(name: str, groups: c.Iterable[str], variables: c.Mapping[str, t.Any]) -> dict[str, Setting]:
    """Return those of some groups that set a variable. ``variables`` are those of the task."""
    there: t.Any = getattr(getattr(variables["hostvars"], "_inventory", None), "groups", {})
    found: dict[str, Setting] = {}
    for group in groups:
        its = _set_by(there[group], variables) if _vars is not None and group in there else {}
        if name in its:
            above = frozenset(str(one.name) for one in there[group].get_ancestors())
            found[group] = Setting(str(_origin.place_on_the_way((name,), its) or ""), above)
    return found


def _set_by(group: t.Any, variables: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return what a group sets: in the inventory itself, in group_vars beside it, and in those beside the playbook."""
    loader, sources = variables["hostvars"]._loader, variables.get("ansible_inventory_sources", ())
    beside = _vars.get_vars_from_inventory_sources(loader, sources, [group], "task")
    playbook = variables.get("playbook_dir")
    return {
        **group.get_vars(),
        **beside,
        **(_vars.get_vars_from_path(loader, playbook, [group], "task") if playbook else {}),
    }

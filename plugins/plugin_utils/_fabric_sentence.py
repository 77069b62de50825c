# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A problem of a fabric in one sentence, with the file and the line where they are known.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import _origin, _schema

# The key that cures what a plan refuses, where it is one.
_KEYS: t.Final = {
    "FABRIC_ADDRESS_TAKEN": "members",
    "FABRIC_ADDRESS_UNUSED": "members",
    "FABRIC_CABLES_DIFFER": "members",
    "FABRIC_SUBNETS_TOO_FEW": "subnets",
    "FABRIC_SUBNET_TOO_SMALL": "first_host",
}


def problem_of(finding: Finding, fabric: t.Any) -> _schema.Problem:
    """Return what refuses the plan of a fabric as a problem of the key that cures it."""
    key = _KEYS.get(finding.id, "")
    path: _schema.Path = ("fabric", key) if key in fabric else ("fabric",)
    return _schema.Problem(path, f"{finding.message} [{finding.id}]", finding.remedy, fabric.get(key, fabric))


def sentence(problem: _schema.Problem, fabric: object, box: str = "") -> str:
    """Return where it is, which key, what is wrong and what to do."""
    place = _origin.place_of(problem.value) or _origin.place_on_the_way(problem.path[1:], fabric)
    end = "" if problem.remedy.endswith("?") else "."
    where = place or (f"the inventory of {box}" if box else "the inventory")
    return f"{where}: {_schema.dotted(problem.path)}: {problem.what}; {problem.remedy}{end}"

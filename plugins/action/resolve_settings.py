# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks the variables of the collection's roles and playbooks on the controller; no connection is opened."""

from __future__ import annotations

import contextlib
import dataclasses
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.gb10.fleet.plugins.plugin_utils import _claims, _origin, _schema, _settings


class ActionModule(ActionBase):
    """See plugins/modules/resolve_settings.py for what it takes and returns."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Check every box, or fail with every problem in one message."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _result, options = self.validate_argument_spec(
            {"boxes": {"type": "list", "elements": "str", "default": [str(variables.get("inventory_hostname"))]}}
        )
        sentences: dict[str, None] = {}  # a set that keeps its order: a group's fault is said once, not once a box
        for box in options["boxes"]:
            sentences.update(dict.fromkeys(wrong_settings(box, variables["hostvars"][box])))
        if sentences:
            return {**result, "failed": True, "msg": "\n".join(sentences)}
        return {**result, "changed": False, "msg": "all variables are as they may be"}


def wrong_settings(box: str, variables: t.Mapping[str, t.Any]) -> t.Iterator[str]:
    """Yield what is wrong with the variables of a box, one sentence each."""
    given: dict[str, t.Any] = {}
    for name in variables:
        if str(name) not in _settings.SETTINGS:
            continue
        try:
            given[name] = variables[name]
        except AnsibleError as error:
            place = _origin.place_of_error(error) or f"the inventory of {box}"
            reason = str(error).splitlines()[0]
            yield f"{place}: {name}: a template or secret in it cannot be resolved ({reason})."
    claims = {claim.id for claim in _claims.load()}
    for problem in (*misspelt(variables), *_settings.problems(given, claims)):
        place = (
            _origin.place_of(problem.value)
            or _origin.place_on_the_way(problem.path, given)
            or f"the inventory of {box}"
        )
        end = "" if problem.remedy.endswith("?") else "."
        yield f"{place}: {_schema.dotted(problem.path)}: {problem.what}; {problem.remedy}{end}"


def misspelt(variables: t.Mapping[str, t.Any]) -> t.Iterator[_schema.Problem]:
    """Yield the misspelt variables of a box with a value that knows where it was written: theirs, or their name."""
    names = {str(name): name for name in variables}
    for problem in _settings.misspelt(names):
        value = None
        # Nobody reads it, so it matters to nobody that it cannot be resolved.
        with contextlib.suppress(AnsibleError):
            value = variables[str(problem.path[0])]
        # A truth value carries no place.
        known = _origin.place_of(value)
        yield dataclasses.replace(problem, value=value if known else names[str(problem.path[0])])

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decides on the controller where boxes go back to, and in which batches; no connection is opened."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.gb10.fleet.plugins.plugin_utils import _batches, _rollback


class ActionModule(ActionBase):
    """See plugins/modules/plan_rollback.py for what it takes and returns."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Plan the way back, or fail with everything that speaks against it in one message."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _result, options = self.validate_argument_spec(
            {
                "observed": {"type": "dict", "required": True},
                "generations": {"type": "list", "elements": "str", "default": []},
                "batches": {"type": "raw", "default": list(_batches.DEFAULT)},
            }
        )
        boxes = [_rollback.Box.from_plain(str(name), one) for name, one in options["observed"].items()]
        wanted = [name for one in options["generations"] if (name := one.strip())]
        groups = {str(name): [str(one) for one in some] for name, some in variables.get("groups", {}).items()}
        plan = _rollback.plan(boxes, wanted, groups)
        problems = list(plan.problems)
        names = [box.name for box in boxes]
        dealt = _batches.Batches((), ())
        try:
            dealt = _batches.batches(names, plan.together, options["batches"], forks=variables.get("ansible_forks"))
        except _batches.BatchError as error:
            problems.append(str(error))
        if problems:
            return {**result, "failed": True, "msg": "\n".join(problems)}
        return {
            **result,
            "changed": False,
            "boxes": {box.name: _told(box, plan) for box in boxes},
            "order": list(dealt.order),
            "batches": list(dealt.sizes),
        }


def _told(box: _rollback.Box, plan: _rollback.Plan) -> dict[str, t.Any]:
    """Return what is done with a box."""
    target = plan.targets[box.name]
    others = next((some for some in plan.together if box.name in some), ())
    return {
        "serving": box.serving,
        "serving_engines": list(box.engines),
        "generation": target.id,
        "answered_at": target.answered_at,
        "instances": list(target.instances),
        "engines": list(target.engines),
        "unproven": list(target.unproven),
        "ranks": [one for one in others if one != box.name],
    }

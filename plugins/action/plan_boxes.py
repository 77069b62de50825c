# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans the memory of boxes on the controller; no connection is opened."""

from __future__ import annotations

import datetime
import json
import pathlib
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gb10.fleet.plugins.action.resolve_model_roles import ActionModule as ResolveModelRoles
from ansible_collections.gb10.fleet.plugins.action.resolve_model_roles import fleet_of
from ansible_collections.gb10.fleet.plugins.plugin_utils._catalogue import shipped_catalogue
from ansible_collections.gb10.fleet.plugins.plugin_utils._fleet_plan import CheckpointFolder, Known, plan_box, refusal
from ansible_collections.gb10.fleet.plugins.plugin_utils._group_plan import same_pools
from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_inputs import PlanInputError
from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_text import plan_text

_display = Display()


class ActionModule(ResolveModelRoles):
    """See plugins/modules/plan_boxes.py for what it takes and returns."""

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Plan every box, show the plans, write them, and fail where one is refused."""
        result: dict[str, t.Any] = {**ActionBase.run(self, tmp, task_vars), "changed": False}
        variables = task_vars or {}
        _result, options = self.validate_argument_spec(
            {
                "boxes": {"type": "list", "elements": "str", "required": True},
                "facts": {"type": "path"},
                "checkpoints": {"type": "path"},
                "dest": {"type": "path"},
                "show": {"type": "bool", "default": True},
                "only_missing": {"type": "bool", "default": False},
            }
        )
        hostvars = variables["hostvars"]
        facts = pathlib.Path(options["facts"]) if options["facts"] else None
        known: dict[str, Known] = {}
        sentences: dict[str, None] = {}
        for box in options["boxes"]:
            try:
                known[box] = Known.of(box, hostvars[box], facts)
            except (PlanInputError, AnsibleError) as error:
                sentences[f"{box}: {str(error).splitlines()[0]}"] = None
        missing = [box for box, one in known.items() if one.memory is None]
        if options["only_missing"] or sentences:
            return {**result, **_failure(sentences), "missing": missing}
        folder = _checkpoint_folder(options["checkpoints"])
        shipped = shipped_catalogue()
        fleet, unreadable = fleet_of(variables)
        sentences.update(dict.fromkeys(unreadable))
        resolved: dict[str, list[dict[str, t.Any]]] = {}
        plans: dict[str, t.Any] = {}
        for box, one in known.items():
            instances, wrong = self._resolve(box, hostvars[box], shipped, fleet)
            if not wrong:
                resolved[box] = instances
                plan, wrong = _planned(box, instances, one, folder, hostvars[box])
                plans.update({box: plan} if plan else {})
            sentences.update(dict.fromkeys(wrong))
        # Planned again where the boxes of a serving group have to agree on the smallest pool.
        agreed = {box: same_pools(resolved[box], plans) for box in plans}
        for box in [one for one, instances in agreed.items() if instances != resolved[one]]:
            plan, _wrong = _planned(box, agreed[box], known[box], folder, hostvars[box])
            plans.update({box: plan} if plan else {})
        if options["show"]:
            for plan in plans.values():
                _display.display(plan_text(plan))
                _display.display("")
        refused = {box: refusal(box, plan) for box, plan in plans.items() if plan["verdict"] == "refused"}
        # What an earlier run wrote is worth more than a file without the boxes that could not be planned.
        if options["dest"] and not sentences:
            result["changed"] = self._write(pathlib.Path(options["dest"]), plans)
        sentences.update(dict.fromkeys(refused.values()))
        return {**result, **_failure(sentences), "missing": missing, "plans": plans, "refused": list(refused)}

    def _write(self, path: pathlib.Path, plans: dict[str, t.Any]) -> bool:
        text = json.dumps({"boxes": plans}, indent=1, sort_keys=True) + "\n"
        try:
            if path.exists() and path.read_text(encoding="utf-8") == text:
                return False
            if not self._task.check_mode:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise AnsibleError(f"{path}: cannot be written ({error.strerror}).") from error
        return True


def _checkpoint_folder(path: str | None) -> CheckpointFolder:
    if path and not pathlib.Path(path).is_dir():
        raise AnsibleError(f"{path}: there is no such folder; plan_checkpoints has to name one.")
    return CheckpointFolder(pathlib.Path(path) if path else None)


def _planned(
    box: str,
    instances: list[dict[str, t.Any]],
    known: Known,
    folder: CheckpointFolder,
    variables: t.Mapping[str, t.Any],
) -> tuple[dict[str, t.Any] | None, list[str]]:
    """Return the plan of a box, or why there can be none."""
    try:
        reserve = variables.get("vllm_server_host_reserve_bytes")
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        kept = None if reserve is None else int(reserve)
        return plan_box(box, instances, known, folder, host_reserve_bytes=kept, today=today), []
    except PlanInputError as error:
        return None, [str(error) if str(error).startswith(box) else f"{box}: {error}"]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return None, [f"{box}: no plan can be made of what was given ({type(error).__name__}: {error})."]


def _failure(sentences: dict[str, None]) -> dict[str, t.Any]:
    return {"failed": True, "msg": "\n".join(sentences)} if sentences else {"msg": "all plans fit"}

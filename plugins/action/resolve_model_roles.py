# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Turns the model roles of boxes into instances on the controller; no connection is opened."""

from __future__ import annotations

import datetime
import re
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gb10.fleet.plugins.plugin_utils import _known_findings, _model_roles, _origin
from ansible_collections.gb10.fleet.plugins.plugin_utils import _schema as schema
from ansible_collections.gb10.fleet.plugins.plugin_utils._catalogue import settings, shipped_catalogue
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import Problem, dotted

_display = Display()


class ActionModule(ActionBase):
    """See plugins/modules/resolve_model_roles.py for what it takes and returns."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Resolve, or fail with every problem in one message."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        own = str(variables.get("inventory_hostname"))
        _result, options = self.validate_argument_spec(
            {
                "boxes": {"type": "list", "elements": "str", "default": [own]},
                "show": {"type": "bool", "default": False},
            }
        )
        shipped = shipped_catalogue()
        instances: dict[str, list[dict[str, t.Any]]] = {}
        sentences: dict[str, None] = {}  # a set that keeps its order: a group's fault is said once, not once a box
        for box in options["boxes"]:
            resolved, wrong = self._resolve(box, variables["hostvars"][box], shipped)
            instances[box] = resolved
            sentences.update(dict.fromkeys(wrong))
        if sentences:
            return {**result, "failed": True, "msg": "\n".join(sentences)}
        served = [
            f"{box} is to serve {', '.join(one['name'] for one in some) or 'nothing'}"
            for box, some in instances.items()
        ]
        if options["show"]:
            for line in served:
                _display.display(f"  {line}")
        return {**result, "changed": False, "instances": instances.get(own, []), "boxes": instances, "msg": served}

    def _resolve(
        self, box: str, variables: t.Mapping[str, t.Any], shipped: dict[str, t.Any]
    ) -> tuple[list[dict[str, t.Any]], list[str]]:
        """Return the instances of a box and what is wrong with its inventory, one of the two empty."""
        given: dict[str, t.Any] = {"model_catalogue": {}, "model_roles": None}
        names = [*given, *(name for name in variables if str(name).startswith("vllm_server_"))]
        for name in names:
            try:
                given[name] = variables.get(name, given.get(name))
            except AnsibleError as error:
                reason = str(error).splitlines()[0]
                place = _origin.place_of_error(error) or f"the inventory of {box}"
                return [], [f"{place}: {name}: a template or secret in it cannot be resolved ({reason})."]
        if "model_roles" not in variables:
            # A misspelt key or file would otherwise take everything off the box.
            remedy = "say what it serves, or model_roles: [] for a box that serves nothing"
            return [], [f"the inventory of {box}: model_roles is not there; {remedy}."]
        found = list(_model_roles.misspelt(map(str, variables), settings()))
        found += _numbers_read_otherwise(given)
        found += _model_roles.catalogue_problems(given["model_catalogue"], shipped)
        found += _model_roles.settings_problems(given)
        if not found:
            catalogue = _model_roles.merged_catalogue(shipped, given["model_catalogue"])
            resolved = _model_roles.resolve(given["model_roles"], catalogue)
            if not resolved.problems:
                watched = str(given.get("vllm_server_liveness", True)).lower() != "false"
                errors = self._known_errors(box, given, resolved.instances, watched=watched)
                return list(resolved.instances), errors
            found = list(resolved.problems)
        return [], [_sentence(problem, given, box) for problem in found]

    def _known_errors(
        self, box: str, given: dict[str, t.Any], instances: t.Sequence[dict[str, t.Any]], *, watched: bool
    ) -> list[str]:
        """Return what is known to forbid the instances (their flags, dated facts); show what is only a warning.

        Ansible shows the same warning once, however many boxes it is about.
        """
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        errors = []
        for index, instance in enumerate(instances):
            entry: schema.Path = ("model_roles", index)
            place = _place(given, entry) or f"the inventory of {box}"
            try:
                findings = _known_findings.known_findings(instance, today, watched=watched)
            except (
                ArithmeticError,
                AttributeError,
                LookupError,
                RecursionError,
                TypeError,
                ValueError,
            ) as error:
                what = f"its flags or its speculative settings cannot be read ({error})"
                errors.append(f"{place}: {instance['name']}: {what}; compare them with vLLM's documentation.")
                continue
            for finding in findings:
                if finding.severity == "error":
                    keys = _known_findings.written_as(finding, instance)
                    wrote = _writer(given, entry, str(instance["model_role"]), keys)
                    at = _place(given, wrote) or place
                    said = f"{instance['name']}: {_known_findings.sentence(finding)}"
                    errors.append(f"{at}: {dotted(wrote)}: {said}")
                else:
                    _display.warning(f"{instance['name']}: {_known_findings.sentence(finding)}")
        return errors


def _numbers_read_otherwise(value: t.Any, path: schema.Path = ()) -> t.Iterator[Problem]:
    """Yield the numbers of which YAML makes others than a person reads: 020000 is 8192, 36:24 is 2184."""
    if isinstance(value, dict | list):
        for step, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers_read_otherwise(one, (*path, step if isinstance(step, int) else str(step)))
    elif isinstance(value, int) and not isinstance(value, bool):
        word = _origin.as_written(value)
        if re.fullmatch(r"[-+]?0\d+|[-+]?\d+(?::\d+)+|[-+]?0[xbo][0-9a-fA-F_]+|[-+]?\d[\d_]*_[\d_]*", word):
            what = f"YAML reads {word} as {int(value)}"
            yield Problem(path, what, f"write {int(value)} if you mean it, or put it in quotes", value)


def _writer(given: dict[str, t.Any], entry: schema.Path, role: str, keys: tuple[str, ...]) -> schema.Path:
    """Return where an instance got some keys from: its entry, the user's catalogue, else (it is shipped) its entry."""
    for root in (entry, ("model_catalogue", role)):
        path, node = (*root, *keys), t.cast("t.Any", given)
        for step in path if keys else ():
            try:
                node = node[step]
            except (KeyError, IndexError, TypeError):
                break
        else:
            if keys:
                return path
    return entry


def _sentence(problem: Problem, given: dict[str, t.Any], box: str) -> str:
    place = _origin.place_of(problem.value) or _place(given, problem.path) or f"the inventory of {box}"
    end = "" if problem.remedy.endswith("?") else "."
    return f"{place}: {dotted(problem.path)}: {problem.what}; {problem.remedy}{end}"


def _place(given: dict[str, t.Any], path: schema.Path) -> _origin.Place | None:
    """Return the place of the deepest key or value on the way to a problem (true and null carry none)."""
    place: _origin.Place | None = None
    node: t.Any = given
    for step in path:
        if isinstance(node, dict):
            written = next((key for key in node if key == step), None)
            place = _origin.place_of(written) or place
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            break
        place = _origin.place_of(node) or place
    return place

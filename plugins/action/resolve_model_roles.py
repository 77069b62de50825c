# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Turns the model roles of boxes into instances on the controller; no connection is opened."""

from __future__ import annotations

import contextlib
import datetime
import difflib
import re
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gb10.fleet.plugins.action.resolve_settings import misspelt
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import (
    _batches,
    _claims,
    _fabric_sentence,
    _group_vars,
    _known_findings,
    _model_roles,
    _origin,
    _serving_group,
    _settings,
)
from ansible_collections.gb10.fleet.plugins.plugin_utils import _schema as schema
from ansible_collections.gb10.fleet.plugins.plugin_utils._catalogue import shipped_catalogue
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import Problem, dotted

_display = Display()
# What of a box's variables is looked at.
_READ = {*_settings.SETTINGS, *_settings.OTHERS} - {"fabric"}


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
                "fabrics": {"type": "dict"},
            }
        )
        shipped = shipped_catalogue()
        fleet, unreadable = fleet_of(variables, options["fabrics"], trial=bool(self._task.check_mode))
        if unreadable:
            return {**result, "failed": True, "msg": "\n".join(unreadable)}
        instances: dict[str, list[dict[str, t.Any]]] = {}
        sentences: dict[str, None] = {}  # a set that keeps its order: a group's fault is said once, not once a box
        sentences.update(dict.fromkeys(_one_box_twice(options["boxes"], variables["hostvars"])))
        for box in options["boxes"]:
            resolved, wrong = self._resolve(box, variables["hostvars"][box], shipped, fleet)
            instances[box] = resolved
            sentences.update(dict.fromkeys(wrong))
        if sentences:
            return {**result, "failed": True, "msg": "\n".join(sentences)}
        served = [f"{box} is to serve {', '.join(map(_named, some)) or 'nothing'}" for box, some in instances.items()]
        if options["show"]:
            for line in served:
                _display.display(f"  {line}")
        try:
            dealt = _batches.batches(
                options["boxes"],
                _groups_of(instances),
                variables.get("fleet_batches", _batches.DEFAULT),
                forks=variables.get("ansible_forks"),
            )
        except _batches.BatchError as error:
            return {**result, "failed": True, "msg": str(error)}
        return {
            **result,
            "changed": False,
            "instances": instances.get(own, []),
            "boxes": instances,
            "order": list(dealt.order),
            "batches": list(dealt.sizes),
            "msg": served,
        }

    def _resolve(
        self, box: str, variables: t.Mapping[str, t.Any], shipped: dict[str, t.Any], fleet: _serving_group.Fleet
    ) -> tuple[list[dict[str, t.Any]], list[str]]:
        """Return the instances of a box and what is wrong with its inventory, one of the two empty."""
        given: dict[str, t.Any] = {"model_catalogue": {}, "model_roles": None}
        names = [*given, *(name for name in variables if str(name) in _READ)]
        if box in fleet.fabrics:
            given["fabric"] = fleet.fabrics[box]
        for name in names:
            try:
                given[name] = variables.get(name, given.get(name))
            except AnsibleError as error:
                reason = str(error).splitlines()[0]
                place = _origin.place_of_error(error) or f"the inventory of {box}"
                return [], [f"{place}: {name}: a template or secret in it cannot be resolved ({reason})."]
        found = list(misspelt(variables))
        if "model_roles" not in variables and box in fleet.declared:
            given["model_roles"] = []
        elif "model_roles" not in variables:
            # A misspelt key or file would otherwise take everything off the box.
            remedy = "say what it serves, or model_roles: [] for a box that serves nothing"
            missing = f"the inventory of {box}: model_roles is not there; {remedy}."
            return [], [_sentence(problem, given, box) for problem in found] or [missing]
        found += numbers_read_otherwise(given)
        found += _model_roles.catalogue_problems(given["model_catalogue"], shipped)
        found += _settings.problems(given, {claim.id for claim in _claims.load()})
        if not found:
            catalogue = _model_roles.merged_catalogue(shipped, given["model_catalogue"])
            resolved = _model_roles.resolve(given["model_roles"], catalogue)
            found = list(resolved.problems)
            ranks, wrong = _rank_of(box, given, catalogue, fleet)
            found += wrong
            for rank in ranks if not found else ():
                found += _serving_group.clashes(rank, resolved.instances, box)
            if not found:
                instances = [*resolved.instances, *ranks]
                written: list[schema.Path] = [("model_roles", index) for index in range(len(resolved.instances))]
                written += [("serving_group",) for _rank in ranks]
                watched = str(given.get("vllm_server_liveness", True)).lower() != "false"
                errors = _against_fabric(box, given, ranks, fleet)
                return instances, errors + self._known_errors(box, given, instances, written, watched=watched)
        return [], [_sentence(problem, given, box) for problem in found]

    def _known_errors(
        self,
        box: str,
        given: dict[str, t.Any],
        instances: t.Sequence[dict[str, t.Any]],
        written: t.Sequence[schema.Path],
        *,
        watched: bool,
    ) -> list[str]:
        """Return what is known to forbid the instances (their flags, dated facts); show what is only a warning.

        ``written`` says where each of them stands in what is ``given``.
        Ansible shows the same warning once, however many boxes it is about.
        """
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        errors: list[str] = []
        for entry, instance in zip(written, instances, strict=True):
            place = _origin.place_on_the_way(entry, given) or f"the inventory of {box}"
            errors += _unknown_limits(given, entry, instance, place)
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
                    at = _origin.place_on_the_way(wrote, given) or place
                    said = f"{instance['name']}: {_known_findings.sentence(finding)}"
                    errors.append(f"{at}: {dotted(wrote)}: {said}")
                else:
                    _display.warning(f"{instance['name']}: {_known_findings.sentence(finding)}")
        return errors


def _one_box_twice(boxes: t.Sequence[str], hostvars: t.Any) -> t.Iterator[str]:
    """Yield the boxes that are reached at the address of another one: each would take off what the other one serves."""
    reached: dict[tuple[str, str, str], str] = {}
    for box in boxes:
        address, port, way, connection = None, "", "", "ssh"
        # One that cannot be resolved is the connection's own matter.
        with contextlib.suppress(AnsibleError):
            address = hostvars[box].get("ansible_host")
            port = str(hostvars[box].get("ansible_port", 22))
            # Behind another jump host the same address may be another box.
            way = str([hostvars[box].get(f"ansible_ssh_{name}_args") for name in ("common", "extra")])
            connection = str(hostvars[box].get("ansible_connection", "ssh"))
        if not isinstance(address, str) or not address or connection not in {"ssh", "ansible.builtin.ssh", "smart"}:
            continue
        other = reached.setdefault((address, port, way), box)
        if other != box:
            place = _origin.place_of(address) or f"the inventory of {box}"
            what = f"{address} is where {other} is reached already, and each of the two would undo the other"
            yield f"{place}: ansible_host: {what}; give {box} its own address, or remove one of them."


def _unknown_limits(
    given: dict[str, t.Any], entry: schema.Path, instance: t.Mapping[str, t.Any], place: object
) -> t.Iterator[str]:
    """Yield the claims that an instance says to know of, and that nobody else knows."""
    evidence = instance.get("evidence")
    limits = evidence.get("known_limits") if isinstance(evidence, dict) else None
    known = {claim.id for claim in _claims.load()}
    for one in limits if isinstance(limits, list) else ():
        if str(one) not in known:
            wrote = _writer(given, entry, str(instance["model_role"]), ("evidence", "known_limits"))
            at = _origin.place_of(one) or _origin.place_on_the_way(wrote, given) or place
            close = difflib.get_close_matches(str(one), known, n=1, cutoff=0.6)
            remedy = f"did you mean {close[0]}?" if close else "remove it; the refusal of a claim names its id."
            yield f"{at}: {dotted(wrote)}: there is no claim {schema.shown(one)}; {remedy}"


def numbers_read_otherwise(value: t.Any, path: schema.Path = ()) -> t.Iterator[Problem]:
    """Yield the numbers of which YAML makes others than a person reads: 020000 is 8192, 36:24 is 2184."""
    if isinstance(value, dict | list):
        for step, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_read_otherwise(one, (*path, step if isinstance(step, int) else str(step)))
    elif isinstance(value, int) and not isinstance(value, bool):
        word = _origin.as_written(value)
        if re.fullmatch(r"[-+]?0\d+|[-+]?\d+(?::\d+)+|[-+]?0[xbo][0-9a-fA-F_]+|[-+]?\d[\d_]*_[\d_]*", word):
            what = f"YAML reads {word} as {int(value)}"
            yield Problem(path, what, f"write {int(value)} if you mean it, or put it in quotes", value)


def _named(instance: t.Mapping[str, t.Any]) -> str:
    """Return the name of an instance, and which part of it the box has where others have the rest."""
    group = instance.get("serving_group")
    ranks = f" (rank {group['rank']} of {len(group['members'])}, group {group['name']})" if group else ""
    return f"{instance['name']}{ranks}"


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


def fleet_of(
    variables: t.Mapping[str, t.Any], looked_at: t.Mapping[str, t.Any] | None = None, *, trial: bool = False
) -> tuple[_serving_group.Fleet, list[str]]:
    """Return what the whole inventory says of serving groups, and what of it cannot be read.

    ``looked_at`` has what fabric_info returned, by box; None where nobody has looked yet.
    """
    hostvars, groups = variables["hostvars"], variables.get("groups", {})
    declared: dict[str, _serving_group.Declared] = {}
    addresses: dict[str, object] = {}
    environments: dict[str, object] = {}
    fabrics: dict[str, object] = {}
    unreadable = []
    for box in groups.get("all", []):
        its = hostvars[box]
        if "serving_group" not in its:
            continue
        try:
            value = its["serving_group"]
            addresses[box] = its.get("serving_address")
            environments[box] = its.get("serving_env")
            fabrics |= {box: its["fabric"]} if "fabric" in its else {}
        except AnsibleError as error:
            reason = str(error).splitlines()[0]
            unreadable.append(f"the inventory of {box}: a template in its serving group cannot be resolved ({reason}).")
            continue
        declared[box] = _serving_group.Declared(value, str(_origin.place_of(value) or ""))
    holding = [str(name) for name, boxes in groups.items() if not declared.keys().isdisjoint(boxes)]
    fleet = _serving_group.Fleet(
        declared=declared,
        naming=_group_vars.groups_that_set("serving_group", holding, variables),
        groups={str(name): [str(one) for one in boxes] for name, boxes in groups.items()},
        addresses=addresses,
        playing=[str(one) for one in variables.get("ansible_play_hosts_all", [])],
        environments=environments,
        fabrics=fabrics,
        hosts=_hosts_of(fabrics.values(), hostvars),
        observed=looked_at or {},
        looked=looked_at is not None,
        trial=trial,
    )
    return fleet, unreadable


def _hosts_of(fabrics: t.Iterable[object], hostvars: t.Any) -> dict[str, t.Any]:
    """Return what Ansible connects to, by box, for every member of some fabrics."""
    found: dict[str, t.Any] = {}
    for fabric in fabrics:
        members = fabric.get("members") if isinstance(fabric, dict) else None
        for member in members if isinstance(members, list) else ():
            box = member.get("box") if isinstance(member, dict) else member
            if isinstance(box, str) and box in hostvars and box not in found:
                # One that cannot be resolved is the connection's own matter.
                with contextlib.suppress(AnsibleError):
                    found[box] = hostvars[box].get("ansible_host")
    return found


def _groups_of(boxes: t.Mapping[str, t.Sequence[t.Mapping[str, t.Any]]]) -> list[list[str]]:
    """Return the boxes of every serving group, in the order of their ranks."""
    groups = [one["serving_group"]["members"] for some in boxes.values() for one in some if "serving_group" in one]
    return [[member["box"] for member in members] for members in groups]


def _rank_of(
    box: str, given: t.Mapping[str, t.Any], catalogue: t.Mapping[str, t.Any], fleet: _serving_group.Fleet
) -> tuple[list[dict[str, t.Any]], list[Problem]]:
    """Return the instance of the box's rank in its serving group, none where it is in no group, or what is wrong."""
    group, found = _serving_group.find(box, fleet)
    if group is None:
        return [], found
    found = list(_serving_group.group_problems(group, catalogue, fleet))
    found += _serving_group.rank_problems(box, group, given)
    if found:
        return [], found
    instance, found = _serving_group.instance_of(box, group, catalogue, fleet, given)
    return ([] if found else [instance]), found


def _against_fabric(
    box: str, given: dict[str, t.Any], ranks: t.Sequence[dict[str, t.Any]], fleet: _serving_group.Fleet
) -> list[str]:
    """Return what in the inventory of a box goes against its fabric; show what is only a warning."""
    group, _wrong = _serving_group.find(box, fleet)
    errors: list[str] = []
    if group is None:
        return errors
    for rank in ranks:
        if fleet.looked and rank.get("fabric_state") == "unobserved":
            _display.warning(f"{box}: its fabric could not be read, so what its rank talks over is left open.")
        for path, finding in _serving_group.contradictions(box, group, fleet, rank, given):
            if finding.severity == "error":
                at = _origin.place_on_the_way(path, given) or f"the inventory of {box}"
                errors.append(f"{at}: {dotted(path)}: {_said(finding)}")
            else:
                _display.warning(_said(finding))
    return errors


def _said(finding: Finding) -> str:
    return f"{finding.message}; {finding.remedy}. [{finding.id}]"


def _sentence(problem: Problem, given: dict[str, t.Any], box: str) -> str:
    if problem.path[0] == "fabric" and "fabric" in given:
        # The same words as where the fabric itself is checked.
        return _fabric_sentence.sentence(problem, given["fabric"])
    place = (
        _origin.place_of(problem.value) or _origin.place_on_the_way(problem.path, given) or f"the inventory of {box}"
    )
    end = "" if problem.remedy.endswith("?") else "."
    return f"{place}: {dotted(problem.path)}: {problem.what}; {problem.remedy}{end}"

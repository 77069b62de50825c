# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filters that turn an instance into what lies on the box."""

from __future__ import annotations

import collections.abc as c
import datetime
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.plugin_utils import _box_plan, _group_plan, _unit
from ansible_collections.gb10.fleet.plugins.plugin_utils._memory_plan import PlanInputError
from ansible_collections.gb10.fleet.plugins.plugin_utils._vllm_cli import FlagError


def box_plan(
    instances: c.Sequence[c.Mapping[str, t.Any]],
    memory: c.Mapping[str, t.Any],
    observed: c.Mapping[str, t.Any],
    checkpoints: c.Mapping[str, c.Mapping[str, t.Any]],
    host_reserve_bytes: int,
    *,
    images: c.Mapping[str, c.Mapping[str, t.Any]] | None = None,
) -> dict[str, t.Any]:
    """Return the plan of a box from what it is and what its inventory wants."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    try:
        return _box_plan.box_plan(
            instances,
            memory=memory,
            observed=observed,
            checkpoints=checkpoints,
            host_reserve_bytes=host_reserve_bytes,
            images=images,
            today=today,
        )
    except PlanInputError as error:
        raise AnsibleFilterError(f"gb10.fleet.box_plan: {error}") from error


def same_pools(
    instances: c.Sequence[c.Mapping[str, t.Any]], plans: c.Mapping[str, c.Mapping[str, t.Any]]
) -> list[dict[str, t.Any]]:
    """Return the instances of a box with the pools that their serving groups have agreed on."""
    try:
        return _group_plan.same_pools(instances, plans)
    except (AttributeError, KeyError, TypeError) as error:
        raise AnsibleFilterError(f"gb10.fleet.same_pools: {error} is missing or not expected") from error


def vllm_units(
    instances: c.Sequence[c.Mapping[str, t.Any]], plan: c.Mapping[str, t.Any], layout: c.Mapping[str, t.Any]
) -> list[dict[str, t.Any]]:
    """Return what lies on the box of each instance, by its plan."""
    try:
        liveness = layout.get("liveness")
        where = _unit.Layout(**{**layout, "liveness": _unit.Liveness(**liveness) if liveness else None})
        return [_unit.unit(one, plan["instances"][one["name"]], where) for one in instances]
    except (KeyError, TypeError) as error:
        raise AnsibleFilterError(f"gb10.fleet.vllm_units: {error} is missing or not expected") from error
    except FlagError as error:
        raise AnsibleFilterError(f"gb10.fleet.vllm_units: {error}") from error


def unit_changes(units: c.Sequence[c.Mapping[str, t.Any]], observed: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return what the box has to stop, replace and start to serve exactly these units."""
    try:
        return _unit.changes(units, observed)
    except KeyError as error:
        raise AnsibleFilterError(f"gb10.fleet.unit_changes: {error} is missing") from error


def unit_files(units: c.Sequence[c.Mapping[str, t.Any]], config_folder: str, which: str) -> list[dict[str, t.Any]]:
    """Return the files of units, as managed_files takes them."""
    if which not in {"units", "secrets"}:
        raise AnsibleFilterError(f"gb10.fleet.unit_files: {which!r} is neither units nor secrets")
    return _unit.files(units, config_folder, t.cast("t.Literal['units', 'secrets']", which))


def systemd_exec(argv: c.Sequence[str]) -> str:
    """Return an argv as the value of an Exec line, one argument a line."""
    return " \\\n  ".join(_unit.systemd_word(str(argument)) for argument in argv)


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, c.Callable[..., t.Any]]:
        """Return the filters."""
        return {
            "box_plan": box_plan,
            "same_pools": same_pools,
            "vllm_units": vllm_units,
            "unit_changes": unit_changes,
            "unit_files": unit_files,
            "systemd_exec": systemd_exec,
        }

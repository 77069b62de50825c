# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans boxes with what is known of them, without a connection to any.

What is known of a box is its memory (told in the inventory, or read earlier and kept in a file), what it served when
that was read, and the checkpoints of its instances (read earlier on the box, or from a folder of config files on the
controller).

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import datetime
import json
import pathlib
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint import inspect_checkpoint
from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_files import CheckpointError
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.module_utils._memory import gib
from ansible_collections.gb10.fleet.plugins.plugin_utils import _box_plan, _vllm_cli
from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_inputs import PlanInputError

_DEFAULT_RESERVE: t.Final = 8 << 30
_PLATFORMS: t.Final = ("gb10", "cpu")
# What a plan has to know of an instance that serves.
_STATE: t.Final = frozenset({"unit", "running", "memory_bytes"})
_HELD_BY_VLLM: t.Final = "MEMORY_HELD_BY_VLLM"
_SHORT_OF_MEMORY: t.Final = ("INSTANCE_DOES_NOT_FIT", "START_CHECK_WOULD_FAIL")


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What is known of a box before it is asked: the info modules' answers; None: not known.

    ``instances`` (vllm_instance_info) are those that were placed when the memory was read; ``unread`` says why there is
    no such answer. ``file`` is where the memory was kept and ``read_at`` when it was read, as people write it in UTC;
    both are empty where the inventory tells it.
    """

    memory: c.Mapping[str, t.Any] | None
    checkpoints: c.Mapping[str, t.Any]
    instances: c.Mapping[str, t.Any] | None = None
    gpu: str = ""
    unread: str = ""
    file: str = ""
    read_at: str = ""

    @property
    def source(self) -> str:
        """Where the memory is from, and how to have it read anew."""
        if not self.file:
            return "what box_memory says"
        return f"{self.file} of {self.read_at}; delete it to ask the box again"

    @classmethod
    def of(cls, box: str, variables: c.Mapping[str, t.Any], facts: pathlib.Path | None) -> Known:
        """Take what the inventory tells, else what a file of an earlier run says; raise PlanInputError on nonsense."""
        memory, checkpoints = variables.get("box_memory"), variables.get("box_checkpoints")
        kept: dict[str, t.Any] = {}
        path = None if facts is None else facts / f"{box}.json"
        if path is not None and (memory is None or checkpoints is None):
            kept = _read(path)
        checkpoints = checkpoints if checkpoints is not None else kept.get("checkpoints") or {}
        # What the box served belongs to the memory that was read with it.
        if memory is not None or path is None or kept.get("memory") is None:
            return cls(memory, checkpoints)
        return cls(
            kept["memory"],
            checkpoints,
            kept.get("instances"),
            gpu=str(kept.get("gpu") or ""),
            unread=str(kept.get("instances_unread") or ""),
            file=str(path),
            read_at=_read_at(kept, path),
        )


class CheckpointFolder:
    """Checkpoints on the controller, if only their JSON files: OWNER/NAME, or Hugging Face's own layout."""

    def __init__(self, folder: pathlib.Path | None) -> None:
        """Remember the folder; nothing is read yet."""
        self._folder = folder
        self._read: dict[tuple[str, str], dict[str, t.Any] | None] = {}

    def find(self, repo: str, revision: str) -> dict[str, t.Any] | None:
        """Return what checkpoint_info would say, or None where the folder does not have it."""
        key = (repo, revision)
        if self._folder is not None and key not in self._read:
            places = (
                self._folder / f"models--{repo.replace('/', '--')}" / "snapshots" / revision,
                self._folder / repo,
            )
            self._read[key] = next((_inspect(place) for place in places if place.is_dir()), None)
        return self._read.get(key)


def plan_box(
    box: str,
    instances: c.Sequence[c.Mapping[str, t.Any]],
    known: Known,
    folder: CheckpointFolder,
    *,
    host_reserve_bytes: int | None = None,
    today: str = "",
) -> dict[str, t.Any]:
    """Return the plan of one box with the command line of every instance; raise PlanInputError on unusable input.

    With a day (``today``) the dated facts that only a checkpoint decides are judged, too.
    """
    if known.memory is None:
        raise PlanInputError(f"{box}: its memory is not known; state box_memory, or let the playbook observe the box.")
    if not isinstance(known.checkpoints, c.Mapping) or not isinstance(known.memory, c.Mapping):
        raise PlanInputError(f"{box}: box_memory and box_checkpoints are mappings, as the info modules return them.")
    for key in ("total_bytes", "available_bytes"):
        if key not in known.memory:
            raise PlanInputError(f"{box}: box_memory lacks {key}.")
    memory = _memory(box, known.memory)
    platform = memory.get("platform") or ("cpu" if known.gpu == "none" else "gb10")
    checkpoints: dict[str, t.Any] = {}
    for instance in instances:
        checkpoint = instance["checkpoint"]
        report = known.checkpoints.get(instance["name"]) or folder.find(checkpoint["repo"], checkpoint["revision"])
        if report:
            checkpoints[instance["name"]] = {"weights_bytes_total": None, "part_bytes": {}, "scheme": "", **report}
    plan = _box_plan.box_plan(
        instances,
        memory=memory,
        observed={"gpu": "none" if platform == "cpu" else "cdi", "instances": _instances(box, known)},
        checkpoints=checkpoints,
        host_reserve_bytes=_DEFAULT_RESERVE if host_reserve_bytes is None else host_reserve_bytes,
        today=today,
    )
    plan["box"] |= {"name": box, "source": known.source}
    plan["findings"] += _held_by_vllm(box, known, memory)
    for name, report in checkpoints.items():
        # What is wrong with a checkpoint is wrong with the plan, too.
        plan["findings"] += [
            {**finding, "message": f"Checkpoint of {name}: {finding['message']}"}
            for finding in report.get("findings", [])
            if finding["severity"] != "info"
        ]
    for instance in instances:
        _add_command(plan, instance)
    plan["verdict"] = "refused" if any(f["severity"] == "error" for f in plan["findings"]) else "fits"
    return plan


def _memory(box: str, given: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return a box's memory with its holders complete, as a person may have left out what the plan does not need."""
    holders = given.get("holders") or []
    if not isinstance(holders, list) or not all(isinstance(one, c.Mapping) and "bytes" in one for one in holders):
        raise PlanInputError(f"{box}: box_memory.holders is a list of mappings with name and bytes; or leave it out.")
    platform = given.get("platform", "gb10")
    if platform not in _PLATFORMS:
        raise PlanInputError(f"{box}: box_memory.platform is {platform}; expected one of {', '.join(_PLATFORMS)}.")
    complete = [{"pid": 0, "vllm": False, "name": "unknown", **holder} for holder in holders]
    return {**given, "holders": complete}


def _instances(box: str, known: Known) -> c.Mapping[str, t.Any]:
    """Return what the box served when it was asked, none where nobody knows."""
    if known.instances is None:
        return {}
    states = known.instances.values() if isinstance(known.instances, c.Mapping) else [None]
    if not all(isinstance(one, c.Mapping) and one.keys() >= _STATE for one in states):
        raise PlanInputError(
            f"{box}: instances in {known.file} are not as vllm_instance_info returns them; delete the file, and the "
            "box is observed again."
        )
    return known.instances


def _held_by_vllm(box: str, known: Known, memory: c.Mapping[str, t.Any]) -> list[dict[str, str]]:
    """Return the finding that vLLM holds memory of which nobody knows whether it is given back."""
    resident = sum(one["bytes"] for one in memory["holders"] if one["vllm"])
    if known.instances is not None or not resident:
        return []
    again = f"Delete {known.file}" if known.file else "Leave box_memory out"
    finding = Finding(
        _HELD_BY_VLLM,
        "warning",
        f"vLLM runs on {box}: its processes hold {gib(resident)}, and what the driver has for them beside that. Nobody "
        "has said which instances they are, so nothing of it is counted as given back when these are stopped.",
        known.unread,
        f"{again}, and the box is asked what it serves"
        + (f" (the last time it could not say: {known.unread.rstrip('.')})" if known.unread else "")
        + "; or state in box_memory as available_bytes what is available once they have stopped.",
    )
    return [finding.as_dict()]


def refusal(box: str, plan: c.Mapping[str, t.Any]) -> str:
    """Return the sentence that a refused plan fails with; what may be why memory is short stands before it."""
    errors = [finding for finding in plan["findings"] if finding["severity"] == "error"]
    short = any(error["id"] in _SHORT_OF_MEMORY for error in errors)
    held = [finding for finding in plan["findings"] if short and finding["id"] == _HELD_BY_VLLM]
    return f"{box}: " + " ".join(f"{one['message']} {one['remedy']}".strip() for one in [*held, *errors])


def _add_command(plan: dict[str, t.Any], instance: c.Mapping[str, t.Any]) -> None:
    planned = plan["instances"][instance["name"]]
    sized = {key: planned[key] for key in ("kv_cache_memory_bytes", "gpu_memory_utilization")}
    try:
        planned["command"] = ["vllm", "serve", *_vllm_cli.render_args({**instance, **sized})]
    except _vllm_cli.FlagError as error:
        planned["command"] = []
        plan["findings"] += [
            {**finding.as_dict(), "message": f"Instance {instance['name']}: {finding.message}"}
            for finding in error.findings
        ]


def _inspect(place: pathlib.Path) -> dict[str, t.Any] | None:
    try:
        return inspect_checkpoint(str(place)).as_dict()
    except CheckpointError as error:
        raise PlanInputError(str(error)) from None


def _read_at(kept: c.Mapping[str, t.Any], path: pathlib.Path) -> str:
    """Return when a box was read: what its file says, or when that was written where it is of an older release."""
    try:
        read_at = datetime.datetime.fromisoformat(str(kept.get("read_at"))).astimezone(datetime.UTC)
    except (OverflowError, ValueError):
        read_at = datetime.datetime.fromtimestamp(path.stat().st_mtime, tz=datetime.UTC)
    return f"{read_at:%Y-%m-%d %H:%M} UTC"


def _read(path: pathlib.Path) -> dict[str, t.Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, RecursionError, ValueError) as error:
        raise PlanInputError(f"{path}: cannot be read ({error}); delete it, and the box is observed again.") from None
    if not isinstance(data, dict):
        raise PlanInputError(f"{path}: is no JSON object; delete it, and the box is observed again.")
    return data

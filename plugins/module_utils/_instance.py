# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the box says about an instance: its files, its systemd unit and its container, read in one go.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import json
import pathlib
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _docker

UNIT_FOLDER: t.Final = "etc/systemd/system"
INSTANCE_FOLDER: t.Final = "etc/gb10-fleet/instances"
RECORD_FOLDER: t.Final = "var/lib/gb10-fleet/records"
# The first line of every unit that the collection renders; a unit without it belongs to somebody else.
MARK: t.Final = "# Rendered by gb10.fleet"
SPEC_LABEL: t.Final = "gb10.fleet.spec"
_PROPERTIES: t.Final = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "UnitFileState",
    "NeedDaemonReload",
    "NRestarts",
    "InvocationID",
    "MainPID",
    "StatusText",
)


class UnitError(Exception):
    """systemd did not answer, or a unit is not what it has to be. The text says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """A systemd unit as "systemctl show" prints it."""

    name: str
    load_state: str
    active_state: str
    sub_state: str
    result: str
    enabled: bool
    needs_reload: bool
    restarts: int
    invocation: str
    main_pid: int = 0

    @classmethod
    def from_show(cls, name: str, text: str) -> Unit:
        """Parse the output of "systemctl show --property=..."."""
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return cls(
            name=name,
            load_state=found.get("LoadState", "not-found"),
            active_state=found.get("ActiveState", "inactive"),
            sub_state=found.get("SubState", "dead"),
            result=found.get("Result", "success"),
            enabled=found.get("UnitFileState") == "enabled",
            needs_reload=found.get("NeedDaemonReload") == "yes",
            restarts=int(found.get("NRestarts") or 0),
            invocation=found.get("InvocationID", ""),
            main_pid=int(found.get("MainPID") or 0),
        )

    @property
    def serving(self) -> bool:
        """Whether a real completion was answered since the unit started: only then is it active."""
        return self.active_state == "active"

    @property
    def starting(self) -> bool:
        """Whether the unit is on its way up, the pause between two tries included."""
        return self.active_state in {"activating", "reloading"}

    @property
    def unusable(self) -> bool:
        """Whether there is something that systemd cannot start: a setting that it refuses, mostly in a drop-in."""
        return self.load_state in {"bad-setting", "error", "masked"}

    @property
    def masked(self) -> bool:
        """Whether somebody has forbidden its start."""
        return self.load_state == "masked"

    @property
    def pausing(self) -> bool:
        """Whether systemd waits before it tries again, or is about to find out whether it may.

        Since version 254 the pause begins in a state of its own, in which the unit counts as inactive or failed, and
        ends in another one (SERVICE_*_AUTO_RESTART* in systemd's src/basic/unit-def.h).
        """
        return "auto-restart" in self.sub_state

    @property
    def down(self) -> bool:
        """Whether nothing of it runs, and systemd is not about to start it again."""
        return self.active_state in {"inactive", "failed"} and not self.pausing

    @property
    def given_up(self) -> bool:
        """Whether systemd has stopped trying."""
        return self.active_state == "failed" and not self.pausing


def unit_name(instance: str) -> str:
    """Return the systemd unit of an instance."""
    return f"vllm-{instance}.service"


def container_name(instance: str) -> str:
    """Return the container of an instance."""
    return f"vllm-{instance}"


def show(run: _docker.Run, unit: str) -> Unit:
    """Ask systemd for the state of a unit."""
    code, out, err = run(["systemctl", "show", f"--property={','.join(_PROPERTIES)}", "--", unit])
    if code != 0:
        raise UnitError(f"`systemctl show {unit}` failed: {err.strip()}; is this box running systemd?")
    return Unit.from_show(unit, out)


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """An instance that the collection has placed on the box: what is running of it, if anything."""

    name: str
    unit: Unit
    container: _docker.Container | None
    settings: c.Mapping[str, t.Any]
    record: c.Mapping[str, t.Any]
    command: tuple[str, ...] = ()
    """The command line of the unit's main process, empty where it has none."""

    @property
    def running_spec(self) -> str:
        """The fingerprint of what is running now, empty where nothing is, or something that only calls itself so.

        The fingerprint is a word of the unit's own command line, so an engine that was started from a unit edited by
        hand still has it. What was proven under that fingerprint is in the record.
        """
        if self.container is None or not self.container.running:
            return ""
        spec = self.container.labels.get(SPEC_LABEL, "")
        proven = tuple(self.record.get("argv") or ()) if self.record.get("spec") == spec else ()
        return "" if proven and self.command and self.command != proven else spec

    @property
    def up(self) -> bool:
        """Whether systemd keeps it up, or is about to: an engine, its boot, its gate, the pause between two tries.

        An engine that ends is started again, unless somebody has it disabled. A rank of a serving group that runs no
        engine waits for the others for as long as it takes, and comes back by itself: it is none of these.
        """
        if self.settings.get("group") and not (self.unit.serving or self.running):
            return False
        ending = self.unit.active_state == "deactivating" and self.unit.enabled
        return self.unit.serving or self.unit.starting or self.unit.pausing or ending

    @property
    def due(self) -> bool:
        """Whether it is down, and the next boot brings it back. A rank that has given up needs the others as well."""
        down = self.unit.down and not self.up
        alone = self.unit.given_up and self.settings.get("group")
        return down and not alone and self.unit.enabled and bool(self.settings.get("spec"))

    @property
    def running(self) -> bool:
        """Whether its container runs."""
        return bool(self.container and self.container.running)

    def as_dict(self) -> dict[str, t.Any]:
        """Return the state as plain data."""
        return {
            "name": self.name,
            "unit": self.unit.name,
            "up": self.up,
            "due": self.due,
            "active_state": self.unit.active_state,
            "sub_state": self.unit.sub_state,
            "result": self.unit.result,
            "enabled": self.unit.enabled,
            "restarts": self.unit.restarts,
            "running": self.running,
            "running_spec": self.running_spec,
            "running_image": self.container.image if self.container else "",
            "spec": str(self.settings.get("spec", "")),
            "memory_bytes": int(self.settings.get("memory_bytes", 0)),
            "recorded_spec": str(self.record.get("spec", "")),
            # What nobody wrote down is not proven.
            "proven": bool(self.record.get("proven")),
            "because": str(self.record.get("because", "") if self.record else "it has no deploy record"),
            "kind": str(self.settings.get("kind", "")),
            # A rank of a serving group that is not its head has no HTTP server.
            "headless": bool((self.settings.get("group") or {}).get("rank")),
            "group": rank_of(self.settings),
            "port": self.settings.get("port"),
            "model_role": str(self.settings.get("model_role", "")),
        }


def rank_of(settings: c.Mapping[str, t.Any]) -> dict[str, t.Any] | None:
    """Return of which serving group an instance is a rank: the group's name, its boxes, the head first, and its spec.

    The spec is the same on all boxes that were deployed alike. None for an instance of one box.
    """
    group = settings.get("group")
    if not group:
        return None
    boxes = [str(one["box"]) for one in group["members"]]
    return {"name": str(group["name"]), "boxes": boxes, "spec": str(group["spec"])}


def placed(sysroot: pathlib.Path = pathlib.Path("/")) -> tuple[str, ...]:
    """Return the names of the instances that the collection has placed on the box, by its marked unit files."""
    folder = sysroot / UNIT_FOLDER
    return tuple(
        path.name.removeprefix("vllm-").removesuffix(".service")
        for path in sorted(folder.glob("vllm-*.service"))
        if is_ours(path)
    )


def foreign(names: c.Iterable[str], sysroot: pathlib.Path = pathlib.Path("/")) -> tuple[str, ...]:
    """Return those of the names whose unit file exists but was written by somebody else."""
    paths = {name: sysroot / UNIT_FOLDER / unit_name(name) for name in names}
    return tuple(name for name, path in paths.items() if path.exists() and not is_ours(path))


def is_ours(path: pathlib.Path) -> bool:
    """Return whether a unit file carries the collection's mark."""
    try:
        with path.open(encoding="utf-8", errors="replace") as unit:
            return unit.readline().startswith(MARK)
    except OSError:
        return False


def settings_file(instance: str, sysroot: pathlib.Path = pathlib.Path("/")) -> pathlib.Path:
    """Return where the box's program finds what it knows of an instance."""
    return sysroot / INSTANCE_FOLDER / f"{instance}.json"


def settings(instance: str, sysroot: pathlib.Path = pathlib.Path("/")) -> dict[str, t.Any]:
    """Return what the box's program knows of an instance, empty where there is no readable file."""
    return _read_json(settings_file(instance, sysroot))


def record(instance: str, sysroot: pathlib.Path = pathlib.Path("/")) -> dict[str, t.Any]:
    """Return the deploy record of an instance, empty where there is none."""
    return _read_json(sysroot / RECORD_FOLDER / f"{instance}.json")


def _read_json(path: pathlib.Path) -> dict[str, t.Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def observe(run: _docker.Run, instance: str, sysroot: pathlib.Path = pathlib.Path("/")) -> Instance:
    """Read the whole state of one instance."""
    unit = show(run, unit_name(instance))
    return Instance(
        name=instance,
        unit=unit,
        container=_docker.container(run, container_name(instance)),
        settings=settings(instance, sysroot),
        record=record(instance, sysroot),
        command=command_line(unit.main_pid, sysroot),
    )


def command_line(pid: int, sysroot: pathlib.Path = pathlib.Path("/")) -> tuple[str, ...]:
    """Return the command line of a process, empty where there is none."""
    try:
        words = (sysroot / "proc" / str(pid) / "cmdline").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ()
    return tuple(words.split("\0")[:-1])

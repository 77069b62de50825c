# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Generations: all that a box serves at a time, as one thing that can be staged, put in place and gone back to.

    generations/<id>/manifest.json  instances and files, complete before it gets its name, never changed afterwards
    generations/<id>/proof.json     when it was last proven, by what, and what served before it
    secrets/<hash>.env              secret environments, by the slow hash of what is in them
    switch.json                     the switch that is under way: its being there is what makes it so, if it can be read
    deployment.json                 what serves, the last good generations, and how the last switch ended

All of these are below /var/lib/gb10-fleet. Each is replaced as a whole, so a box that loses power has the one or the
other state, and knows which.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import hashlib
import json
import pathlib
import shutil
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _files, _instance

STATE_FOLDER: t.Final = "var/lib/gb10-fleet"
# How far a switch is, where that cannot be written to the disk.
_VOLATILE: t.Final = "run/gb10-fleet/switch.json"
_PUBLIC: t.Final = 0o644
_SECRET: t.Final = 0o600
_ID_DIGITS: t.Final = 12
_FRESH_S: t.Final = 3600.0


class GenerationError(Exception):
    """A generation is missing or damaged. The text says which, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class File:
    """A file of a generation: where it goes, what is in it, and its permissions."""

    dest: str
    text: str
    mode: int = _PUBLIC


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """An instance of a generation. ``secrets`` names the file with its secret environment, and the hash of it."""

    name: str
    spec: str
    settings: c.Mapping[str, t.Any]
    argv: tuple[str, ...] = ()
    plan: c.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    secrets: c.Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_plain(cls, data: c.Mapping[str, t.Any]) -> Member:
        """Take an instance as the filter vllm_units gives it, or as a manifest has it."""
        return cls(
            name=str(data["name"]),
            spec=str(data["spec"]),
            settings=dict(data["settings"]),
            argv=tuple(data.get("argv") or ()),
            plan=dict(data.get("plan") or {}),
            secrets=dict(data.get("secrets") or {}),
        )

    @property
    def about(self) -> str:
        """The instance as people know it."""
        role, port = self.settings.get("model_role", "?"), self.settings.get("port", "?")
        return f"{_instance.container_name(self.name)} (model role {role}, port {port})"


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """What a box serves at a time: its instances, and the files that make them."""

    members: tuple[Member, ...] = ()
    files: tuple[File, ...] = ()

    @property
    def id(self) -> str:
        """The generation's name, which follows from what lies on the box with it."""
        content = [
            [dataclasses.astuple(one) for one in sorted(self.files, key=lambda file: file.dest)],
            [[one.name, one.spec, one.secrets.get("hash", "")] for one in self.members],
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:_ID_DIGITS]

    @property
    def about(self) -> str:
        """What it serves, in words."""
        return ", ".join(one.about for one in self.members) or "nothing"

    @property
    def engines(self) -> frozenset[tuple[str, str, str]]:
        """Its engines, with their secrets; all else of it is how these are cared for."""
        return frozenset((one.name, one.spec, one.secrets.get("hash", "")) for one in self.members)

    @property
    def specs(self) -> dict[str, str]:
        """The fingerprints of its engines, by instance."""
        return {one.name: one.spec for one in self.members}

    def part(self, member: Member) -> Generation:
        """Return an instance alone, with the files that are its own."""
        unit = f"/{_instance.UNIT_FOLDER}/{_instance.unit_name(member.name)}"
        own = {unit, f"/{_instance.INSTANCE_FOLDER}/{member.name}.json"}
        return Generation((member,), tuple(file for file in self.files if file.dest in own))

    def as_plain(self) -> dict[str, t.Any]:
        """Return the manifest."""
        return {
            "id": self.id,
            "instances": [dataclasses.asdict(one) for one in self.members],
            "files": [dataclasses.asdict(one) for one in self.files],
        }

    @classmethod
    def from_plain(cls, data: c.Mapping[str, t.Any]) -> Generation:
        """Read a manifest."""
        return cls(
            tuple(Member.from_plain(one) for one in data["instances"]), tuple(File(**one) for one in data["files"])
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Marker:
    """A switch that is under way: where to, what served before it, how far it is, and whether it goes back by now.

    ``step`` is one of asked, stopping, placing, starting, proving. ``failed_at`` is in seconds since the epoch,
    ``failed_up_s`` in seconds of the clock that does not jump, and 0 once the box has restarted. ``asked`` tells this
    switch from every other one. ``undo`` says that what served before is to be no generation to go back to. ``tries``
    counts how often something on the box was in the way. ``return_to`` says that it is asked for what served before.
    """

    to: str
    before: str
    boot_id: str
    step: str = "asked"
    back: bool = False
    reason: str = ""
    failed_at: float = 0.0
    failed_up_s: float = 0.0
    restarts: int = 0
    asked: str = ""
    keep: int = 3
    undo: bool = False
    tries: int = 0
    return_to: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Last:
    """How the last switch ended. ``outcome`` is served, restored (what served before serves again) or down."""

    to: str = ""
    before: str = ""
    outcome: str = ""
    message: str = ""
    reason: str = ""
    at: float = 0.0
    restored_s: float = 0.0
    asked: str = ""
    specs: c.Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Ledger:
    """What the box serves by its own account, the good generations (the newest first), and the last switch."""

    serving: str = ""
    good: tuple[str, ...] = ()
    last: Last = dataclasses.field(default_factory=Last)

    @property
    def previous(self) -> str:
        """The good generation before the one that serves, empty where there is none."""
        return next((one for one in self.good if one != self.serving), "")


class Store:
    """The generations of a box, on its disk."""

    def __init__(self, sysroot: pathlib.Path = pathlib.Path("/")) -> None:
        self.sysroot = sysroot
        self.folder = sysroot / STATE_FOLDER
        self._generations = self.folder / "generations"
        self._marker = self.folder / "switch.json"
        self._volatile = sysroot / _VOLATILE
        self._ledger = self.folder / "deployment.json"

    def stage(self, generation: Generation) -> None:
        """Keep a generation. It gets its name when it is complete, and one that is there is left as it is."""
        target = self._generations / generation.id
        if self.has(generation.id):
            return
        new = self._generations / f".{generation.id}.new"
        for path in (new, target):
            shutil.rmtree(path, ignore_errors=True)
        new.mkdir(parents=True)
        self._write(new / "manifest.json", generation.as_plain())
        new.rename(target)
        _files.sync_folder(self._generations)

    def load(self, name: str) -> Generation:
        """Return a generation; raise GenerationError where it is missing or not what it was."""
        found = self._whole(name)
        if found is None:
            known = ", ".join(one for one in self.ledger().good if self._whole(one)) or "none"
            raise GenerationError(f"this box has no whole generation {name!r}; it has {known}")
        return found

    def _whole(self, name: str) -> Generation | None:
        """Return a generation, or None where it is missing or not what it was."""
        data = _read(self._generations / name / "manifest.json")
        try:
            found = Generation.from_plain(data)
        except (KeyError, TypeError, ValueError):
            return None
        return found if name and found.id == name else None

    def proof(self, name: str) -> dict[str, t.Any]:
        """Return when and how a generation was last proven, empty where it never was."""
        return _read(self._generations / name / "proof.json")

    def keep_proof(self, name: str, proof: c.Mapping[str, t.Any]) -> None:
        """Keep the proof of a generation."""
        self._write(self._generations / name / "proof.json", proof)

    def record(self, name: str) -> dict[str, t.Any]:
        """Return the deploy record of an instance, empty where there is none."""
        return _instance.record(name, self.sysroot)

    def keep_record(self, name: str, record: c.Mapping[str, t.Any]) -> None:
        """Replace the deploy record of an instance."""
        self._write(self.sysroot / _instance.RECORD_FOLDER / f"{name}.json", record)

    @property
    def under_way(self) -> bool:
        """Whether a switch is under way, however far it is."""
        return under_way(self._marker)

    def marker(self) -> Marker | None:
        """Return the switch that is under way, or None."""
        found, further = _marker(self._marker), _marker(self._volatile)
        return further if found and further and further.asked == found.asked else found

    @property
    def unreadable(self) -> bool:
        """Whether there is a marker that nobody can read, and so no switch that could be finished."""
        return self._marker.exists() and not self.under_way

    def set_aside(self) -> pathlib.Path:
        """Put a marker that nobody can read where it is in nobody's way, and return where that is."""
        aside = self._marker.with_suffix(".unreadable")
        self._marker.replace(aside)
        _files.sync_folder(self.folder)
        return aside

    def mark(self, marker: Marker) -> None:
        """Say that a switch is under way."""
        self._write(self._marker, dataclasses.asdict(marker))

    def mark_progress(self, marker: Marker) -> None:
        """Say how far the switch is; where the disk takes nothing any more, that is known until the box goes down."""
        try:
            self.mark(marker)
        except OSError:
            self._write(self._volatile, dataclasses.asdict(marker))
        else:
            self._volatile.unlink(missing_ok=True)

    def unmark(self) -> None:
        """Say that no switch is under way."""
        self._marker.unlink(missing_ok=True)
        self._volatile.unlink(missing_ok=True)
        _files.sync_folder(self.folder)

    def ledger(self) -> Ledger:
        """Return what the box serves by its own account."""
        data = _read(self._ledger)
        try:
            last = Last(**data.get("last", {}))
            return Ledger(str(data.get("serving", "")), tuple(data.get("good", ())), last)
        except TypeError:
            return Ledger()

    def keep_ledger(self, ledger: Ledger) -> None:
        """Replace what the box says of itself: the moment from which on a switch counts."""
        self._write(self._ledger, dataclasses.asdict(ledger))

    def prune(self, *others: str) -> None:
        """Forget generations, and their secrets, that are not among the good ones or ``others``."""
        kept = {*self.ledger().good, *others}
        for path in self._generations.glob("*"):
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)
        secrets = {one.secrets.get("file", "") for name in kept for one in self._members(name)}
        for path in (self.folder / "secrets").glob("*.env"):
            # A run that is being prepared writes its secrets before the generation that names them.
            fresh = time.time() - path.stat().st_mtime < _FRESH_S
            if not fresh and f"/{path.relative_to(self.sysroot)}" not in secrets:
                path.unlink(missing_ok=True)

    def place(self, generation: Generation) -> bool:
        """Put the files of a generation where systemd and the program look for them; return whether any was new."""
        wanted = [self.wanted(file) for file in generation.files]
        for member in generation.members:
            path = self.sysroot / _instance.INSTANCE_FOLDER / f"{member.name}.env"
            if member.secrets:
                wanted.append(_files.Wanted(path, self.secret_text(member), _SECRET))
            else:
                path.unlink(missing_ok=True)
        differing = [one for one in wanted if _files.differs(one)]
        for one in differing:
            one.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _files.write(one)
        return bool(differing)

    def wanted(self, file: File) -> _files.Wanted:
        """Return a file of a generation as it has to be on this box."""
        return _files.Wanted(self.sysroot / file.dest.lstrip("/"), file.text, file.mode)

    def secret_text(self, member: Member) -> str:
        """Return the secret environment of an instance; raise GenerationError where it is not there."""
        path = self.sysroot / member.secrets["file"].lstrip("/")
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise GenerationError(f"{path}: the secrets of {member.about} are missing ({error.strerror})") from None

    def in_place(self, generation: Generation) -> bool:
        """Return whether the files of a generation, its secrets among them, lie where they have to."""
        if any(_files.differs(self.wanted(file)) for file in generation.files):
            return False
        folder = self.sysroot / _instance.INSTANCE_FOLDER
        return all(
            not _files.differs(_files.Wanted(folder / f"{one.name}.env", self.secret_text(one), _SECRET))
            if one.secrets
            else not (folder / f"{one.name}.env").exists()
            for one in generation.members
        )

    def has(self, name: str) -> bool:
        """Return whether there is a whole generation of that name."""
        return self._whole(name) is not None

    def alike(self, generation: Generation, *names: str) -> set[str]:
        """Return those of the named generations that have the same engines as one, and differ in other things alone."""
        found = {name: self._whole(name) for name in names}
        return {name for name, one in found.items() if one and one.engines == generation.engines}

    def _members(self, name: str) -> tuple[Member, ...]:
        found = self._whole(name)
        return found.members if found else ()

    def _write(self, path: pathlib.Path, data: c.Mapping[str, t.Any]) -> None:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _files.write(_files.Wanted(path, json.dumps(data, indent=4, sort_keys=True) + "\n", _PUBLIC))


def under_way(marker: pathlib.Path) -> bool:
    """Return whether the marker of a switch says that it is under way: what nobody can read, nobody can finish."""
    return _marker(marker) is not None


def _marker(path: pathlib.Path) -> Marker | None:
    # A later version may say more.
    known = {field.name for field in dataclasses.fields(Marker)}
    try:
        return Marker(**{name: value for name, value in _read(path).items() if name in known})
    except TypeError:
        return None


def _read(path: pathlib.Path) -> dict[str, t.Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

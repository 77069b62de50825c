# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A box with a systemd and a Docker Engine of its own, which can be killed or restarted before any step of a switch."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import json
import pathlib
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _converge,
    _deployment,
    _files,
    _generation,
    _instance,
    _proof,
    _switch,
)

if t.TYPE_CHECKING:
    import pytest

IMAGE = "example/vllm@sha256:" + "ab" * 32


def generation(_group: c.Mapping[str, t.Any] | None = None, /, **specs: str) -> _generation.Generation:
    """Return a generation of instances by name and fingerprint, all on port 8000; with a group they are ranks of it."""
    members, files = [], []
    for name, spec in specs.items():
        settings: dict[str, t.Any] = {"name": name, "model_role": name, "port": 8000, "spec": spec, "image": IMAGE}
        settings |= {"group": dict(_group)} if _group else {}
        members.append(_generation.Member(name, spec, settings))
        unit = f"{_instance.MARK}.\n[Service]\nExecStart=run --spec={spec}\nX-End=whole\n"
        files.append(_generation.File(f"/{_instance.UNIT_FOLDER}/{_instance.unit_name(name)}", unit))
        text = json.dumps(settings)
        files.append(_generation.File(f"/{_instance.INSTANCE_FOLDER}/{name}.json", text))
    return _generation.Generation(tuple(members), tuple(files))


def watched(base: _generation.Generation, period_s: int = 300) -> _generation.Generation:
    """Return a generation whose instances are watched this often."""
    files = [_generation.File("/etc/systemd/system/gb10-fleet-watch@.timer", f"OnUnitActiveSec={period_s}\n")]
    settings = {one.name: {**one.settings, "liveness": {"period_s": period_s}} for one in base.members}
    for one in base.files:
        name = pathlib.PurePath(one.dest).stem.removeprefix("vllm-")
        unit = one.text.replace("[Service]", f"[Unit]\nWants=gb10-fleet-watch@{name}.timer\n[Service]")
        text = json.dumps(settings[name]) if one.dest.endswith(".json") else unit
        files.append(dataclasses.replace(one, text=text))
    members = tuple(dataclasses.replace(one, settings=settings[one.name]) for one in base.members)
    return _generation.Generation(members, tuple(files))


def peered(base: _generation.Generation, daemon: str) -> _generation.Generation:
    """Return a generation of ranks whose daemons have this unit."""
    unit = _generation.File(f"/{_instance.UNIT_FOLDER}/gb10-fleet-peer@.service", daemon)
    return dataclasses.replace(base, files=(unit, *base.files))


class KilledError(BaseException):
    """The program is gone, at once."""


class Box:
    """A box with a systemd that starts what its files say, and that can be killed or restarted before any step.

    A step is a command that changes something, or a file that is written. ``broken`` are the fingerprints of engines
    that do not come up, ``wrong`` of those that come up and fail their proof, ``busy`` of those that others keep from
    answering. The program of the box runs when it was
    started and somebody sleeps, as long as it is ``minded``. ``turned_s`` is how far its wall clock is off. ``timers``
    are the instances that are watched, ``masked`` those whose timer is masked, and ``jammed`` those whose timer systemd
    does not start. ``peers`` are the daemons that were started anew, with the engines at that moment, and
    ``stubborn`` says that systemd does not do that. ``up`` is whether there is a systemd to ask, and ``read_only``
    whether the disk takes nothing any more; what is in /run is not on the disk.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.root = folder
        self.store = _generation.Store(folder)
        self.engines: dict[str, str] = {}
        self.failed: set[str] = set()
        self.enabled: set[str] = set()
        self.boot_id = "boot-1"
        self.now = 1000.0
        self.turned_s = 0.0
        self.steps = 0
        self.kill_at = -1
        self.broken: set[str] = set()
        self.wrong: set[str] = set()
        self.busy: set[str] = set()
        self.starts: list[str] = []
        self.timers: set[str] = set()
        self.masked: set[str] = set()
        self.jammed: set[str] = set()
        self.peers: list[tuple[str, dict[str, str]]] = []
        self.stubborn = False
        self.proven: list[tuple[str, bool]] = []
        self.images = {IMAGE}
        self.program = False
        self.minded = True
        self.up = True
        self.read_only = False
        boot_id = folder / "proc/sys/kernel/random/boot_id"
        boot_id.parent.mkdir(parents=True)
        boot_id.write_text("boot-1\n")
        for path in (_instance.UNIT_FOLDER, _instance.INSTANCE_FOLDER, _instance.RECORD_FOLDER):
            (folder / path).mkdir(parents=True)

    def step(self) -> None:
        """Count a step, and be killed before it where that was asked for."""
        self.steps += 1
        if self.steps == self.kill_at:
            raise KilledError

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        """Answer a command."""
        if argv[:2] == ["systemctl", "show"]:
            return 0, self.show(argv[-1].removeprefix("vllm-").removesuffix(".service")), ""
        if argv[:2] == ["systemctl", "is-system-running"]:
            return (0, "running\n", "") if self.up else (1, "", "Failed to connect to bus")
        if argv[:3] == ["docker", "container", "inspect"]:
            return self.inspect(argv[3].removeprefix("vllm-"))
        if argv[:3] == ["docker", "image", "inspect"]:
            return (0, "sha256:1", "") if argv[-1] in self.images else (1, "", "Error: No such image")
        self.step()
        if argv[0] == "systemctl" and argv[-1].endswith(".timer"):
            return self.turn(argv[1], argv[2:])
        if argv[:2] == ["systemctl", "try-restart"]:
            self.peers.append((argv[-1], dict(self.engines)))
            return (1, "", "Job failed.") if self.stubborn else (0, "", "")
        if argv[0] == "systemctl" and argv[-1] == _deployment.UNIT:
            self.program = argv[1] == "start" or self.program
        elif argv[0] == "systemctl" and argv[1] in {"enable", "disable"} and self.read_only:
            return 1, "", f"Failed to {argv[1]} unit: Read-only file system"
        elif argv[0] == "systemctl":
            name = argv[-1].removeprefix("vllm-").removesuffix(".service")
            self.systemctl(argv[1], "--now" in argv, name)
        return 0, "", ""

    def turn(self, verb: str, timers: list[str]) -> tuple[int, str, str]:
        """Start or stop timers, as systemd would."""
        names = {one.removeprefix("gb10-fleet-watch@").removesuffix(".timer") for one in timers}
        if verb == "stop":
            self.timers -= names
        elif refused := names & (self.masked | self.jammed):
            return 1, "", f"Failed to start {refused}"
        else:
            self.timers |= names
        return 0, "", ""

    def systemctl(self, verb: str, now: bool, name: str) -> None:
        """Do what systemd would."""
        if verb == "enable":
            self.enabled.add(name)
        if verb == "disable":
            self.enabled.discard(name)
        if verb in {"stop", "restart"} or (verb == "disable" and now):
            self.engines.pop(name, None)
            self.failed.discard(name)
            self.timers.discard(name)
        if verb in {"start", "restart"}:
            self.start(name)

    def start(self, name: str) -> None:
        """Start the engine that the unit file of an instance names; without one, nothing."""
        if not self.unit_file(name).exists():
            return
        text = self.unit_file(name).read_text()
        found = re.search(r"--spec=(\w+)\nX-End=whole\n$", text)
        if not found:
            raise AssertionError(f"half a unit file was started: {text}")
        self.starts.append(found[1])
        if f"Wants=gb10-fleet-watch@{name}.timer" in text:
            self.timers |= {name} - self.masked - self.jammed
        if found[1] in self.broken:
            self.failed.add(name)
        else:
            self.engines[name] = found[1]
        if len(set(self.engines) - {"neighbour"}) > 1:
            raise AssertionError(f"two engines at once: {self.engines}")

    def write(self, path: pathlib.Path) -> None:
        """Count that a file is written or removed, and refuse it on a disk that takes nothing."""
        self.step()
        if self.read_only and not path.is_relative_to(self.root / "run"):
            raise OSError(30, "Read-only file system", str(path))

    def unit_file(self, name: str) -> pathlib.Path:
        """Return where the unit file of an instance lies."""
        return self.root / _instance.UNIT_FOLDER / _instance.unit_name(name)

    def show(self, name: str) -> str:
        """Return a unit's properties."""
        if name == _deployment.JOB:
            return f"LoadState=loaded\nActiveState={'active' if self.program else 'inactive'}\n"
        if name.endswith(".timer"):
            name = name.removeprefix("gb10-fleet-watch@").removesuffix(".timer")
            active = "active" if name in self.timers else "inactive"
            return f"LoadState={'masked' if name in self.masked else 'loaded'}\nActiveState={active}\n"
        state = "active" if name in self.engines else "failed" if name in self.failed else "inactive"
        loaded = "loaded" if self.unit_file(name).exists() else "not-found"
        enabled = "enabled" if name in self.enabled else "disabled"
        return (
            f"LoadState={loaded}\nActiveState={state}\nResult=exit-code\n"
            f"UnitFileState={enabled}\nInvocationID={len(self.starts)}\n"
        )

    def inspect(self, name: str) -> tuple[int, str, str]:
        """Return a container as Docker shows it."""
        if name not in self.engines:
            return 1, "", "No such container"
        labels = {_instance.SPEC_LABEL: self.engines[name]}
        state = {"Running": True, "Pid": 1, "ExitCode": 0}
        config = {"Image": IMAGE, "Labels": labels}
        return 0, json.dumps([{"Id": name, "Name": name, "State": state, "Config": config}]), ""

    def prove(self, member: _generation.Member, booted: bool) -> _proof.Proof:
        """Prove an engine by what was said to be wrong with it."""
        self.proven.append((member.spec, booted))
        self.now += 7
        if self.engines.get(member.name) != member.spec:
            raise AssertionError(f"{member.name} was to be proven, but {self.engines} runs")
        busy = member.spec in self.busy
        said = f"{member.name} is busy." if busy else f"{member.name} writes garbage."
        probe = {} if busy else {"chat": {"text": "12"}}
        return _proof.Proof(not busy and member.spec not in self.wrong, said, busy=busy, probe=probe)

    def restart(self) -> None:
        """Lose power, and start what is enabled."""
        self.boot_id += "+"
        self.engines.clear()
        self.failed.clear()
        self.timers.clear()
        for name in sorted(self.enabled):
            self.start(name)

    def sleep(self, seconds: float) -> None:
        """Let time pass, which is when the program gets on."""
        self.now += seconds
        if self.program and self.minded:
            self.program = False
            self.switch()

    def acting(self, *, check_mode: bool = False) -> _converge.Box:
        """Return the box to act on."""
        return _converge.Box(
            self.run,
            check_mode=check_mode,
            sysroot=self.root,
            status_folder=self.root / "run",
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def wall(self) -> float:
        """Return the time of the wall clock."""
        return self.now + self.turned_s

    def switch(self) -> _generation.Last | None:
        """Run the program once."""
        told: list[str] = []
        work = _switch.Switch(self.acting(), self.store, self.prove, told.append, self.boot_id, self.wall)
        return work.run()

    def ask(self, wanted: _generation.Generation) -> None:
        """Ask for a generation, as the module does."""
        self.now += 1
        self.store.stage(wanted)
        ledger = self.store.ledger()
        before = ledger.serving or next(iter(ledger.good), "")
        self.store.mark(_generation.Marker(wanted.id, before, self.boot_id, asked=f"{self.now}"))

    def serve(self, wanted: _generation.Generation) -> _generation.Last:
        """Ask for a generation and have it served."""
        self.ask(wanted)
        last = self.switch()
        if last is None:
            raise AssertionError("nobody had asked for a switch")
        return last

    def serves(self, wanted: _generation.Generation) -> bool:
        """Return whether exactly a generation runs, from files that are whole, and starts again at the next boot."""
        names = set(wanted.specs)
        return (
            self.engines == wanted.specs
            and self.enabled == names
            and set(_instance.placed(self.root)) == names
            and self.store.in_place(wanted)
        )


class Boxes:
    """Makes boxes. What is written to the disk of the last one, or removed from it, is a step of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last: Box | None = None
        write, unlink = _files.write, pathlib.Path.unlink

        def counted_write(wanted: _files.Wanted) -> None:
            self.write(wanted.path)
            write(wanted)

        def counted_unlink(path: pathlib.Path, missing_ok: bool = False) -> None:
            if path.exists() and not path.name.endswith(".new"):
                self.write(path)
            unlink(path, missing_ok)

        monkeypatch.setattr(_files.os, "fsync", lambda _descriptor: None)  # many boxes, and none of them loses power
        monkeypatch.setattr(_files, "write", counted_write)
        monkeypatch.setattr(pathlib.Path, "unlink", counted_unlink)

    def write(self, path: pathlib.Path) -> None:
        """Count what is written to the disk of the last box, or removed from it."""
        if self.last:
            self.last.write(path)

    def make(self, folder: pathlib.Path) -> Box:
        """Make a box."""
        self.last = Box(folder)
        return self.last

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Asks apt and dpkg what is installed, what could be, and what a request would do; and who keeps them from doing it.

``ansible.builtin.apt`` does not know apt's trailing minus ("install these, and see that this one is gone"), and what is
judged here has to be what is carried out, so the command line is used. Everything that is read from it is read with
``LC_ALL=C``.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import fcntl
import os
import pathlib
import re
import struct
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _docker

# Nobody answers a question here: configuration files that somebody edited stay, and no service is restarted by the way.
ENVIRONMENT: t.Final = (
    "env",
    "LC_ALL=C",
    "DEBIAN_FRONTEND=noninteractive",
    "APT_LISTCHANGES_FRONTEND=none",
    "NEEDRESTART_MODE=l",
)
_QUIET: t.Final = ("--assume-yes", "--no-install-recommends")
_KEEP_CONFIGURATION: t.Final = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")
_DPKG_FORMAT: t.Final = "${Package}\\t${db:Status-Want}\\t${db:Status-Status}\\t${db:Status-Eflag}\\t${Version}\\n"
_ACTION: t.Final = re.compile(
    r"^(?P<verb>Inst|Remv|Purg) (?P<name>[^ ]+)(?: \[(?P<old>[^]]+)\])?(?: \((?P<new>[^ )]+)[^)]*\))?"
)
# Whoever changes packages holds one of these.
LOCKS: t.Final = ("var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock", "var/cache/apt/archives/lock")
_FLOCK: t.Final = "@hhqqi4x"
# What asks for a password of a machine owner key on a terminal that nobody may be looking at.
_MOK_PROMPT: t.Final = "/update-secureboot-policy"


class AptError(Exception):
    """apt or dpkg did not answer. The text says what they said."""


@dataclasses.dataclass(frozen=True, slots=True)
class Package:
    """A package that dpkg knows: what is wanted of it ("install", "hold") and what it is ("installed", "unpacked")."""

    name: str
    want: str
    status: str
    version: str
    broken: bool = False

    @property
    def installed(self) -> bool:
        """Whether it is there as a whole."""
        return self.status == "installed" and not self.broken

    @property
    def unfinished(self) -> bool:
        """Whether dpkg began with it and did not come to an end."""
        return self.broken or self.status not in {"installed", "config-files", "not-installed"}


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """One line of a simulated transaction: ``old`` is empty for a new package, ``new`` for one that goes."""

    name: str
    old: str
    new: str

    @property
    def kind(self) -> str:
        """Return whether the package is installed, removed, upgraded (or downgraded)."""
        return "remove" if not self.new else "upgrade" if self.old else "install"

    def line(self) -> str:
        """Return the action as a person reads it."""
        words = {"install": f"{self.name} {self.new}", "remove": f"{self.name} {self.old}"}
        return f"{self.kind} {words.get(self.kind, f'{self.name} {self.old} -> {self.new}')}"


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """What apt could install of a package; ``version`` is empty where a pin forbids all of it."""

    version: str
    versions: tuple[str, ...]


def packages(run: _docker.Run) -> dict[str, Package]:
    """Return the packages that dpkg knows, by name; the native one where there are several architectures."""
    out = _ask(run, "dpkg-query", "--show", f"--showformat={_DPKG_FORMAT}")
    found: dict[str, Package] = {}
    for line in out.splitlines():
        name, want, status, flag, version = line.split("\t")
        found.setdefault(name, Package(name, want, status, version, broken=flag == "reinstreq"))
    return found


def automatic(run: _docker.Run) -> frozenset[str]:
    """Return the packages that apt takes for dependencies of others, and would sweep away with them."""
    return frozenset(name.partition(":")[0] for name in _ask(run, "apt-mark", "showauto").split())


def candidates(run: _docker.Run, names: c.Iterable[str]) -> dict[str, Candidate]:
    """Return what apt could install, for those of the names that it knows as packages of their own."""
    return parse_policy(_ask(run, "apt-cache", "policy", *names))


def parse_policy(text: str) -> dict[str, Candidate]:
    """Parse the output of "apt-cache policy"."""
    found: dict[str, Candidate] = {}
    for stanza in re.split(r"^(?=\S+:$)", text, flags=re.MULTILINE):
        name, _colon, rest = stanza.partition(":\n")
        wanted = re.search(r"^  Candidate: (\S+)", rest, re.MULTILINE)
        versions = tuple(re.findall(r"^ (?:\*\*\*|   ) (\S+) -?\d+$", rest, re.MULTILINE))
        # A name that others only provide, or that is only known from a removed package, has no version to install.
        if wanted and versions:
            found[name] = Candidate("" if wanted[1] == "(none)" else wanted[1], versions)
    return found


def parse_simulation(text: str) -> tuple[Action, ...]:
    """Return what a simulated transaction would do, from the output of "apt-get --simulate"."""
    matches = (_ACTION.match(line) for line in text.splitlines())
    return tuple(
        Action(
            found["name"].partition(":")[0], found["old"] or "", (found["new"] or "") if found["verb"] == "Inst" else ""
        )
        for found in matches
        if found
    )


def complaint(out: str, err: str) -> str:
    """Return why apt refuses, in its own words: the unmet dependencies and the errors."""
    lines = [line.strip() for line in (*out.splitlines(), *err.splitlines())]
    unmet = [re.sub(r"\s+", " ", line) for line in lines if re.match(r"\S+\s+: \S", line)]
    # apt 3 repeats itself in the words of its other solver, which help nobody but apt's authors.
    errors = [line.removeprefix("E: ") for line in lines if line.startswith("E: ") and "--solver" not in line]
    return "; ".join((*unmet, *errors)) or (err.strip() or out.strip()).rpartition("\n")[2]


def install_argv(
    names: c.Iterable[str], *options: str, preferences: pathlib.Path | None = None, lock_timeout_s: int = 0
) -> list[str]:
    """Return the command that installs: "name-" sees that a package is gone.

    Args:
        preferences: A folder that stands for /etc/apt/preferences.d, to see what pins would do before they are written.
    """
    pins = ["-o", f"Dir::Etc::PreferencesParts={preferences}"] if preferences else []
    wait = ["-o", f"DPkg::Lock::Timeout={lock_timeout_s}"] if lock_timeout_s else []
    return [*ENVIRONMENT, "apt-get", *_QUIET, *_KEEP_CONFIGURATION, *pins, *wait, *options, "install", *names]


def newer(run: _docker.Run, one: str, other: str) -> bool:
    """Return whether one version of a package is newer than another."""
    return run(["dpkg", "--compare-versions", one, "gt", other])[0] == 0


def upstream(version: str) -> str:
    """Return the upstream part of a package version: 580.142 of 580.142-0ubuntu0.24.04.1."""
    return version.rpartition(":")[2].partition("-")[0].partition("+")[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock of dpkg or apt."""

    lock: str
    pid: int
    name: str

    def words(self) -> str:
        """Return who it is, as a person looks for it."""
        return f"process {self.pid} ({self.name}) holds /{self.lock}"


def lock_holder(root: pathlib.Path = pathlib.Path("/")) -> Holder | None:
    """Return who keeps packages from being changed, or None where nobody does."""
    for lock in LOCKS:
        pid = _locked_by(root / lock)
        if pid:
            return Holder(lock, pid, _program(root / "proc" / str(pid)))
    return None


def mok_prompt(root: pathlib.Path = pathlib.Path("/")) -> Holder | None:
    """Return the process that waits for a password for Secure Boot to be typed, or None where none does."""
    for folder in (root / "proc").glob("[0-9]*"):
        words = _command_line(folder)
        if any(word.endswith(_MOK_PROMPT) for word in words[:2]):
            return Holder("", int(folder.name), " ".join(words))
    return None


def _locked_by(path: pathlib.Path) -> int:
    """Return the process that holds a POSIX lock on a file, as dpkg and apt take it; 0 where none does."""
    try:
        with path.open("rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _whence, _start, _length, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:
        return 0
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def _program(folder: pathlib.Path) -> str:
    words = _command_line(folder)
    # "python3 /usr/bin/unattended-upgrade" is known by its script.
    script = next((word for word in words[1:2] if word.startswith("/")), "")
    return (script or (words[0] if words else "unknown")).rpartition("/")[2]


def _command_line(folder: pathlib.Path) -> list[str]:
    try:
        return [word for word in (folder / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0") if word]
    except OSError:
        return []


def _ask(run: _docker.Run, *argv: str) -> str:
    code, out, err = run([*ENVIRONMENT, *argv])
    if code != 0:
        raise AptError(f"`{' '.join(argv[:2])}` failed: {complaint(out, err)}")
    return out

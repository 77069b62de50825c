# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the parts of a serving group's rank on one box tell each other: small JSON files in /run.

The start gate, the daemon and what runs when the engine has ended are processes of their own, and each may be killed
or restarted at any time. None of them keeps in memory what another one, or itself after a restart, has to know.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._group_rules import Ended

FOLDER: t.Final = pathlib.Path("/run/gb10-fleet/groups")
# The daemon and the gate write every second; an older word is of one that does not run, or hangs.
_STALE_S: t.Final = 15.0


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """Whether the start gate of a start is open for its part, since when it waits for the others, and when it said so.

    Times are of the monotonic clock; ``at`` is 0 where the gate is one of an older program, which does not say it.
    ``left`` is its last word: all ranks start, and systemd is about to start the engine.
    """

    token: str
    open: bool
    since: float
    at: float = 0.0
    left: bool = False

    def silent_s(self) -> float:
        """Return for how long the gate has hung, 0 where it does not: it then says nothing of this moment."""
        age_s = time.monotonic() - self.at if self.at and not self.left else 0.0
        return age_s if age_s > _STALE_S else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """The round that a start of this rank went into, and when (seconds of the box's monotonic clock)."""

    token: str
    name: str
    tokens: tuple[str, ...]
    at: float


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """The daemon's last word: what is waited for, why a start is refused, and what the others are doing.

    ``proving`` names the other ranks of this round that have still to be proven.
    """

    token: str = ""
    waiting: str = ""
    refused: str = ""
    head_round: str = ""
    head_serves: bool = False
    proving: str = ""
    at: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """Why and when the daemon ended the engine of a start. ``own`` says that this rank itself is the reason.

    ``blameless`` says that no rank is: a link, an order, or a round that never came about.
    """

    token: str
    cause: str
    own: bool
    at: float = 0.0
    blameless: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Forgiven:
    """How many starts in a row were ended before they served, and not held against this rank; and the last of them."""

    token: str = ""
    times: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Proven:
    """That a start of this rank has passed all that is asked of this rank alone."""

    token: str


@dataclasses.dataclass(frozen=True, slots=True)
class Beat:
    """That the engine of a start computed with all ranks, and when it was last seen to (monotonic)."""

    token: str
    at: float


@dataclasses.dataclass(frozen=True, slots=True)
class Stopped:
    """That a start was ended by an order to systemd, which calls a unit failed that is stopped while it starts."""

    token: str


Word: t.TypeAlias = "Gate | Round | View | Asked | Beat | Forgiven | Proven | Stopped | Ended"


class GroupFiles:
    """The files of one rank, each replaced as a whole."""

    def __init__(self, instance: str, folder: pathlib.Path | None = None) -> None:
        self._folder = (folder or FOLDER) / instance

    def write(self, word: Word) -> None:
        """Replace the last word of its kind."""
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        path = self._path(type(word))
        new = path.with_suffix(".new")
        new.write_text(json.dumps(dataclasses.asdict(word)), encoding="utf-8")
        new.replace(path)

    def gate(self, token: str) -> Gate | None:
        """Return what the gate of that start said, if anything."""
        found = self._read(Gate)
        return Gate(**found) if found and found.get("token") == token else None

    def round(self, token: str) -> Round | None:
        """Return the round that that start went into, if any."""
        found = self._read(Round)
        if not found or found.get("token") != token:
            return None
        return Round(token, str(found["name"]), tuple(found["tokens"]), float(found["at"]))

    def withdraw(self, token: str) -> None:
        """Forget the round that that start went into: it will need another one."""
        if self.round(token) is not None:
            self._path(Round).unlink(missing_ok=True)

    def view(self, now: float | None = None) -> View | None:
        """Return the daemon's last word, None where it has not said anything for a while."""
        found = self._read(View)
        moment = time.monotonic() if now is None else now
        return View(**found) if found and moment - float(found.get("at", 0.0)) <= _STALE_S else None

    def asked(self, token: str) -> Asked | None:
        """Return why the daemon ended the engine of that start, None where it did not."""
        found = self._read(Asked)
        return Asked(**found) if found and found.get("token") == token else None

    def forgiven(self) -> Forgiven:
        """Return how many starts in a row were not held against this rank."""
        return Forgiven(**self._read(Forgiven))

    def proven(self, token: str) -> bool:
        """Return whether that start has passed what is asked of this rank alone."""
        return self._read(Proven).get("token") == token

    def beat(self, token: str) -> Beat | None:
        """Return when the engine of that start was last seen to compute, None where it never was."""
        found = self._read(Beat)
        return Beat(token, float(found["at"])) if found and found.get("token") == token else None

    def stopped(self, token: str) -> bool:
        """Return whether that start was ended by an order."""
        return self._read(Stopped).get("token") == token

    def ended(self) -> Ended | None:
        """Return how this rank left its last round."""
        return Ended.read(self._read(Ended))

    def told(self) -> str:
        """Return the round whose end was told last."""
        try:
            return (self._folder / "told").read_text(encoding="utf-8")
        except OSError:
            return ""

    def tell(self, name: str) -> None:
        """Remember that the end of a round was told."""
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        (self._folder / "told").write_text(name, encoding="utf-8")

    def _path(self, kind: type) -> pathlib.Path:
        return self._folder / f"{kind.__name__.lower()}.json"

    def _read(self, kind: type) -> dict[str, t.Any]:
        try:
            found = json.loads(self._path(kind).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        # A start gate waits as long as it takes, and is then of another program than the daemon that was replaced
        # meanwhile: what one of them does not say or know stands for nothing.
        fields = dataclasses.fields(kind)
        needed = {field.name for field in fields if field.default is dataclasses.MISSING}
        return (
            {field.name: found[field.name] for field in fields if field.name in found} if needed <= set(found) else {}
        )


def waiting_since(instance: str, token: str, folder: pathlib.Path | None = None) -> float | None:
    """Return since when a start has waited for the other ranks (monotonic seconds), None where it does not."""
    gate = GroupFiles(instance, folder).gate(token)
    return gate.since if gate is not None and gate.open else None

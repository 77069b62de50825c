# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Applies a netplan file on the box, and takes it back unless somebody confirms that the box is still reached.

All of it runs in a transient unit of the box, so that a playbook that is killed, or cut off by the very change, leaves
nothing half done: without a word from outside the box goes back to what it was, and after a reboot, too.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import json
import pathlib
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _command, _fabric_texts, _files, _netplan, _status

UNIT: t.Final = "gb10-fleet-fabric-apply.service"
JOB: t.Final = "fabric"
NETPLAN_FILE: t.Final = pathlib.Path("/etc/netplan/60-gb10-fleet-fabric.yaml")
# On a disk: a reboot in the middle must find its way back, too.
FOLDER: t.Final = pathlib.Path("/var/lib/gb10-fleet/fabric")
# Stages of the job, see _status.
APPLIED: t.Final = "applied"
RETURNED: t.Final = "returned"

_MODE: t.Final = 0o600
_POLL_S: t.Final = 0.25
# The answer of the task that started this has to be out before its connection may break.
_HEAD_START_S: t.Final = 1.0

# The daemons behind netplan go on for a moment when it has returned; a word in that moment would prove nothing.
_SETTLE_S: t.Final = 3.0

Say = c.Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Where the files are; a test has others."""

    netplan: pathlib.Path = NETPLAN_FILE
    folder: pathlib.Path = FOLDER
    status: pathlib.Path = _status.FOLDER

    @property
    def wanted(self) -> pathlib.Path:
        """The text to put in place."""
        return self.folder / "wanted.yaml"

    @property
    def before(self) -> pathlib.Path:
        """What there was; while this file is there, nobody has confirmed what came after."""
        return self.folder / "before.json"

    @property
    def confirmed(self) -> pathlib.Path:
        """The word from outside."""
        return self.folder / "confirmed"


class Apply:
    """One attempt to put a netplan file in place."""

    def __init__(
        self,
        places: Places,
        say: Say,
        run: t.Callable[..., tuple[int, str, str]] = _command.run,
        sleep: c.Callable[[float], None] = time.sleep,
        clock: c.Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = places
        self._say = say
        self._run = run
        self._sleep = sleep
        self._clock = clock
        self._status = _status.StatusFile(JOB, places.status)

    def apply(self, window_s: float) -> int:
        """Put the wanted file in place and wait for the word; return 0 where it came in time."""
        self._sleep(_HEAD_START_S)
        self._remember()
        text = self._places.wanted.read_text(encoding="utf-8")
        _files.write(_files.Wanted(self._places.netplan, text, _MODE))
        reason = _netplan.apply(self._run)
        if reason:
            self.give_back(f"`netplan apply` failed: {reason}")
            return 1
        self._sleep(_SETTLE_S)
        self._tell(APPLIED, f"netplan was applied; without a word within {window_s:g} s the box goes back")
        deadline = self._clock() + window_s
        while self._clock() < deadline:
            if self._places.confirmed.exists():
                self._places.before.unlink()
                self._places.confirmed.unlink()
                self._tell(_status.DONE, "the box is still reached: what was applied stays")
                return 0
            self._sleep(_POLL_S)
        self.give_back(f"nobody reached the box within {window_s:g} s after netplan was applied")
        return 1

    def give_back(self, reason: str) -> bool:
        """Put back what there was, unless it was confirmed; return whether there was anything to put back."""
        try:
            before = json.loads(self._places.before.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        if before["text"] is None:
            self._places.netplan.unlink(missing_ok=True)
        else:
            _files.write(_files.Wanted(self._places.netplan, before["text"], _MODE))
        failed = _netplan.apply(self._run)
        self._restore_addresses(before["links"])
        self._places.before.unlink(missing_ok=True)
        self._places.confirmed.unlink(missing_ok=True)
        trouble = f" (`netplan apply` failed on the way back: {failed})" if failed else ""
        self._tell(RETURNED, f"{reason}; the box went back to what it was{trouble}", failed=True)
        return True

    def _remember(self) -> None:
        """Keep what there is: the file, and every interface with its addresses and the routes over it."""
        path = self._places.netplan
        text = path.read_text(encoding="utf-8") if path.exists() else None
        before = {"text": text, "links": self._links()}
        _files.write(_files.Wanted(self._places.before, json.dumps(before), _MODE))
        self._places.confirmed.unlink(missing_ok=True)

    def _links(self) -> list[dict[str, t.Any]]:
        _code, out, _err = self._run(["ip", "-json", "address", "show"])
        _code, routes, _err = self._run(["ip", "-json", "-4", "route", "show"])
        by_link: dict[str, list[dict[str, t.Any]]] = {}
        for route in json.loads(routes or "[]"):
            if route.get("gateway"):
                by_link.setdefault(str(route.get("dev")), []).append(route)
        mtus = {str(link.get("ifname")): link.get("mtu") for link in json.loads(out or "[]")}
        return [
            {
                "name": name,
                "mtu": mtus[name],
                "addresses": [str(one) for one in some if one.ipv4],
                "routes": by_link.get(name, []),
            }
            for name, some in _fabric_texts.addresses_of(out).items()
            if name != "lo"
        ]

    def _restore_addresses(self, links: list[dict[str, t.Any]]) -> None:
        """Give back addresses and routes that netplan does not know of, where its second run has not done it.

        An interface that something else has set up keeps what netplan took from it, once netplan lets go of it.
        """
        wanted = self._places.wanted.read_text(encoding="utf-8") if self._places.wanted.exists() else ""
        now = {link["name"]: link for link in self._links()}
        for link in links:
            there = now.get(link["name"], {"addresses": [], "routes": [], "mtu": None})
            if f"{link['name']}:" in wanted:  # a twin keeps what it got, once netplan lets go of it
                for address in set(there["addresses"]) - set(link["addresses"]):
                    self._run(["ip", "address", "del", address, "dev", link["name"]])
                self._run(["ip", "link", "set", link["name"], "mtu", str(link["mtu"])])
            for address in link["addresses"]:
                if address not in there["addresses"]:
                    self._run(["ip", "link", "set", link["name"], "up"])
                    self._run(["ip", "address", "add", address, "broadcast", "+", "dev", link["name"]])
            for route in link["routes"]:
                if route not in there["routes"]:
                    to = [str(route["dst"]), "via", str(route["gateway"]), "dev", link["name"]]
                    self._run(["ip", "route", "replace", *to])

    def _tell(self, stage: str, message: str, *, failed: bool = False) -> None:
        self._say(message)
        self._status.write(_status.Status(stage=stage, message=message, failed=failed, at=time.time()))

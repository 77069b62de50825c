# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the twins of a box are as they were set up: there, up, with their addresses and their MTU.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import json
import pathlib
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _fabric_texts

# What the role writes for the program, which has no inventory to look into.
FILE: t.Final = pathlib.Path("/etc/gb10-fleet/fabric.json")

Run = c.Callable[[list[str]], tuple[int, str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """A twin as it was set up; the address with its prefix."""

    interface: str
    address: str
    mtu: int


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a twin. ``waits`` marks what only a cable or the other end can cure."""

    interface: str
    what: str
    waits: bool = False

    def __str__(self) -> str:
        return f"{self.interface} {self.what}"


def wishes(data: c.Iterable[c.Mapping[str, t.Any]]) -> tuple[Wish, ...]:
    """Return the twins of plain data."""
    return tuple(Wish(str(one["interface"]), str(one["address"]), int(one["mtu"])) for one in data)


def read(path: pathlib.Path = FILE) -> tuple[Wish, ...]:
    """Return the twins that this box was set up with; none where it has no fabric."""
    try:
        return wishes(json.loads(path.read_text(encoding="utf-8"))["twins"])
    except FileNotFoundError:
        return ()


def faults(wanted: c.Iterable[Wish], run: Run, net: pathlib.Path = pathlib.Path("/sys/class/net")) -> tuple[Fault, ...]:
    """Return what is not as it was set up."""
    _code, out, _err = run(["ip", "-json", "address", "show"])
    addresses = _fabric_texts.addresses_of(out)
    found = []
    for one in wanted:
        if not (net / one.interface).exists():
            found.append(Fault(one.interface, "is not there: no cable, or another name", waits=True))
            continue
        if _text(net / one.interface / "operstate") not in {"up", "unknown"}:
            # An interface that is on and has no carrier waits for a cable; one that is off waits for somebody here.
            off = _text(net / one.interface / "carrier") == ""
            found.append(Fault(one.interface, "is switched off" if off else "has no link", waits=not off))
            continue
        mtu = _text(net / one.interface / "mtu")
        if mtu != str(one.mtu):
            found.append(Fault(one.interface, f"has an MTU of {mtu}, not {one.mtu}"))
        if one.address not in {str(address) for address in addresses.get(one.interface, ())}:
            found.append(Fault(one.interface, f"does not have the address {one.address}"))
    return tuple(found)


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:  # the carrier of an interface that is off cannot be read
        return ""

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds a folder that looks like the parts of / that tell about a ConnectX-7, as a DGX Spark shows them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import typing as t


@dataclasses.dataclass
class Card:
    """One PCI function of the chip. ``live`` has what a driver says come from the interface of this name, for real."""

    interface: str
    pci: str
    rdma: str = ""
    phys_port: str = ""
    state: str = "4: ACTIVE"
    phys_state: str = "5: LinkUp"
    rate: str = "200 Gb/sec (4X HDR)"
    operstate: str = "up"
    flags: str = "0x1003"
    carrier: str = "1"
    mtu: str = "9000"
    gids: tuple[tuple[int, str, str, str], ...] = ()
    firmware: str = "28.45.4028"
    width: str = "4"
    speed: str = "32.0 GT/s PCIe"
    physical_function: str = ""
    master: str = ""
    vendor: str = "0x15b3"
    live: bool = False
    extra: dict[str, str] = dataclasses.field(default_factory=dict)


def spark(*, cabled: t.Collection[int] = (0,), **changes: t.Any) -> list[Card]:
    """Return the four functions of a Spark, of which those behind the given cages have a link."""
    down: dict[str, t.Any] = {
        "state": "1: DOWN",
        "phys_state": "3: Disabled",
        "rate": "40 Gb/sec (4X QDR)",
        "operstate": "down",
        "carrier": "0",
    }
    cards = []
    for function in (0, 1):
        for domain, letter in (("0000", ""), ("0002", "P2")):
            name = f"{letter}p1s0f{function}"
            card = Card(f"en{name}np{function}", f"{domain}:01:00.{function}", f"roce{name}", f"p{function}", **changes)
            cards.append(card if function in cabled else dataclasses.replace(card, **down))
    return cards


def build(root: pathlib.Path, cards: t.Iterable[Card], others: t.Iterable[str] = ("lo", "enP7s7")) -> pathlib.Path:
    """Write the tree below a folder and return the folder."""
    for card in cards:
        device = root / "sys/devices" / card.pci
        write(device / "vendor", card.vendor)
        write(device / "class", "0x020000")
        for kind in ("current", "max"):
            write(device / f"{kind}_link_speed", card.speed if kind == "current" else "32.0 GT/s PCIe")
            write(device / f"{kind}_link_width", card.width if kind == "current" else "4")
        if card.physical_function:
            link(device / "physfn", root / "sys/devices" / card.physical_function)
        link(root / "sys/bus/pci/devices" / card.pci, device)
        if not card.interface:
            continue
        netdev = device / "net" / card.interface
        link(netdev / "device", device)
        write(netdev / "phys_port_name", card.phys_port)
        _driver_files(netdev, card)
        if card.master:
            link(netdev / "master", root / "sys/devices/virtual/net" / card.master)
        link(root / "sys/class/net" / card.interface, netdev)
        if card.rdma:
            _rdma(root, device, card)
    for name in others:
        write(root / "sys/class/net" / name / "operstate", "up")
        write(root / "sys/class/net" / name / "mtu", "1500")
    return root


def _driver_files(netdev: pathlib.Path, card: Card) -> None:
    said = {"operstate": card.operstate, "flags": card.flags, "carrier": card.carrier, "mtu": card.mtu}
    said["address"] = "4c:bb:47:00:00:01"
    for name, text in said.items():
        if card.live:
            (netdev / name).symlink_to(f"/sys/class/net/{card.interface}/{name}")
        else:
            write(netdev / name, text)


def _rdma(root: pathlib.Path, device: pathlib.Path, card: Card) -> None:
    rdma = device / "infiniband" / card.rdma
    link(rdma / "device", device)
    link(root / "sys/class/infiniband" / card.rdma, rdma)
    write(rdma / "node_guid", "4cbb:4703:0000:0062")
    write(rdma / "fw_ver", card.firmware)
    write(rdma / "board_id", "NVD0000000087")
    port = rdma / "ports/1"
    write(port / "state", card.state)
    write(port / "phys_state", card.phys_state)
    write(port / "rate", card.rate)
    for index in range(8):  # the kernel has a file for every entry, and most of them are empty
        write(port / "gids" / str(index), ":".join(["0000"] * 8))
    for index, kind, gid, owner in card.gids:
        write(port / "gids" / str(index), gid)
        write(port / "gid_attrs/types" / str(index), kind)
        write(port / "gid_attrs/ndevs" / str(index), owner)
    write(root / "dev/infiniband/uverbs0", "")


def gids_of(interface: str, address: str, *, extra_link_local: bool = False) -> tuple[tuple[int, str, str, str], ...]:
    """Return a GID table: the fe80:: entries first, then those of an IPv4 address."""
    parts = [int(part) for part in address.split(".")]
    mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*parts)
    local = ["fe80:0000:0000:0000:4ebb:47ff:fe00:0001"]
    if extra_link_local:
        local.append("fe80:0000:0000:0000:8d1c:5aa3:9f00:1234")
    entries = [(kind, gid) for gid in (*local, mapped) for kind in ("IB/RoCE v1", "RoCE v2")]
    return tuple((index, kind, gid, interface) for index, (kind, gid) in enumerate(entries))


def write(path: pathlib.Path, text: str) -> None:
    """Write one file as sysfs has it: a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n" if text else "", encoding="ascii")


def link(path: pathlib.Path, target: pathlib.Path) -> None:
    """Make a relative link, as sysfs does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target.relative_to(path.parent, walk_up=True))


def ip_json(addresses: t.Mapping[str, tuple[str, ...]], **marks: dict[str, t.Any]) -> str:
    """Return what ``ip -json address`` prints of interfaces with such addresses; marks go to an interface's entries."""
    links: list[dict[str, t.Any]] = []
    for name, some in addresses.items():
        entries: list[dict[str, t.Any]] = []
        for one in some:
            address, _, prefix = one.partition("/")
            entry = {"family": "inet6" if ":" in one else "inet", "local": address, "prefixlen": int(prefix)}
            entries.append({**entry, "scope": "global", **marks.get(name, {})})
        links.append({"ifindex": len(links) + 1, "ifname": name, "addr_info": entries})
    return json.dumps([*links, {}])

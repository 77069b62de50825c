# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads what the tools of a box print about its fabric: ip, rdma, ibdev2netdev, ibv_devices, show_gids, lspci.

For a box that cannot be asked, of which somebody has sent the output. No line is identified by its number: the tools
list devices in any order.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import json
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._fabric import (
    Address,
    Fabric,
    Gid,
    OtherInterface,
    PciAddress,
    Twin,
    pair,
)

_IBDEV2NETDEV: t.Final = re.compile(r"^(\S+) port \d+ ==> (\S+) \((Up|Down)\)\s*$", re.MULTILINE)
_RDMA_LINK: t.Final = re.compile(
    r"^link (\S+?)/\d+ state (\S+) physical_state (\S+)(?: .*?\bnetdev (\S+))?", re.MULTILINE
)
_IBV_DEVICES: t.Final = re.compile(r"^\s+(\S+)\s+([0-9a-f]{16})\s*$", re.MULTILINE)
_RATE_STATE: t.Final = re.compile(r"^(\S+)\s+([\d.]+) Gb/sec(?: \([^)]*\))?\s+\d+: ([A-Z_]+)\s*$", re.MULTILINE)
_SHOW_GIDS: t.Final = re.compile(
    r"^(\S+)\s+\d+\s+(\d+)\s+([0-9a-fx:]{20,})\s+(?:\d+\.\d+\.\d+\.\d+\s+)?(v[12])\s+(\S+)\s*$", re.MULTILINE
)
_IP_BRIEF: t.Final = re.compile(
    r"^(\S+?)(?:@\S+)?\s+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN)\b(?:.*(<[A-Z,_-]+>))?", re.MULTILINE
)
_LSPCI: t.Final = re.compile(r"^([0-9a-f:.]+) Ethernet controller: Mellanox .*ConnectX-7", re.MULTILINE)
_LSPCI_LINK: t.Final = re.compile(r"Lnk(Cap|Sta):.*?Speed ([\d.]+)GT/s.*?Width x(\d+)")
_FIRMWARE: t.Final = re.compile(r"mlx5_core ([0-9a-f:.]+): firmware version: ([\d.]+)")
# A GID table does not say how large a subnet is; every published layout for Sparks uses this.
_USUAL_PREFIX: t.Final = 24
_POWER: t.Final = "PCIe slot power capability was not advertised"
# The kernel's own name for an Ethernet interface, which spells out its place on the bus.
_PREDICTABLE: t.Final = re.compile(
    r"en(?:P(?P<domain>\d+))?p(?P<bus>\d+)s(?P<slot>\d+)(?:f(?P<function>\d+))?(?:np?(?P<port>\w+))?"
)


def addresses_of(ip_json: str) -> dict[str, tuple[Address, ...]]:
    """Return the addresses of every interface from the output of ``ip -json address``; ValueError where it is none."""
    try:
        links = json.loads(ip_json or "[]")
        return {str(link["ifname"]): tuple(_addresses(link)) for link in links if link}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"this is not what `ip -json address` prints ({error!r})") from None


def _addresses(link: dict[str, t.Any]) -> c.Iterator[Address]:
    for info in link.get("addr_info", []):
        if info.get("local") and info.get("family") in {"inet", "inet6"}:
            # What a person configures is global, and lasts; what a daemon takes for want of a lease is neither.
            own = str(info["local"]).startswith("169.254.") and (
                info.get("scope") == "link" or bool(info.get("dynamic")) or bool(info.get("noprefixroute"))
            )
            yield Address(str(info["local"]), int(info["prefixlen"]), zeroconf=own)


def firmware_of(kernel_log: str) -> dict[str, str]:
    """Return the firmware of every ConnectX by PCI address; the last line of a device counts."""
    return {match[1].lower(): match[2] for match in _FIRMWARE.finditer(kernel_log)}


def power_not_advertised(kernel_log: str) -> bool:
    """Return whether a NIC was attached to a slot that did not say how much power it has.

    The line about 27 W is another one, which healthy boxes have, too.
    """
    return _POWER in kernel_log


def pcie_of(lspci: str) -> tuple[float, int, float, int] | None:
    """Return speed, width, and the most of both, from the verbose listing of one device."""
    found = {match[1]: (float(match[2]), int(match[3])) for match in _LSPCI_LINK.finditer(lspci)}
    return (*found["Sta"], *found["Cap"]) if {"Sta", "Cap"} <= found.keys() else None


def connectx_of(lspci: str) -> tuple[PciAddress, ...]:
    """Return where the ConnectX-7 functions are on the bus; none at all is what a box without a cable shows."""
    return tuple(address for match in _LSPCI.finditer(lspci) if (address := PciAddress.parse(match[1])))


def place_in_name(interface: str) -> tuple[PciAddress | None, str]:
    """Return the PCI address and the name of the port that a predictable interface name spells out, if it is one."""
    match = _PREDICTABLE.fullmatch(interface)
    if match is None:
        return None, ""
    domain, bus, slot, function = (int(match[key] or 0) for key in ("domain", "bus", "slot", "function"))
    return PciAddress(domain, bus, slot, function), f"p{match['port']}" if match["port"] else ""


def fabric_of(texts: c.Iterable[str]) -> Fabric:
    """Return the fabric of a box from what its tools printed, in any order and of any of the tools.

    Pairs are made of what a predictable name says about the bus. That is less than sysfs knows, and the ports say so.
    """
    whole = "\n".join(texts)
    links: dict[str, dict[str, t.Any]] = {}

    def link(interface: str) -> dict[str, t.Any]:
        return links.setdefault(interface, {})

    netdev_of = {}
    for device, state, physical, netdev in _RDMA_LINK.findall(whole):
        if netdev:
            netdev_of[device] = netdev
            link(netdev).update(rdma=device, rdma_state=state, physical_state=physical)
    for device, netdev, state in _IBDEV2NETDEV.findall(whole):
        netdev_of[device] = netdev
        link(netdev).update(rdma=device)
        link(netdev).setdefault("operstate", state.lower())
    gids: dict[str, list[Gid]] = {}
    for device, index, gid, kind, netdev in _SHOW_GIDS.findall(whole):
        netdev_of.setdefault(device, netdev)
        link(netdev).update(rdma=device)
        gids.setdefault(netdev, []).append(Gid.make(int(index), kind, gid, netdev))
    for device, rate, state in _RATE_STATE.findall(whole):
        name = netdev_of.get(device, f"({device})")
        link(name).update(rdma=device, rate_gbps=float(rate), rdma_state=state)
    for device, guid in _IBV_DEVICES.findall(whole):
        link(netdev_of.get(device, f"({device})")).update(rdma=device, node_guid=guid)
    others = []
    for interface, state, flags in _IP_BRIEF.findall(whole):
        place, _port = place_in_name(interface)
        if interface in links or (place is not None and place.place[:2] == (1, 0)):
            words = flags.strip("<>").split(",") if flags else []
            enabled = "UP" in words if words else None
            carrier = "NO-CARRIER" not in words if enabled else None
            link(interface).update(operstate=state.lower(), enabled=enabled, carrier=carrier)
        else:
            others.append(OtherInterface(interface, operstate=state.lower(), wireless=interface.startswith("wl")))
    twins = [_twin(name, fields, tuple(gids.get(name, ()))) for name, fields in links.items()]
    ports, single = pair(twins)
    return Fabric(
        ports=tuple(dataclasses.replace(port, paired_by="name") for port in ports),
        single=single,
        others=tuple(others),
        power_not_advertised=power_not_advertised(whole),
        infiniband_devices=("unknown",),
        netdevs_known=False,
    )


def _twin(interface: str, fields: dict[str, t.Any], gids: tuple[Gid, ...]) -> Twin:
    """Make a twin of what was said; a device without an interface is placed by the name that udev gave it."""
    device = str(fields.get("rdma", ""))
    place, port = place_in_name(interface)
    if place is None and device.startswith("roce"):
        place, port = place_in_name("en" + device.removeprefix("roce"))
    name = "" if interface.startswith("(") else interface
    mapped = tuple(Address(one, _USUAL_PREFIX) for one in dict.fromkeys(gid.address for gid in gids if gid.address))
    return Twin(interface=name, pci=place, phys_port=port, gids=gids, addresses=mapped, **fields)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ConnectX-7 of a box as it is: twins, the ports that they make up, and the interfaces beside them.

A QSFP cage of a Spark is reached over two PCI functions: the same function number of the same slot in two PCI domains.
These are twins. Names and order say nothing reliable about them (udev renames, tools list them as they like), so pairs
are made of PCI addresses, and what the hardware calls its port has to agree.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import ipaddress
import re
import typing as t

ACTIVE: t.Final = "ACTIVE"
# What one port of the chip brings, in Gb/s; below it a link was negotiated down.
FULL_RATE_GBPS: t.Final = 200.0

State = t.Literal["up", "half", "down", "unknown"]

_PCI: t.Final = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[0-9a-f]{2})\.(?P<function>[0-7])", re.IGNORECASE
)
_LINK_LOCAL: t.Final = ipaddress.ip_network("169.254.0.0/16")


@dataclasses.dataclass(frozen=True, slots=True)
class PciAddress:
    """Where a device sits on the bus."""

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    def parse(cls, text: str) -> PciAddress | None:
        """Read an address such as 0002:01:00.1; None where it is none."""
        match = _PCI.fullmatch(text)
        return None if match is None else cls(*(int(match[name], 16) for name in ("domain", "bus", "slot", "function")))

    @property
    def place(self) -> tuple[int, int, int]:
        """Return what twins have in common: everything but the domain."""
        return self.bus, self.slot, self.function

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function}"


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """An address of an interface. ``zeroconf`` marks one that a daemon chose by itself, for want of another."""

    address: str
    prefix: int
    zeroconf: bool = False

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """Return the subnet that the address is in."""
        return ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False)

    @property
    def ipv4(self) -> bool:
        """Return whether it is an IPv4 address."""
        return ":" not in self.address

    @property
    def link_local(self) -> bool:
        """Return whether it is an IPv4 address that is good on one cable only."""
        return self.ipv4 and ipaddress.ip_address(self.address) in _LINK_LOCAL

    def __str__(self) -> str:
        return f"{self.address}/{self.prefix}"


@dataclasses.dataclass(frozen=True, slots=True)
class Gid:
    """An entry of the GID table of an RDMA port. ``address`` is the IPv4 address that it stands for, if any."""

    index: int
    type: str
    gid: str
    address: str
    netdev: str

    @classmethod
    def make(cls, index: int, kind: str, gid: str, netdev: str) -> Gid:
        """Make an entry of what the kernel or show_gids prints."""
        names = {"v1": "RoCE v1", "v2": "RoCE v2", "IB/RoCE v1": "RoCE v1"}
        return cls(index, names.get(kind, kind), gid.lower(), mapped_ipv4(gid), netdev)

    @property
    def link_local(self) -> bool:
        """Return whether the entry is an fe80:: address."""
        return self.gid.startswith("fe8")


def mapped_ipv4(gid: str) -> str:
    """Return the IPv4 address that a GID stands for, empty where it stands for none.

    Compared as bytes: how Python writes such an address out depends on its release.
    """
    try:
        raw = ipaddress.IPv6Address(gid).packed
    except ValueError:  # masked by hand, or not an address
        return ""
    return str(ipaddress.IPv4Address(raw[12:])) if raw[:12] == bytes(10) + b"\xff\xff" else ""


@dataclasses.dataclass(frozen=True, slots=True)
class PcieLink:
    """Speed in GT/s and width in lanes, as negotiated and at most; None where the box does not say."""

    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None

    @property
    def reduced(self) -> bool:
        """Return whether less was negotiated than the device can do."""
        pairs = ((self.speed_gts, self.max_speed_gts), (self.width, self.max_width))
        return any(now is not None and most is not None and now < most for now, most in pairs)

    def __str__(self) -> str:
        return (
            f"{self.speed_gts or '?'} GT/s x{self.width or '?'} of {self.max_speed_gts or '?'} GT/s "
            f"x{self.max_width or '?'}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """One of the two interfaces behind a cage. What is not known is None or empty.

    ``rate_gbps`` says nothing without ``rdma_state``: a port without a cable shows a rate, too. ``enabled`` is whether
    the interface is switched on (IFF_UP); where it is not, nothing says whether there is a cable.
    """

    interface: str
    pci: PciAddress | None = None
    phys_port: str = ""
    rdma: str = ""
    rdma_state: str = ""
    physical_state: str = ""
    rate_gbps: float | None = None
    operstate: str = ""
    enabled: bool | None = None
    carrier: bool | None = None
    mtu: int | None = None
    mac: str = ""
    node_guid: str = ""
    firmware: str = ""
    board: str = ""
    pcie: PcieLink = PcieLink()
    addresses: tuple[Address, ...] = ()
    gids: tuple[Gid, ...] = ()
    master: str = ""
    virtual: bool = False
    netplan_files: tuple[str, ...] = ()

    @property
    def up(self) -> bool | None:
        """Return whether data can pass: RDMA port and interface both have to say so. None where neither says."""
        netdev = None if self.operstate in {"", "unknown"} else self.operstate == "up"
        if netdev is None:
            netdev = self.carrier
        rdma = self.rdma_state == ACTIVE if self.rdma_state else None
        said = [one for one in (netdev, rdma) if one is not None]
        return all(said) if said else None

    @property
    def cabled(self) -> bool:
        """Return whether there is something at the other end of the cable, whatever the twin makes of it."""
        return bool(self.up or self.carrier or self.rdma_state == ACTIVE or self.physical_state == "LINK_UP")

    @property
    def ipv4(self) -> tuple[Address, ...]:
        """Return the IPv4 addresses."""
        return tuple(one for one in self.addresses if one.ipv4)

    def as_dict(self) -> dict[str, t.Any]:
        """Return the twin as plain data, the way it leaves a module."""
        plain = dataclasses.asdict(self)
        plain["pci"] = str(self.pci) if self.pci else ""
        plain["up"] = self.up
        plain["addresses"] = [dataclasses.asdict(one) for one in self.addresses]
        plain["gids"] = [dataclasses.asdict(one) for one in self.gids]
        plain["netplan_files"] = list(self.netplan_files)
        return plain


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """What is behind one cage: a pair of twins, the one in the lower PCI domain first, or what there is of it."""

    name: str
    cage: int | None
    twins: tuple[Twin, ...]
    paired_by: str

    @property
    def state(self) -> State:
        """Return "half" where one twin is up and another one is not."""
        known = [twin.up for twin in self.twins]
        if all(known) and len(known) > 1:
            return "up"
        if any(known):
            return "half"
        return "down" if False in known else "unknown"

    @property
    def cabled(self) -> bool:
        """Return whether a cable leads to something."""
        return any(twin.cabled for twin in self.twins)

    @property
    def off(self) -> bool:
        """Return whether all of it is switched off, so that nobody can tell whether a cable is there."""
        return not self.cabled and all(twin.enabled is False for twin in self.twins)

    def as_dict(self) -> dict[str, t.Any]:
        """Return the port as plain data, the way it leaves a module."""
        return {
            "name": self.name,
            "cage": self.cage,
            "state": self.state,
            "cabled": self.cabled,
            "off": self.off,
            "paired_by": self.paired_by,
            "twins": [twin.as_dict() for twin in self.twins],
        }


@dataclasses.dataclass(frozen=True, slots=True)
class OtherInterface:
    """An interface beside the twins: the way to the box must not be in the way of the fabric."""

    interface: str
    addresses: tuple[Address, ...] = ()
    operstate: str = ""
    mtu: int | None = None
    mac: str = ""
    master: str = ""
    wireless: bool = False
    default_route: bool = False

    def as_dict(self) -> dict[str, t.Any]:
        """Return the interface as plain data, the way it leaves a module."""
        return dataclasses.asdict(self) | {"addresses": [dataclasses.asdict(one) for one in self.addresses]}


@dataclasses.dataclass(frozen=True, slots=True)
class Management:
    """How the box is reached: ``session`` interfaces carry the connection that asks, ``client`` is its other end.

    ``interfaces`` are these and those with a default route, also where that is a twin.
    """

    interfaces: tuple[str, ...] = ()
    client: str = ""
    wireless: bool = False
    session: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Locked:
    """How much memory a login may lock, in KiB or "unlimited"; empty where no file says."""

    soft: str = ""
    hard: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Everything that was found of the fabric of a box."""

    ports: tuple[Port, ...] = ()
    single: tuple[Twin, ...] = ()
    virtual: tuple[Twin, ...] = ()
    others: tuple[OtherInterface, ...] = ()
    management: Management = Management()
    without_interface: tuple[str, ...] = ()
    hotplug: bool | None = None
    power_not_advertised: bool = False
    infiniband_devices: tuple[str, ...] = ()
    memlock: Locked = Locked()
    netdevs_known: bool = True

    @property
    def twins(self) -> tuple[Twin, ...]:
        """Return all twins, port by port."""
        return tuple(twin for port in self.ports for twin in port.twins)

    @property
    def cabled(self) -> tuple[Port, ...]:
        """Return the ports whose cable leads to something."""
        return tuple(port for port in self.ports if port.cabled)


def pair(twins: c.Iterable[Twin]) -> tuple[tuple[Port, ...], tuple[Twin, ...]]:
    """Return the ports that physical functions make up, and those that are in no pair.

    Twins are the same function of the same slot in different PCI domains, and call their port the same. A function
    whose
    partner calls the port something else stays single: a wrong pair would be configured as a right one.
    """
    groups: dict[tuple[t.Any, ...], list[Twin]] = {}
    single: list[Twin] = []
    for twin in twins:
        if twin.pci is None:
            single.append(twin)
        else:
            groups.setdefault(twin.pci.place, []).append(twin)
    ports: list[Port] = []
    for (*_slot, function), members in groups.items():
        members.sort(key=lambda twin: twin.pci.domain if twin.pci else 0)
        names = {twin.phys_port for twin in members if twin.phys_port}
        domains = {twin.pci.domain for twin in members if twin.pci}
        if len(members) == 2 and len(domains) == 2 and len(names) <= 1:
            name = names.pop() if names else f"p{function}"
            ports.append(Port(name, cage_of(name, function), tuple(members), "pci"))
        else:
            single += members
    ports.sort(key=lambda port: (port.cage is None, port.cage or 0, port.name))
    return tuple(ports), tuple(single)


def cage_of(name: str, function: int) -> int:
    """Return the number of the cage: what the hardware calls the port (p1), else the function number."""
    match = re.fullmatch(r"p(\d+)(?:s\d+)?", name)
    return int(match[1]) if match else function

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names, labels and addresses of everything that the lab makes. Pure, so that two labs can be proven apart."""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LABEL = "gb10.fleet.lab"
"""Every container, network, volume and image of a lab carries this label with the lab's id."""

SUITES = {"trixie": "3.13", "bookworm": "3.11"}
"""The Debian releases that a host can be made of, and the Python that Ansible meets there."""

DEFAULT_HOSTS = ("spark-1:trixie", "spark-2:trixie")

TWINS = ("enp1s0f0np0", "enP2p1s0f0np0")
"""The two network interfaces behind one QSFP port of a Spark."""

# One /22 is enough for a lab: three /24, one for SSH and HTTP and one for each twin.
_POOL = ipaddress.IPv4Network("10.208.0.0/12")
_BLOCK = 22


class LabError(Exception):
    """Something that the reader can act on, in one sentence."""


@dataclasses.dataclass(frozen=True)
class HostSpec:
    """One simulated box: its name and the Debian release that it is made of."""

    name: str
    suite: str = "trixie"

    @classmethod
    def parse(cls, text: str) -> HostSpec:
        """Read `NAME` or `NAME:SUITE`."""
        name, _, suite = text.partition(":")
        suite = suite or "trixie"
        if not re.fullmatch(r"[a-z][a-z0-9]*-[1-9][0-9]?", name):
            msg = f'Host "{name}" is no lab host name: use a word, a hyphen and a number from 1 to 99, such as spark-3.'
            raise LabError(msg)
        if suite not in SUITES:
            msg = f'Host "{name}" asks for Debian "{suite}": the lab knows {" and ".join(SUITES)}.'
            raise LabError(msg)
        return cls(name, suite)

    @property
    def octet(self) -> int:
        """Last byte of the host's addresses: spark-1 is .11; other words are spread over the rest of the range."""
        word, _, number = self.name.rpartition("-")
        if word == "spark":
            return 10 + int(number)
        spread = int.from_bytes(hashlib.sha256(word.encode()).digest()[:2]) % 35
        return 110 + (spread * 4 + int(number)) % 140


def lab_id(checkout: Path) -> str:
    """Eight hexadecimal digits that stay the same for a checkout and differ between checkouts."""
    return hashlib.sha256(str(checkout.resolve()).encode()).hexdigest()[:8]


@dataclasses.dataclass(frozen=True)
class Names:
    """The names of one lab's Docker objects."""

    lab: str

    @property
    def prefix(self) -> str:
        return f"gb10-lab-{self.lab}"

    @property
    def labels(self) -> dict[str, str]:
        return {LABEL: self.lab}

    @property
    def network(self) -> str:
        return f"{self.prefix}-net"

    @property
    def twin_networks(self) -> tuple[str, str]:
        return (f"{self.prefix}-twin-a", f"{self.prefix}-twin-b")

    def container(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def volume(self, host: str, purpose: str) -> str:
        return f"{self.prefix}-{host}-{purpose}"

    def image(self, suite: str, key: str) -> str:
        return f"{self.prefix}/host:{suite}-{key}"


@dataclasses.dataclass(frozen=True)
class AddressPlan:
    """The three subnets of a lab and the addresses in them."""

    block: ipaddress.IPv4Network

    @property
    def subnets(self) -> list[ipaddress.IPv4Network]:
        """The subnet of eth0, then one for each twin."""
        return list(self.block.subnets(new_prefix=24))[:3]

    def gateway(self, subnet: int = 0) -> str:
        return str(self.subnets[subnet][1])

    def address(self, host: HostSpec, subnet: int = 0) -> str:
        return str(self.subnets[subnet][host.octet])

    def mac(self, host: HostSpec, subnet: int) -> str:
        """A locally administered MAC address, fixed for a host and an interface."""
        raw = bytes([0x02, 0x42]) + self.subnets[subnet][host.octet].packed
        return ":".join(f"{byte:02x}" for byte in raw)


def choose_block(lab: str, taken: Iterable[str]) -> AddressPlan:
    """Pick the lab's /22: the same one every time, unless the machine already routes it somewhere else.

    Args:
        lab: The lab's id.
        taken: Networks in CIDR notation that the machine uses, such as its routes and other Docker networks.
    """
    used = [ipaddress.IPv4Network(network, strict=False) for network in taken]
    blocks = list(_POOL.subnets(new_prefix=_BLOCK))
    start = int(lab, 16) % len(blocks)
    for block in blocks[start:] + blocks[:start]:
        if not any(block.overlaps(other) for other in used):
            return AddressPlan(block)
    msg = (
        f"No free /{_BLOCK} is left in {_POOL} for the lab's networks: remove a Docker network or route in that range."
    )
    raise LabError(msg)

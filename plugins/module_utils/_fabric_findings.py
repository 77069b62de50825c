# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is wrong with the fabric of a box, or worth knowing about it, as far as one box can tell alone.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._fabric import FULL_RATE_GBPS, Fabric, Port, Twin
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, worst

Verdict = t.Literal["ready", "degraded", "faulty", "pending", "unknown"]

_JUMBO: t.Final = 9000


def verdict_of(fabric: Fabric, found: c.Collection[Finding]) -> Verdict:
    """Return what the findings come to. A fabric without a cable is pending, and no fault."""
    gravest = worst(found)
    if gravest == "error":
        return "faulty"
    if not fabric.cabled and not any(port.state == "unknown" for port in fabric.ports):
        return "pending"
    if gravest == "warning":
        return "degraded"
    return "ready" if fabric.cabled else "unknown"


def findings(fabric: Fabric) -> tuple[Finding, ...]:
    """Return everything that the fabric of a box gives away, the box first, then port by port."""
    found = [*_presence(fabric), *_pairing(fabric), *_host(fabric)]
    for port in fabric.ports:
        if not port.cabled and port.state != "unknown":
            continue
        found += [*_link(port), *_mtu(port), *_addresses(fabric, port), *_files(port)]
    return tuple(found)


def _presence(fabric: Fabric) -> c.Iterator[Finding]:
    if fabric.without_interface:
        yield Finding(
            id="CX7_WITHOUT_INTERFACE",
            severity="error",
            message="the ConnectX-7 is on the PCI bus, but no driver has made network interfaces of it",
            evidence=f"no net/ below {', '.join(fabric.without_interface)}",
            remedy="see `journalctl -k | grep mlx5_core`; load mlx5_core, or reboot the box",
        )
    elif not (fabric.ports or fabric.single or fabric.virtual):
        off = ": a port without a cable is switched off here" if fabric.hotplug else ""
        yield Finding(
            id="CX7_ABSENT",
            severity="info",
            message=f"no ConnectX-7 is on the PCI bus{off}; that is normal while no cable is plugged in",
            evidence="no function of vendor 0x15b3",
            remedy="plug the cable in and reboot both boxes with it in place",
        )
    elif fabric.cabled:
        return
    elif silent := [twin.interface for port in fabric.ports if port.off for twin in port.twins]:
        yield switched_off(silent, "; ".join(_state(twin) for twin in fabric.twins))
    elif not any(twin.cabled for twin in fabric.single) and "down" in {p.state for p in fabric.ports}:
        yield Finding(
            id="CABLE_PENDING",
            severity="info",
            message="no port has a link: there is no cable, or nothing that is switched on at its other end",
            evidence="; ".join(_state(twin) for twin in fabric.twins),
            remedy="plug the cable in and reboot both boxes with it in place",
        )


def switched_off(names: c.Sequence[str], evidence: str) -> Finding:
    """Return the finding about a port whose twins are both switched off: a cable in it does not show."""
    return Finding(
        id="TWINS_SWITCHED_OFF",
        severity="warning",
        message=f"{', '.join(names)} are switched off, so it is not known whether a cable is plugged in",
        evidence=evidence,
        remedy=(
            f"switch them on (`ip link set {names[0]} up`, and so the others) and look again; or name the cage of the "
            "cable in fabric.members (cages), and the fabric switches its twins on"
        ),
    )


def _pairing(fabric: Fabric) -> c.Iterator[Finding]:
    if fabric.single:
        yield Finding(
            id="TWINS_NOT_PAIRED",
            severity="error",
            message=(
                "these interfaces have no twin: the same PCI function in another domain, which calls its "
                "port the same, "
                f"is not there: {', '.join(one.interface or one.rdma for one in fabric.single)}"
            ),
            evidence="; ".join(
                f"{one.interface or one.rdma} at {one.pci or 'an unknown place'}, port {one.phys_port or 'unnamed'}"
                for one in fabric.single
            ),
            remedy="see `lspci -D | grep Mellanox`: four functions are there on a Spark, two in each domain",
        )
    for twin in fabric.twins:
        if twin.master:
            yield Finding(
                id="TWIN_BONDED",
                severity="error",
                message=f"{twin.interface} is part of {twin.master}; NCCL fails on bonded twins or uses half of them",
                evidence=f"{twin.interface} has the master {twin.master}",
                remedy="take it out of the bond or bridge and give each twin an address of its own",
            )
    for twin in fabric.virtual:
        if twin.ipv4 or twin.gids:
            yield from _gid_table(twin, needed=True)
    if fabric.virtual:
        yield Finding(
            id="VIRTUAL_FUNCTIONS",
            severity="warning",
            message=(
                f"{len(fabric.virtual)} interfaces are virtual functions, which neither inherit an MTU nor count "
                "as twins"
            ),
            evidence=", ".join(one.interface for one in fabric.virtual),
            remedy="use the physical functions for the fabric",
        )


def _host(fabric: Fabric) -> c.Iterator[Finding]:
    if fabric.power_not_advertised:
        yield Finding(
            id="HOTPLUG_POWER_NOT_ADVERTISED",
            severity="warning",
            message=(
                "the NIC was attached to a slot that told it no power limit, as when a cable is plugged in "
                "after the box "
                "has started; such a port shows 200 Gb/s and moves 13"
            ),
            evidence="the kernel log: PCIe slot power capability was not advertised",
            remedy="reboot both boxes with the cable in place, then measure: only a measurement tells",
        )
    if any(twin.rdma for twin in fabric.twins) and not fabric.infiniband_devices:
        yield Finding(
            id="INFINIBAND_DEVICES_MISSING",
            severity="error",
            message="there is no /dev/infiniband, so no container can use RDMA, and NCCL would quietly use TCP",
            evidence="RDMA devices in sysfs, none in /dev",
            remedy="load ib_uverbs (`modprobe ib_uverbs`), and have it loaded at every boot",
        )
    if fabric.management.wireless:
        yield Finding(
            id="MGMT_INTERFACE_IS_WIFI",
            severity="warning",
            message=(
                "the box is managed over Wi-Fi alone, which may stay away after a few failed logins at the access point"
            ),
            evidence=", ".join(fabric.management.interfaces),
            remedy="wire the management network, or set connection.autoconnect-retries to 0 in NetworkManager",
        )


def _link(port: Port) -> c.Iterator[Finding]:
    for twin in port.twins:
        name = twin.interface or twin.rdma
        if twin.up is False:
            yield Finding(
                id="TWIN_DOWN",
                severity="error",
                message=f"{name} of port {port.name} is down while its twin has a link: half of the bandwidth is gone",
                evidence=_state(twin),
                remedy=f"bring it up (`ip link set {name} up`); if that does not help, reboot both boxes",
            )
        elif twin.up and not twin.rdma and any(one.rdma for one in port.twins):
            yield Finding(
                id="RDMA_DEVICE_MISSING",
                severity="error",
                message=f"{name} has no RDMA device, so NCCL cannot use it",
                evidence="its twin has one in /sys/class/infiniband",
                remedy="load mlx5_ib (`modprobe mlx5_ib`), or reboot the box",
            )
        # A rate counts for a port that is active: one without a cable shows a rate, too.
        if twin.up and twin.rate_gbps is not None and twin.rate_gbps < FULL_RATE_GBPS:
            yield Finding(
                id="LINK_RATE_LOW",
                severity="warning",
                message=f"{name} runs at {twin.rate_gbps:g} Gb/s, not at {FULL_RATE_GBPS:g}",
                evidence=_state(twin),
                remedy="set the switch port to 200G without auto-negotiation, or replace the cable",
            )
        if twin.up and twin.pcie.reduced:
            yield Finding(
                id="PCIE_LINK_REDUCED",
                severity="warning",
                message=f"the PCIe link of {name} is narrower or slower than it can be",
                evidence=f"{twin.pcie}",
                remedy="update the firmware of the box, then switch it off and on",
            )


def _mtu(port: Port) -> c.Iterator[Finding]:
    mtus = {twin.interface: twin.mtu for twin in port.twins if twin.mtu is not None}
    shown = ", ".join(f"{name} {mtu}" for name, mtu in mtus.items())
    if len(set(mtus.values())) > 1:
        yield Finding(
            id="TWIN_MTU_MISMATCH",
            severity="warning",
            message=f"the twins of port {port.name} have different MTUs, which costs a quarter of the bandwidth",
            evidence=f"{shown} (17.85 instead of 23.85 GB/s was measured on 2026-08-06)",
            remedy=f"set both to {max(mtus.values(), default=_JUMBO)}",
        )
    elif mtus and min(mtus.values()) < _JUMBO:
        yield Finding(
            id="TWIN_MTU_SMALL",
            severity="info",
            message=f"the twins of port {port.name} do not use jumbo frames",
            evidence=shown,
            remedy=f"set both to {_JUMBO} on all boxes of the fabric",
        )


def _addresses(fabric: Fabric, port: Port) -> c.Iterator[Finding]:
    with_address = [twin for twin in port.twins if twin.ipv4]
    if with_address and len(with_address) < len(port.twins):
        without = [twin for twin in port.twins if not twin.ipv4]
        for twin in without:
            yield Finding(
                id="TWIN_WITHOUT_IPV4",
                severity="error",
                message=f"{twin.interface or twin.rdma} of port {port.name} has no IPv4 address, but its twin has",
                evidence=f"{with_address[0].interface} has {with_address[0].ipv4[0]}",
                remedy="give each twin an address in a subnet of its own",
            )
    for twin in port.twins:
        yield from _gid_table(twin, needed=bool(with_address))
        for address in twin.ipv4:
            if address.zeroconf:
                yield Finding(
                    id="TWIN_ZEROCONF_ADDRESS",
                    severity="warning",
                    message=(
                        f"{twin.interface} has an address that a daemon chose by itself, and it moves the GID table"
                    ),
                    evidence=f"{twin.interface} {address}",
                    remedy=(
                        "configure the interface (link-local: [] in netplan), so that NetworkManager leaves it alone"
                    ),
                )
    yield from _shared_subnet(port)
    yield from _overlap(fabric, port)


def _gid_table(twin: Twin, *, needed: bool) -> c.Iterator[Finding]:
    if twin.gids and all(gid.link_local for gid in twin.gids):
        yield Finding(
            id="GID_TABLE_LINK_LOCAL_ONLY",
            severity="error" if needed else "info",
            message=(
                f"{twin.rdma or twin.interface} has fe80:: addresses in its GID table and no IPv4: connections "
                "over it fail"
            ),
            evidence=f"{len(twin.gids)} entries, {twin.gids[0].gid} first",
            remedy=f"give {twin.interface or 'its interface'} an IPv4 address",
        )


def _shared_subnet(port: Port) -> c.Iterator[Finding]:
    seen: dict[t.Any, Twin] = {}
    for twin in port.twins:
        for address in twin.ipv4:
            other = seen.setdefault(address.network, twin)
            if other is not twin and not address.zeroconf:
                yield Finding(
                    id="TWINS_SHARE_SUBNET",
                    severity="warning",
                    message=(
                        f"{other.interface} and {twin.interface} are both in {address.network}: the kernel "
                        "may answer and "
                        "send for one over the other"
                    ),
                    evidence=f"{other.interface} {', '.join(map(str, other.ipv4))}; {twin.interface} {address}",
                    remedy="use one subnet for each twin",
                )


def _overlap(fabric: Fabric, port: Port) -> c.Iterator[Finding]:
    for twin in port.twins:
        for address in twin.ipv4:
            for other in fabric.others:
                for one in other.addresses:
                    if one.ipv4 and not address.zeroconf and one.network.overlaps(address.network):
                        yield Finding(
                            id="FABRIC_OVERLAPS_MANAGEMENT",
                            severity="error",
                            message=f"{twin.interface} and {other.interface} are in subnets that overlap",
                            evidence=f"{twin.interface} {address}; {other.interface} {one}",
                            remedy="choose other subnets for the fabric",
                        )


def _files(port: Port) -> c.Iterator[Finding]:
    by_file: dict[str, list[str]] = {}
    for twin in port.twins:
        for path in twin.netplan_files:
            by_file.setdefault(path, []).append(twin.interface)
    for path, names in by_file.items():
        missing = [twin.interface for twin in port.twins if twin.interface not in names]
        if missing and not any(twin.netplan_files for twin in port.twins if twin.interface in missing):
            yield Finding(
                id="TWIN_NOT_CONFIGURED",
                severity="warning",
                message=f"{path} configures {', '.join(names)}, but not its twin {', '.join(missing)}",
                evidence=path,
                remedy="configure both twins alike",
            )


def _state(twin: Twin) -> str:
    said = []
    if twin.rdma_state:
        said.append(f"{twin.rdma} is {twin.rdma_state}{f' at {twin.rate_gbps:g} Gb/s' if twin.rate_gbps else ''}")
    if twin.operstate:
        carrier = {True: " with a carrier", False: " without a carrier", None: ""}[twin.carrier]
        said.append(f"{twin.interface} is {twin.operstate}{carrier}")
    return ", ".join(said) or "nothing is known"

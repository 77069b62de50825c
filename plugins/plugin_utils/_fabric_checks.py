# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What speaks against a planned fabric once the boxes were looked at. Errors refuse the plan.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import ipaddress
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _fabric_findings
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import _claims
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_input import Member, Wanted
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_planned import Observed, PlannedBox, PlannedTwin


def box_findings(box: PlannedBox, wanted: Wanted, seen: Observed, today: str) -> list[Finding]:
    """Return what speaks against the plan of one box."""
    found = [*_overlaps(box, wanted, seen), *_rdma(box, seen)]
    for twin in box.twins:
        found += [*_management(box, twin), *_kind(box, twin), *_elsewhere(box, twin), *_firmware(twin, today)]
    return found


# The subnet that a twin is in, and what it would be called there.
End = tuple[ipaddress.IPv4Network, ipaddress.IPv4Interface]


def address_findings(wanted: Wanted, ends: c.Mapping[str, c.Sequence[End]]) -> list[Finding]:
    """Return what is wrong with the addresses of the boxes, which nobody has to look at."""
    found: list[Finding] = []
    taken: dict[ipaddress.IPv4Address, str] = {}
    full: set[ipaddress.IPv4Network] = set()
    for member in wanted.members:
        for home, one in ends[member.box]:
            if one.ip not in home or one.ip in {home.network_address, home.broadcast_address}:
                # Who comes after has no room, either.
                found += [] if home in full else [_no_room(member, wanted, home, one)]
                full.add(home)
            elif (other := taken.setdefault(one.ip, member.box)) != member.box:
                found.append(_taken(member.box, other, one))
        used = {one.ip for _home, one in ends[member.box]}
        given = [ipaddress.IPv4Address(one) for one in member.addresses or ()]
        found += (_unused(member.box, one) for one in given if one not in used)
    return found


def _no_room(member: Member, wanted: Wanted, home: ipaddress.IPv4Network, end: ipaddress.IPv4Interface) -> Finding:
    return Finding(
        id="FABRIC_SUBNET_TOO_SMALL",
        severity="error",
        message=f"{home} has no host number for {member.box}: {end.ip} is outside of it",
        evidence=f"first_host {wanted.first_host}, member {member.rank + 1}",
        remedy="lower first_host, or use a larger subnet",
    )


def _taken(box: str, other: str, end: ipaddress.IPv4Interface) -> Finding:
    return Finding(
        id="FABRIC_ADDRESS_TAKEN",
        severity="error",
        message=f"{end.ip} would be the address of {other} and of {box}",
        evidence=f"{end} on both",
        remedy="name another one in addresses, or change first_host",
    )


def _unused(box: str, address: ipaddress.IPv4Address) -> Finding:
    return Finding(
        id="FABRIC_ADDRESS_UNUSED",
        severity="error",
        message=f"{address} is in a subnet that no twin of {box} is in, so nothing would have it",
        evidence=f"addresses of {box}",
        remedy="choose one in the subnets of its own cables, the first one's first",
    )


def _rdma(box: PlannedBox, seen: Observed) -> c.Iterator[Finding]:
    if any(twin.rdma for twin in box.twins) and not seen.get("infiniband_devices"):
        yield Finding(
            id="INFINIBAND_DEVICES_MISSING",
            severity="error",
            message=(
                f"{box.member.box} has no /dev/infiniband, so no container can use RDMA, and NCCL would quietly use TCP"
            ),
            evidence="RDMA devices in sysfs, none in /dev",
            remedy="load ib_uverbs (`modprobe ib_uverbs`), and have it loaded at every boot",
        )


def _overlaps(box: PlannedBox, wanted: Wanted, seen: Observed) -> c.Iterator[Finding]:
    """Yield the addresses of a box, and of who manages it, that a subnet of the fabric would take away."""
    planned = {twin.interface for twin in box.twins}
    spare = [twin for port in seen.get("ports", ()) for twin in port["twins"] if twin["interface"] not in planned]
    others = [other for other in seen.get("others", ()) if other["interface"] not in planned]
    for other in (*others, *(spare if planned else ())):
        for address in other["addresses"]:
            if ":" in address["address"]:
                continue
            network = ipaddress.ip_network(f"{address['address']}/{address['prefix']}", strict=False)
            for subnet in wanted.subnets:
                if subnet.overlaps(t.cast("ipaddress.IPv4Network", network)):
                    yield _overlap(box, subnet, f"{other['interface']} has {address['address']}/{address['prefix']}")
    client = str(seen.get("management", {}).get("client", ""))
    for subnet in wanted.subnets:
        if client and ":" not in client and ipaddress.IPv4Address(client) in subnet:
            yield _overlap(box, subnet, f"{client} is where Ansible connects from")


def _overlap(box: PlannedBox, subnet: ipaddress.IPv4Network, evidence: str) -> Finding:
    return Finding(
        id="FABRIC_OVERLAPS_MANAGEMENT",
        severity="error",
        message=f"{subnet} overlaps with another network of {box.member.box}, which would be cut off: {evidence}",
        evidence=evidence,
        remedy="choose other subnets in fabric.subnets",
    )


def _management(box: PlannedBox, twin: PlannedTwin) -> c.Iterator[Finding]:
    if twin.interface in box.management.get("interfaces", ()):
        session = box.management.get("session", ())
        only_route = bool(session) and twin.interface not in session
        what = f"the default route of {box.member.box} is" if only_route else f"{box.member.box} is managed"
        yield Finding(
            id="FABRIC_TOUCHES_MANAGEMENT",
            severity="error",
            message=f"{what} over {twin.interface}, and setting it up for the fabric would cut that",
            evidence=f"{twin.interface} carries this connection or the default route",
            remedy=(
                "give the default route to another interface (`ip route` shows it)"
                if only_route
                else "manage the box over another interface, and name its address in ansible_host"
            ),
        )


def _kind(box: PlannedBox, twin: PlannedTwin) -> c.Iterator[Finding]:
    if twin.observed.get("master"):
        yield Finding(
            id="TWIN_BONDED",
            severity="error",
            message=f"{twin.interface} of {box.member.box} is part of {twin.observed['master']}",
            evidence=f"{twin.interface} has the master {twin.observed['master']}",
            remedy="take it out of the bond or bridge: NCCL fails on bonded twins or uses half of them",
        )
    if twin.observed.get("virtual"):
        yield Finding(
            id="TWIN_IS_VIRTUAL_FUNCTION",
            severity="error",
            message=f"{twin.interface} of {box.member.box} is a virtual function",
            evidence=f"{twin.interface} has a physfn",
            remedy="use the physical function",
        )


def _elsewhere(box: PlannedBox, twin: PlannedTwin) -> c.Iterator[Finding]:
    for path in twin.observed.get("netplan_files", ()):
        yield Finding(
            id="NETPLAN_ELSEWHERE",
            severity="error",
            message=(
                f"{path} of {box.member.box} defines {twin.interface}, and netplan would lay both definitions together"
            ),
            evidence=path,
            remedy=f"take {twin.interface} out of that file, or remove the file",
        )


def _firmware(twin: PlannedTwin, today: str) -> list[Finding]:
    firmware = twin.observed.get("firmware")
    if not firmware:
        return []
    mine = [claim for claim in _claims.load() if claim.scope == "fabric"]
    day = today or min((claim.verified for claim in mine), default="2026-01-01")
    return _claims.claims_for({"nic_firmware": firmware}, day, mine)


# --- findings about the whole ----------------------------------------------------------------------------------------


def cables_differ(counts: c.Mapping[str, int]) -> Finding:
    """Return the finding about boxes that do not have the same number of cables."""
    shown = ", ".join(f"{box} {count}" for box, count in counts.items())
    return Finding(
        id="FABRIC_CABLES_DIFFER",
        severity="error",
        message=f"the boxes have different numbers of cables: {shown}",
        evidence=shown,
        remedy="say in members which cages belong to this fabric: {box: spark-2, cages: [1]}",
    )


def cable_pending(box: str) -> Finding:
    """Return the finding about a box that has no cable yet."""
    return Finding(
        id="CABLE_PENDING",
        severity="info",
        message=f"{box} has no port with a link yet, so its fabric is not set up",
        evidence="no port with a link; a port without a cable may be off the PCI bus",
        remedy="plug the cable in, reboot both boxes with it in place, and run again",
    )


def switched_off(box: str, names: c.Sequence[str]) -> Finding:
    """Return the finding about a box of which nobody can tell whether it has a cable."""
    found = _fabric_findings.switched_off(names, f"{names[0]} has no IFF_UP in its flags")
    return dataclasses.replace(found, message=f"{box}: {found.message}")


# What fabric_info says of a chip of which something is there, and does not work.
_BROKEN: t.Final = ("CX7_WITHOUT_INTERFACE", "TWINS_NOT_PAIRED")


def broken(box: str, seen: Observed) -> list[Finding]:
    """Return what a look at a box has found broken, and that would else pass for a cable that is not there."""
    found = [Finding(**one) for one in seen.get("findings", ()) if one["id"] in _BROKEN and one["severity"] == "error"]
    return [dataclasses.replace(one, message=f"{box}: {one.message}") for one in found]


def cage_not_there(box: str, missing: c.Sequence[int], there: c.Sequence[t.Any]) -> Finding:
    """Return the finding about a cage that the inventory names and behind which the box shows nothing."""
    cages = ", ".join(map(str, missing))
    return Finding(
        id="FABRIC_CAGE_NOT_THERE",
        severity="warning",
        message=f"{box} has no twins behind cage {cages}: a port without a cable may be off the PCI bus",
        evidence=f"it has twins behind cage {', '.join(map(str, there)) or 'none'}",
        remedy="plug the cable in and reboot the box; if it is plugged in, correct cages in members",
    )


def interface_missing(box: str, names: c.Sequence[str]) -> Finding:
    """Return the finding about interfaces that the inventory names and the box does not have."""
    return Finding(
        id="FABRIC_INTERFACE_MISSING",
        severity="warning",
        message=(
            f"{box} has no interface {', '.join(names)}: a port without a cable may be off the PCI bus, or it has "
            "another name"
        ),
        evidence=f"no {names[0]} in /sys/class/net",
        remedy="plug the cable in and reboot the box; if it is plugged in, leave interfaces out of members",
    )


def not_a_twin(box: str, name: str) -> Finding:
    """Return the finding about an interface that is no twin."""
    return Finding(
        id="FABRIC_NOT_A_TWIN",
        severity="warning",
        message=f"{name} of {box} belongs to no ConnectX-7; it is used because the inventory names it, without RDMA",
        evidence=f"{name} has no PCI function of vendor 0x15b3",
        remedy="leave interfaces out of members, so that the twins are found out",
    )


def not_of_one_port(box: str, one: str, two: str) -> Finding:
    """Return the finding about two interfaces that are twins of others."""
    return Finding(
        id="FABRIC_NOT_OF_ONE_PORT",
        severity="error",
        message=f"{one} and {two} of {box} are not twins of each other",
        evidence="they are behind different cages",
        remedy="leave interfaces out of members, so that they are found out",
    )


def too_few_subnets(given: int, needed: int) -> Finding:
    """Return the finding about subnets that do not go round."""
    return Finding(
        id="FABRIC_SUBNETS_TOO_FEW",
        severity="error",
        message=f"fabric.subnets has {given} networks, and the fabric needs {needed}: one for each twin of each cable",
        evidence=f"{given} of {needed}",
        remedy="add the others, or leave fabric.subnets out",
    )


def shared_subnet() -> Finding:
    """Return the finding about twins that share a subnet because the inventory says so."""
    return Finding(
        id="TWINS_SHARE_SUBNET",
        severity="warning",
        message="both twins of a cable are in one subnet, as the inventory has it: traffic may go over the wrong one",
        evidence="fabric.shared_subnet",
        remedy="leave shared_subnet out, so that each twin has a subnet of its own",
    )


def ring(boxes: int) -> Finding:
    """Return the finding about rings, which need more than an image usually brings."""
    gap = "" if boxes == 3 else ", and boxes that are not neighbours have no cable between them"
    return Finding(
        id="RING_NEEDS_SUBNET_AWARE_NCCL",
        severity="warning",
        message=(
            f"in a ring each pair of boxes has subnets of its own{gap}: a stock NCCL tries paths that are not there"
        ),
        evidence=(
            "errno 110 from ibv_modify_qp in eugr/spark-vllm-docker#252 (2026-05-18); 7 to 8.5 GB/s where it works"
        ),
        remedy="use an image whose NCCL routes by subnet; a test on the host does not prove the one in the image",
    )

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans the fabric between boxes: an address for every twin, netplan for every box, the environment of every rank.

Pure: the same inventory and the same observations give the same plan, and no box is asked.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, worst
from ansible_collections.gb10.fleet.plugins.plugin_utils import _fabric_checks as checks
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_environment import (
    container_of,
    docker_arguments,
    environment_of,
)
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_input import (
    Member,
    Wanted,
    address_of,
    read,
    subnet_index,
    subnets_needed,
)
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_layout import layout_findings
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_planned import Observed, PlannedBox, PlannedTwin

_PLANNED: t.Final = "planned"
_PENDING: t.Final = "pending"
_REFUSED: t.Final = "refused"
_UNOBSERVED: t.Final = "unobserved"


def plan_fabric(
    fabric: object,
    observed: c.Mapping[str, Observed] | None = None,
    ansible_hosts: c.Mapping[str, t.Any] | None = None,
    layout: c.Mapping[str, t.Any] | None = None,
    today: str = "",
) -> dict[str, t.Any]:
    """Return the plan of a fabric as plain data; FabricInputError says what is wrong with the inventory."""
    observed = observed or {}
    wanted = read(fabric, ansible_hosts)
    cables, found = _cables(wanted, observed)
    needed = subnets_needed(wanted, cables)
    wanted = dataclasses.replace(wanted, subnets=wanted.subnets[:needed])
    boxes, more = _boxes(wanted, observed, cables)
    found += more
    if len(wanted.subnets) < needed:
        found.append(checks.too_few_subnets(len(wanted.subnets), needed))
        boxes = [dataclasses.replace(box, state=_REFUSED, twins=()) for box in boxes]
    elif not found:
        ends = {box.member.box: _ends(box, wanted, cables) for box in boxes}
        found += checks.address_findings(wanted, ends)
    for box in boxes:
        found += checks.box_findings(box, wanted, observed.get(box.member.box, {}), today)
    if wanted.shared_subnet:
        found.append(checks.shared_subnet())
    if wanted.topology == "ring":
        found.append(checks.ring(len(boxes)))
    found += layout_findings(layout or {}, len(wanted.members))
    ranks, more = _ranks(wanted, boxes, ansible_hosts or {})
    found += more
    head = ranks[0]
    return {
        "verdict": _verdict(boxes, found),
        "topology": wanted.topology,
        "mtu": wanted.mtu,
        "subnets": [str(subnet) for subnet in wanted.subnets],
        "head": {key: head[key] for key in ("box", "address", "interface")},
        "ranks": ranks,
        "boxes": {box.member.box: _box(box, boxes, wanted) for box in boxes},
        "findings": [finding.as_dict() for finding in found],
    }


def _verdict(boxes: c.Sequence[PlannedBox], found: c.Sequence[Finding]) -> str:
    states = {box.state for box in boxes}
    if worst(found) == "error":
        return _REFUSED
    return next((state for state in (_PENDING, _UNOBSERVED) if state in states), _PLANNED)


# --- which interfaces ------------------------------------------------------------------------------------------------


def _cables(wanted: Wanted, observed: c.Mapping[str, Observed]) -> tuple[int, list[Finding]]:
    """Return how many cables each box has: what the inventory says, else how many ports have a link."""
    if wanted.topology == "ring":
        return 2, []
    counts: dict[str, int] = {}
    for member in wanted.members:
        if member.cages is not None:
            counts[member.box] = len(member.cages)
        elif member.interfaces is not None:
            counts[member.box] = len(member.interfaces) // 2
        elif member.addresses is not None:
            counts[member.box] = len(member.addresses) // 2
        elif links := sum(1 for port in observed.get(member.box, {}).get("ports", ()) if port["cabled"]):
            counts[member.box] = links
    if len(set(counts.values())) > 1:
        return min(counts.values()), [checks.cables_differ(counts)]
    return next(iter(counts.values()), 1), []


def _boxes(wanted: Wanted, observed: c.Mapping[str, Observed], cables: int) -> tuple[list[PlannedBox], list[Finding]]:
    boxes, found = [], []
    for member in wanted.members:
        seen = observed.get(member.box)
        chosen, state, wrong = _chosen(member, wanted, seen, cables)
        found += wrong
        twins = [
            _planned(member, wanted, cage=cage, link=link, side=side, twin=twin)
            for cage, link, side, twin in chosen
            if subnet_index(wanted, link, side) < len(wanted.subnets)
        ]
        boxes.append(
            PlannedBox(
                member=member,
                state=state,
                twins=tuple(twins),
                management=(seen or {}).get("management", {}),
                others=tuple((seen or {}).get("others", ())),
                infiniband=bool((seen or {}).get("infiniband_devices")),
            )
        )
    return boxes, found


Chosen = list[tuple[int | None, int, int, Observed]]


def _chosen(member: Member, wanted: Wanted, seen: Observed | None, cables: int) -> tuple[Chosen, str, list[Finding]]:
    """Return the twins of a box with cage, link and side; and how far that is known."""
    links = _links(member, wanted, cables)
    if member.interfaces is not None:
        return _named(member, seen, links)
    if seen is None:
        return [], _UNOBSERVED, []
    ports = {port["cage"]: port for port in seen.get("ports", ())}
    if not ports and not seen.get("single"):
        return _without_cable(seen, member, checks.cable_pending(member.box))
    cages = member.cages if member.cages is not None else (0, 1) if wanted.topology == "ring" else None
    if cages is None:
        cages = tuple(cage for cage, port in ports.items() if port["cabled"])[:cables]
        if not cages:
            off = [twin["interface"] for port in ports.values() if port.get("off") for twin in port["twins"]]
            return _without_cable(
                seen, member, checks.switched_off(member.box, off) if off else checks.cable_pending(member.box)
            )
    missing = [cage for cage in cages if cage not in ports]
    if missing:
        return _without_cable(seen, member, checks.cage_not_there(member.box, missing, sorted(ports)))
    chosen: Chosen = [
        (cage, link, side, twin)
        for cage, link in zip(cages, links, strict=False)
        for side, twin in enumerate(ports[cage]["twins"])
    ]
    return chosen, _PLANNED, []


def _without_cable(seen: Observed, member: Member, pending: Finding) -> tuple[Chosen, str, list[Finding]]:
    """Return that a box waits for its cable; but where a part of its chip is broken, no cable would bring that back."""
    broken = checks.broken(member.box, seen)
    return ([], _REFUSED, broken) if broken else ([], _PENDING, [pending])


def _named(member: Member, seen: Observed | None, links: list[int]) -> tuple[Chosen, str, list[Finding]]:
    """Return the interfaces that the inventory names, checked against what the box has."""
    names = member.interfaces or ()
    if seen is None:
        bare = [(None, links[at // 2], at % 2, {"interface": name}) for at, name in enumerate(names)]
        return t.cast("Chosen", bare), _PLANNED, []
    known: dict[str, tuple[int | None, Observed]] = {
        twin["interface"]: (port["cage"], twin) for port in seen.get("ports", ()) for twin in port["twins"]
    }
    known.update({twin["interface"]: (None, twin) for twin in (*seen.get("single", ()), *seen.get("virtual", ()))})
    others = {other["interface"]: other for other in seen.get("others", ())}
    if missing := [name for name in names if name not in known and name not in others]:
        return _without_cable(seen, member, checks.interface_missing(member.box, missing))
    found = [checks.not_a_twin(member.box, name) for name in names if name not in known]
    chosen = [
        (cage, links[at // 2], at % 2, interface)
        for at, (cage, interface) in enumerate(known.get(name) or (None, others.get(name, {})) for name in names)
    ]
    for one, two in zip(chosen[::2], chosen[1::2], strict=True):
        if one[0] != two[0]:
            found.append(checks.not_of_one_port(member.box, one[3]["interface"], two[3]["interface"]))
    return t.cast("Chosen", chosen), _PLANNED, found


def _ends(box: PlannedBox, wanted: Wanted, cables: int) -> list[checks.End]:
    """Return the addresses of a box; of one that nobody has looked at those of the cables that it has at least."""
    sides = [(twin.link, twin.side) for twin in box.twins] or [
        (link, side) for link in _links(box.member, wanted, cables) for side in (0, 1)
    ]
    return [
        (wanted.subnets[subnet_index(wanted, link, side)], address_of(box.member, wanted, link, side))
        for link, side in sides
    ]


def _links(member: Member, wanted: Wanted, cables: int) -> list[int]:
    """Return the numbers of the cables of a box; in a ring the one to the next box, then the one to the box before."""
    if wanted.topology == "ring":
        return [member.rank, (member.rank - 1) % len(wanted.members)]
    return list(range(cables))


# --- addresses -------------------------------------------------------------------------------------------------------


def _planned(member: Member, wanted: Wanted, *, cage: int | None, link: int, side: int, twin: Observed) -> PlannedTwin:
    return PlannedTwin(
        interface=str(twin["interface"]),
        rdma=str(twin.get("rdma", "")),
        cage=cage,
        link=link,
        side=side,
        address=address_of(member, wanted, link, side),
        observed=twin,
    )


# --- what leaves -----------------------------------------------------------------------------------------------------


def _box(box: PlannedBox, boxes: c.Sequence[PlannedBox], wanted: Wanted) -> dict[str, t.Any]:
    return {
        "state": box.state,
        "twins": [twin.as_dict() for twin in box.twins],
        "netplan": netplan_of(box, wanted.mtu),
        "pings": _pings(box, boxes),
    }


def netplan_of(box: PlannedBox, mtu: int) -> dict[str, t.Any]:
    """Return the netplan document of a box: its twins and nothing else.

    No link-local addresses: they lengthen the GID tables, and move the IPv4 entries in them. Not waited for at boot: a
    port
    may come late, or its cable not at all.
    """
    ethernets = {
        twin.interface: {
            "dhcp4": False,
            "dhcp6": False,
            "accept-ra": False,
            "link-local": [],
            "optional": True,
            "mtu": mtu,
            "addresses": [str(twin.address)],
        }
        for twin in box.twins
    }
    return {"network": {"version": 2, "ethernets": ethernets}} if ethernets else {}


def _pings(box: PlannedBox, boxes: c.Sequence[PlannedBox]) -> list[dict[str, str]]:
    """Return which address has to answer over which interface: the same twin of the same cable on every other box."""
    return [
        {
            "interface": twin.interface,
            "source": str(twin.address.ip),
            "target": str(other.address.ip),
            "peer": peer.member.box,
            "peer_interface": other.interface,
            "mac": str(other.observed.get("mac", "")),
        }
        for twin in box.twins
        for peer in boxes
        for other in peer.twins
        if peer is not box and (other.link, other.side) == (twin.link, twin.side)
    ]


def _management(box: PlannedBox, ansible_host: str) -> tuple[str, str]:
    """Return the interface over which a box is managed, and its address there; ansible_host may be a name."""
    names = box.management.get("interfaces", ())
    for other in box.others:
        for address in other["addresses"]:
            if other["interface"] in names and ":" not in address["address"]:
                return str(other["interface"]), str(address["address"])
    return next(iter(names), ""), ansible_host


def _ranks(
    wanted: Wanted, boxes: c.Sequence[PlannedBox], ansible_hosts: c.Mapping[str, t.Any]
) -> tuple[list[dict[str, t.Any]], list[Finding]]:
    ranks, found = [], []
    twins = [twin for box in boxes for twin in box.twins]
    rdma = bool(twins) and all(twin.rdma for twin in twins) and all(box.infiniband for box in boxes if box.twins)
    for box in boxes:
        if wanted.topology == "ring":
            # No interface of the ring reaches every box; ranks find each other over the management network.
            interface, address = _management(box, str(ansible_hosts.get(box.member.box) or ""))
        else:
            # The address is known before anybody has looked at the box; its interface is not.
            interface = next((twin.interface for twin in box.twins), "")
            address = str(address_of(box.member, wanted, 0, 0).ip)
        # Of a box that nobody has looked at it is not known whether it has RDMA at all.
        usable = rdma and bool(box.twins)
        environment, wrong = environment_of(box, wanted, interface, address, rdma=usable)
        found += wrong
        container = container_of(rdma=usable)
        ranks.append(
            {
                "rank": box.member.rank,
                "box": box.member.box,
                "address": address,
                "interface": interface,
                "environment": environment,
                "container": container,
                "docker_arguments": docker_arguments(environment, container),
            }
        )
    return ranks, found

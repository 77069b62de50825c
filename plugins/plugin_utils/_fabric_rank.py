# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a rank of a serving group gets from the fabric of its box, and where the inventory speaks against it.

A fabric is planned as far as it is known: its addresses follow from the inventory, names of interfaces and devices only
from a look at the boxes. What is not known is left out, never guessed.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import ipaddress
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import _fabric_input
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_plan import plan_fabric
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_planned import Observed

_INTERFACE_VARIABLES: t.Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
# What a fabric may have at most with two cages, and so where the address of a box nobody has looked at may be.
_MOST_CABLES: t.Final = 2
_RDMA_DEVICES: t.Final = "/dev/infiniband"

Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the fabric gives to the rank of one box. ``address`` is empty where it is not known yet.

    ``addresses`` are all that the box may have in the fabric, ``subnets`` those of the fabric, ``devices`` the RDMA
    devices of its cabled ports (none where nobody has looked), ``interfaces`` all interfaces that the box has.
    """

    box: str
    state: str
    ring: bool
    address: str
    environment: c.Mapping[str, str]
    container: c.Mapping[str, t.Any]
    addresses: frozenset[str] = frozenset()
    subnets: tuple[ipaddress.IPv4Network, ...] = ()
    devices: tuple[str, ...] = ()
    interfaces: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """The plan of one fabric: what each of its boxes gets, and what refuses it."""

    shares: c.Mapping[str, Share]
    errors: tuple[Finding, ...]


def shares_of(
    fabric: object, observed: c.Mapping[str, Observed], ansible_hosts: c.Mapping[str, t.Any], today: str = ""
) -> Planned:
    """Return what every box of a fabric gets; FabricInputError says what is wrong with the inventory."""
    plan = plan_fabric(fabric, observed, ansible_hosts, today=today)
    wanted = _fabric_input.read(fabric, ansible_hosts)
    shares = {}
    for rank, member in zip(plan["ranks"], wanted.members, strict=True):
        seen = observed.get(member.box, {})
        box = plan["boxes"][member.box]
        planned = frozenset(twin["address"].partition("/")[0] for twin in box["twins"])
        known = _fabric_input.subnets_needed(wanted, 1) if not planned else len(plan["subnets"])
        address = _known(rank["address"])
        shares[member.box] = Share(
            box=member.box,
            state=box["state"],
            ring=plan["topology"] == "ring",
            address=address,
            # Where the address is a name, nobody knows yet what the rank is reached by.
            environment={key: one for key, one in rank["environment"].items() if key != "VLLM_HOST_IP" or address},
            container=rank["container"],
            addresses=planned or frozenset(_possible(member, wanted)),
            # Whether there is a second cable, and so whether its subnets are the fabric's, only the boxes say.
            subnets=tuple(wanted.subnets[:known]),
            devices=tuple(twin["rdma"] for twin in box["twins"] if twin["rdma"]),
            interfaces=_interfaces(seen),
        )
    return Planned(shares, tuple(_findings(plan, "error")))


def addresses_of(fabric: object, ansible_hosts: c.Mapping[str, t.Any]) -> dict[str, list[str]]:
    """Return by member the addresses of its twins, in the order of the cables; FabricInputError says what is wrong.

    That is one cable where neither the inventory nor the topology says how many there are.
    """
    wanted = _fabric_input.read(fabric, ansible_hosts)
    taken = len(plan_fabric(fabric, None, ansible_hosts)["subnets"])
    wanted = dataclasses.replace(wanted, subnets=wanted.subnets[:taken])
    return {member.box: _possible(member, wanted) for member in wanted.members}


def with_devices(container: c.Mapping[str, t.Any], devices: c.Sequence[str]) -> dict[str, t.Any]:
    """Return what a container gets that is given other devices: without RDMA it need not lock memory either."""
    rdma = any(one.startswith(_RDMA_DEVICES) for one in devices)
    return {**(container if rdma else {}), "devices": list(devices)}


def _known(address: str) -> str:
    """Return an address in its usual spelling, nothing for a name."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return ""


def _possible(member: _fabric_input.Member, wanted: _fabric_input.Wanted) -> list[str]:
    """Return the addresses that a box may get, with as many cables as it can have."""
    ring = wanted.topology == "ring"
    links = [member.rank, (member.rank - 1) % len(wanted.members)] if ring else list(range(_MOST_CABLES))
    ends = [(link, side) for link in links for side in (0, 1)]
    there = [end for end in ends if (end[0] if wanted.shared_subnet else 2 * end[0] + end[1]) < len(wanted.subnets)]
    return [str(_fabric_input.address_of(member, wanted, link, side).ip) for link, side in there]


def _interfaces(seen: Observed) -> frozenset[str]:
    twins = [twin for port in seen.get("ports", ()) for twin in port["twins"]]
    every = [*twins, *seen.get("single", ()), *seen.get("virtual", ()), *seen.get("others", ())]
    return frozenset(one["interface"] for one in every)


def _findings(plan: c.Mapping[str, t.Any], severity: str) -> c.Iterator[Finding]:
    for one in plan["findings"]:
        if one["severity"] == severity:
            fields = {field.name for field in dataclasses.fields(Finding)}
            yield Finding(**{key: value for key, value in one.items() if key in fields})


# --- what the inventory says against it ------------------------------------------------------------------------------


def contradictions(
    share: Share, address: str, environment: c.Mapping[str, t.Any], devices: c.Sequence[str] | None
) -> c.Iterator[tuple[Path, Finding]]:
    """Yield what ``serving_address``, the environment and ``serving_devices`` of a box have against its fabric.

    ``address`` is empty and ``devices`` None where the inventory leaves them to the fabric; ``environment`` has only
    what the inventory itself sets.
    """
    if address:
        yield from ((("serving_address",), one) for one in _address(share, address))
    if "NCCL_IB_HCA" in environment and share.devices:
        hcas = str(environment["NCCL_IB_HCA"])
        yield from ((("serving_env", "NCCL_IB_HCA"), one) for one in _hcas(share, hcas))
    for name in _INTERFACE_VARIABLES:
        if name in environment and share.interfaces:
            yield from ((("serving_env", name), one) for one in _interface(share, name, str(environment[name])))
    network = str({**share.environment, **environment}.get("NCCL_NET", ""))
    if devices is not None and network == "IB" and not any(one.startswith(_RDMA_DEVICES) for one in devices):
        yield ("serving_devices",), _no_devices(share)


def _address(share: Share, given: str) -> c.Iterator[Finding]:
    address = ipaddress.ip_address(given)
    home = next((one for one in share.subnets if address in one), None)
    if share.ring and home is not None:
        yield Finding(
            id="SERVING_ADDRESS_NOT_OF_BOX",
            severity="error",
            message=f"{address} of {share.box} is in {home}, a subnet of one cable of a ring, to one neighbour",
            evidence=str(home),
            remedy="leave it out, so that the ranks meet over the management network",
        )
    elif str(address) in share.addresses:
        return
    elif home is not None:
        yield Finding(
            id="SERVING_ADDRESS_NOT_OF_BOX",
            severity="error",
            message=f"{address} is in {home}, a subnet of the fabric, and no address that {share.box} has there",
            evidence=f"{share.box} has {', '.join(sorted(share.addresses))}",
            remedy=f"leave it out: the fabric gives {share.address or 'the address'}",
        )
    elif not share.ring:
        yield Finding(
            id="SERVING_ADDRESS_OUTSIDE_FABRIC",
            severity="warning",
            message=(
                f"serving_address {address} of {share.box} is no address of its fabric, so what the ranks tell each "
                "other goes another way than their data, and outlives its cable"
            ),
            evidence=f"{share.box} has {', '.join(sorted(share.addresses))}",
            remedy=f"leave it out: the fabric gives {share.address or 'the address'}",
        )


def _hcas(share: Share, given: str) -> c.Iterator[Finding]:
    """Judge a list of NCCL: names or their beginnings, with "=" whole names, with "^" all but these."""
    names, exclude, exact = _list_of(given)
    matched = {
        name: [one for one in share.devices if one == name or (not exact and one.startswith(name))] for name in names
    }
    used = [one for one in share.devices if any(one in some for some in matched.values()) is not exclude]
    strangers = [name for name, some in matched.items() if not some]
    shown = ", ".join(share.devices)
    if (strangers and not exclude) or not used:
        what = f"{strangers[0]} is none of its devices with a cable" if strangers and not exclude else "it leaves none"
        yield Finding(
            id="SERVING_HCA_NOT_PLANNED",
            severity="error",
            message=f"NCCL_IB_HCA of {share.box} is {given}, and {what}: {shown}",
            evidence=f"cabled: {shown}",
            remedy="leave it out: the fabric names both twins of every cabled port",
        )
    elif len(used) < len(share.devices):
        left = ", ".join(one for one in share.devices if one not in used)
        yield Finding(
            id="SERVING_HCA_LEAVES_TWIN",
            severity="warning",
            message=f"NCCL_IB_HCA {given} of {share.box} leaves out {left}, which has a cable and carries nothing then",
            evidence=f"cabled: {shown}",
            remedy="leave it out: the fabric names both twins of every cabled port",
        )


def _interface(share: Share, variable: str, given: str) -> c.Iterator[Finding]:
    names, exclude, exact = _list_of(given) if variable.startswith("NCCL") else (given.split(","), False, True)
    if exclude:
        return
    for name in names:
        if not any(one == name or (not exact and one.startswith(name)) for one in share.interfaces):
            yield Finding(
                id="SERVING_INTERFACE_NOT_ON_BOX",
                severity="error",
                message=f"{variable} names {name}, and {share.box} has no such interface",
                evidence=f"it has {', '.join(sorted(share.interfaces))}",
                remedy=f"leave it out: the fabric gives {share.environment.get(variable) or 'the name'}",
            )


def _list_of(given: str) -> tuple[list[str], bool, bool]:
    """Return the names of a list as NCCL reads it, without ports; whether it excludes them; whether they are whole."""
    plain = given.lstrip("^=")
    signs = given[: len(given) - len(plain)]
    return [name.partition(":")[0].strip() for name in plain.split(",")], "^" in signs, "=" in signs


def _no_devices(share: Share) -> Finding:
    return Finding(
        id="SERVING_DEVICES_WITHOUT_RDMA",
        severity="error",
        message=f"the container on {share.box} gets no {_RDMA_DEVICES}, and NCCL_NET=IB lets NCCL use nothing else",
        evidence="serving_devices",
        remedy=f"add {_RDMA_DEVICES}, or leave serving_devices out; for TCP say NCCL_NET: Socket in serving_env",
    )

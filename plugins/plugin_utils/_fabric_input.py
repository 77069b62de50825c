# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ``fabric`` of an inventory: what it may say, and everything that the inventory alone gives away as wrong.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import ipaddress
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils import _schema as schema
from ansible_collections.gb10.fleet.plugins.plugin_utils._model_roles import hidden_secrets
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import Problem

Subnet = ipaddress.IPv4Network

# What NVIDIA's guide for two Sparks begins with, and where it goes on.
_FIRST_SUBNET: t.Final = ipaddress.IPv4Network("192.168.100.0/24")
_MOST_SUBNETS: t.Final = 100
_FIRST_HOST: t.Final = 11
_INTERFACE: t.Final = r"[A-Za-z][\w.-]{0,14}"
_RESOLVE: t.Final = "resolve"
_LEADING_ZERO: t.Final = "has a part with a leading zero, which some programs read as octal"
# What the plan itself sets, because it is another one on every box.
_OWN_VARIABLES: t.Final = (
    "VLLM_HOST_IP",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
)


class FabricInputError(ValueError):
    """A fabric that no plan can be made of: all that is wrong with it."""

    def __init__(self, problems: c.Sequence[Problem]) -> None:
        super().__init__("\n".join(f"{schema.dotted(one.path)}: {one.what}; {one.remedy}" for one in problems))
        self.problems = tuple(problems)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A box of the fabric, as the inventory describes it. ``rank`` is its place in the list."""

    box: str
    rank: int
    cages: tuple[int, ...] | None = None
    interfaces: tuple[str, ...] | None = None
    addresses: tuple[str, ...] | None = None
    gid_index: int | str | None = None
    environment: c.Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A fabric as the inventory describes it."""

    topology: str
    members: tuple[Member, ...]
    subnets: tuple[Subnet, ...]
    mtu: int
    shared_subnet: bool
    first_host: int
    environment: c.Mapping[str, str]


def _environment(value: dict[t.Any, t.Any]) -> c.Iterator[tuple[schema.Path, str, str]]:
    for name, content in value.items():
        path = (str(name),)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name), re.ASCII):
            yield path, f"has {name!r}, which is not the name of an environment variable", "use letters and digits"
        elif name in _OWN_VARIABLES:
            yield path, f"sets {name}, which is another one on every box and is made by the plan", "remove the line"
        elif not isinstance(content, str):
            yield path, f"gives {name} {schema.kind_of(content)}", "put the exact text in quotes"
        elif content == "":
            what = f"sets {name} to an empty string, which is not the same as leaving it unset"
            yield path, what, "remove the line"
    yield from hidden_secrets(value)


_ENVIRONMENT: t.Final = dataclasses.replace(schema.mapping('{NCCL_DEBUG: "WARN"}'), faults=_environment)


def _different_cages(value: list[t.Any]) -> str | None:
    different = len(set(map(str, value))) == len(value)
    return None if different and 1 <= len(value) <= 2 else "is not one or two different cages"


_CAGES: t.Final = dataclasses.replace(
    schema.sequence("[0]", schema.whole("0", low=0, high=1)),
    check=_different_cages,
)
_NAMES: t.Final = schema.text("enp1s0f0np0", pattern=_INTERFACE, meaning="the name of a network interface")
_MEMBER: t.Final[c.Mapping[str, schema.Kind]] = {
    "box": schema.text("spark-2"),
    "cages": _CAGES,
    "interfaces": schema.sequence("[enp1s0f0np0, enP2p1s0f0np0]", _NAMES),
    "addresses": schema.sequence("[192.168.100.12, 192.168.101.12]", schema.text("192.168.100.12")),
    "gid_index": schema.any_of(
        "resolve",
        schema.whole("3", low=0, high=255),
        schema.text("resolve", pattern=_RESOLVE, meaning="a number or the word resolve"),
    ),
    "environment": _ENVIRONMENT,
}
_FABRIC: t.Final[c.Mapping[str, schema.Kind]] = {
    "topology": schema.text("pair", pattern="pair|switch|ring", meaning="one of pair, switch, ring"),
    "members": schema.sequence("[spark-1, spark-2]"),
    "subnets": schema.sequence("[192.168.100.0/24, 192.168.101.0/24]", schema.text("192.168.100.0/24")),
    "mtu": schema.whole("9000", low=1280, high=9978),
    "shared_subnet": schema.Kind(name="true or false", types=(bool,), example="false"),
    "first_host": schema.whole("11", low=1, high=65534),
    "environment": _ENVIRONMENT,
}


def read(fabric: object, ansible_hosts: c.Mapping[str, t.Any] | None = None) -> Wanted:
    """Return the fabric that an inventory describes, or raise FabricInputError with all that is wrong with it."""
    found = list(
        schema.problems(fabric, schema.mapping("{members: [spark-1, spark-2]}", _FABRIC, ["members"]), ("fabric",))
    )
    if found or not isinstance(fabric, dict):
        raise FabricInputError(found)
    members, found = _members(fabric["members"])
    topology = str(fabric.get("topology", "pair"))
    found += _topology(fabric, members, topology)
    subnets, wrong = _subnets(fabric)
    found += wrong
    wanted = Wanted(
        topology=topology,
        members=tuple(members),
        subnets=tuple(subnets),
        mtu=fabric.get("mtu", 9000),
        shared_subnet=fabric.get("shared_subnet", False),
        first_host=fabric.get("first_host", _FIRST_HOST),
        environment=fabric.get("environment", {}),
    )
    if not found:
        found += _addresses(wanted, fabric)
    if not found:
        found += _connections(wanted, fabric, ansible_hosts or {})
    if found:
        raise FabricInputError(found)
    return wanted


def strangers(
    wanted: Wanted, fabric: c.Mapping[str, t.Any], every: c.Collection[str], boxes: c.Collection[str]
) -> c.Iterator[Problem]:
    """Yield the members that no playbook would ever look at.

    ``every`` are the hosts of the inventory, ``boxes`` those that the playbooks run on.
    """
    for member in wanted.members:
        path: schema.Path = ("fabric", "members", member.rank)
        entry = fabric["members"][member.rank]
        if member.box not in every:
            what = f"{member.box} is no host of the group sparks, nor of the inventory at all"
            yield Problem(path, what, schema.nearest(member.box, boxes), entry)
        elif member.box not in boxes:
            what = f"{member.box} is no host of the group sparks, whose boxes the playbooks set up"
            yield Problem(path, what, "add it there, or take it out of members", entry)


def ipv4(text: object) -> ipaddress.IPv4Address | str:
    """Return the address that a text spells, or in words why it spells none."""
    plain = str(text)
    if re.fullmatch(r"\d+\.\d+\.\d+\.\d+", plain) and re.search(r"(?:^|\.)0\d", plain):
        return _LEADING_ZERO
    try:
        return ipaddress.IPv4Address(plain)
    except ValueError:
        return "is not an IPv4 address"


def _members(given: list[t.Any]) -> tuple[list[Member], list[Problem]]:
    found: list[Problem] = []
    members: list[Member] = []
    for rank, entry in enumerate(given):
        path: schema.Path = ("fabric", "members", rank)
        long_form = {"box": entry} if isinstance(entry, str) else entry
        wrong = list(schema.problems(long_form, schema.mapping("{box: spark-2}", _MEMBER, ["box"]), path))
        if not wrong:
            if long_form["box"] in {member.box for member in members}:
                wrong.append(Problem(path, f"{long_form['box']} is a member already", "name every box once", entry))
            fields: dict[str, t.Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in long_form.items()
            }
            members.append(Member(**fields, rank=rank))
        found += wrong
    return members, found


def _topology(fabric: dict[str, t.Any], members: list[Member], topology: str) -> c.Iterator[Problem]:
    count, value = len(fabric["members"]), fabric.get("topology", fabric["members"])
    if topology == "pair" and count != 2:
        remedy = "name two members, or say topology: switch or topology: ring"
        yield Problem(("fabric", "topology"), f"a pair has two members, and there are {count}", remedy, value)
    elif topology == "ring" and count < 3:
        what = f"a ring has three members or more, and there are {count}"
        yield Problem(("fabric", "topology"), what, "say topology: pair for two boxes", value)
    elif topology == "switch" and count < 2:
        what = "a fabric has two members or more"
        yield Problem(("fabric", "members"), what, "name the other boxes behind the switch", value)
    for member in members:
        path: schema.Path = ("fabric", "members", member.rank)
        entry = fabric["members"][member.rank]
        if topology == "ring" and member.cages is not None and len(member.cages) != 2:
            what = "in a ring both cages of a box carry a cable"
            yield Problem((*path, "cages"), what, "name the one to the next box first: [0, 1]", entry)
        links = 2 if topology == "ring" else len(member.cages) if member.cages is not None else None
        if member.interfaces is not None:
            found = len(member.interfaces)
            if found not in ({2, 4} if links is None else {2 * links}) or len(set(member.interfaces)) != found:
                what = "these are not two different interfaces for each cable"
                yield Problem((*path, "interfaces"), what, "name both twins of every cabled port", entry)
        for name in member.interfaces or ():
            if name.startswith("bond"):
                what = f"{name} is a bond, and NCCL fails on bonded twins or uses half of them"
                yield Problem((*path, "interfaces"), what, "name the twins themselves", name)


def _subnets(fabric: dict[str, t.Any]) -> tuple[list[Subnet], list[Problem]]:
    found: list[Problem] = []
    subnets: list[Subnet] = []
    for index, given in enumerate(fabric.get("subnets", ())):
        path: schema.Path = ("fabric", "subnets", index)
        spelt = ipv4(str(given).partition("/")[0])
        if isinstance(spelt, str):
            found.append(Problem(path, f"{schema.shown(given)} {spelt}", "write it like this: 192.168.100.0/24", given))
            continue
        try:
            subnet = ipaddress.IPv4Network(str(given))
        except ValueError:
            loose = ipaddress.ip_network(f"{spelt}/24", strict=False)
            found.append(
                Problem(path, f"{schema.shown(given)} is not an IPv4 network", f"did you mean {loose}?", given)
            )
            continue
        if subnet.prefixlen > 30 or any(
            (subnet.is_multicast, subnet.is_loopback, subnet.is_unspecified, subnet.is_reserved)
        ):
            found.append(Problem(path, f"{subnet} cannot hold two boxes", "use a /24 of a private range", given))
        for other, earlier in enumerate(subnets):
            if subnet.overlaps(earlier):
                remedy = (
                    "give each twin of each cable a subnet of its own (shared_subnet: true puts both twins of a "
                    "cable in one)"
                )
                found.append(
                    Problem(path, f"{subnet} overlaps with fabric.subnets[{other}] ({earlier})", remedy, given)
                )
        subnets.append(subnet)
    if not fabric.get("subnets"):
        first = int(_FIRST_SUBNET.network_address)
        subnets = [ipaddress.IPv4Network((first + 256 * index, 24)) for index in range(_MOST_SUBNETS)]
    return subnets, found


def _addresses(wanted: Wanted, fabric: dict[str, t.Any]) -> c.Iterator[Problem]:
    """Yield what is wrong with the addresses that members name themselves."""
    taken: dict[ipaddress.IPv4Address, str] = {}
    for member in wanted.members:
        if member.addresses is None:
            continue
        path: schema.Path = ("fabric", "members", member.rank, "addresses")
        twins = 4 if wanted.topology == "ring" else 2 * len(member.cages or (0,))
        if len(member.addresses) not in ({twins} if member.cages or wanted.topology == "ring" else {2, 4}):
            what = f"{len(member.addresses)} addresses do not go round {twins} twins"
            yield Problem(path, what, "name one for each twin of each cable", fabric["members"][member.rank])
            continue
        homes: list[Subnet] = []
        for index, given in enumerate(member.addresses):
            address = ipv4(given)
            if isinstance(address, str):
                plain = _plain(given)
                remedy = f"did you mean {plain}?" if plain != given else "write it like this: 192.168.100.12"
                yield Problem((*path, index), f"{schema.shown(given)} {address}", remedy, given)
                continue
            home = next((one for one in wanted.subnets if address in one), None)
            if home is None or address in {home.network_address, home.broadcast_address}:
                what = f"{address} is no host's address in fabric.subnets"
                yield Problem((*path, index), what, "add its subnet there, or choose another address", given)
            elif home in homes and not wanted.shared_subnet:
                remedy = "give each twin a subnet of its own, or say shared_subnet: true if you know why"
                yield Problem((*path, index), f"{address} is in the subnet of another twin, {home}", remedy, given)
            elif address in taken:
                yield Problem(
                    (*path, index), f"{address} is the address of {taken[address]} already", "choose another", given
                )
            else:
                homes.append(home)
            taken.setdefault(address, member.box)


def _connections(wanted: Wanted, fabric: dict[str, t.Any], ansible_hosts: c.Mapping[str, t.Any]) -> c.Iterator[Problem]:
    """Yield the boxes that Ansible would reach over the very interfaces that it is to set up."""
    used = wanted.subnets if fabric.get("subnets") else wanted.subnets[: subnets_needed(wanted, 2)]
    for member in wanted.members:
        given = ansible_hosts.get(member.box)
        address = ipv4(_without_mapping(given))
        if address == _LEADING_ZERO:
            what = f"ansible_host of {member.box} is {given}, which {address}"
            remedy = f"did you mean {_plain(str(given))}?"
            yield Problem(("fabric", "members", member.rank), what, remedy, given)
        if isinstance(address, str):
            continue
        home = next((one for one in used if address in one), None)
        if home is not None or address.is_link_local:
            where = f"in {home}, a subnet of the fabric" if home else "an address that is good on one cable only"
            what = f"ansible_host of {member.box} is {given}, {where}"
            remedy = "use its address in the management network, which a change of the fabric does not cut"
            yield Problem(("fabric", "members", member.rank), what, remedy, given)


def _without_mapping(given: object) -> object:
    """Return the IPv4 address that an address such as ::ffff:192.0.2.1 stands for, and anything else as it is."""
    try:
        mapped = ipaddress.IPv6Address(str(given)).ipv4_mapped
    except ValueError:
        return given
    return given if mapped is None else mapped


def _plain(address: str) -> str:
    """Return an IPv4 address without leading zeros."""
    return re.sub(r"(^|\.)0+(?=\d)", r"\1", address)


def subnets_needed(wanted: Wanted, cables: int) -> int:
    """Return how many subnets the fabric takes with so many cables to each box."""
    links = len(wanted.members) if wanted.topology == "ring" else cables
    return links * (1 if wanted.shared_subnet else 2)


def subnet_index(wanted: Wanted, link: int, side: int) -> int:
    """Return which of the subnets one side of a cable is in."""
    return link if wanted.shared_subnet else 2 * link + side


def address_of(member: Member, wanted: Wanted, link: int, side: int) -> ipaddress.IPv4Interface:
    """Return the address of a twin, which the inventory alone decides."""
    subnet = wanted.subnets[subnet_index(wanted, link, side)]
    offset = wanted.first_host + (2 * member.rank + side if wanted.shared_subnet else member.rank)
    own = [address for address in map(ipaddress.IPv4Address, member.addresses or ()) if address in subnet]
    host = own[min(side, len(own) - 1)] if own else subnet.network_address + offset
    return ipaddress.IPv4Interface((host, subnet.prefixlen))

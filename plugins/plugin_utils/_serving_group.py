# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Serving groups: boxes that serve one instance together, each of them one rank of it.

A serving group is an inventory group with ``serving_group: {model_role: ..., tensor_parallel_size: 2}`` in its
group_vars. This file finds the group of a box and makes the instance of its rank, or names everything that is wrong
with it. Where a rank is reached and what it talks over comes from the fabric of its box; ``serving_address``,
``serving_env`` and ``serving_devices`` of a box override that. It is pure: no host, no file, no clock.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import ipaddress
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import _fabric_input as fabric_input
from ansible_collections.gb10.fleet.plugins.plugin_utils import _fabric_rank as fabrics
from ansible_collections.gb10.fleet.plugins.plugin_utils import _model_roles as model_roles
from ansible_collections.gb10.fleet.plugins.plugin_utils import _schema as schema
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_input import FabricInputError
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_sentence import problem_of
from ansible_collections.gb10.fleet.plugins.plugin_utils._group_vars import Setting
from ansible_collections.gb10.fleet.plugins.plugin_utils._schema import Problem

_MASTER_PORT: t.Final = 29501
_PEER_PORT: t.Final = 29511
_SILENCE_S: t.Final = 20
# The head of a group that nobody asks anything would spend 1 % of its tokens on a beat every 15 s (docs/liveness.md).
_HEARTBEAT_S: t.Final = 300
# A headless rank takes 11 seconds to end in order (vLLM 0.32.0, measured 2026-11-29); killed, it would leave its
# memory behind for a while.
LEAST_STOP_S: t.Final = 20
# What a box's own variables may say of its rank.
BOX_KEYS: t.Final = ("serving_address", "serving_env", "serving_devices")
# How a box of a fabric may turn out when it is looked at, and why its rank cannot start then.
_NOT_THERE: t.Final = {
    "pending": (
        "{box} of the group {group} has no cable with a link yet, so no other rank can reach it",
        "plug the cable in and reboot the boxes with it in place, or write serving_address into host_vars of {box}",
    ),
    "unobserved": (
        "the fabric of {box}, of the group {group}, could not be read, so its interfaces are not known",
        "see what fabric_info says on that box, or write serving_address and serving_env into its host_vars",
    ),
}
# Environment that names something of one box: for a whole group it would be wrong on all others.
_ONE_BOX: t.Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")
_PLACEHOLDER: t.Final = re.compile(r"[Xx]s[Yy]f[Zz]|<[^>]*>|roce-ip")

_OWN_KEYS: t.Final[c.Mapping[str, schema.Kind]] = {
    "model_role": schema.text("coordinator"),
    "tensor_parallel_size": schema.whole("2", low=1, high=64),
    "pipeline_parallel_size": schema.whole("1", low=1, high=64),
    "ranks": schema.sequence("[spark-1, spark-2]", schema.text("spark-1")),
    "master_port": schema.whole(str(_MASTER_PORT), low=1024, high=65535),
    "peer_port": schema.whole(str(_PEER_PORT), low=1024, high=65535),
    "silence_seconds": schema.whole(str(_SILENCE_S), low=5, high=3600),
    "heartbeat_seconds": schema.whole(str(_HEARTBEAT_S), low=5, high=3600),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """``serving_group`` as it reaches a box, and where it was written; ``origin`` tells two alike ones apart."""

    value: object
    origin: str = ""

    def same(self, other: Declared) -> bool:
        """Return whether both boxes have it from the same place."""
        return self.origin == other.origin and self.value == other.value


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """The serving group of a box: its name, its boxes in the order of the inventory, and what it is to serve."""

    name: str
    boxes: tuple[str, ...]
    value: object


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What the inventory says of all boxes.

    ``declared`` holds the ``serving_group`` of the boxes that have one, ``groups`` the boxes of every inventory group,
    ``addresses`` the ``serving_address`` by box and ``environments`` its ``serving_env``, ``playing`` the boxes of this
    run. ``fabrics`` has the ``fabric`` by box, ``hosts`` what Ansible connects to, ``observed`` what fabric_info
    returned, ``naming`` the groups that set ``serving_group`` themselves, with the place. ``looked`` says that the
    boxes were looked at, so that what is not known by now is missing; ``trial`` that nothing is going to be done with
    the answer.
    """

    declared: c.Mapping[str, Declared]
    groups: c.Mapping[str, c.Sequence[str]]
    addresses: c.Mapping[str, object]
    playing: c.Sequence[str]
    environments: c.Mapping[str, object] = dataclasses.field(default_factory=dict)
    fabrics: c.Mapping[str, object] = dataclasses.field(default_factory=dict)
    hosts: c.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    observed: c.Mapping[str, c.Mapping[str, t.Any]] = dataclasses.field(default_factory=dict)
    naming: c.Mapping[str, Setting] = dataclasses.field(default_factory=dict)
    looked: bool = False
    trial: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """What the fabrics give to the boxes of a group that have one, and what speaks against that."""

    by_box: c.Mapping[str, fabrics.Share]
    problems: tuple[Problem, ...] = ()


def shares_of(group: Group, fleet: Fleet) -> Shares:
    """Return what the boxes of a group get from their fabric."""
    given = {box: fabric for box in group.boxes if (fabric := fleet.fabrics.get(box))}
    different: list[tuple[object, list[str]]] = []
    for box, fabric in given.items():
        known = next((boxes for other, boxes in different if other == fabric), None)
        if known is None:
            different.append((fabric, [box]))
        else:
            known.append(box)
    by_box: dict[str, fabrics.Share] = {}
    found: list[Problem] = []
    for fabric, boxes in different:
        by_hand = all(fleet.addresses.get(box) is not None for box in boxes)
        try:
            # A member that nobody knows is often a box of the group with a letter wrong, which would be called none.
            if not by_hand and (unknown := _strangers(fabric, fleet)):
                found += unknown
                continue
            planned = fabrics.shares_of(fabric, fleet.observed, fleet.hosts)
        except FabricInputError as error:
            found += error.problems
            continue
        mine = {box: share for box in boxes if (share := planned.shares.get(box))}
        by_box |= mine
        # A group that says all by hand is not held to a fabric that cannot be set up.
        if any(fleet.addresses.get(box) is None for box in mine):
            found += _refused(planned.errors, fabric, fleet)
    leaning = [boxes for _fabric, boxes in different if any(fleet.addresses.get(box) is None for box in boxes)]
    if not found and leaning and len(different) > 1:
        what = (
            f"its boxes are in different fabrics ({'; '.join(', '.join(boxes) for _one, boxes in different)}), "
            "and nothing says that one reaches the other"
        )
        remedy = "put them into one fabric (topology: switch or ring), or write serving_address into each host_vars"
        found.append(Problem(("serving_group",), f"{group.name}: {what}", remedy, group.value))
    return Shares(by_box, tuple(found))


def _strangers(fabric: object, fleet: Fleet) -> list[Problem]:
    if not isinstance(fabric, dict) or "sparks" not in fleet.groups:
        return []
    wanted = fabric_input.read(fabric, fleet.hosts)
    boxes = fleet.groups["sparks"]
    return list(fabric_input.strangers(wanted, fabric, fleet.groups.get("all", boxes), boxes))


def _refused(errors: c.Iterable[Finding], fabric: object, fleet: Fleet) -> c.Iterator[Problem]:
    for one in errors:
        # The role fabric loads the driver that makes them; a trial run loads nothing.
        if not (fleet.trial and one.id == "INFINIBAND_DEVICES_MISSING"):
            yield problem_of(one, fabric)


def find(box: str, fleet: Fleet) -> tuple[Group | None, list[Problem]]:
    """Return the serving group of a box, if it is in one, or why that cannot be told."""
    mine = fleet.declared.get(box)
    if mine is None:
        return None, []
    its = [name for name in sorted(fleet.naming) if box in fleet.groups.get(name, ())]
    naming = [name for name in its if not any(name in fleet.naming[other].above for other in its)]
    if len(naming) > 1:
        return None, [_several(naming, mine, fleet)]
    same = {other for other, one in fleet.declared.items() if one.same(mine)}
    holding = [name for name in sorted(fleet.groups) if name != "all" and box in fleet.groups[name]]
    exact = [name for name in holding if set(fleet.groups[name]) == same]
    if exact:
        name = next((one for one in exact if f"group_vars/{one}" in mine.origin), exact[0])
        return Group(name, tuple(fleet.groups[name]), mine.value), []
    # Ansible gives a box the variables of one of its groups only: those of the other group's boxes differ.
    wider = sorted(
        (name for name in holding if same < set(fleet.groups[name])), key=lambda name: (len(fleet.groups[name]), name)
    )
    for name in wider:
        strangers = [one for one in fleet.groups[name] if one not in same and one in fleet.declared]
        if strangers:
            what = f"{strangers[0]}, a box of the group {name}, is in another serving group as well"
            remedy = "a box is a rank of one group; take it out of one of them"
            return None, [Problem(("serving_group",), what, remedy, mine.value)]
    what = f"no group of the inventory has just the boxes that it reaches: {', '.join(sorted(same))}"
    remedy = "put it into the group_vars of a group that holds exactly the boxes of its ranks"
    return None, [Problem(("serving_group",), what, remedy, mine.value)]


def _several(names: c.Sequence[str], mine: Declared, fleet: Fleet) -> Problem:
    """Say that groups with a serving group each have a box in common: Ansible gives it the one, and drops the other."""
    placed = [f"{name} ({fleet.naming[name].place})" if fleet.naming[name].place else name for name in names]
    both = [box for box in fleet.groups[names[0]] if all(box in fleet.groups[name] for name in names)]
    what = f"{', '.join(both)} would be in {len(names)} serving groups, {' and '.join(placed)}"
    remedy = "a box is a rank of one group; keep one of them, or give each its own boxes"
    return Problem(("serving_group",), what, remedy, mine.value)


def group_problems(group: Group, catalogue: c.Mapping[str, t.Any], fleet: Fleet) -> c.Iterator[Problem]:
    """Yield what is wrong with a group as a whole, the same for each of its boxes."""
    path: schema.Path = ("serving_group",)
    value = group.value
    kinds = {**model_roles.ENTRY, **_OWN_KEYS}
    kinds.pop("role")
    wrong = list(schema.problems(value, schema.mapping(_EXAMPLE, kinds, ("model_role",)), path))
    if wrong or not isinstance(value, dict):
        yield from wrong
        return
    role = value["model_role"]
    if role not in catalogue:
        remedy = schema.nearest(role, catalogue)
        yield Problem((*path, "model_role"), f"there is no model role {role!r}", remedy, role)
        return
    yield from _size_problems(group, value, catalogue[role])
    ranks = value.get("ranks", list(group.boxes))
    if sorted(ranks) != sorted(group.boxes):
        what = f"it names {', '.join(ranks) or 'no box'}, and the boxes of the group are {', '.join(group.boxes)}"
        yield Problem((*path, "ranks"), what, "name every box of the group once, the head first", ranks)
    outside = [box for box in group.boxes if box not in fleet.groups.get("sparks", group.boxes)]
    left = [box for box in group.boxes if box not in fleet.playing and box not in outside]
    if outside:
        what = f"{', '.join(outside)} of the group {group.name} is not in the group sparks, which the playbooks run on"
        yield Problem(path, what, "add it there, or take it out of this group", value)
    if left:
        what = (
            f"{', '.join(left)} of the group {group.name} "
            f"{'is' if len(left) == 1 else 'are'} not in this run, and its ranks start and stop together only"
        )
        yield Problem(path, what, f"run it for the whole group: -l {group.name}", value)
    if len(group.boxes) == 1:
        return  # How a box reaches itself is nobody's question.
    shares = shares_of(group, fleet)
    yield from shares.problems or _address_problems(group, fleet, shares.by_box)


_EXAMPLE: t.Final = "{model_role: coordinator, tensor_parallel_size: 2}"


def sizes(value: c.Mapping[str, t.Any], model_role: c.Mapping[str, t.Any], boxes: int) -> tuple[int, int]:
    """Return tensor and pipeline parallel size: as written, else by the model role, else one rank for each box."""
    pipeline = int(value.get("pipeline_parallel_size", 1))
    of_role = int(model_role.get("tensor_parallel_size", 1))
    tensor = int(value.get("tensor_parallel_size", of_role if of_role > 1 else max(1, boxes // pipeline)))
    return tensor, pipeline


def _size_problems(
    group: Group, value: c.Mapping[str, t.Any], model_role: c.Mapping[str, t.Any]
) -> c.Iterator[Problem]:
    boxes = len(group.boxes)
    tensor, pipeline = sizes(value, model_role, boxes)
    path = ("serving_group", "tensor_parallel_size")
    shape = f"tensor_parallel_size {tensor}" + (f" times pipeline_parallel_size {pipeline}" if pipeline > 1 else "")
    if boxes == 1 or tensor * pipeline == 1:
        what = f"the group {group.name} has {boxes} box{'es' if boxes > 1 else ''} and {shape}, which is no group"
        yield Problem(path, what, f"name the model role in model_roles of {group.boxes[0]} instead", value)
    elif tensor * pipeline != boxes:
        what = (
            f"{shape} makes {tensor * pipeline} ranks, and the group {group.name} has {boxes} boxes "
            f"({', '.join(group.boxes)}), each of them with one GPU"
        )
        yield Problem(path, what, "make the two numbers equal: change the sizes, or the boxes of the group", value)


def _address_problems(group: Group, fleet: Fleet, shares: c.Mapping[str, fabrics.Share]) -> c.Iterator[Problem]:
    if not shares and not any(fleet.addresses.get(box) for box in group.boxes):
        what = (
            f"nothing says where the ranks of the group {group.name} reach each other: {', '.join(group.boxes)} have "
            "neither a fabric nor a serving_address"
        )
        topology = "" if len(group.boxes) == 2 else "topology: switch, "
        remedy = (
            f"put fabric: {{{topology}members: [{', '.join(group.boxes)}]}} into the group_vars of {group.name} "
            "(docs/fabric.md), or serving_address into the host_vars of each box"
        )
        yield Problem(("serving_group",), what, remedy, group.value)
        return
    seen: dict[str, str] = {}
    yield from _families(group, fleet, shares)
    for box in group.boxes:
        given = fleet.addresses.get(box)
        share = shares.get(box)
        if given is None and share is not None:
            yield from _share_problems(group, share, fleet)
            if share.address:
                yield from _taken(box, share.address, None, seen)
            continue
        path = ("serving_address",)
        remedy = f"put the address of its fabric interface into host_vars of {box}, such as 192.168.100.11"
        if given is None:
            what = f"{box} of the group {group.name} does not say where its rank is reached"
            cure = f"name it in fabric.members, or {remedy}"
            # Where the group stands, as every box of it runs into this.
            yield Problem(("serving_group",), f"{what}, and no fabric has it for a member", cure, group.value)
            continue
        try:
            address = ipaddress.ip_address(given if isinstance(given, str) else "")
        except ValueError:
            yield Problem(path, f"{schema.shown(given)} of {box} is no IP address", remedy, given)
            continue
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            yield Problem(path, f"{address} of {box} cannot be reached from another box", remedy, given)
        else:
            yield from _taken(box, str(address), given, seen)


def _families(group: Group, fleet: Fleet, shares: c.Mapping[str, fabrics.Share]) -> c.Iterator[Problem]:
    """Yield that a rank has an IPv6 address where the others have IPv4, so that it cannot reach them from there."""
    versions: dict[int, str] = {}
    for box in group.boxes:
        given = fleet.addresses.get(box)
        text = given if given is not None else shares[box].address if box in shares else ""
        try:
            version = ipaddress.ip_address(text if isinstance(text, str) else "").version
        except ValueError:
            continue
        other = next((one for known, one in versions.items() if known != version), None)
        if other is not None:
            what = f"{text} of {box} is IPv{version}, and {other} has no such address"
            yield Problem(("serving_address",), what, "give all boxes of the group addresses of one kind", given)
            return
        versions.setdefault(version, box)


def _taken(box: str, address: str, given: object, seen: dict[str, str]) -> c.Iterator[Problem]:
    if address in seen:
        what = f"{box} and {seen[address]} both have {address}"
        yield Problem(("serving_address",), what, "give each box the address of its own interface", given)
    seen.setdefault(address, box)


def _share_problems(group: Group, share: fabrics.Share, fleet: Fleet) -> c.Iterator[Problem]:
    """Yield what is still not known of a box that was looked at, and that its rank cannot start without."""
    path = ("serving_address",)
    if fleet.looked and share.state in _NOT_THERE and not (fleet.trial and share.state == "unobserved"):
        what, remedy = (text.format(box=share.box, group=group.name) for text in _NOT_THERE[share.state])
        yield Problem(path, what, remedy)
    elif fleet.looked and not fleet.trial and not share.address:
        what = (
            f"the ranks of a ring meet over the management network, and {share.box} of the group {group.name} shows no "
            "IPv4 address there"
        )
        yield Problem(path, what, f"write its address there as serving_address into host_vars of {share.box}")


def rank_problems(box: str, group: Group, variables: c.Mapping[str, t.Any]) -> c.Iterator[Problem]:
    """Yield what is wrong with the variables of one box of a group."""
    env = variables.get("serving_env", {})
    yield from schema.problems(env, model_roles.MODEL_ROLE["env"], ("serving_env",))
    devices = variables.get("serving_devices", [])
    device = schema.text("/dev/infiniband", pattern=r"/dev(?:/(?!\.\.?(?:/|$))[\w.-]+)+", meaning="a path in /dev")
    yield from schema.problems(devices, schema.sequence("[/dev/infiniband]", device), ("serving_devices",))
    for name, value in env.items() if isinstance(env, dict) else ():
        if name == "VLLM_HOST_IP":
            yield Problem(("serving_env", name), "is written by the collection", "write serving_address instead", value)
        elif _PLACEHOLDER.search(str(value)):
            what = f"{schema.shown(value)} of {box} is a placeholder"
            yield Problem(("serving_env", name), what, "write the name that `ip link` shows on that box", value)
    stop = variables.get("vllm_server_stop_timeout")
    if stop is not None and str(stop).isdigit() and int(stop) < LEAST_STOP_S:
        what = f"{stop} is too short for a rank of the group {group.name}, which takes 11 s to end in order"
        yield Problem(("vllm_server_stop_timeout",), what, f"give it {LEAST_STOP_S} or more", stop)


def instance_of(
    box: str, group: Group, catalogue: c.Mapping[str, t.Any], fleet: Fleet, variables: c.Mapping[str, t.Any]
) -> tuple[dict[str, t.Any], list[Problem]]:
    """Return the complete instance of a box's rank, or what is still wrong with it.

    Before the boxes of a fabric were looked at, what only they can tell is not in it.
    """
    value = t.cast("dict[str, t.Any]", group.value)
    path: schema.Path = ("serving_group",)
    entry = {key: one for key, one in value.items() if key not in _OWN_KEYS}
    instance = model_roles.make_instance({**entry, "role": value["model_role"]}, catalogue)
    found = list(model_roles.instance_problems(instance, path, value, alone=False))
    found += _own_problems(instance, value)
    boxes = [str(one) for one in value.get("ranks", group.boxes)]
    tensor, pipeline = sizes(value, catalogue[value["model_role"]], len(boxes))
    rank = boxes.index(box)
    shares = shares_of(group, fleet).by_box
    addresses = {one: _address(one, fleet, shares) for one in boxes}
    own_env = {str(name): one for name, one in variables.get("serving_env", {}).items()}
    container = shares[box].container if box in shares else {}
    if (devices := variables.get("serving_devices")) is not None:
        container = fabrics.with_devices(container, devices)
    instance |= {
        "tensor_parallel_size": tensor,
        "nodes": len(boxes),
        "nnodes": len(boxes),
        "node_rank": rank,
        "master_port": value.get("master_port", _MASTER_PORT),
        # What the inventory says for all boxes is meant; of a box's own names it may say nothing (see _own_problems).
        "env": {**_environment(box, shares), **instance["env"], **own_env, **_host_ip(addresses[box])},
        "box_env": _box_env(boxes, fleet, shares),
        "devices": list(container.get("devices", ())),
        "ulimits": dict(container.get("ulimits", {})),
        "capabilities": list(container.get("capabilities", ())),
        "serving_group": {
            "name": group.name,
            "rank": rank,
            "members": [{"rank": at, "box": one, "address": addresses[one]} for at, one in enumerate(boxes)],
            "peer_port": value.get("peer_port", _PEER_PORT),
            "silence_seconds": value.get("silence_seconds", _SILENCE_S),
            "heartbeat_seconds": value.get("heartbeat_seconds", _HEARTBEAT_S),
        },
    }
    if box in shares:
        instance["fabric_state"] = shares[box].state
    if addresses[boxes[0]]:
        instance["master_addr"] = addresses[boxes[0]]
    if pipeline > 1:
        instance["pipeline_parallel_size"] = pipeline
    if rank:
        instance["headless"] = True
    return instance, found


def _address(box: str, fleet: Fleet, shares: c.Mapping[str, fabrics.Share]) -> str:
    """Return where a box is reached: as its inventory says, else by its fabric; empty where that is not known yet."""
    if (given := fleet.addresses.get(box)) is not None:
        return str(ipaddress.ip_address(str(given)))
    return shares[box].address if box in shares else ""


def _host_ip(address: str) -> dict[str, str]:
    return {"VLLM_HOST_IP": address} if address else {}


def _environment(box: str, shares: c.Mapping[str, fabrics.Share]) -> dict[str, t.Any]:
    return dict(shares[box].environment) if box in shares else {}


def _box_env(boxes: c.Sequence[str], fleet: Fleet, shares: c.Mapping[str, fabrics.Share]) -> list[str]:
    """Return the variables that need not be the same on all boxes, which is the same list on each of them.

    By everything else the ranks see that they were deployed alike before they start together.
    """
    names = {"VLLM_HOST_IP"}
    for box in boxes:
        own = fleet.environments.get(box)
        names |= {str(name) for name in own} if isinstance(own, dict) else set()
    planned = [_environment(box, shares) for box in boxes]
    every = {name for one in planned for name in one}
    return sorted(names | {name for name in every if len({one.get(name) for one in planned}) > 1})


def contradictions(
    box: str, group: Group, fleet: Fleet, instance: c.Mapping[str, t.Any], variables: c.Mapping[str, t.Any]
) -> list[tuple[schema.Path, Finding]]:
    """Return what the inventory of a box, or of its group, has against the fabric of the box, by its keys."""
    share = shares_of(group, fleet).by_box.get(box)
    if share is None:
        return []
    own = variables.get("serving_env", {})
    own = own if isinstance(own, dict) else {}
    # Whatever is in the environment and differs from the fabric was written by somebody.
    wrote = {
        name: one
        for name, one in instance["env"].items()
        if name != "VLLM_HOST_IP" and (name in own or share.environment.get(name) != one)
    }
    address = fleet.addresses.get(box)
    given = variables.get("serving_devices")
    found = fabrics.contradictions(share, "" if address is None else _address(box, fleet, {}), wrote, given)
    return [
        (path if path[0] != "serving_env" or path[1] in own else ("serving_group", "env", path[1]), one)
        for path, one in found
    ]


def _own_problems(instance: c.Mapping[str, t.Any], value: c.Mapping[str, t.Any]) -> c.Iterator[Problem]:
    args = {str(name).replace("-", "_"): one for name, one in instance["args"].items()}
    backend = args.get("distributed_executor_backend", "mp")
    if backend != "mp":
        what = f"distributed_executor_backend is {backend!r}, and groups are served by vLLM's own mp executor only"
        remedy = "leave it out: mp needs no Ray in the image, and no cluster that outlives an engine"
        yield Problem(("serving_group", "args"), what, remedy, value)
    if "VLLM_HOST_IP" in instance["env"]:
        what = "env sets VLLM_HOST_IP, which is another one on every box and is written by the collection"
        yield Problem(("serving_group", "env"), what, "write serving_address into the host_vars of each box", value)
    for name in _ONE_BOX:
        if name in instance["env"]:
            what = f"env sets {name} for all boxes, and interfaces are named by each box itself"
            yield Problem(("serving_group", "env"), what, "put it into serving_env in the host_vars of each box", value)
    ports = {
        "port": instance["port"],
        "master_port": value.get("master_port", _MASTER_PORT),
        "peer_port": value.get("peer_port", _PEER_PORT),
    }
    for key, taken in (("master_port", "port"), ("peer_port", "port"), ("peer_port", "master_port")):
        if ports[key] == ports[taken]:
            what = f"{key} {ports[key]} is the {taken} of the group already"
            yield Problem(("serving_group", key), what, "give it a number of its own", value)


def clashes(instance: c.Mapping[str, t.Any], others: c.Sequence[c.Mapping[str, t.Any]], box: str) -> list[Problem]:
    """Return how the rank of a box gets into the way of the other instances that the box serves."""
    found = []
    for one in others:
        if one["name"] == instance["name"]:
            what = f"name {one['name']} is taken by model_roles of {box} already"
            found.append(Problem(("serving_group", "name"), what, "give one of them a name: of its own"))
        mine = {"port": instance["port"], "master_port": instance["master_port"]}
        mine["peer_port"] = instance["serving_group"]["peer_port"]
        for key, port in mine.items():
            if one["port"] == port:
                what = f"{key} {port} is the port of {one['name']} on {box} already"
                found.append(Problem(("serving_group", key), what, "give one of them another port"))
    return found

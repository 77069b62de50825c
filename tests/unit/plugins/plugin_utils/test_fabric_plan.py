# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans of fabrics: pairs, switches and rings, what they give every rank, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import re
import typing as t

import pytest
import yaml

from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_input import FabricInputError
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_plan import plan_fabric
from tests.unit.support import fabric_tree as tree
from tests.unit.support.fabric_boxes import seen
from tests.unit.support.fabric_tree import Card, spark

BOXES = ["spark-1", "spark-2"]
# What a ping knows of its other end, to tell crossed cables.
NEAR = [{"peer_interface": name, "mac": "4c:bb:47:00:00:01"} for name in ("enp1s0f0np0", "enP2p1s0f0np0")]


def ids(plan: dict[str, t.Any]) -> list[str]:
    """Return the ids of the findings of a plan."""
    return [finding["id"] for finding in plan["findings"]]


def twins(plan: dict[str, t.Any], box: str) -> list[tuple[str, str]]:
    """Return the interfaces of a box with their addresses."""
    return [(twin["interface"], twin["address"]) for twin in plan["boxes"][box]["twins"]]


def test_a_pair() -> None:
    plan = plan_fabric(
        {"members": BOXES}, {box: seen() for box in BOXES}, {"spark-1": "10.0.0.5", "spark-2": "10.0.0.6"}
    )

    assert (plan["verdict"], plan["topology"], plan["mtu"], plan["findings"]) == ("planned", "pair", 9000, [])
    assert plan["subnets"] == ["192.168.100.0/24", "192.168.101.0/24"]
    assert twins(plan, "spark-1") == [("enp1s0f0np0", "192.168.100.11/24"), ("enP2p1s0f0np0", "192.168.101.11/24")]
    assert twins(plan, "spark-2") == [("enp1s0f0np0", "192.168.100.12/24"), ("enP2p1s0f0np0", "192.168.101.12/24")]
    assert plan["head"] == {"box": "spark-1", "address": "192.168.100.11", "interface": "enp1s0f0np0"}
    assert plan["ranks"][1]["environment"] == {
        "VLLM_HOST_IP": "192.168.100.12",
        "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "TP_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0",
        "NCCL_NET": "IB",
    }
    assert plan["ranks"][0]["container"]["devices"] == ["/dev/infiniband"]
    assert plan["boxes"]["spark-2"]["pings"] == [
        {
            "interface": "enp1s0f0np0",
            "source": "192.168.100.12",
            "target": "192.168.100.11",
            "peer": "spark-1",
            **NEAR[0],
        },
        {
            "interface": "enP2p1s0f0np0",
            "source": "192.168.101.12",
            "target": "192.168.101.11",
            "peer": "spark-1",
            **NEAR[1],
        },
    ]


def test_netplan_has_the_twins_and_nothing_else() -> None:
    document = plan_fabric({"members": BOXES, "mtu": 4200}, {box: seen() for box in BOXES})["boxes"]["spark-1"][
        "netplan"
    ]

    assert list(document["network"]) == ["version", "ethernets"]
    assert document["network"]["ethernets"] == {
        name: {
            "dhcp4": False,
            "dhcp6": False,
            "accept-ra": False,
            "link-local": [],
            "optional": True,
            "mtu": 4200,
            "addresses": [address],
        }
        for name, address in (("enp1s0f0np0", "192.168.100.11/24"), ("enP2p1s0f0np0", "192.168.101.11/24"))
    }
    assert yaml.safe_load(yaml.safe_dump(document)) == document


def test_cages_may_differ_from_box_to_box() -> None:
    plan = plan_fabric({"members": BOXES}, {"spark-1": seen(spark(cabled=[1])), "spark-2": seen()})

    one, two = (rank["environment"] for rank in plan["ranks"])
    assert (one["NCCL_IB_HCA"], one["GLOO_SOCKET_IFNAME"]) == ("rocep1s0f1,roceP2p1s0f1", "enp1s0f1np1")
    assert (two["NCCL_IB_HCA"], two["GLOO_SOCKET_IFNAME"]) == ("rocep1s0f0,roceP2p1s0f0", "enp1s0f0np0")
    assert plan["verdict"] == "planned"
    assert twins(plan, "spark-1")[0] == ("enp1s0f1np1", "192.168.100.11/24")


def test_renamed_devices() -> None:
    cards = spark()
    for card, device in zip(cards, ("mlx5_2", "mlx5_0", "mlx5_3", "mlx5_1"), strict=True):
        card.rdma, card.interface = device, device.replace("mlx5_", "eth")
    plan = plan_fabric({"members": BOXES}, {"spark-1": seen(cards), "spark-2": seen()})

    assert plan["ranks"][0]["environment"]["NCCL_IB_HCA"] == "mlx5_2,mlx5_0"
    assert [name for name, _address in twins(plan, "spark-1")] == ["eth2", "eth0"]


def test_two_cables_use_all_four_twins() -> None:
    plan = plan_fabric({"members": BOXES}, {box: seen(spark(cabled=[0, 1])) for box in BOXES})

    assert plan["subnets"] == [f"192.168.{number}.0/24" for number in range(100, 104)]
    assert [address for _name, address in twins(plan, "spark-2")] == [
        f"192.168.{number}.12/24" for number in range(100, 104)
    ]
    assert plan["ranks"][0]["environment"]["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1"


def test_a_crossed_second_cable_is_told_by_cages() -> None:
    members = ["spark-1", {"box": "spark-2", "cages": [1, 0]}]
    plan = plan_fabric({"members": members}, {box: seen(spark(cabled=[0, 1])) for box in BOXES})

    assert plan["verdict"] == "planned"
    assert twins(plan, "spark-2")[0] == ("enp1s0f1np1", "192.168.100.12/24")


def test_boxes_with_different_numbers_of_cables() -> None:
    plan = plan_fabric({"members": BOXES}, {"spark-1": seen(spark(cabled=[0, 1])), "spark-2": seen()})

    assert (plan["verdict"], ids(plan)) == ("refused", ["FABRIC_CABLES_DIFFER"])
    members = [{"box": "spark-1", "cages": [1]}, "spark-2"]
    told = plan_fabric({"members": members}, {"spark-1": seen(spark(cabled=[0, 1])), "spark-2": seen()})
    assert (told["verdict"], twins(told, "spark-1")[0][0]) == ("planned", "enp1s0f1np1")


def test_four_boxes_behind_a_switch() -> None:
    boxes = [f"spark-{number}" for number in range(1, 5)]
    layout = {"tensor_parallel_size": 4, "geometry": {"attention_heads": 64, "layers": [{"count": 48, "kv_heads": 4}]}}
    plan = plan_fabric({"topology": "switch", "members": boxes}, {box: seen() for box in boxes}, {}, layout)

    assert (plan["verdict"], ids(plan)) == ("planned", [])
    assert [rank["address"] for rank in plan["ranks"]] == [f"192.168.100.{number}" for number in range(11, 15)]
    assert len(plan["boxes"]["spark-3"]["pings"]) == 6  # each twin to three others
    assert "NCCL_IB_MERGE_NICS" not in plan["ranks"][0]["environment"]


@pytest.mark.parametrize("count", [3, 4])
def test_rings(count: int) -> None:
    boxes = [f"spark-{number}" for number in range(1, count + 1)]
    plan = plan_fabric(
        {"topology": "ring", "members": boxes},
        {box: seen(spark(cabled=[0, 1])) for box in boxes},
        dict.fromkeys(boxes, "name.example"),
    )

    assert (plan["verdict"], ids(plan)) == ("planned", ["RING_NEEDS_SUBNET_AWARE_NCCL"])
    assert len(plan["subnets"]) == len(set(plan["subnets"])) == 2 * count
    for index, box in enumerate(boxes):
        neighbours = {boxes[(index + 1) % count], boxes[index - 1]}
        assert {ping["peer"] for ping in plan["boxes"][box]["pings"]} == neighbours
        assert len(plan["boxes"][box]["pings"]) == 4
        # Cage 0 leads to the next box, cage 1 to the one before.
        following = [ping for ping in plan["boxes"][box]["pings"] if ping["peer"] == boxes[(index + 1) % count]]
        assert [ping["interface"] for ping in following] == ["enp1s0f0np0", "enP2p1s0f0np0"]
        environment = plan["ranks"][index]["environment"]
        assert environment["NCCL_SOCKET_IFNAME"] == "enP7s7"  # no interface of a ring reaches every box
        assert environment["VLLM_HOST_IP"] == "10.0.0.5"
        assert (environment["NCCL_IB_MERGE_NICS"], environment["NCCL_IB_SUBNET_AWARE_ROUTING"]) == ("0", "1")


@pytest.mark.parametrize("topology", ["pair", "switch", "ring"])
@pytest.mark.parametrize("shared", [False, True])
def test_no_address_twice_and_no_subnet_for_two_twins(topology: str, shared: bool) -> None:
    boxes = [f"spark-{number}" for number in range(1, 3 if topology == "pair" else 6)]
    fabric = {"topology": topology, "members": boxes, "shared_subnet": shared}
    plan = plan_fabric(fabric, {box: seen(spark(cabled=[0, 1])) for box in boxes})

    every = [twin["address"] for box in boxes for twin in plan["boxes"][box]["twins"]]
    assert len(every) == len(set(every)) == 4 * len(boxes)
    for box in boxes:
        networks = [address.rpartition(".")[0] for _name, address in twins(plan, box)]
        assert len(set(networks)) == (2 if shared else 4)
    assert ("TWINS_SHARE_SUBNET" in ids(plan)) is shared


def test_the_same_input_gives_the_same_plan() -> None:
    fabric = {"members": BOXES}
    observed = {box: seen() for box in BOXES}

    assert plan_fabric(fabric, observed) == plan_fabric(fabric, dict(reversed(list(observed.items()))))


def test_a_second_run_sees_its_own_addresses_and_is_content() -> None:
    mine = {"enp1s0f0np0": ("192.168.100.11/24",), "enP2p1s0f0np0": ("192.168.101.11/24",)}
    plan = plan_fabric({"members": BOXES}, {"spark-1": seen(addresses=mine), "spark-2": seen()})

    assert (plan["verdict"], ids(plan)) == ("planned", [])


def test_addresses_of_ones_own() -> None:
    members = ["spark-1", {"box": "spark-2", "addresses": ["172.30.8.77", "172.30.9.77"]}]
    fabric = {"members": members, "subnets": ["172.30.8.0/24", "172.30.9.0/28"], "first_host": 1}
    with pytest.raises(FabricInputError, match=r"172\.30\.9\.77 is no host's address"):
        plan_fabric(fabric)
    fabric["subnets"] = ["172.30.8.0/24", "172.30.9.0/24"]
    plan = plan_fabric(fabric, {box: seen() for box in BOXES})
    assert [address for _name, address in twins(plan, "spark-2")] == ["172.30.8.77/24", "172.30.9.77/24"]
    assert [address for _name, address in twins(plan, "spark-1")] == ["172.30.8.1/24", "172.30.9.1/24"]


# --- what is not known yet -------------------------------------------------------------------------------------------


def test_without_a_look_at_the_boxes() -> None:
    plan = plan_fabric({"members": BOXES})

    assert plan["verdict"] == "unobserved"
    assert plan["boxes"]["spark-1"] == {"state": "unobserved", "twins": [], "netplan": {}, "pings": []}
    # The inventory alone decides the addresses; names of interfaces and devices are those of the boxes.
    assert [rank["environment"] for rank in plan["ranks"]] == [
        {"VLLM_HOST_IP": "192.168.100.11"},
        {"VLLM_HOST_IP": "192.168.100.12"},
    ]
    assert plan["head"] == {"box": "spark-1", "address": "192.168.100.11", "interface": ""}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shared_subnet": True},
        {"subnets": ["10.5.0.0/24", "10.6.0.0/24"], "first_host": 40},
        {"members": [{"box": "spark-1", "addresses": ["192.168.100.7", "192.168.101.9"]}, "spark-2"]},
        {"members": ["spark-1", {"box": "spark-2", "cages": [1]}]},
    ],
)
def test_looking_at_the_boxes_does_not_move_the_addresses_of_the_ranks(changes: dict[str, t.Any]) -> None:
    fabric = {"members": BOXES, **changes}
    observed = {"spark-1": seen(), "spark-2": seen(spark(cabled=[0, 1]))}

    before, after = plan_fabric(fabric), plan_fabric(fabric, observed)
    assert [rank["address"] for rank in before["ranks"]] == [rank["address"] for rank in after["ranks"]]


@pytest.mark.parametrize("cards", [[], spark(cabled=[])])
def test_a_box_without_a_cable_is_pending(cards: list[Card]) -> None:
    plan = plan_fabric({"members": BOXES}, {"spark-1": seen(), "spark-2": seen(cards)})

    assert (plan["verdict"], ids(plan)) == ("pending", ["CABLE_PENDING"])
    assert plan["boxes"]["spark-2"]["netplan"] == {}


def test_a_box_whose_twins_are_switched_off_is_pending_and_says_so() -> None:
    cards = spark(cabled=[])
    for card in cards:
        card.flags, card.carrier = "0x1002", ""
    plan = plan_fabric({"members": BOXES}, {"spark-1": seen(), "spark-2": seen(cards)})

    assert (plan["verdict"], ids(plan)) == ("pending", ["TWINS_SWITCHED_OFF"])
    message = plan["findings"][0]["message"]
    assert message.startswith("spark-2: enp1s0f0np0, enP2p1s0f0np0, enp1s0f1np1, enP2p1s0f1np1 are switched off")
    members = ["spark-1", {"box": "spark-2", "cages": [0]}]
    named = plan_fabric({"members": members}, {"spark-1": seen(), "spark-2": seen(cards)})
    assert (named["verdict"], ids(named)) == ("planned", [])


def broken(cage: int = 0, *, driver: bool) -> list[Card]:
    """Return the cards of a box with one cable, of which one function is not on the bus, or has no interface."""
    cards = spark(cabled=[cage])
    card = cards.pop(2 * cage + 1)
    return [*cards, dataclasses.replace(card, interface="")] if driver else cards


NAMED = ["enp1s0f0np0", "enP2p1s0f0np0"]


@pytest.mark.parametrize("member", ["spark-2", {"box": "spark-2", "interfaces": NAMED}])
@pytest.mark.parametrize(
    ("cards", "expected", "says"),
    [
        (broken(driver=False), {"TWINS_NOT_PAIRED"}, "spark-2: these interfaces have no twin"),
        (broken(driver=True), {"TWINS_NOT_PAIRED", "CX7_WITHOUT_INTERFACE"}, "no driver has made network interfaces"),
        (
            [dataclasses.replace(card, interface="", rdma="") for card in spark()],
            {"CX7_WITHOUT_INTERFACE"},
            "spark-2: the ConnectX-7 is on the PCI bus, but no driver has made network interfaces of it",
        ),
    ],
)
def test_a_broken_chip_is_no_cable_to_come(member: t.Any, cards: list[Card], expected: set[str], says: str) -> None:
    plan = plan_fabric({"members": ["spark-1", member]}, {"spark-1": seen(), "spark-2": seen(cards)})

    assert (plan["verdict"], set(ids(plan))) == ("refused", expected)
    assert any(says in finding["message"] and finding["remedy"] for finding in plan["findings"])
    assert plan["boxes"]["spark-2"]["twins"] == []


@pytest.mark.parametrize("driver", [False, True])
def test_a_whole_port_with_a_cable_is_used_beside_a_broken_one(driver: bool) -> None:
    cards = spark()[:3]
    if driver:
        cards.append(dataclasses.replace(spark()[3], interface=""))
    plan = plan_fabric({"members": BOXES}, {"spark-1": seen(), "spark-2": seen(cards)})

    assert (plan["verdict"], ids(plan)) == ("planned", [])
    assert [name for name, _address in twins(plan, "spark-2")] == NAMED


def test_a_cage_that_is_named_needs_no_link() -> None:
    members = ["spark-1", {"box": "spark-2", "cages": [1]}]
    plan = plan_fabric({"members": members}, {"spark-1": seen(), "spark-2": seen(spark(cabled=[]))})

    assert (plan["verdict"], twins(plan, "spark-2")[0][0]) == ("planned", "enp1s0f1np1")


def test_interfaces_that_are_named() -> None:
    members: list[t.Any] = [{"box": box, "interfaces": ["enp1s0f0np0", "enP2p1s0f0np0"]} for box in BOXES]

    assert plan_fabric({"members": members})["verdict"] == "planned"
    looked = plan_fabric({"members": members}, {box: seen() for box in BOXES})
    assert (looked["verdict"], looked["ranks"][0]["environment"]["NCCL_NET"]) == ("planned", "IB")
    members[1]["interfaces"] = ["enp1s0f0np0", "enP2p1s0f1np1"]
    assert ids(plan_fabric({"members": members}, {box: seen() for box in BOXES})) == ["FABRIC_NOT_OF_ONE_PORT"]
    members[1]["interfaces"] = ["enp9s0", "enp10s0"]
    absent = plan_fabric({"members": members}, {box: seen() for box in BOXES})
    assert (absent["verdict"], ids(absent)) == ("pending", ["FABRIC_INTERFACE_MISSING"])


def test_other_interfaces_serve_without_rdma() -> None:
    members = [{"box": box, "interfaces": ["eth1", "eth2"]} for box in BOXES]
    box = seen([])
    box["others"] += [{"interface": name, "addresses": [], "master": ""} for name in ("eth1", "eth2")]
    plan = plan_fabric({"members": members}, {"spark-1": box, "spark-2": box})

    assert (plan["verdict"], set(ids(plan))) == ("planned", {"FABRIC_NOT_A_TWIN"})
    assert "NCCL_NET" not in plan["ranks"][0]["environment"]
    assert plan["ranks"][0]["environment"]["GLOO_SOCKET_IFNAME"] == "eth1"
    assert plan["ranks"][0]["container"] == {"devices": [], "ulimits": {}, "capabilities": []}


# --- what is refused once a box was looked at ------------------------------------------------------------------------


def over_ssh(box: dict[str, t.Any], *interfaces: str, client: str = "") -> dict[str, t.Any]:
    """Return a box that is managed over other interfaces."""
    return {**box, "management": {"interfaces": list(interfaces), "client": client, "wireless": False}}


def routed() -> dict[str, t.Any]:
    """Return a box whose default route goes over a twin, while the connection comes over the management network."""
    lines = [f"{name} 00000000 0100000A 0003 0 0 100 00000000" for name in ("enP7s7", "enp1s0f0np0")]
    box = seen(files={"proc/net/route": "\n".join(["Iface Destination", *lines])})
    return {**box, "management": {**box["management"], "session": ["enP7s7"]}}


def renamed(**changes: t.Any) -> list[Card]:
    """Return the cards of a box whose second twin is not as it should be."""
    cards = spark()
    cards[1] = dataclasses.replace(cards[1], **changes)
    return cards


NETPLAN = {"etc/netplan/40-cx7.yaml": "network:\n  ethernets:\n    enp1s0f0np0:\n      dhcp4: true"}


@pytest.mark.parametrize(
    ("box", "expected", "says"),
    [
        (over_ssh(seen(), "enp1s0f0np0"), "FABRIC_TOUCHES_MANAGEMENT", "spark-2 is managed over enp1s0f0np0"),
        (routed(), "FABRIC_TOUCHES_MANAGEMENT", "the default route of spark-2 is over enp1s0f0np0, and setting it up"),
        (seen(addresses={"enP7s7": ("192.168.101.9/24",)}), "FABRIC_OVERLAPS_MANAGEMENT", "enP7s7 has 192.168.101.9"),
        (seen(addresses={"enP7s7": ("192.168.0.9/16",)}), "FABRIC_OVERLAPS_MANAGEMENT", "192.168.100.0/24 overlaps"),
        (seen(addresses={"enp1s0f1np1": ("192.168.100.9/24",)}), "FABRIC_OVERLAPS_MANAGEMENT", "enp1s0f1np1 has"),
        (over_ssh(seen(), "enP7s7", client="192.168.100.200"), "FABRIC_OVERLAPS_MANAGEMENT", "Ansible connects from"),
        (seen(renamed(master="bond0")), "TWIN_BONDED", "is part of bond0"),
        (seen(files=NETPLAN), "NETPLAN_ELSEWHERE", "/etc/netplan/40-cx7.yaml of spark-2 defines enp1s0f0np0"),
        ({**seen(), "infiniband_devices": []}, "INFINIBAND_DEVICES_MISSING", "no /dev/infiniband"),
    ],
)  # fmt: skip
def test_refused(box: dict[str, t.Any], expected: str, says: str) -> None:
    plan = plan_fabric({"members": BOXES}, {"spark-1": seen(), "spark-2": box})

    assert plan["verdict"] == "refused"
    assert expected in ids(plan)
    assert any(says in finding["message"] for finding in plan["findings"])
    assert all(finding["remedy"] for finding in plan["findings"])


def test_a_virtual_function_that_is_named() -> None:
    virtual = [
        Card("enp1s0f0v0", "0000:01:01.0", "rocev0", physical_function="0000:01:00.0"),
        Card("enP2p1s0f0v0", "0002:01:01.0", "rocev1", physical_function="0002:01:00.0"),
    ]
    members = ["spark-1", {"box": "spark-2", "interfaces": ["enp1s0f0v0", "enP2p1s0f0v0"]}]
    plan = plan_fabric({"members": members}, {"spark-1": seen(), "spark-2": seen([*spark(), *virtual])})

    assert (plan["verdict"], ids(plan)) == ("refused", ["TWIN_IS_VIRTUAL_FUNCTION"] * 2)


def test_a_cage_or_an_interface_off_the_bus_waits_for_its_cable() -> None:
    cards = [card for card in spark() if card.pci.endswith(".0")]
    named: tuple[dict[str, t.Any], ...] = {"cages": [1]}, {"interfaces": ["enp1s0f1np1", "enP2p1s0f1np1"]}
    for member, expected in zip(named, ("FABRIC_CAGE_NOT_THERE", "FABRIC_INTERFACE_MISSING"), strict=True):
        members = ["spark-1", {"box": "spark-2", **member}]
        plan = plan_fabric({"members": members}, {"spark-1": seen(), "spark-2": seen(cards)})
        assert (plan["verdict"], ids(plan)) == ("pending", [expected])
        assert plan["boxes"]["spark-2"]["netplan"] == {}


def test_a_ring_waits_for_a_cage_that_is_off_the_bus() -> None:
    boxes = ["spark-1", "spark-2", "spark-3"]
    observed = {box: seen(spark(cabled=[0, 1])) for box in boxes} | {"spark-2": seen(spark()[:2])}
    plan = plan_fabric({"topology": "ring", "members": boxes}, observed)

    assert (plan["verdict"], plan["boxes"]["spark-2"]["state"]) == ("pending", "pending")
    assert "FABRIC_CAGE_NOT_THERE" in ids(plan)


def test_a_cage_with_half_of_a_port_is_refused() -> None:
    members = ["spark-1", {"box": "spark-2", "cages": [1]}]
    plan = plan_fabric({"members": members}, {"spark-1": seen(), "spark-2": seen(spark(cabled=[0, 1])[:3])})

    assert (plan["verdict"], ids(plan)) == ("refused", ["TWINS_NOT_PAIRED"])


def test_old_firmware_is_a_warning_with_a_source() -> None:
    plan = plan_fabric({"members": BOXES}, {"spark-1": seen(spark(firmware="28.43.1014")), "spark-2": seen()})

    assert (plan["verdict"], set(ids(plan))) == ("planned", {"NIC_FIRMWARE_OLD"})
    assert plan["findings"][0]["claim"] == "NIC_FIRMWARE_OLD"


def test_subnets_that_do_not_go_round_or_are_too_small() -> None:
    observed = {box: seen(spark(cabled=[0, 1])) for box in BOXES}

    few = plan_fabric({"members": BOXES, "subnets": ["10.3.0.0/24", "10.4.0.0/24"]}, observed)
    assert (few["verdict"], ids(few)) == ("refused", ["FABRIC_SUBNETS_TOO_FEW"])
    small = plan_fabric({"members": BOXES, "subnets": ["10.3.0.0/29", "10.4.0.0/29"]}, {box: seen() for box in BOXES})
    assert (small["verdict"], set(ids(small))) == ("refused", {"FABRIC_SUBNET_TOO_SMALL"})
    fits = plan_fabric(
        {"members": BOXES, "subnets": ["10.3.0.0/30", "10.4.0.0/30"], "first_host": 1}, {box: seen() for box in BOXES}
    )
    assert fits["verdict"] == "planned"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"first_host": 253}, []),
        ({"first_host": 254}, ["FABRIC_SUBNET_TOO_SMALL"] * 2),
        ({"subnets": ["10.3.0.0/29", "10.4.0.0/24"]}, ["FABRIC_SUBNET_TOO_SMALL"]),
        ({"subnets": ["10.3.0.0/24"]}, ["FABRIC_SUBNETS_TOO_FEW"]),
        ({"subnets": ["10.3.0.0/24"], "shared_subnet": True}, []),
        ({"members": ["a", {"box": "b", "addresses": ["192.168.100.11", "192.168.101.12"]}]}, ["FABRIC_ADDRESS_TAKEN"]),
        (
            {"members": ["a", {"box": "b", "addresses": ["192.168.102.12", "192.168.103.12"]}]},
            ["FABRIC_ADDRESS_UNUSED"] * 2,
        ),
        ({"members": [{"box": "a", "cages": [0, 1]}, {"box": "b", "cages": [1]}]}, ["FABRIC_CABLES_DIFFER"]),
        ({"members": ["a", {"box": "b", "addresses": [f"192.168.10{one}.12" for one in range(4)]}]}, []),
    ],
)
def test_what_of_the_addresses_nobody_has_to_look_for(changes: dict[str, t.Any], expected: list[str]) -> None:
    plan = plan_fabric({"members": ["a", "b"], **changes})

    assert [one["id"] for one in plan["findings"] if one["severity"] == "error"] == expected
    assert plan["verdict"] == ("refused" if expected else "unobserved")


# --- GID index -------------------------------------------------------------------------------------------------------


def with_gids(*shifted: bool) -> list[Card]:
    """Return the cards of spark-2 with its addresses; True gives a twin an extra link-local address."""
    cards = spark()
    for card, number, shift in zip(cards, itertools.count(100), shifted, strict=False):
        card.gids = tree.gids_of(card.interface, f"192.168.{number}.12", extra_link_local=shift)
    return cards


@pytest.mark.parametrize(
    ("wish", "cards", "index", "expected"),
    [
        (None, with_gids(False, False), None, []),
        (5, with_gids(False, False), "5", []),
        ("resolve", with_gids(False, False), "3", []),
        ("resolve", with_gids(True, True), "5", []),
        ("resolve", with_gids(False, True), None, ["GID_INDEX_NOT_UNIQUE"]),
        ("resolve", spark(), None, ["GID_INDEX_PENDING"]),
    ],
)
def test_gid_index(wish: int | str | None, cards: list[Card], index: str | None, expected: list[str]) -> None:
    member = {"box": "spark-2"} | ({"gid_index": wish} if wish is not None else {})
    plan = plan_fabric({"members": ["spark-1", member]}, {"spark-1": seen(), "spark-2": seen(cards)})

    assert plan["ranks"][1]["environment"].get("NCCL_IB_GID_INDEX") == index
    assert "NCCL_IB_GID_INDEX" not in plan["ranks"][0]["environment"]
    assert ids(plan) == expected


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boxes", "tensor", "pipeline", "heads", "kv_heads", "expected"),
    [
        (2, 2, 1, 64, 8, []),
        (2, 1, 2, 64, 8, []),
        (4, 2, 2, 64, 8, []),
        (4, 4, 1, 64, 2, []),  # KV heads are copied
        (3, 3, 1, 48, 6, []),
        (3, 3, 1, 64, 8, ["HEADS_NOT_DIVISIBLE", "KV_HEADS_NOT_DIVISIBLE"]),
        (3, 1, 3, 64, 8, []),
        (4, 4, 1, 24, 6, ["KV_HEADS_NOT_DIVISIBLE"]),
        (2, 4, 1, 64, 8, ["TP_EXCEEDS_LOCAL_GPUS"]),
        (4, 2, 1, 64, 8, ["LAYOUT_LEAVES_BOXES_IDLE"]),
        (2, 2, 1, 0, 0, []),  # nothing is known of the model
        (8, 1, 8, 64, 8, ["LAYERS_FEWER_THAN_STAGES"]),
    ],
)
def test_layouts(boxes: int, tensor: int, pipeline: int, heads: int, kv_heads: int, expected: list[str]) -> None:
    names = [f"spark-{number}" for number in range(1, boxes + 1)]
    geometry = (
        {"attention_heads": heads, "layers": [{"count": 6, "kv_heads": kv_heads}, {"count": 1, "state": 9}]}
        if heads
        else {}
    )
    layout = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "geometry": geometry}
    plan = plan_fabric({"topology": "switch", "members": names}, {name: seen() for name in names}, {}, layout)

    assert ids(plan) == expected
    assert plan["verdict"] == ("refused" if expected else "planned")


@pytest.mark.parametrize(("topology", "boxes"), [("switch", 4), ("ring", 3), ("ring", 4)])
@pytest.mark.parametrize(
    ("model", "heads", "kv_heads", "fits"),
    [
        # Which (boxes, tensor, pipeline) a model takes.
        ("64 heads, 8 KV heads", 64, 8, {(4, 4, 1), (4, 2, 2), (4, 1, 4), (3, 1, 3)}),
        ("64 heads, 2 KV heads, copied over 4 ranks", 64, 2, {(4, 4, 1), (4, 2, 2), (4, 1, 4), (3, 1, 3)}),
        ("24 heads, 6 KV heads", 24, 6, {(4, 2, 2), (4, 1, 4), (3, 3, 1), (3, 1, 3)}),
        ("48 heads, 3 KV heads", 48, 3, {(4, 1, 4), (3, 3, 1), (3, 1, 3)}),
        ("28 heads, 4 KV heads", 28, 4, {(4, 4, 1), (4, 2, 2), (4, 1, 4), (3, 1, 3)}),
        ("one KV head", 16, 1, {(4, 4, 1), (4, 2, 2), (4, 1, 4), (3, 1, 3)}),
    ],
)
def test_which_layouts_of_three_and_four_boxes_a_model_takes(
    model: str, heads: int, kv_heads: int, fits: set[tuple[int, int, int]], topology: str, boxes: int
) -> None:
    names = [f"spark-{number}" for number in range(1, boxes + 1)]
    fabric = {"topology": topology, "members": names}
    geometry = {"attention_heads": heads, "layers": [{"count": 36, "kv_heads": kv_heads}]}
    taken = set()
    for tensor in range(1, 5):
        for pipeline in range(1, 5):
            layout = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "geometry": geometry}
            plan = plan_fabric(fabric, {}, {}, layout)
            refused = {one["id"] for one in plan["findings"] if one["severity"] == "error"}
            assert (plan["verdict"] == "refused") is bool(refused)
            if not refused:
                taken.add((boxes, tensor, pipeline))
            elif tensor * pipeline == boxes:
                assert refused <= {"HEADS_NOT_DIVISIBLE", "KV_HEADS_NOT_DIVISIBLE"}
            else:
                assert refused & {"TP_EXCEEDS_LOCAL_GPUS", "LAYOUT_LEAVES_BOXES_IDLE"}
    assert taken == {one for one in fits if one[0] == boxes}, model


# --- what the inventory alone gives away -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fabric", "says"),
    [
        ([], "fabric: [] is a list, not a mapping"),
        ({}, "fabric.members: is missing"),
        ({"members": BOXES, "mtus": 9000}, "there is no key 'mtus' here; did you mean mtu?"),
        ({"members": BOXES, "mtu": "9000"}, "'9000' is a string"),
        ({"members": BOXES, "mtu": 65000}, "not between 1280 and 9978"),
        ({"members": ["spark-1"]}, "a pair has two members, and there are 1"),
        ({"members": ["spark-1", "spark-1"]}, "fabric.members[1]: spark-1 is a member already"),
        ({"members": ["a", "b", "c"]}, "say topology: switch or topology: ring"),
        ({"members": BOXES, "topology": "ring"}, "a ring has three members or more"),
        ({"members": ["a", "b", {"box": "c", "cages": [1]}], "topology": "ring"}, "both cages of a box carry a cable"),
        ({"members": BOXES, "topology": "star"}, "'star' is not one of pair, switch, ring"),
        ({"members": ["a", {"box": "b", "cages": [2]}]}, "fabric.members[1].cages[0]: 2 is not between 0 and 1"),
        ({"members": ["a", {"box": "b", "cages": [1, 1]}]}, "is not one or two different cages"),
        ({"members": ["a", {"box": "b", "interfaces": ["bond0", "eth1"]}]}, "bond0 is a bond"),
        ({"members": ["a", {"box": "b", "interfaces": ["eth1"]}]}, "not two different interfaces for each cable"),
        ({"members": ["a", {"box": "b", "gid_index": "auto"}]}, "not a number or the word resolve"),
        ({"members": BOXES, "subnets": ["192.168.0.0/24", "192.168.0.0/24"]}, "shared_subnet: true"),
        ({"members": BOXES, "subnets": ["10.0.0.0/8", "10.3.0.0/24"]}, "overlaps with fabric.subnets[0]"),
        ({"members": BOXES, "subnets": ["192.168.0.7/24"]}, "did you mean 192.168.0.0/24?"),
        ({"members": BOXES, "subnets": ["192.168.010.0/24"]}, "leading zero"),
        ({"members": BOXES, "subnets": ["192.168.0.0/31"]}, "cannot hold two boxes"),
        ({"members": ["a", {"box": "b", "addresses": ["10.10.10.061", "10.10.11.61"]}]}, "did you mean 10.10.10.61?"),
        (
            {"members": ["a", {"box": "b", "addresses": ["192.168.100.5", "192.168.100.6"]}]},
            "192.168.100.6 is in the subnet of another twin",
        ),
        (
            {"members": [{"box": name, "addresses": ["192.168.100.5", "192.168.101.5"]} for name in "ab"]},
            "192.168.100.5 is the address of a already",
        ),
        ({"members": BOXES, "environment": {"NCCL_IB_GID_INDEX": ""}}, "is not the same as leaving it unset"),
        ({"members": BOXES, "environment": {"NCCL_IB_HCA": "rocep1s0f0"}}, "is another one on every box"),
        ({"members": BOXES, "environment": {"NCCL_DEBUG": True}}, "put the exact text in quotes"),
        ({"members": BOXES, "environment": {"HF_TOKEN": "x"}}, "fabric.environment.HF_TOKEN: has 'HF_TOKEN'"),
        ({"members": BOXES, "subnets": ["255.255.255.0/24"]}, "cannot hold two boxes"),
    ],
)  # fmt: skip
def test_refused_from_the_inventory_alone(fabric: t.Any, says: str) -> None:
    with pytest.raises(FabricInputError, match=re.escape(says)):
        plan_fabric(fabric)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("192.168.100.11", "in 192.168.100.0/24, a subnet of the fabric"),
        ("169.254.207.1", "an address that is good on one cable only"),
        ("192.168.103.11", "in 192.168.103.0/24, a subnet of the fabric"),  # of a second cable
        ("::ffff:192.168.100.11", "in 192.168.100.0/24, a subnet of the fabric"),
        ("::FFFF:c0a8:640b", "in 192.168.100.0/24, a subnet of the fabric"),
        ("::ffff:10.0.0.5", None),
        ("2001:db8::5", None),
        ("192.168.104.11", None),
        ("10.0.0.5", None),
        ("spark-1.example", None),
        (None, None),
    ],
)
def test_ansible_must_not_come_over_the_fabric(address: str | None, says: str | None) -> None:
    if says is None:
        assert plan_fabric({"members": BOXES}, {}, {"spark-1": address})["verdict"] == "unobserved"
        return
    with pytest.raises(FabricInputError, match=re.escape(f"ansible_host of spark-1 is {address}, {says}")):
        plan_fabric({"members": BOXES}, {}, {"spark-1": address})


@pytest.mark.parametrize("address", ["192.168.100.011", "010.0.0.5"])
def test_an_address_that_programs_read_differently_is_no_address_of_a_box(address: str) -> None:
    """ssh would read 192.168.100.011 as 192.168.100.9."""
    with pytest.raises(FabricInputError, match=re.escape(f"ansible_host of spark-1 is {address}, which has a part")):
        plan_fabric({"members": BOXES}, {}, {"spark-1": address})


def test_arguments_of_docker_run() -> None:
    rank = plan_fabric({"members": BOXES}, {box: seen() for box in BOXES})["ranks"][1]

    assert rank["docker_arguments"][:4] == [
        "--device=/dev/infiniband",
        "--cap-add=IPC_LOCK",
        "--ulimit=memlock=-1",
        "--ulimit=stack=67108864",
    ]
    assert "--env=NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0" in rank["docker_arguments"]

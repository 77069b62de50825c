# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a rank gets from its fabric, and what in an inventory goes against that."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils import _fabric_rank as fabrics
from tests.unit.support.fabric_boxes import seen
from tests.unit.support.fabric_tree import spark

BOXES = ["spark-1", "spark-2"]
RING = ["spark-1", "spark-2", "spark-3"]


def share(box: str = "spark-2", fabric: dict[str, t.Any] | None = None, looked: bool = True) -> fabrics.Share:
    """Return what a box gets from a fabric whose boxes were looked at, or not."""
    fabric = {"members": BOXES, **(fabric or {})}
    cabled = [0, 1] if fabric.get("topology") == "ring" else [0]
    observed = {one: seen(spark(cabled=cabled)) for one in fabric["members"]} if looked else {}
    return fabrics.shares_of(fabric, observed, {}).shares[box]


def found(one: fabrics.Share, address: str = "", devices: list[str] | None = None, **env: str) -> list[tuple[str, str]]:
    """Return key, severity and id of what goes against the fabric."""
    against = fabrics.contradictions(one, address, env, devices)
    return [(".".join(path), f"{finding.severity} {finding.id}") for path, finding in against]


def test_a_box_that_was_looked_at() -> None:
    mine = share()
    assert (mine.state, mine.address) == ("planned", "192.168.100.12")
    assert mine.environment["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0"
    assert "NCCL_IB_GID_INDEX" not in mine.environment
    assert mine.container["devices"] == ["/dev/infiniband"]
    assert all(mine.environment.values())


def test_before_anybody_looked_only_the_address_is_known() -> None:
    mine = share(looked=False)
    assert (mine.state, mine.address) == ("unobserved", "192.168.100.12")
    assert mine.environment == {"VLLM_HOST_IP": "192.168.100.12"}
    assert mine.container["devices"] == []


def test_in_a_ring_the_address_is_that_of_the_management_network() -> None:
    ring = {"topology": "ring", "members": RING}
    assert share(fabric=ring).address == "10.0.0.5"
    unknown = share(fabric=ring, looked=False)
    assert (unknown.address, unknown.environment) == ("", {})
    told = fabrics.shares_of(ring, {}, {"spark-2": "10.0.0.9", "spark-3": "spark-3.example"}).shares
    assert (told["spark-2"].address, told["spark-3"].address) == ("10.0.0.9", "")
    assert "VLLM_HOST_IP" not in told["spark-3"].environment


ALIEN = "error SERVING_ADDRESS_NOT_OF_BOX"
OUTSIDE = "warning SERVING_ADDRESS_OUTSIDE_FABRIC"


@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.168.100.12", None),
        ("192.168.101.12", None),  # its second twin
        ("192.168.100.11", ALIEN),  # that of the other box
        ("192.168.100.77", ALIEN),
        ("10.0.0.5", OUTSIDE),
        ("fd00::5", OUTSIDE),
    ],
)
def test_an_address_that_is_none_of_the_box_in_its_fabric(address: str, expected: str | None, looked: bool) -> None:
    assert found(share(looked=looked), address) == ([("serving_address", expected)] if expected else [])


def test_a_second_cable_that_nobody_has_seen_may_be_there() -> None:
    assert not found(share(looked=False), "192.168.102.12")
    assert found(share(), "192.168.102.12") == [("serving_address", OUTSIDE)]


@pytest.mark.parametrize("looked", [True, False])
def test_an_address_of_one_cable_of_a_ring(looked: bool) -> None:
    ring = share(fabric={"topology": "ring", "members": RING}, looked=looked)
    assert found(ring, "192.168.100.12") == [("serving_address", ALIEN)]
    assert not found(ring, "10.0.0.5")


NOT_PLANNED = "error SERVING_HCA_NOT_PLANNED"
LEAVES_ONE = "warning SERVING_HCA_LEAVES_TWIN"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("rocep1s0f0,roceP2p1s0f0", None),
        ("=rocep1s0f0:1,roceP2p1s0f0:1", None),
        ("roce", None),  # NCCL takes the beginning of a name
        ("=roce", NOT_PLANNED),
        ("rocep1s0f1,roceP2p1s0f1", NOT_PLANNED),  # the other cage, which has no cable
        ("rocep1s0f0,mlx5_0", NOT_PLANNED),
        ("rocep1s0f0", LEAVES_ONE),
        ("^rocep1s0f1", None),
        ("^rocep1s0f0", LEAVES_ONE),
        ("^roce", NOT_PLANNED),
    ],
)
def test_devices_that_the_fabric_does_not_have(given: str, expected: str | None) -> None:
    assert found(share(), NCCL_IB_HCA=given) == ([("serving_env.NCCL_IB_HCA", expected)] if expected else [])


def test_nothing_is_said_of_devices_that_nobody_has_looked_at() -> None:
    assert not found(share(looked=False), NCCL_IB_HCA="mlx5_0", GLOO_SOCKET_IFNAME="eth9")


@pytest.mark.parametrize(
    ("variable", "given", "wrong"),
    [
        ("GLOO_SOCKET_IFNAME", "enP7s7", False),  # the management network is slower, and works
        ("GLOO_SOCKET_IFNAME", "enp9s0", True),
        ("GLOO_SOCKET_IFNAME", "enp1s0f0", True),
        ("NCCL_SOCKET_IFNAME", "enp1s0f0", False),
        ("NCCL_SOCKET_IFNAME", "=enp1s0f0", True),
        ("NCCL_SOCKET_IFNAME", "^docker0", False),
        ("TP_SOCKET_IFNAME", "enp1s0f0np0", False),
    ],
)
def test_an_interface_that_is_not_there(variable: str, given: str, wrong: bool) -> None:
    expected = [(f"serving_env.{variable}", "error SERVING_INTERFACE_NOT_ON_BOX")] if wrong else []
    assert found(share(), devices=None, **{variable: given}) == expected


def test_a_container_without_the_devices_that_nccl_is_told_to_use() -> None:
    assert found(share(), devices=[]) == [("serving_devices", "error SERVING_DEVICES_WITHOUT_RDMA")]
    assert not found(share(), devices=["/dev/infiniband/uverbs0"])
    assert not found(share(), devices=[], NCCL_NET="Socket")
    assert not found(share(looked=False), devices=[])


PAIR_OF_ADDRESSES = {"spark-1": ["192.168.100.11", "192.168.101.11"], "spark-2": ["192.168.100.12", "192.168.101.12"]}


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        ({}, PAIR_OF_ADDRESSES),
        ({"shared_subnet": True, "first_host": 1}, {"spark-1": ["192.168.100.1", "192.168.100.2"]}),
        (
            {"members": ["spark-1", {"box": "spark-2", "cages": [0, 1]}]},
            {"spark-2": ["192.168.100.12", "192.168.101.12", "192.168.102.12", "192.168.103.12"]},
        ),
        (
            {"members": ["spark-1", {"box": "spark-2", "addresses": ["192.168.101.40", "192.168.100.30"]}]},
            {"spark-2": ["192.168.100.30", "192.168.101.40"]},
        ),
        (
            {"topology": "ring", "members": ["spark-1", "spark-2", "spark-3"]},
            {"spark-2": ["192.168.102.12", "192.168.103.12", "192.168.100.12", "192.168.101.12"]},
        ),
    ],
    ids=["one cable", "one subnet", "two cables", "addresses by hand", "ring"],
)
def test_what_the_inventory_alone_says_of_the_addresses(
    fabric: dict[str, t.Any], expected: dict[str, list[str]]
) -> None:
    addresses = fabrics.addresses_of({"members": ["spark-1", "spark-2"], **fabric}, {})
    assert {box: addresses[box] for box in expected} == expected

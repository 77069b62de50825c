# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fabric of a box, read from a folder that looks like its sysfs."""

from __future__ import annotations

import dataclasses
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _fabric_findings, _fabric_sysfs
from ansible_collections.gb10.fleet.plugins.module_utils._fabric import Fabric
from ansible_collections.gb10.fleet.plugins.module_utils._fabric_texts import addresses_of
from tests.unit.support import fabric_tree as tree
from tests.unit.support.fabric_tree import Card, spark

PAIR = {"enp1s0f0np0": ("192.168.100.11/24",), "enP2p1s0f0np0": ("192.168.101.11/24",), "enP7s7": ("10.0.0.5/24",)}


def read(
    root: pathlib.Path,
    cards: t.Iterable[Card],
    addresses: t.Mapping[str, tuple[str, ...]] | None = None,
    *,
    marks: dict[str, dict[str, t.Any]] | None = None,
    **options: t.Any,
) -> Fabric:
    """Build a tree and read it."""
    tree.build(root, cards)
    found = addresses_of(tree.ip_json(PAIR if addresses is None else addresses, **(marks or {})))
    return _fabric_sysfs.read(root, found, **options)


def judged(fabric: Fabric) -> tuple[str, list[str]]:
    """Return the verdict and the ids of the findings."""
    found = _fabric_findings.findings(fabric)
    return _fabric_findings.verdict_of(fabric, found), [finding.id for finding in found]


def test_a_healthy_port(tmp_path: pathlib.Path) -> None:
    fabric = read(tmp_path, spark(), kernel_log="mlx5_core 0000:01:00.0: firmware version: 28.45.4028\n")

    assert [(port.name, port.cage, port.state, port.paired_by) for port in fabric.ports] == [
        ("p0", 0, "up", "pci"),
        ("p1", 1, "down", "pci"),
    ]
    first, second = fabric.ports[0].twins
    assert (first.interface, str(first.pci), first.rdma) == ("enp1s0f0np0", "0000:01:00.0", "rocep1s0f0")
    assert (second.interface, str(second.pci), second.rdma) == ("enP2p1s0f0np0", "0002:01:00.0", "roceP2p1s0f0")
    assert (first.rdma_state, first.physical_state, first.rate_gbps, first.mtu) == ("ACTIVE", "LINK_UP", 200.0, 9000)
    assert (first.firmware, first.board, first.node_guid) == ("28.45.4028", "NVD0000000087", "4cbb470300000062")
    assert (first.pcie.width, first.pcie.speed_gts, first.pcie.reduced) == (4, 32.0, False)
    assert [str(one) for one in first.addresses] == ["192.168.100.11/24"]
    assert [other.interface for other in fabric.others] == ["enP7s7"]
    assert fabric.infiniband_devices == ("uverbs0",)
    # Two ports up and two down is what one cable looks like.
    assert judged(fabric) == ("ready", [])


def test_a_port_without_a_cable_shows_a_rate_and_is_down(tmp_path: pathlib.Path) -> None:
    twin = read(tmp_path, spark(cabled=[1])).ports[0].twins[0]

    assert (twin.rate_gbps, twin.up, twin.cabled) == (40.0, False, False)


def test_names_and_order_do_not_pair(tmp_path: pathlib.Path) -> None:
    cards = spark(cabled=[0, 1])
    # As a box on which udev hands out names in the order of appearance, and not by place.
    for card, name, device in zip(
        cards, ("eth1", "eth4", "eth3", "eth2"), ("mlx5_3", "mlx5_0", "mlx5_1", "mlx5_2"), strict=True
    ):
        card.interface, card.rdma = name, device
    ports = read(tmp_path, cards, {}).ports

    assert [[twin.interface for twin in port.twins] for port in ports] == [["eth1", "eth4"], ["eth3", "eth2"]]
    assert [[twin.rdma for twin in port.twins] for port in ports] == [["mlx5_3", "mlx5_0"], ["mlx5_1", "mlx5_2"]]


def test_a_port_name_that_contradicts_the_function_pairs_nothing(tmp_path: pathlib.Path) -> None:
    cards = spark()
    cards[1].phys_port = "p1"
    fabric = read(tmp_path, cards)

    assert [port.cage for port in fabric.ports] == [1]
    assert [twin.interface for twin in fabric.single] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert judged(fabric) == ("faulty", ["TWINS_NOT_PAIRED"])


def test_a_twin_without_the_other(tmp_path: pathlib.Path) -> None:
    fabric = read(tmp_path, [card for card in spark() if card.interface != "enP2p1s0f0np0"])

    assert "TWINS_NOT_PAIRED" in judged(fabric)[1]


def test_the_name_of_the_hardware_beats_the_function_number(tmp_path: pathlib.Path) -> None:
    cards = spark(cabled=[0, 1])
    for card in cards:
        card.phys_port = {"p0": "p1", "p1": "p0"}[card.phys_port]
    ports = read(tmp_path, cards).ports

    assert [(port.cage, port.twins[0].interface) for port in ports] == [(0, "enp1s0f1np1"), (1, "enp1s0f0np0")]


@pytest.mark.parametrize("hotplug", [True, False])
def test_no_chip_on_the_bus_is_a_cable_to_come(tmp_path: pathlib.Path, hotplug: bool) -> None:
    if hotplug:
        tree.write(tmp_path / "etc/nvidia/cx7-hotplug-enabled", "")
    fabric = read(tmp_path, [])

    assert judged(fabric) == ("pending", ["CX7_ABSENT"])
    assert fabric.hotplug is hotplug


def test_no_link_on_any_port_is_pending(tmp_path: pathlib.Path) -> None:
    assert judged(read(tmp_path, spark(cabled=[]), {})) == ("pending", ["CABLE_PENDING"])


def test_a_port_that_is_switched_off_does_not_show_its_cable(tmp_path: pathlib.Path) -> None:
    cards = spark(cabled=[])
    for card in cards[:2]:
        card.flags, card.carrier = "0x1002", ""  # the kernel refuses to read the carrier then
    fabric = read(tmp_path, cards, {})

    assert [port.off for port in fabric.ports] == [True, False]
    assert judged(fabric) == ("pending", ["TWINS_SWITCHED_OFF"])
    (found,) = _fabric_findings.findings(fabric)
    assert found.message.startswith("enp1s0f0np0, enP2p1s0f0np0 are switched off")
    assert "`ip link set enp1s0f0np0 up`" in found.remedy


def test_a_port_that_is_switched_off_beside_one_with_a_cable_is_nothing_to_say(tmp_path: pathlib.Path) -> None:
    cards = spark()
    for card in cards[2:]:
        card.flags, card.carrier = "0x1002", ""

    assert judged(read(tmp_path, cards)) == ("ready", [])


def test_a_chip_without_a_driver(tmp_path: pathlib.Path) -> None:
    cards = [dataclasses.replace(card, interface="") for card in spark()]

    assert judged(read(tmp_path, cards)) == ("faulty", ["CX7_WITHOUT_INTERFACE"])


def test_one_twin_down(tmp_path: pathlib.Path) -> None:
    cards = spark()
    cards[1] = dataclasses.replace(cards[1], operstate="down", carrier="0", state="1: DOWN", phys_state="3: Disabled")
    fabric = read(tmp_path, cards)

    assert fabric.ports[0].state == "half"
    assert judged(fabric) == ("faulty", ["TWIN_DOWN"])


def test_link_up_with_the_rdma_port_down_is_down(tmp_path: pathlib.Path) -> None:
    cards = spark()
    cards[0] = dataclasses.replace(cards[0], state="1: DOWN")

    assert judged(read(tmp_path, cards)) == ("faulty", ["TWIN_DOWN"])


@pytest.mark.parametrize(
    ("change", "verdict", "expected"),
    [
        ({"mtu": "1500"}, "degraded", ["TWIN_MTU_MISMATCH"]),
        ({"rate": "100 Gb/sec (2X HDR)"}, "degraded", ["LINK_RATE_LOW"]),
        ({"width": "2"}, "degraded", ["PCIE_LINK_REDUCED"]),
        ({"speed": "16.0 GT/s PCIe"}, "degraded", ["PCIE_LINK_REDUCED"]),
        ({"master": "bond0"}, "faulty", ["TWIN_BONDED"]),
        ({"rdma": ""}, "faulty", ["RDMA_DEVICE_MISSING"]),
        ({"gids": tree.gids_of("enP2p1s0f0np0", "192.168.101.11")}, "ready", []),
        ({"gids": tree.gids_of("enP2p1s0f0np0", "192.168.101.11")[:2]}, "faulty", ["GID_TABLE_LINK_LOCAL_ONLY"]),
    ],
)
def test_one_twin_is_not_as_the_other(
    tmp_path: pathlib.Path, change: dict[str, t.Any], verdict: str, expected: list[str]
) -> None:
    cards = spark()
    cards[1] = dataclasses.replace(cards[1], **change)

    assert judged(read(tmp_path, cards)) == (verdict, expected)


@pytest.mark.parametrize(
    ("addresses", "verdict", "expected"),
    [
        ({"enp1s0f0np0": ("10.2.0.1/24",), "enP2p1s0f0np0": ("10.2.0.2/24",)}, "degraded", ["TWINS_SHARE_SUBNET"]),
        ({"enp1s0f0np0": ("192.168.0.1/24",)}, "faulty", ["TWIN_WITHOUT_IPV4"]),
        ({**PAIR, "enP7s7": ("192.168.101.7/16",)}, "faulty", ["FABRIC_OVERLAPS_MANAGEMENT"] * 2),
        ({}, "ready", []),
    ],
)  # fmt: skip
def test_addresses(
    tmp_path: pathlib.Path, addresses: dict[str, tuple[str, ...]], verdict: str, expected: list[str]
) -> None:
    assert judged(read(tmp_path, spark(), addresses)) == (verdict, expected)


def test_both_twins_without_jumbo_frames(tmp_path: pathlib.Path) -> None:
    assert judged(read(tmp_path, spark(mtu="1500"))) == ("ready", ["TWIN_MTU_SMALL"])


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({"scope": "link", "noprefixroute": True}, ["TWIN_ZEROCONF_ADDRESS"]),
        ({}, []),  # one that a person has chosen: a published layout does so
    ],
)
def test_an_address_that_a_daemon_chose(tmp_path: pathlib.Path, marks: dict[str, t.Any], expected: list[str]) -> None:
    addresses = {"enp1s0f0np0": ("169.254.207.1/16",), "enP2p1s0f0np0": ("192.168.101.11/24",)}
    fabric = read(tmp_path, spark(), addresses, marks={"enp1s0f0np0": marks})

    assert judged(fabric)[1] == expected


def test_gid_tables(tmp_path: pathlib.Path) -> None:
    cards = spark()
    cards[0].gids = tree.gids_of("enp1s0f0np0", "192.168.100.11", extra_link_local=True)
    twin = read(tmp_path, cards).ports[0].twins[0]

    # An extra link-local address moves the IPv4 entries: 5 here, where 3 is usual.
    assert [(gid.index, gid.type) for gid in twin.gids if gid.address == "192.168.100.11"] == [
        (4, "RoCE v1"),
        (5, "RoCE v2"),
    ]
    assert {gid.netdev for gid in twin.gids} == {"enp1s0f0np0"}
    assert len(twin.gids) == 6


def test_virtual_functions_are_no_twins(tmp_path: pathlib.Path) -> None:
    gid = tree.gids_of("enp1s0f0v0", "10.0.0.1")[:2]
    virtual = Card("enp1s0f0v0", "0000:01:01.0", "rocep1s0f0v0", "p0", gids=gid, physical_function="0000:01:00.0")
    fabric = read(tmp_path, [*spark(), virtual])

    assert [twin.interface for twin in fabric.virtual] == ["enp1s0f0v0"]
    assert len(fabric.ports) == 2
    assert judged(fabric) == ("faulty", ["GID_TABLE_LINK_LOCAL_ONLY", "VIRTUAL_FUNCTIONS"])


def test_the_power_line_is_a_warning_and_27_watts_are_none(tmp_path: pathlib.Path) -> None:
    line = "mlx5_core 0000:01:00.0: mlx5_pcie_event: "
    capped = read(tmp_path / "a", spark(), kernel_log=f"{line}PCIe slot power capability was not advertised\n")
    healthy = read(tmp_path / "b", spark(), kernel_log=f"{line}Detected insufficient power on the PCIe slot (27W).\n")

    assert judged(capped) == ("degraded", ["HOTPLUG_POWER_NOT_ADVERTISED"])
    assert judged(healthy) == ("ready", [])


def test_no_device_files(tmp_path: pathlib.Path) -> None:
    tree.build(tmp_path, spark())
    (tmp_path / "dev/infiniband/uverbs0").unlink()
    fabric = _fabric_sysfs.read(tmp_path, addresses_of(tree.ip_json(PAIR)))

    assert judged(fabric) == ("faulty", ["INFINIBAND_DEVICES_MISSING"])


def test_a_netplan_file_that_forgets_a_twin(tmp_path: pathlib.Path) -> None:
    tree.write(
        tmp_path / "etc/netplan/40-cx7.yaml",
        "network:\n  ethernets:\n    enp1s0f0np0:\n      link-local: [ ipv4 ]\n    # enP2p1s0f0np0 not mentioned",
    )
    tree.write(
        tmp_path / "etc/netplan/60-gb10-fleet-fabric.yaml",
        "network:\n  ethernets:\n    enP2p1s0f0np0:\n      mtu: 9000",
    )
    fabric = read(tmp_path, spark(), own_netplan="/etc/netplan/60-gb10-fleet-fabric.yaml")

    assert fabric.ports[0].twins[0].netplan_files == ("/etc/netplan/40-cx7.yaml",)
    assert fabric.ports[0].twins[1].netplan_files == ()
    assert judged(fabric) == ("degraded", ["TWIN_NOT_CONFIGURED"])


def test_a_netplan_file_that_matches_by_name(tmp_path: pathlib.Path) -> None:
    text = 'network:\n  ethernets:\n    NM-1:\n      match:\n        name: "enp1s0f0np0"\n      dhcp4: true'
    tree.write(tmp_path / "etc/netplan/90-NM-1.yaml", text)

    assert read(tmp_path, spark()).ports[0].twins[0].netplan_files == ("/etc/netplan/90-NM-1.yaml",)


@pytest.mark.parametrize(
    ("netplan", "matched"),
    [
        ("network: {version: 2, ethernets: {enp1s0f0np0: {dhcp4: true}}}", 1),
        ("network: {ethernets: {cx7: {match: {name: 'enp1s0f0*'}}}}", 1),
        ("network: {ethernets: {cx7: {match: {macaddress: '4c:bb:47:00:00:01'}}}}", 2),
        ("network: {ethernets: {cx7: {match: {driver: mlx5_core}}}}", 2),
        ("network: {ethernets: {lan: {match: {name: 'enP7*'}}}}", 0),
    ],
)
def test_a_netplan_file_in_flow_style_or_with_a_pattern(tmp_path: pathlib.Path, netplan: str, matched: int) -> None:
    tree.write(tmp_path / "etc/netplan/40-cx7.yaml", netplan)
    for card in spark():
        tree.link(tmp_path / "sys/devices" / card.pci / "driver", tmp_path / "sys/bus/pci/drivers/mlx5_core")
    twins = read(tmp_path, spark()).ports[0].twins

    assert [twin.netplan_files for twin in twins].count(("/etc/netplan/40-cx7.yaml",)) == matched


def test_what_logins_may_lock(tmp_path: pathlib.Path) -> None:
    tree.write(tmp_path / "etc/security/limits.conf", "# *  hard memlock 1\n* soft memlock 64")
    tree.write(tmp_path / "etc/security/limits.d/99-nv-spark-limits.conf", "* - memlock unlimited")
    fabric = read(tmp_path, spark())

    assert (fabric.memlock.soft, fabric.memlock.hard) == ("unlimited", "unlimited")


def test_how_the_box_is_reached(tmp_path: pathlib.Path) -> None:
    route = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"
    tree.write(tmp_path / "proc/net/route", f"{route}\nenP7s7 00000000 0100000A 0003 0 0 100 00000000 0 0 0")
    # sudo has taken the variable away from the process itself; its parent, the login, has it.
    for pid, parent, environ in (
        (30, 20, b"HOME=/root\0"),
        (20, 1, b"A=b\0SSH_CONNECTION=10.9.9.9 5000 192.168.100.11 22\0"),
    ):
        tree.write(tmp_path / f"proc/{pid}/status", f"Name: x\nPPid:\t{parent}")
        (tmp_path / f"proc/{pid}/environ").write_bytes(environ)
    management = read(tmp_path, spark(), pid=30).management

    assert management.interfaces == ("enp1s0f0np0", "enP7s7")
    assert (management.session, management.client) == (("enp1s0f0np0",), "10.9.9.9")


def test_managed_over_wifi_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sys/class/net/wlP9s9/wireless").mkdir(parents=True)
    route = "Iface Destination Gateway Flags RefCnt Use Metric Mask"
    tree.write(tmp_path / "proc/net/route", f"{route}\nwlP9s9 00000000 0100000A 0003 0 0 600 00000000")
    fabric = read(tmp_path, spark())

    assert judged(fabric) == ("degraded", ["MGMT_INTERFACE_IS_WIFI"])


def test_a_default_route_over_a_twin_is_told_and_makes_no_wired_management(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sys/class/net/wlP9s9/wireless").mkdir(parents=True)
    route = "Iface Destination Gateway Flags RefCnt Use Metric Mask"
    over = [f"{name} 00000000 0100000A 0003 0 0 600 00000000" for name in ("wlP9s9", "enp1s0f0np0")]
    tree.write(tmp_path / "proc/net/route", "\n".join([route, *over]))
    fabric = read(tmp_path, spark())

    assert (fabric.management.interfaces, fabric.management.wireless) == (("enp1s0f0np0", "wlP9s9"), True)
    assert judged(fabric) == ("degraded", ["MGMT_INTERFACE_IS_WIFI"])


def test_an_interface_that_is_off_has_no_carrier_to_read(tmp_path: pathlib.Path) -> None:
    tree.build(tmp_path, spark())
    carrier = tmp_path / "sys/class/net/enp1s0f0np0/carrier"
    carrier.unlink()
    carrier.mkdir()  # reading it fails, as the kernel's file does
    twin = _fabric_sysfs.read(tmp_path, {}).ports[0].twins[0]

    assert twin.carrier is None


@pytest.mark.parametrize("text", ['{"a": 1}', "[1]", '[{"ifname": "a", "addr_info": 7}]', '[{"addr_info": []}]', "no"])
def test_what_is_no_list_of_addresses(text: str) -> None:
    with pytest.raises(ValueError):
        addresses_of(text)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What tools print about a fabric: the layouts of public reports, with names and numbers of our own."""

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _fabric_findings, _fabric_texts
from ansible_collections.gb10.fleet.plugins.module_utils._fabric import Fabric, Gid, PciAddress, mapped_ipv4

# The second cage is cabled; this tool lists its devices in another order at every box.
IBDEV2NETDEV = """\
roceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Up)
rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)
rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)
roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)
"""
IBV_DEVICES = """\
    device                 node GUID
    ------              ----------------
    rocep1s0f0          4cbb470300000022
    roceP2p1s0f1        4cbb470300000027
    rocep1s0f1          4cbb470300000023
    roceP2p1s0f0        4cbb470300000026
"""
RDMA_LINK = """\
link rocep1s0f0/1 state DOWN physical_state LINK_UP netdev enp1s0f0np0
link rocep1s0f1/1 state ACTIVE physical_state LINK_UP netdev enp1s0f1np1
link roceP2p1s0f0/1 state DOWN physical_state DISABLED netdev enP2p1s0f0np0
link roceP2p1s0f1/1 state ACTIVE physical_state LINK_UP netdev enP2p1s0f1np1
"""
RATE_STATE = """\
rocep1s0f0       40 Gb/sec (4X QDR)  1: DOWN
roceP2p1s0f0     40 Gb/sec (4X QDR)  1: DOWN
rocep1s0f1       200 Gb/sec (4X HDR) 4: ACTIVE
roceP2p1s0f1     100 Gb/sec (2X HDR) 4: ACTIVE
"""
SHOW_GIDS = """\
DEV     PORT    INDEX   GID                                     IPv4            VER     DEV
---     ----    -----   ---                                     ------------    ---     ---
rocep1s0f1      1       0       fe80:0000:0000:0000:xxxx:xxxx:xxxx:xxxx                 v1      enp1s0f1np1
rocep1s0f1      1       1       fe80:0000:0000:0000:xxxx:xxxx:xxxx:xxxx                 v2      enp1s0f1np1
rocep1s0f1      1       2       0000:0000:0000:0000:0000:ffff:0a01:0205 10.1.2.5        v1      enp1s0f1np1
rocep1s0f1      1       3       0000:0000:0000:0000:0000:ffff:0a01:0205 10.1.2.5        v2      enp1s0f1np1
roceP2p1s0f1    1       3       0000:0000:0000:0000:0000:ffff:0a01:0206 10.1.2.6        v2      enP2p1s0f1np1
n_gids_found=5
"""
IP_BRIEF = """\
lo               UNKNOWN        00:00:00:00:00:00 <LOOPBACK,UP,LOWER_UP>
enP7s7           UP             <redacted-mac> <BROADCAST,MULTICAST,UP,LOWER_UP>
enp1s0f0np0      DOWN           <redacted-mac> <NO-CARRIER,BROADCAST,MULTICAST,UP>
enP2p1s0f0np0    DOWN           <redacted-mac> <NO-CARRIER,BROADCAST,MULTICAST,UP>
wlP9s9           UP             <redacted-mac> <BROADCAST,MULTICAST,UP,LOWER_UP>
"""


def judged(*texts: str) -> tuple[Fabric, str, list[str]]:
    """Return the fabric, its verdict and the ids of its findings."""
    fabric = _fabric_texts.fabric_of(texts)
    found = _fabric_findings.findings(fabric)
    return fabric, _fabric_findings.verdict_of(fabric, found), [finding.id for finding in found]


def names(fabric: Fabric) -> list[list[str]]:
    """Return the RDMA devices of every port."""
    return [[twin.rdma for twin in port.twins] for port in fabric.ports]


TWINS = [["rocep1s0f0", "roceP2p1s0f0"], ["rocep1s0f1", "roceP2p1s0f1"]]


def test_two_up_and_two_down_is_a_healthy_pair() -> None:
    fabric, verdict, found = judged(IBDEV2NETDEV)

    assert names(fabric) == TWINS
    assert [port.state for port in fabric.ports] == ["down", "up"]
    assert {port.paired_by for port in fabric.ports} == {"name"}
    assert (verdict, found) == ("ready", [])


def test_all_up() -> None:
    fabric, verdict, found = judged(IBDEV2NETDEV.replace("Down", "Up"))

    assert [port.cage for port in fabric.cabled] == [0, 1]
    assert (verdict, found) == ("ready", [])


def test_guids_join_the_devices_by_name() -> None:
    fabric, _verdict, _found = judged(IBV_DEVICES, IBDEV2NETDEV)

    assert [twin.node_guid[-2:] for twin in fabric.twins] == ["22", "26", "23", "27"]


def test_devices_alone_say_nothing_about_links() -> None:
    fabric, verdict, _found = judged(IBV_DEVICES)

    assert names(fabric) == TWINS
    assert verdict == "unknown"


def test_link_up_is_not_active() -> None:
    fabric, _verdict, _found = judged(RDMA_LINK)

    assert [port.state for port in fabric.ports] == ["down", "up"]


def test_rate_and_state_count_together() -> None:
    fabric, verdict, found = judged(RATE_STATE, IBDEV2NETDEV)

    assert [twin.rate_gbps for twin in fabric.twins] == [40.0, 40.0, 200.0, 100.0]
    assert (verdict, found) == ("degraded", ["LINK_RATE_LOW"])  # the twin at 100; those that are down are not slow


def test_gid_tables_show_a_shared_subnet() -> None:
    fabric, verdict, found = judged(SHOW_GIDS)

    first = fabric.ports[0].twins[0]
    assert [(gid.index, gid.type, gid.address) for gid in first.gids][-2:] == [
        (2, "RoCE v1", "10.1.2.5"),
        (3, "RoCE v2", "10.1.2.5"),
    ]
    assert (verdict, found) == ("degraded", ["TWINS_SHARE_SUBNET"])


def test_no_carrier_is_a_cable_to_come() -> None:
    fabric, verdict, found = judged(IP_BRIEF)

    assert [other.interface for other in fabric.others] == ["lo", "enP7s7", "wlP9s9"]
    assert (verdict, found) == ("pending", ["CABLE_PENDING"])


def test_nothing_at_all_is_pending() -> None:
    assert judged("")[1:] == ("pending", ["CX7_ABSENT"])


def test_lspci() -> None:
    text = (
        "0002:01:00.1 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n        LnkCap: "
        "Port #0, Speed 32GT/s, Width x4, ASPM not supported\n        LnkSta: Speed 32GT/s, Width x2\n"
    )

    assert [str(one) for one in _fabric_texts.connectx_of(text)] == ["0002:01:00.1"]
    assert _fabric_texts.pcie_of(text) == (32.0, 2, 32.0, 4)
    assert _fabric_texts.pcie_of("") is None
    assert _fabric_texts.connectx_of("0007:01:00.0 Ethernet controller: Realtek RTL8127\n") == ()


def test_firmware_of_every_function() -> None:
    log = "mlx5_core 0000:01:00.0: firmware version: 28.45.4028\nmlx5_core 0002:01:00.0: firmware version: 28.43.1014\n"

    assert _fabric_texts.firmware_of(log) == {"0000:01:00.0": "28.45.4028", "0002:01:00.0": "28.43.1014"}


@pytest.mark.parametrize(
    ("name", "place", "port"),
    [
        ("enP2p1s0f1np1", PciAddress(2, 1, 0, 1), "p1"),
        ("enp1s0f0np0", PciAddress(0, 1, 0, 0), "p0"),
        ("enp1s0f0", PciAddress(0, 1, 0, 0), ""),
        ("eth0", None, ""),
        ("enP7s7", None, ""),
        ("mlx5_0", None, ""),
    ],
)
def test_the_place_in_a_predictable_name(name: str, place: PciAddress | None, port: str) -> None:
    assert _fabric_texts.place_in_name(name) == (place, port)


@pytest.mark.parametrize(
    ("gid", "address"),
    [
        ("0000:0000:0000:0000:0000:ffff:c0a8:640a", "192.168.100.10"),
        ("::ffff:192.168.100.10", "192.168.100.10"),
        ("fe80:0000:0000:0000:4ebb:47ff:fe00:0001", ""),
        ("fe80:0000:0000:0000:xxxx:xxxx:xxxx:xxxx", ""),
        ("0000:0000:0000:0000:0000:0000:c0a8:640a", ""),
    ],
)
def test_the_address_in_a_gid(gid: str, address: str) -> None:
    assert mapped_ipv4(gid) == address


def test_kinds_of_gid_entries() -> None:
    assert [Gid.make(0, kind, "fe80::1", "x").type for kind in ("IB/RoCE v1", "v2", "RoCE v2")] == [
        "RoCE v1",
        "RoCE v2",
        "RoCE v2",
    ]


def test_an_interface_that_is_switched_off_has_no_carrier_to_speak_of() -> None:
    lines = [f"{name}  DOWN  <redacted-mac> <BROADCAST,MULTICAST> " for name in ("enp1s0f0np0", "enP2p1s0f0np0")]
    (port,) = _fabric_texts.fabric_of(lines).ports
    assert (port.cabled, port.off, [twin.carrier for twin in port.twins]) == (False, True, [None, None])

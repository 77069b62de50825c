# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from lab.names import HostSpec, LabError, Names, choose_block, lab_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spark-1", HostSpec("spark-1", "trixie")),
        ("spark-2:trixie", HostSpec("spark-2", "trixie")),
        ("old-1:bookworm", HostSpec("old-1", "bookworm")),
    ],
)
def test_host_spec(text: str, expected: HostSpec) -> None:
    assert HostSpec.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("spark", "is no lab host name"),
        ("Spark-1", "is no lab host name"),
        ("spark-100", "is no lab host name"),
        ("../x-1", "is no lab host name"),
        ("spark-1:noble", "trixie and bookworm"),
    ],
)
def test_host_spec_refuses(text: str, part: str) -> None:
    with pytest.raises(LabError, match=part):
        HostSpec.parse(text)


def test_octets_of_one_word_differ_and_fit() -> None:
    sparks = [HostSpec(f"spark-{n}").octet for n in range(1, 100)]
    others = [HostSpec(f"old-{n}").octet for n in range(1, 100)]
    for octets in (sparks, others):
        assert len(set(octets)) == 99
        assert min(octets) > 1
        assert max(octets) < 255
    assert not set(sparks) & set(others)


def test_lab_id_tells_checkouts_apart() -> None:
    first, second = lab_id(Path("/srv/a")), lab_id(Path("/srv/b"))
    assert first != second
    assert first == lab_id(Path("/srv/x/../a"))
    assert len(first) == 8


def test_two_labs_share_no_name() -> None:
    def everything(names: Names) -> set[str]:
        return {
            names.network,
            *names.twin_networks,
            names.container("spark-1"),
            names.volume("spark-1", "docker"),
            names.image("trixie", "abc"),
        }

    first, second = everything(Names("00000001")), everything(Names("00000002"))
    assert len(first) == 6
    assert not first & second


def test_address_plan() -> None:
    plan = choose_block("00000005", [])
    assert [network.prefixlen for network in plan.subnets] == [24, 24, 24]
    one, two = HostSpec("spark-1"), HostSpec("spark-2")
    assert plan.address(one) != plan.address(two)
    assert plan.address(one).endswith(".11")
    assert ipaddress.IPv4Address(plan.address(one, 2)) in plan.subnets[2]
    macs = {plan.mac(host, n) for host in (one, two) for n in (1, 2)}
    assert len(macs) == 4
    # Locally administered and not a group address.
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs)


def test_block_is_stable_and_avoids_what_is_taken() -> None:
    first = choose_block("00000005", [])
    assert choose_block("00000005", ["192.168.0.0/16"]) == first
    second = choose_block("00000005", [str(first.subnets[1])])
    assert not second.block.overlaps(first.block)


def test_no_block_left() -> None:
    with pytest.raises(LabError, match="No free /22"):
        choose_block("00000005", ["10.0.0.0/8"])

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which netplan files say something of an interface."""

from __future__ import annotations

import textwrap

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _netplan_names

TWIN = _netplan_names.Link("enp1s0f0np0", "4c:bb:47:00:00:01", "mlx5_core")


def block(*lines: str, more: str = "dhcp4: true") -> str:
    """Return a netplan file whose one definition matches by these lines."""
    inner = textwrap.indent("\n".join(lines), " " * 8)
    return f"network:\n  version: 2\n  ethernets:\n    cx7:\n      match:\n{inner}\n      {more}\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("network:\n  ethernets:\n    enp1s0f0np0:\n      dhcp4: true\n", id="by its name"),
        pytest.param('network:\n  ethernets:\n    "enp1s0f0np0": {}\n', id="by its name in quotes"),
        pytest.param("network: {version: 2, ethernets: {enp1s0f0np0: {dhcp4: true}}}\n", id="in flow style"),
        pytest.param("network: {ethernets: {eth0: {}, 'enp1s0f0np0': {dhcp4: true}}}\n", id="in flow style, second"),
        pytest.param('{"network": {"ethernets": {"enp1s0f0np0": {"mtu": 9000}}}}', id="in JSON"),
        pytest.param("network: {ethernets: {\n  enp1s0f0np0: {dhcp4: true}}}\n", id="in flow style over lines"),
        pytest.param(block('name: "enp1s0f0np0"'), id="matched by name"),
        pytest.param(block("name: enp1s0f*  # both cages"), id="matched by a pattern"),
        pytest.param(block("name: 'enp1s0f[01]np?'"), id="matched by a pattern with a set"),
        pytest.param(block("macaddress: 4C:BB:47:00:00:01"), id="matched by address"),
        pytest.param(block("driver: mlx5_*"), id="matched by driver"),
        pytest.param(block("driver: [bcmgenet, mlx5_core]"), id="matched by one driver of several"),
        pytest.param(block("driver:", "- bcmgenet", "- mlx5_core"), id="matched by one driver of a list"),
        pytest.param(block("", "name: en*", "macaddress: 4c:bb:47:00:00:01"), id="matched by two"),
        pytest.param("network: {ethernets: {cx7: {match: {name: 'enp1s0f*'}, mtu: 9000}}}\n", id="flow style, matched"),
        pytest.param(block("name: eth0") + "    b:\n      match: {macaddress: '4c:bb:47:00:00:01'}\n", id="the second"),
        pytest.param('{"network": {"ethernets": {"a": {"match": {"name": "enp1*"}}}}}', id="JSON, matched"),
    ],
)
def test_what_defines_an_interface(text: str) -> None:
    assert _netplan_names.defines(text, TWIN)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("network:\n  ethernets:\n    # enp1s0f0np0:\n    eth0: {}  # {enp1s0f0np0: }\n", id="comment"),
        pytest.param("network: {ethernets: {enp1s0f0np00: {dhcp4: true}}}\n", id="a longer name"),
        pytest.param("network: {ethernets: {enP2p1s0f0np0: {dhcp4: true}}}\n", id="its twin"),
        pytest.param(block("name: enP2p1s0f*"), id="the pattern of its twin"),
        pytest.param(block("macaddress: 4c:bb:47:00:00:02"), id="another address"),
        pytest.param(block("driver: r8127"), id="another driver"),
        pytest.param(block("name: en*", "macaddress: 4c:bb:47:00:00:02"), id="one of two"),
        pytest.param("network: {ethernets: {a: {match: {name: 'en*', driver: r8127}}}}\n", id="one of two, flow style"),
        pytest.param(block("path: pci-0000:01:00.0"), id="by what is not known here"),
        pytest.param(block("name: eth0", more="networkmanager:\n        name: enp1s0f0np0"), id="beside the match"),
        pytest.param("network:\n  bonds:\n    bond0:\n      interfaces: [eth0]\n", id="nothing of it"),
        pytest.param("", id="nothing"),
    ],
)
def test_what_says_nothing_of_it(text: str) -> None:
    assert not _netplan_names.defines(text, TWIN)


def test_an_interface_without_an_address_or_a_driver_is_matched_by_neither() -> None:
    bare = _netplan_names.Link("enp1s0f0np0")
    for condition in ("macaddress: ''", "driver: ''", "driver:", "macaddress:"):
        assert not _netplan_names.defines(block(condition), bare)

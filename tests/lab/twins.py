# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The twins of the lab's boxes: real links between the boxes, with what a ConnectX-7 would say of them beside.

A lab box has no ConnectX-7, so a folder on it says where on the bus its interfaces would sit, and what RDMA would say;
what a driver says of an interface comes from the interface itself.
"""

from __future__ import annotations

import collections.abc as c
import io
import json
import pathlib
import subprocess
import tarfile
import tempfile

from tests.lab import kit
from tests.unit.support import fabric_tree

BOXES = ("spark-1", "spark-2")
TWINS = ("enp1s0f0np0", "enP2p1s0f0np0")
OUTER = ("enp1s0f1np1", "enP2p1s0f1np1")
TREE = "/srv/gb10-lab/spark"
NETPLAN = "/etc/netplan/60-gb10-fleet-fabric.yaml"
STATE = "/var/lib/gb10-fleet/fabric"


def put_tree(box: str, cards: c.Iterable[fabric_tree.Card]) -> None:
    """Put a folder on a box that says what its chip would say, with real interfaces in it."""
    with tempfile.TemporaryDirectory() as folder:
        root = fabric_tree.build(pathlib.Path(folder), cards, others=())
        for name in ("proc", "etc", "run"):
            (root / name).symlink_to(f"/{name}")
        net = root / "sys/class/net"
        net.mkdir(parents=True, exist_ok=True)
        for name in ("eth0", "docker0", *TWINS, *OUTER):
            if not (net / name).is_symlink():
                (net / name).symlink_to(f"/sys/class/net/{name}")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(root, arcname=".")
    kit.on_box(box, f"rm -rf {TREE} && mkdir -p {TREE}")
    ssh = ["ssh", "-F", str(kit.LAB / "ssh_config"), box, f"sudo tar -x -C {TREE}"]
    subprocess.run(ssh, input=packed.getvalue(), check=True)


def cards(cage: int = 0) -> list[fabric_tree.Card]:
    """Return the functions of a Spark with a cable in one cage; those of that cage are real interfaces."""
    found = fabric_tree.spark(cabled=[cage])
    for card in found:
        card.live = card.phys_port == f"p{cage}"
    return found


def wipe(box: str) -> None:
    """Make a box as if it had never had a fabric; its twins are up, without addresses, with a small MTU."""
    kit.on_box(
        box,
        "systemctl stop gb10-fleet-fabric-apply gb10-fleet-fabric 2>/dev/null; systemctl -q disable "
        "gb10-fleet-fabric; "
        f"rm -rf {NETPLAN} {STATE} /etc/gb10-fleet/fabric.json /etc/systemd/system/gb10-fleet-fabric.service {TREE} "
        "/etc/security/limits.d/90-gb10-fleet-fabric.conf /etc/modules-load.d/gb10-fleet-fabric.conf "
        "/etc/netplan/99-somebody.yaml; netplan apply; systemctl daemon-reload; systemctl reset-failed",
        check=False,
    )
    name_twins(box, TWINS)
    for twin in TWINS:
        kit.on_box(box, f"ip address flush dev {twin}; ip link set {twin} mtu 1500 up")


def name_twins(box: str, names: tuple[str, str]) -> None:
    """Give the twins of a box other names; the first one stays on the first network."""
    by_mac = {
        link["address"]: link["ifname"]
        for link in json.loads(kit.on_box(box, "ip -json link show"))
        if link["ifname"] not in {"lo", "eth0", "docker0"} and link.get("address", "").startswith("02:42:")
    }
    # The lab numbers its networks: the address of the second one is higher.
    now = [by_mac[mac] for mac in sorted(by_mac)]
    for old, new in zip(now, ("swap0", "swap1"), strict=True):
        kit.on_box(box, f"ip link set {old} down; ip link set {old} name {new}")
    for old, new in zip(("swap0", "swap1"), names, strict=True):
        kit.on_box(box, f"ip link set {old} name {new}; ip link set {new} up")

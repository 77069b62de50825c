# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fabric of two boxes: set up, broken and put right, and the boxes stay within reach.

Links, addresses, MTUs and frames are real; what is not is told in tests/lab/twins.py.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import json
import pathlib
import re
import tempfile
import typing as t

import ansible_runner
import pytest
import yaml

from tests.lab import kit
from tests.lab.twins import BOXES, NETPLAN, OUTER, STATE, TREE, TWINS, cards, name_twins, put_tree, wipe

WINDOW = 20
FABRIC: dict[str, t.Any] = {
    "members": list(BOXES),
    "subnets": ["172.31.100.0/24", "172.31.101.0/24"],
}
SETTINGS = {
    "fabric_sysroot": TREE,
    "fabric_confirm_timeout": WINDOW,
    "fabric_verify_timeout": 20,
    "fabric_load_seconds": 2,
}


@pytest.fixture(scope="module", autouse=True)
def boxes() -> c.Iterator[None]:
    """Boxes without a fabric, before and after."""
    for box in BOXES:
        wipe(box)
        put_tree(box, cards())
    yield
    for box in BOXES:
        wipe(box)


@contextlib.contextmanager
def within_reach(*names: str) -> c.Iterator[None]:
    """Have boxes ask each other for an echo over eth0 all the time, and fail where one was missing."""
    hosts = kit.lab_facts()["lab_hosts"]
    others = {box: next(other for other in BOXES if other != box) for box in names}
    for box, other in others.items():
        ping = f"exec ping -n -q -i 0.5 -W 5 -I eth0 {hosts[box]['address']} >/run/lab-echo"
        kit.on_box(other, f"systemd-run --unit=lab-echo --collect --quiet sh -c '{ping}'")
    try:
        yield
    finally:
        said = {}
        for box, other in others.items():
            ended = "while systemctl --quiet is-active lab-echo; do sleep 0.2; done"
            kit.on_box(other, f"systemctl kill --signal=INT lab-echo; timeout 30 sh -c '{ended}'", check=False)
            said[box] = kit.on_box(other, "cat /run/lab-echo")
    for box, text in said.items():
        counts = re.search(r"(\d+) packets transmitted, (\d+) received", text)
        assert counts, text
        # The last one may still be on its way.
        assert int(counts[1]) - int(counts[2]) <= 1, f"{box}: {text}"


def inventory(folder: pathlib.Path, fabric: dict[str, t.Any] | None = None, **settings: t.Any) -> pathlib.Path:
    """Return an inventory whose boxes have a fabric."""
    folder.mkdir(exist_ok=True)
    text = yaml.safe_dump({"fabric": FABRIC | (fabric or {}), **SETTINGS, **settings})
    return kit.edited_inventory(folder, {"group_vars/sparks/fabric.yml": text})


def play(
    folder: pathlib.Path,
    fabric: dict[str, t.Any] | None = None,
    *,
    check: bool = False,
    limit: str = "sparks",
    **settings: t.Any,
) -> kit.Run:
    """Set the fabric up and prove it."""
    return kit.play(
        limit=limit, inventory=inventory(folder, fabric, **settings), playbook="playbooks/fabric.yml", check=check
    )


def module(box: str, name: str, **arguments: t.Any) -> dict[str, t.Any]:
    """Run a module on a box as root and return its result."""
    with tempfile.TemporaryDirectory(prefix="gb10-fleet-run-") as folder:
        runner = ansible_runner.run(
            private_data_dir=folder,
            host_pattern=box,
            inventory=str(kit.CHECKOUT / "inventories" / "lab"),
            module=f"gb10.fleet.{name}",
            module_args=json.dumps(arguments),
            cmdline="--become",
            envvars={"ANSIBLE_CONFIG": str(kit.CHECKOUT / "ansible.cfg")},
            quiet=True,
        )
        events = [event for event in runner.events if event["event"] in {"runner_on_ok", "runner_on_failed"}]
        output = runner.stdout.read()
    assert events, output
    return t.cast("dict[str, t.Any]", events[-1]["event_data"]["res"])


def judged(box: str) -> tuple[str, list[str]]:
    """Return the verdict of a box and the ids of its findings."""
    found = module(box, "fabric_info", sysroot=TREE)
    return found["verdict"], [finding["id"] for finding in found["findings"]]


def ways(box: str) -> list[dict[str, str]]:
    """Return what has to answer over the twins of a box."""
    own, peer = ("11", "12") if box == "spark-1" else ("12", "11")
    other = next(name for name in BOXES if name != box)
    macs = {link["ifname"]: link["address"] for link in json.loads(kit.on_box(other, "ip -json link show"))}
    return [
        {
            "interface": twin,
            "source": f"172.31.{number}.{own}",
            "target": f"172.31.{number}.{peer}",
            "peer": other,
            "peer_interface": twin,
            "mac": macs[twin],
        }
        for twin, number in zip(TWINS, (100, 101), strict=True)
    ]


def addresses(box: str, *names: str) -> dict[str, list[str]]:
    """Return the IPv4 addresses of interfaces."""
    links = json.loads(kit.on_box(box, "ip -json -4 address show"))
    return {
        link["ifname"]: [f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"]]
        for link in links
        if link.get("ifname") in names
    }


# --- setting up ------------------------------------------------------------------------------------------------------


def test_a_check_of_fresh_boxes_changes_nothing(tmp_path: pathlib.Path) -> None:
    run = play(tmp_path, check=True)

    assert run.status == "successful", run.output
    assert "+      - 172.31.100.11/24" in run.output
    assert run.count("changed", "spark-1") > 0
    for box in BOXES:
        assert kit.on_box(box, f"ls -d {NETPLAN} {STATE} /etc/gb10-fleet/fabric.json 2>/dev/null || true") == ""
        assert addresses(box, *TWINS) == {}


def test_set_up_and_proven(tmp_path: pathlib.Path) -> None:
    before = [judged(box)[0] for box in BOXES]
    with within_reach(*BOXES):
        run = play(tmp_path)

    assert before == ["ready", "ready"]
    assert run.status == "successful", run.output
    for number, box in enumerate(BOXES, start=11):
        assert addresses(box, *TWINS) == {TWINS[0]: [f"172.31.100.{number}/24"], TWINS[1]: [f"172.31.101.{number}/24"]}
        assert kit.on_box(box, f"stat -c %a {NETPLAN}").strip() == "600"
        assert judged(box) == ("ready", [])
        assert kit.on_box(box, "systemctl is-enabled gb10-fleet-fabric").strip() == "enabled"
        assert kit.on_box(box, f"ls -A {STATE}").split() == ["wanted.yaml"]
    for twin, number in zip(TWINS, (100, 101), strict=True):
        kit.on_box("spark-1", f"ping -M do -s 8972 -c 2 -I {twin} 172.31.{number}.12")
    assert "Gb/s over TCP" in run.output


def test_a_second_run_changes_nothing(tmp_path: pathlib.Path) -> None:
    run = play(tmp_path)

    assert run.status == "successful", run.output
    assert [run.count("changed", box) for box in BOXES] == [0, 0]


def test_the_twins_are_verified_after_a_reboot() -> None:
    boot = kit.on_box("spark-2", "cat /proc/sys/kernel/random/boot_id")
    kit.on_box("spark-2", "systemctl reboot", check=False)

    def back() -> bool:
        now = kit.on_box("spark-2", "cat /proc/sys/kernel/random/boot_id", check=False)
        return now not in {"", boot}

    kit.wait_for(back, seconds=120, what="spark-2 comes back")
    kit.wait_for(
        lambda: kit.on_box("spark-2", "systemctl is-active gb10-fleet-fabric", check=False).strip() == "active",
        seconds=120,
        what="the fabric is verified",
    )
    said = kit.on_box("spark-2", "journalctl -b -u gb10-fleet-fabric --output=cat")
    assert "the fabric is as it was set up: enp1s0f0np0 172.31.100.12/24, enP2p1s0f0np0 172.31.101.12/24" in said


# --- broken, and put right -------------------------------------------------------------------------------------------


def names(probe: dict[str, t.Any]) -> list[str]:
    """Return what a probe has found, but for slow answers: how soon an answer comes is the doing of a busy machine."""
    return [one["id"] for one in probe["findings"] if one["id"] != "FABRIC_SLOW_ANSWERS"]


def test_one_twin_down(tmp_path: pathlib.Path) -> None:
    kit.on_box("spark-2", f"ip link set {TWINS[1]} down")

    verdict, found = judged("spark-2")
    assert (verdict, found[0]) == ("faulty", "TWIN_DOWN")
    probe = module("spark-1", "fabric_probe", ways=ways("spark-1"))
    assert (probe["verdict"], names(probe)) == ("failed", ["TWIN_UNREACHABLE"])
    lost = next(one for one in probe["findings"] if one["id"] == "TWIN_UNREACHABLE")
    assert lost["message"].startswith("enP2p1s0f0np0 (172.31.101.11) to 172.31.101.12 on spark-2")
    verified = kit.on_box("spark-2", "python3 /usr/local/lib/gb10-fleet/fleet.pyz fabric verify 0", check=False)
    assert verified == "the fabric is not as it was set up: enP2p1s0f0np0 is switched off\n"
    with within_reach(*BOXES):
        run = play(tmp_path)
    assert run.status == "successful", run.output
    assert judged("spark-2") == ("ready", [])


def test_a_wrong_mtu_on_one_twin(tmp_path: pathlib.Path) -> None:
    kit.on_box("spark-2", f"ip link set {TWINS[1]} mtu 1500")

    assert judged("spark-2") == ("degraded", ["TWIN_MTU_MISMATCH"])
    probe = module("spark-1", "fabric_probe", ways=ways("spark-1"))
    assert names(probe) == ["JUMBO_FRAMES_LOST"]
    with within_reach(*BOXES):
        run = play(tmp_path)
    assert run.status == "successful", run.output
    assert kit.on_box("spark-2", f"cat /sys/class/net/{TWINS[1]}/mtu").strip() == "9000"


def test_crossed_cables(tmp_path: pathlib.Path) -> None:
    name_twins("spark-2", (TWINS[1], TWINS[0]))
    kit.on_box("spark-2", "netplan apply")
    try:
        run = play(tmp_path)
    finally:
        name_twins("spark-2", TWINS)
        kit.on_box("spark-2", "netplan apply")

    assert run.status == "failed"
    said = "\n".join(run.failures)
    assert "enp1s0f0np0 is cabled to enP2p1s0f0np0 of spark-2, and the plan has enp1s0f0np0 of spark-2 there" in said
    assert play(tmp_path / "again").status == "successful"


def test_another_cage_on_one_box(tmp_path: pathlib.Path) -> None:
    name_twins("spark-2", OUTER)
    put_tree("spark-2", cards(cage=1))
    try:
        with within_reach(*BOXES):
            run = play(tmp_path)
        assert run.status == "successful", run.output
        assert addresses("spark-2", *OUTER) == {OUTER[0]: ["172.31.100.12/24"], OUTER[1]: ["172.31.101.12/24"]}
        assert TWINS[0] not in kit.on_box("spark-2", f"cat {NETPLAN}")
        kit.on_box("spark-1", f"ping -M do -s 8972 -c 2 -I {TWINS[1]} 172.31.101.12")
    finally:
        name_twins("spark-2", TWINS)
        put_tree("spark-2", cards())
    assert play(tmp_path / "again").status == "successful"


def test_both_twins_in_one_subnet(tmp_path: pathlib.Path) -> None:
    run = play(tmp_path, {"subnets": ["172.31.100.0/24", "172.31.100.0/24"]})

    assert run.status == "failed"
    said = "\n".join(run.failures)
    assert "inventories/lab/group_vars/sparks/fabric.yml:" in said
    assert "fabric.subnets[1]: 172.31.100.0/24 overlaps with fabric.subnets[0]" in said
    assert "shared_subnet: true" in said
    kit.on_box("spark-1", f"ip address add 172.31.100.99/24 dev {TWINS[1]}")
    try:
        assert judged("spark-1") == ("degraded", ["TWINS_SHARE_SUBNET"])
    finally:
        kit.on_box("spark-1", f"ip address del 172.31.100.99/24 dev {TWINS[1]}")


def test_the_management_interface_named_as_a_twin(tmp_path: pathlib.Path) -> None:
    before = kit.on_box("spark-2", f"cat {NETPLAN}; ip -4 address show eth0")
    members = ["spark-1", {"box": "spark-2", "interfaces": ["eth0", TWINS[1]]}]
    with within_reach(*BOXES):
        run = play(tmp_path, {"members": members})

    assert run.status == "failed"
    assert "spark-2 is managed over eth0, and setting it up for the fabric would cut that" in "\n".join(run.failures)
    assert kit.on_box("spark-2", f"cat {NETPLAN}; ip -4 address show eth0") == before


def test_a_subnet_that_the_management_uses(tmp_path: pathlib.Path) -> None:
    address = kit.lab_facts()["lab_hosts"]["spark-1"]["address"]
    subnet = ".".join([*address.split(".")[:3], "0/24"])
    with within_reach(*BOXES):
        run = play(tmp_path, {"subnets": [subnet, "172.31.101.0/24"]})

    assert run.status == "failed"
    assert f"ansible_host of spark-1 is {address}, in {subnet}, a subnet of the fabric" in "\n".join(run.failures)


def test_a_twin_that_another_netplan_file_defines(tmp_path: pathlib.Path) -> None:
    path = "/etc/netplan/40-cx7.yaml"
    text = f"network:\n  version: 2\n  ethernets:\n    {TWINS[0]}:\n      link-local: [ipv4]\n"
    kit.on_box("spark-1", f"umask 077; printf '%s' '{text}' > {path}")
    try:
        run = play(tmp_path)
    finally:
        kit.on_box("spark-1", f"rm {path}")

    assert run.status == "failed"
    assert f"{path} of spark-1 defines enp1s0f0np0" in "\n".join(run.failures)


def test_no_cable_is_no_failure(tmp_path: pathlib.Path) -> None:
    wipe("spark-2")
    put_tree("spark-2", [])
    try:
        run = play(tmp_path)
        assert run.status == "successful", run.output
        assert judged("spark-2") == ("pending", ["CX7_ABSENT"])
        assert "spark-2 has no port with a link yet" in "\n".join(run.messages)
        assert kit.on_box("spark-2", f"ls {NETPLAN} 2>/dev/null || true") == ""
    finally:
        put_tree("spark-2", cards())


# --- the way back ----------------------------------------------------------------------------------------------------


def test_a_playbook_that_is_killed_leaves_no_half_change() -> None:
    wipe("spark-2")
    put_tree("spark-2", cards())
    text = (
        f"network:\n  version: 2\n  ethernets:\n    {TWINS[0]}:\n      addresses: [172.31.100.12/24]\n      mtu: 9000\n"
    )
    twins = [{"interface": TWINS[0], "address": "172.31.100.12/24", "mtu": 9000}]
    begun = module("spark-2", "fabric_netplan", content=text, twins=twins, window=4)
    assert begun["applying"]
    kit.wait_for(lambda: bool(addresses("spark-2", TWINS[0])), seconds=60, what="netplan is applied")

    # Nobody confirms.
    status = "cat /run/gb10-fleet/fabric.json"
    kit.wait_for(
        lambda: '"returned"' in kit.on_box("spark-2", status, check=False), seconds=60, what="the box goes back"
    )
    assert addresses("spark-2", TWINS[0]) == {}
    assert kit.on_box("spark-2", f"ls {NETPLAN} 2>/dev/null || true; cat /sys/class/net/{TWINS[0]}/mtu") == "1500\n"
    refused = module("spark-2", "fabric_netplan", state="confirmed")
    assert (
        "nobody reached the box within 4 s after netplan was applied; the box went back to what it was"
        in refused["msg"]
    )


def test_a_change_that_cuts_the_management_is_taken_back(tmp_path: pathlib.Path) -> None:
    wipe("spark-2")
    put_tree("spark-2", cards())
    # Somebody has left a file that was never applied, and that gives the management interface another address.
    text = "network:\n  version: 2\n  ethernets:\n    eth0:\n      addresses: [10.254.254.2/30]\n"
    kit.on_box("spark-2", f"umask 077; printf '%s' '{text}' > /etc/netplan/99-somebody.yaml")
    before = addresses("spark-2", "eth0")
    try:
        run = play(tmp_path)
        assert run.status == "failed"
        said = "\n".join(run.failures)
        reason = f"nobody reached the box within {WINDOW} s after netplan was applied; the box went back"
        assert reason in said, run.output
        assert before["eth0"][0] in addresses("spark-2", "eth0")["eth0"]
        assert kit.on_box("spark-2", f"ls {NETPLAN} 2>/dev/null || true") == ""
        assert addresses("spark-2", *TWINS) == {}
    finally:
        undo = "rm -f /etc/netplan/99-somebody.yaml; ip address del 10.254.254.2/30 dev eth0 || true"
        kit.on_box("spark-2", undo, check=False)


def test_all_is_well_in_the_end(tmp_path: pathlib.Path) -> None:
    with within_reach(*BOXES):
        run = play(tmp_path)

    assert run.status == "successful", run.output
    assert [judged(box) for box in BOXES] == [("ready", []), ("ready", [])]
    assert [kit.on_box(box, "systemctl is-system-running", check=False).strip() for box in BOXES] == ["running"] * 2

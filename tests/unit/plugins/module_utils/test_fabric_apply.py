# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Applying netplan with a way back: what is left in every case. The real thing runs in molecule/fabric."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _fabric_state, _netplan, _status
from ansible_collections.gb10.fleet.plugins.module_utils._fabric_apply import APPLIED, JOB, RETURNED, Apply, Places
from ansible_collections.gb10.fleet.plugins.module_utils._fabric_state import Wish
from tests.unit.support.fabric_tree import write

TWIN = "enp1s0f0np0"
WANTED = f"network:\n  ethernets:\n    {TWIN}:\n      mtu: 9000\n"


class Box:
    """A box with eth0 and a twin, on which netplan does what a test says."""

    def __init__(self, *, netplan: t.Callable[[Box], int] | None = None) -> None:
        self.addresses: dict[str, list[str]] = {"eth0": ["10.0.0.5/24"], TWIN: []}
        self.mtus = {"eth0": 1500, TWIN: 1500}
        self.routes = [{"dst": "default", "gateway": "10.0.0.1", "dev": "eth0"}]
        self.netplan = netplan or (lambda _box: 0)
        self.applied = 0

    def run(self, argv: list[str], timeout_s: float | None = None) -> tuple[int, str, str]:
        """Answer the commands that are used."""
        if argv[0] == "netplan":
            self.applied += 1
            code = self.netplan(self)
            return code, "", "some reason" if code else ""
        if argv[:4] == ["ip", "-json", "address", "show"]:
            return 0, json.dumps([self._link(name) for name in self.addresses]), ""
        if argv[:3] == ["ip", "-json", "-4"]:
            return 0, json.dumps(self.routes), ""
        if argv[:3] == ["ip", "address", "add"]:
            self.addresses[argv[-1]].append(argv[3])
        elif argv[:3] == ["ip", "address", "del"]:
            self.addresses[argv[-1]].remove(argv[3])
        elif argv[:3] == ["ip", "route", "replace"]:
            self.routes.append({"dst": argv[3], "gateway": argv[5], "dev": argv[7]})
        elif argv[:3] == ["ip", "link", "set"] and argv[4] == "mtu":
            self.mtus[argv[3]] = int(argv[5])
        return 0, "", ""

    def _link(self, name: str) -> dict[str, t.Any]:
        info = [
            {
                "family": "inet",
                "local": one.partition("/")[0],
                "prefixlen": int(one.partition("/")[2]),
                "scope": "global",
            }
            for one in self.addresses[name]
        ]
        return {"ifname": name, "mtu": self.mtus[name], "addr_info": info}


@pytest.fixture
def places(tmp_path: pathlib.Path) -> Places:
    """Folders of a test, with a text that waits to be put in place."""
    found = Places(tmp_path / "netplan.yaml", tmp_path / "state", tmp_path / "run")
    found.folder.mkdir()
    found.wanted.write_text(WANTED)
    return found


def attempt(places: Places, box: Box, *, confirm: bool = False) -> tuple[int, list[str]]:
    """Apply, and give the word once the box waits for it, or never."""
    said: list[str] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if confirm and said:
            places.confirmed.touch()

    code = Apply(places, said.append, box.run, sleep, lambda: now[0]).apply(10)
    return code, said


def stage(places: Places) -> str:
    """Return what the job said last."""
    status = _status.StatusFile(JOB, places.status).read()
    return status.stage if status else ""


def configured(box: Box) -> int:
    """Do what netplan does for the twin."""
    box.addresses[TWIN] = ["192.168.100.11/24"]
    box.mtus[TWIN] = 9000
    return 0


def test_confirmed_in_time(places: Places) -> None:
    box = Box(netplan=configured)
    code, said = attempt(places, box, confirm=True)

    assert code == 0
    assert places.netplan.read_text() == WANTED
    assert places.netplan.stat().st_mode & 0o777 == 0o600
    assert (places.before.exists(), places.confirmed.exists(), stage(places)) == (False, False, _status.DONE)
    assert box.applied == 1
    assert said[0] == "netplan was applied; without a word within 10 s the box goes back"


@pytest.mark.parametrize("old", [None, "network: {}\n"])
def test_without_a_word_everything_is_as_before(places: Places, old: str | None) -> None:
    if old is not None:
        places.netplan.write_text(old)
    box = Box(netplan=lambda one: configured(one) if one.applied == 1 else 0)
    code, said = attempt(places, box)

    assert code == 1
    assert (places.netplan.read_text() if places.netplan.exists() else None) == old
    assert (box.addresses, box.mtus[TWIN], box.applied) == ({"eth0": ["10.0.0.5/24"], TWIN: []}, 1500, 2)
    assert (places.before.exists(), stage(places)) == (False, RETURNED)
    assert said[-1] == "nobody reached the box within 10 s after netplan was applied; the box went back to what it was"


def test_what_netplan_took_from_the_management_interface_comes_back(places: Places) -> None:
    def cut(box: Box) -> int:
        box.addresses["eth0"] = ["10.9.9.9/30"]
        box.routes = []
        return 0

    box = Box(netplan=cut)
    attempt(places, box)

    assert "10.0.0.5/24" in box.addresses["eth0"]
    assert box.routes == [{"dst": "default", "gateway": "10.0.0.1", "dev": "eth0"}]


def test_netplan_fails(places: Places) -> None:
    box = Box(netplan=lambda one: 1 if one.applied == 1 else 0)
    code, said = attempt(places, box)

    assert code == 1
    assert not places.netplan.exists()
    assert said == ["`netplan apply` failed: some reason; the box went back to what it was"]


def test_netplan_fails_on_the_way_back_too(places: Places) -> None:
    _code, said = attempt(places, Box(netplan=lambda _one: 1))

    assert said[-1].endswith("(`netplan apply` failed on the way back: some reason)")
    assert not places.netplan.exists()


def test_an_interruption_is_taken_back_later_and_a_confirmed_change_is_not(places: Places) -> None:
    box = Box(netplan=configured)
    said: list[str] = []

    def die(_seconds: float) -> None:
        if stage(places) == APPLIED:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Apply(places, said.append, box.run, die, lambda: 0.0).apply(10)
    assert places.netplan.exists()
    again = Apply(places, said.append, box.run)
    assert again.give_back("the box was interrupted")
    assert not places.netplan.exists()
    assert not again.give_back("once more")


# --- the trial in a copy ---------------------------------------------------------------------------------------------


def generator(argv: list[str]) -> tuple[int, str, str]:
    """Do what `netplan generate --root-dir` does, as far as the trial looks at it."""
    root = pathlib.Path(argv[argv.index("--root-dir") + 1])
    names: list[str] = []
    for file in sorted((root / "etc/netplan").glob("*.yaml")):
        text = file.read_text()
        if "broken" in text:
            return 1, "", f"{file}:1:1: Error in network definition: broken"
        for line in text.splitlines():
            if line.startswith("    ") and not line.startswith("     "):
                name = line.strip().rstrip(":")
                write(root / f"run/systemd/network/10-netplan-{name}.network", text)
                names.append(name)
    if names:
        rules = (f'# {name} (on NetworkManager deny-list)\nENV{{ID_NET_NAME}}=="{name}", A="1"' for name in names)
        write(root / "run/udev/rules.d/90-netplan.rules", "\n".join(rules))
        unmanaged = ",".join(f"interface-name:{name}" for name in sorted(names))
        write(root / "run/NetworkManager/conf.d/netplan.conf", f"[keyfile]\nunmanaged-devices+={unmanaged},")
    return 0, "", ""


OURS = pathlib.Path("/etc/netplan/60-gb10-fleet-fabric.yaml")


def test_a_trial_of_the_twins_alone(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "etc/netplan/01-somebody.yaml", "network:\n  ethernets:\n    eth0:\n      dhcp4: true")
    write(tmp_path / "etc/netplan" / OURS.name, f"network:\n  ethernets:\n    {TWIN}:\n      mtu: 1500")

    _netplan.trial(generator, OURS, WANTED, [TWIN], tmp_path)

    assert sorted(path.name for path in (tmp_path / "etc/netplan").iterdir()) == ["01-somebody.yaml", OURS.name]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            WANTED + "    eth0:\n      dhcp4: true\n",
            "others: run/NetworkManager/conf.d/netplan.conf, run/systemd/network/10-netplan-eth0.network, run/udev",
        ),
        ("broken", r"fails in a copy of this box, with the fabric in it: /etc/netplan/60-gb10-fleet-fabric.yaml:1:1"),
    ],
)
def test_a_trial_that_refuses(tmp_path: pathlib.Path, text: str, says: str) -> None:
    with pytest.raises(_netplan.NetplanError, match=says) as error:
        _netplan.trial(generator, OURS, text, [TWIN], tmp_path)

    assert str(error.value).endswith("nothing was changed")


def test_a_netplan_that_is_broken_already(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "etc/netplan/01-somebody.yaml", "broken")

    with pytest.raises(_netplan.NetplanError, match="without the fabric, too"):
        _netplan.trial(generator, OURS, WANTED, [TWIN], tmp_path)


# --- as it was set up ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "address", "expected"),
    [
        ({"operstate": "up", "mtu": "9000", "carrier": "1"}, "192.168.100.11", []),
        ({"operstate": "up", "mtu": "1500"}, "192.168.100.11", [("has an MTU of 1500, not 9000", False)]),
        ({"operstate": "up", "mtu": "9000"}, "10.0.0.1", [("does not have the address 192.168.100.11/24", False)]),
        ({"operstate": "down", "mtu": "9000", "carrier": "0"}, "10.0.0.1", [("has no link", True)]),
        ({"operstate": "down", "mtu": "9000"}, "192.168.100.11", [("is switched off", False)]),
        ({}, "", [("is not there: no cable, or another name", True)]),
    ],
)  # fmt: skip
def test_faults(tmp_path: pathlib.Path, files: dict[str, str], address: str, expected: list[tuple[str, bool]]) -> None:
    for name, text in files.items():
        write(tmp_path / TWIN / name, text)
    box = Box()
    box.addresses[TWIN] = [f"{address}/24"] if address else []

    found = _fabric_state.faults([Wish(TWIN, "192.168.100.11/24", 9000)], box.run, tmp_path)

    assert [(str(fault), fault.waits) for fault in found] == [(f"{TWIN} {what}", waits) for what, waits in expected]


def test_what_the_role_wrote(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "fabric.json"
    assert _fabric_state.read(path) == ()
    path.write_text(json.dumps({"twins": [{"interface": TWIN, "address": "10.1.0.1/24", "mtu": 9000}]}))
    assert _fabric_state.read(path) == (Wish(TWIN, "10.1.0.1/24", 9000),)

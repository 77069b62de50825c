# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import collections.abc as c
import dataclasses
import json
import pathlib
import sys
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _apt, _driver_request, _driver_transaction
from ansible_collections.gb10.fleet.plugins.module_utils._driver_request import Box, Request

REQUEST = Request(branch="580", flavour="nvidia-hwe-24.04", kernels=("6.17.0-1026-nvidia",))
VERSION = "580.142-0ubuntu0.24.04.1"
KNOWN = {
    name: _apt.Candidate(VERSION, (VERSION,))
    for name in (REQUEST.driver, REQUEST.tracker, REQUEST.payload("6.17.0-1026-nvidia"), "nvidia-dkms-580-open")
}
GOOD = "".join(f"Inst {name} ({VERSION} lab [all])\n" for name in KNOWN if "dkms" not in name)


class Apt:
    """Answers of apt-get, in the order in which it is asked; remembers how."""

    def __init__(self, *answers: tuple[int, str, str]) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.asked.append(argv)
        return self.answers.pop(0)


def box(*held: str, own: c.Iterable[str] = (), **changes: t.Any) -> Box:
    packages = {name: _apt.Package(name, "hold", "installed", "1") for name in held}
    return dataclasses.replace(Box(packages, frozenset(), KNOWN, own_holds=frozenset(own)), **changes)


def ids(plan: _driver_transaction.Plan) -> list[str]:
    return [one.id for one in plan.findings]


def test_a_plan_says_what_would_be_done_in_its_order(tmp_path: pathlib.Path) -> None:
    apt = Apt((0, GOOD, ""))
    plan = _driver_transaction.plan(REQUEST, box(), apt, tmp_path)
    assert not plan.refused
    assert plan.lines()[0] == "write /etc/apt/preferences.d/gb10-fleet-driver.pref"
    assert plan.lines()[-2:] == [f"hold {REQUEST.tracker}", f"hold {REQUEST.driver}"]
    assert plan.as_dict()["driver_version"] == "580.142"
    assert plan.as_dict()["next_kernel"] == "6.17.0-1026-nvidia"
    assert apt.asked[0][-1] == "nvidia-dkms-580-open-"
    assert "--simulate" in apt.asked[0]


def test_dkms_in_a_plan_refuses_it(tmp_path: pathlib.Path) -> None:
    apt = Apt((0, f"{GOOD}Inst nvidia-dkms-580-open ({VERSION} lab [all])\n", ""))
    plan = _driver_transaction.plan(REQUEST, box(), apt, tmp_path)
    assert plan.refused
    assert ids(plan) == ["DRIVER_PLAN_INSTALLS_DKMS"]


def test_holds_of_somebody_else_are_found_by_what_would_happen_without_them(tmp_path: pathlib.Path) -> None:
    refusal = (100, "", "E: Held packages were changed and -y was used without --allow-change-held-packages.\n")
    apt = Apt(refusal, (0, f"{GOOD}Inst libnvidia-compute-580 [1] (2 lab [all])\n", ""))
    plan = _driver_transaction.plan(REQUEST, box("libnvidia-compute-580", "bash"), apt, tmp_path)
    assert ids(plan) == ["DRIVER_PACKAGES_HELD"]
    assert "`sudo apt-mark unhold libnvidia-compute-580`" in plan.findings[0].remedy
    assert "--allow-change-held-packages" not in apt.asked[0]
    assert "--ignore-hold" in apt.asked[1]


def test_the_roles_own_holds_are_no_obstacle(tmp_path: pathlib.Path) -> None:
    apt = Apt((0, GOOD, ""))
    held = "linux-image-nvidia-hwe-24.04"
    plan = _driver_transaction.plan(REQUEST, box(held, own=[held]), apt, tmp_path)
    assert not plan.refused
    assert "--allow-change-held-packages" in apt.asked[0]


def test_a_hold_of_somebody_else_on_what_is_asked_for_is_not_lifted(tmp_path: pathlib.Path) -> None:
    refusal = (100, "", "E: Held packages were changed and -y was used without --allow-change-held-packages.\n")
    apt = Apt(refusal, (0, f"Inst {REQUEST.driver} [1] ({VERSION} lab [all])\n", ""))
    plan = _driver_transaction.plan(REQUEST, box(REQUEST.driver, REQUEST.tracker, own=[REQUEST.tracker]), apt, tmp_path)
    assert ids(plan) == ["DRIVER_PACKAGES_HELD"]
    assert f"`sudo apt-mark unhold {REQUEST.driver}`" in plan.findings[0].remedy
    assert "--allow-change-held-packages" not in apt.asked[0]


def test_what_apt_finds_impossible_is_told_in_its_words(tmp_path: pathlib.Path) -> None:
    apt = Apt((100, "", "E: Unmet dependencies.\n"))
    plan = _driver_transaction.plan(REQUEST, box(), apt, tmp_path)
    assert ids(plan) == ["DRIVER_PLAN_IMPOSSIBLE"]
    assert "Unmet dependencies." in _driver_transaction.sentences(plan.findings)
    assert _driver_transaction.sentences(plan.findings).endswith("[DRIVER_PLAN_IMPOSSIBLE]")


def test_apt_is_not_asked_where_dpkg_is_half_way_through(tmp_path: pathlib.Path) -> None:
    broken = {"x": _apt.Package("x", "install", "half-configured", "1")}
    apt = Apt()
    plan = _driver_transaction.plan(REQUEST, box(packages=broken), apt, tmp_path)
    assert ids(plan) == ["DPKG_UNFINISHED"]
    assert apt.asked == []


def test_a_plan_is_made_with_the_pins_that_will_be_there(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "etc/apt/preferences.d"
    folder.mkdir(parents=True)
    (folder / "mine.pref").write_text("Package: bash\n")
    (folder / "gb10-fleet-driver.pref").write_text("old\n")
    with _driver_transaction.pins(REQUEST, tmp_path) as pins:
        found = {path.name: path.read_text(encoding="utf-8") for path in pins.iterdir()}
    assert found == {
        "mine.pref": "Package: bash\n",
        "gb10-fleet-driver.pref": _driver_request.preferences(REQUEST),
    }
    assert not pins.exists()


@pytest.mark.parametrize("text", ["", "no JSON", "[]"])
def test_a_record_that_is_none_says_nothing(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "var/lib/gb10-fleet").mkdir(parents=True)
    (tmp_path / _driver_transaction.RECORD).write_text(text)
    assert _driver_transaction.record(tmp_path) == {}


def test_the_progress_of_apt_is_told_and_its_errors_are_its_own_words(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "apt-get"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\nfd = int(sys.argv[2].partition('=')[2])\n"
        "os.write(fd, b'dlstatus:1:20.4:Retrieving file 1 of 7\\n')\n"
        "os.write(fd, b'pmstatus:nvidia-driver-580-open:50:Unpacking nvidia-driver-580-open (arm64)\\nnoise\\n')\n"
        "print('E: it went wrong', file=sys.stderr)\nsys.exit(100)\n"
    )
    program.chmod(0o755)
    told: list[str] = []
    argv = ["env", f"PATH={tmp_path}:/usr/bin:/bin", "apt-get", "install", "x"]
    assert _driver_transaction.run_apt(argv, told.append) == (100, "it went wrong")
    assert told == [
        "fetching: 20 %, Retrieving file 1 of 7",
        "installing: 50 %, Unpacking nvidia-driver-580-open (arm64)",
    ]


def test_a_plan_can_be_written_down(tmp_path: pathlib.Path) -> None:
    plan = _driver_transaction.plan(REQUEST, box(), Apt((0, GOOD, "")), tmp_path)
    assert json.loads(json.dumps(plan.as_dict())) == plan.as_dict()


def test_a_hold_is_written_down_before_it_is_placed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed in between leaves no hold that would be taken for somebody else's from then on."""

    def killed(_how: str, _names: c.Sequence[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_driver_transaction, "_mark", killed)
    names = (REQUEST.tracker, REQUEST.driver)
    installed = {name: _apt.Package(name, "install", "installed", VERSION) for name in names}
    plan = _driver_transaction.plan(REQUEST, box(), Apt((0, GOOD, "")), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        _driver_transaction._hold(REQUEST, plan, box(packages=installed), tmp_path)
    assert set(_driver_transaction.record(tmp_path)["holds"]) == set(names)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""dpkg's status: what is installed, on hold, half done, drifted."""

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._dpkg import Packages
from tests.unit.plugins.module_utils.driver_builder import package

IMAGE, TRACKER = "linux-image-nvidia-hwe-24.04", "linux-modules-nvidia-580-open-nvidia-hwe-24.04"
DRIVER = "nvidia-driver-580-open"
HOLD = "hold ok installed"


def status(*stanzas: str) -> Packages:
    return Packages.from_status("\n".join(stanzas))


def test_what_is_of_interest() -> None:
    found = status(
        package(DRIVER, "580.173.02-0ubuntu0.24.04.1"),
        package("bash", "5.2"),
        package("vim", "9", HOLD),
        package("nvidia-utils-570", "570.1-1", "deinstall ok config-files"),
        package("libc6", "2.39", "install ok half-configured"),
        "Package: nothing\n",
    )
    assert found.versions == {DRIVER: "580.173.02-0ubuntu0.24.04.1"}
    assert found.held == ("vim",)
    assert found.unfinished == {"libc6": "half-configured"}
    assert [one.upstream for one in found.drivers] == ["580.173.02"]
    assert status().versions == {}


@pytest.mark.parametrize(
    ("state", "unfinished"),
    [
        ("install ok installed", ""),
        ("deinstall ok config-files", ""),
        ("purge ok not-installed", ""),
        ("install ok unpacked", "unpacked"),
        ("install ok half-installed", "half-installed"),
        ("install ok half-configured", "half-configured"),
        ("install ok triggers-pending", "triggers-pending"),
        ("install ok triggers-awaited", "triggers-awaited"),
        ("install reinstreq installed", "reinstreq"),
        ("hold ok unpacked", "unpacked"),
    ],
)
def test_unfinished(state: str, unfinished: str) -> None:
    assert status(package("any", "1", state)).unfinished == ({"any": unfinished} if unfinished else {})


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("550.107.02-0ubuntu0.24.04.1", "550.107.02"),
        ("1:580.142-0ubuntu1", "580.142"),
        ("580.95.05", "580.95.05"),
    ],
)
def test_versions_without_their_packaging(version: str, upstream: str) -> None:
    assert status(package("nvidia-driver-550", version)).drivers[0].upstream == upstream
    assert status(package("libnvidia-compute-550", version)).userspace() == {upstream: ["libnvidia-compute-550"]}


@pytest.mark.parametrize(
    ("image", "tracker", "drifted"),
    [
        ("6.17.0-1029.29", "6.17.0-1029.29+1", False),
        ("6.17.0-1014.14", "6.17.0-1014.14+1000", False),
        ("6.17.0-1029.29", "6.17.0-1026.26+1", True),
        ("6.17.0-1029.29", "6.17.0-1032.32+1", True),
    ],
)
def test_meta_packages_that_drift_apart(image: str, tracker: str, drifted: bool) -> None:
    found = status(package(IMAGE, image), package(TRACKER, tracker)).drifts()
    assert [(one.image.version, one.tracker.version) for one in found] == ([(image, tracker)] if drifted else [])


def test_only_meta_packages_of_one_flavour_are_compared() -> None:
    payload = package("linux-modules-nvidia-580-open-6.17.0-1026-nvidia", "6.17.0-1026.26+1")
    other = package("linux-modules-nvidia-580-open-nvidia-64k-hwe-24.04", "6.17.0-1026.26+1")
    assert status(package(IMAGE, "6.17.0-1029.29"), payload, other).drifts() == ()
    removed = package(TRACKER, "6.17.0-1026.26+1", "deinstall ok config-files")
    assert status(package(IMAGE, "6.17.0-1029.29"), removed).drifts() == ()


@pytest.mark.parametrize(
    ("held", "alone"),
    [((DRIVER,), DRIVER), ((TRACKER,), TRACKER), ((DRIVER, IMAGE), ""), ((IMAGE,), ""), ((), "")],
)
def test_a_driver_on_hold_alone(held: tuple[str, ...], alone: str) -> None:
    stanzas = [
        package(name, "1-1", HOLD if name in held else "install ok installed") for name in (DRIVER, TRACKER, IMAGE)
    ]
    assert status(*stanzas).driver_held_alone() == alone


@pytest.mark.parametrize(
    ("name", "is_dkms"),
    [
        ("nvidia-dkms-580-open", True),
        ("nvidia-kernel-open-dkms", True),
        ("nvidia-kernel-dkms", True),
        ("nvidia-dkms", True),
        ("nvidia-kernel-source-580-open", False),
        ("dkms", False),
    ],
)
def test_dkms(name: str, is_dkms: bool) -> None:
    assert status(package(name, "1-1")).dkms == ((name,) if is_dkms else ())


def test_half_removed_repositories() -> None:
    gone = "deinstall ok config-files"
    assert status(package("nvidia-spark-repo", "1.1-1", gone), package("vim", "9", gone)).half_removed == (
        "nvidia-spark-repo",
    )


def test_what_dpkg_has_not_come_to_write_down_is_read_as_well() -> None:
    settled = package(DRIVER, "580.173.02-0ubuntu0.24.04.1")
    found = Packages.from_status(settled, [package("libc6", "2.39", "install ok half-installed"), ""])
    assert found.interrupted
    assert found.unfinished == {"libc6": "half-installed"}
    assert not Packages.from_status(settled).interrupted

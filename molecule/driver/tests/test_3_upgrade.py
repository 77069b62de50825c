# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kernel and driver move on: what must not happen then, and how it is done."""

from __future__ import annotations

import collections.abc as c

import pytest

from tests.lab import driver_box as box
from tests.lab import kit


@pytest.fixture
def untouched() -> c.Iterator[None]:
    """Nothing was installed, removed, held or rebooted."""
    before = box.state()
    yield
    assert box.state() == before
    assert box.loaded() == (box.OLD_KERNEL, box.OLD_DRIVER)


@pytest.fixture(scope="module", autouse=True)
def moved_on() -> None:
    """The repository offers the next kernel and the next driver."""
    box.offer("current")


@pytest.mark.usefixtures("untouched")
def test_a_newer_driver_is_no_reason_to_touch_a_box() -> None:
    run = box.run()
    assert run.status == "successful", run.failures
    assert run.count("changed", box.BOX) == 0


def test_a_kernel_that_moved_without_its_modules() -> None:
    box.offer("drifted")
    image = f"linux-image-{box.NEW_KERNEL}"
    box.ask(f"DEBIAN_FRONTEND=noninteractive apt-get -qq -y install {image}")
    before = box.state()
    try:
        run = box.run(nvidia_driver_allow_reboot=True)
        assert run.status == "failed"
        assert "[DRIVER_PLAN_KERNEL_WITHOUT_MODULES]" in run.failures[0]
        assert f"linux-modules-nvidia-580-open-{box.NEW_KERNEL}" in run.failures[0]
        assert box.state() == before
    finally:
        box.ask(f"DEBIAN_FRONTEND=noninteractive apt-get -qq -y purge {image}")
        box.offer("current")


def test_a_package_of_the_platform_is_not_removed() -> None:
    box.ask("DEBIAN_FRONTEND=noninteractive apt-get -qq -y install dgx-spark-ota-update-meta")
    before = box.state()
    try:
        run = box.run(nvidia_driver_upgrade=True)
        assert run.status == "failed"
        assert "apt would remove dgx-spark-ota-update-meta" in run.failures[0]
        assert "[DRIVER_PLAN_REMOVES_PLATFORM]" in run.failures[0]
        assert box.state() == before
    finally:
        box.ask("DEBIAN_FRONTEND=noninteractive apt-get -qq -y purge dgx-spark-ota-update-meta")


def test_a_hold_of_somebody_else_is_named_and_kept() -> None:
    box.ask("apt-mark hold libnvidia-compute-580")
    before = box.state()
    try:
        run = box.run(nvidia_driver_upgrade=True)
        assert run.status == "failed"
        assert "[DRIVER_PACKAGES_HELD]" in run.failures[0]
        assert "`sudo apt-mark unhold libnvidia-compute-580`" in run.failures[0]
        assert box.state() == before
    finally:
        box.ask("apt-mark unhold libnvidia-compute-580")


@pytest.mark.usefixtures("untouched")
def test_a_version_that_apt_does_not_have_is_refused() -> None:
    run = box.run(nvidia_driver_version="580.48.01")
    assert run.status == "failed"
    assert "apt has no nvidia-driver-580-open 580.48.01" in run.failures[0]


def test_an_upgrade_outlives_a_killed_run_and_takes_kernel_and_driver_together() -> None:
    boot = box.boot_id()

    def under_way() -> bool:
        return box.ask("systemctl is-active gb10-fleet-driver", check=False) in {"active", "activating"}

    def is_upgraded() -> bool:
        return box.packages().get("nvidia-driver-580-open", "").startswith(box.NEW_DRIVER)

    # The run that began the transaction is killed in the middle of it, and it goes on without it.
    box.kill_a_run_once(under_way, nvidia_driver_upgrade=True)
    kit.wait_for(is_upgraded, seconds=120, what="the upgrade without the run that began it")
    run = box.run(nvidia_driver_upgrade=True)
    assert run.status == "successful", run.failures
    found = box.packages()
    assert found["nvidia-driver-580-open"].startswith(box.NEW_DRIVER)
    for kernel in (box.OLD_KERNEL, box.NEW_KERNEL):
        assert f"linux-modules-nvidia-580-open-{kernel}" in found
    assert found["linux-image-nvidia-hwe-24.04"] == "6.17.0-1029.29"
    assert "nvidia-dkms-580-open" not in found
    # The module that is loaded is of the driver before, and stays so until somebody allows the reboot.
    assert box.boot_id() == boot
    assert box.loaded() == (box.OLD_KERNEL, box.OLD_DRIVER)
    said = "\n".join(run.messages)
    assert f"a reboot into {box.NEW_KERNEL} is pending" in said
    assert box.OLD_DRIVER in said
    again = box.run(nvidia_driver_upgrade=True)
    assert again.status == "successful", again.failures
    assert again.count("changed", box.BOX) == 0


def test_the_reboot_takes_the_new_kernel_and_the_new_driver() -> None:
    run = box.run(nvidia_driver_allow_reboot=True)
    assert run.status == "successful", run.failures
    assert box.loaded() == (box.NEW_KERNEL, box.NEW_DRIVER)
    again = box.run(nvidia_driver_allow_reboot=True)
    assert again.status == "successful", again.failures
    assert again.count("changed", box.BOX) == 0


def test_a_modules_package_that_dkms_came_with_is_put_right_in_one_transaction() -> None:
    box.ask(
        f"mv {box.PREFERENCES} /root/pref; DEBIAN_FRONTEND=noninteractive apt-get -qq -y install nvidia-dkms-580-open; "
        f"mv /root/pref {box.PREFERENCES}"
    )
    run = box.run()
    assert run.status == "successful", run.failures
    assert "nvidia-dkms-580-open" not in box.packages()
    assert "nvidia-driver-580-open" in box.packages()

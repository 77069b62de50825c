# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From a box without a driver to one that has booted with it. The tests stand in the order of its life."""

from __future__ import annotations

import collections.abc as c
import re

import pytest

from tests.lab import driver_box as box

COMING = {
    "nvidia-driver-580-open": "580.142-0ubuntu0.24.04.1",
    "nvidia-kernel-common-580": "580.142-0ubuntu0.24.04.1",
    "nvidia-kernel-source-580-open": "580.142-0ubuntu0.24.04.1",
    "nvidia-utils-580": "580.142-0ubuntu0.24.04.1",
    "libnvidia-compute-580": "580.142-0ubuntu0.24.04.1",
    "linux-modules-nvidia-580-open-6.17.0-1026-nvidia": "6.17.0-1026.26+1",
    "linux-modules-nvidia-580-open-nvidia-hwe-24.04": "6.17.0-1026.26+1",
}
HELD = {
    "linux-nvidia-hwe-24.04",
    "linux-image-nvidia-hwe-24.04",
    "linux-headers-nvidia-hwe-24.04",
    "linux-modules-nvidia-580-open-nvidia-hwe-24.04",
    "nvidia-driver-580-open",
}


@pytest.fixture
def untouched() -> c.Iterator[None]:
    """Nothing was installed, removed, held or rebooted."""
    before = box.state()
    yield
    assert box.state() == before


@pytest.mark.usefixtures("untouched")
def test_a_check_says_exactly_what_would_be_installed() -> None:
    run = box.run(check=True)
    assert run.status == "successful", run.output
    assert dict(re.findall(r"^\+install (\S+) (\S+)$", run.output, re.MULTILINE)) == COMING
    assert set(re.findall(r"^\+hold (\S+)$", run.output, re.MULTILINE)) == HELD
    assert "+Package: nvidia-dkms-*" in run.output
    assert "Driver 580.142 serves, but was seen to wedge" in "\n".join(run.messages)


@pytest.mark.usefixtures("untouched")
def test_a_package_that_dpkg_has_not_come_to_an_end_with_is_named() -> None:
    control = (
        "Package: halfway\\nVersion: 1\\nArchitecture: all\\nMaintainer: lab <lab@localhost>\\nDescription: halfway\\n"
    )
    box.ask(
        f"mkdir -p /tmp/halfway/DEBIAN && printf '{control}' > /tmp/halfway/DEBIAN/control && "
        "printf '#!/bin/sh\\nexit 1\\n' > /tmp/halfway/DEBIAN/postinst && chmod 755 /tmp/halfway/DEBIAN/postinst && "
        "dpkg-deb -b /tmp/halfway /tmp/halfway.deb && { dpkg --install /tmp/halfway.deb || true; }"
    )
    try:
        run = box.run()
    finally:
        box.ask("dpkg --purge halfway")
    assert run.status == "failed"
    assert "dpkg has begun with halfway and not come to an end. (halfway: half-configured)" in run.failures[0]
    assert "dpkg --configure -a" in run.failures[0]


@pytest.mark.usefixtures("untouched")
def test_a_prompt_for_a_key_is_not_waited_for() -> None:
    box.ask("printf '#!/bin/sh\\nsleep 600\\n' > /usr/local/sbin/update-secureboot-policy")
    with box.process("lab-prompt", "/bin/sh", "/usr/local/sbin/update-secureboot-policy", "--enroll-key"):
        run = box.run()
    assert run.status == "failed"
    assert "[DRIVER_MOK_PROMPT]" in run.failures[0]
    assert "no key is to be enrolled" in run.failures[0]


@pytest.mark.usefixtures("untouched")
def test_who_holds_the_lock_is_named_when_that_takes_too_long() -> None:
    with box.lock():
        pid = box.ask("systemctl show --property=MainPID --value lab-lock")
        run = box.run(nvidia_driver_lock_timeout=3)
    assert run.status == "failed"
    assert f"process {pid} (python3) holds /var/lib/dpkg/lock-frontend" in run.failures[0]
    assert "[DPKG_LOCK_HELD]" in run.failures[0]


@pytest.mark.usefixtures("untouched")
def test_a_repository_that_is_down_when_packages_are_fetched() -> None:
    box.ask("systemctl stop gb10-lab-apt")
    try:
        run = box.run()
    finally:
        box.ask("systemctl start gb10-lab-apt")
    assert run.status == "failed"
    assert "The packages could not be fetched, so nothing was changed." in run.failures[0]
    assert "127.0.0.1" in run.failures[0]


def test_a_lock_is_waited_for_and_then_the_driver_is_installed() -> None:
    before, boot = box.packages(), box.boot_id()
    # Let go as soon as the run has begun to wait, which it says where the jobs of the box do.
    with box.lock(until="/run/gb10-fleet/gb10-fleet-driver-lock.json"):
        run = box.run()
    assert run.status == "successful", run.failures
    assert "driver-1: 580: waiting, as process" in run.output
    after = box.packages()
    assert {name: version for name, version in after.items() if name not in before} == COMING
    assert set(box.ask("apt-mark showhold").split()) == HELD
    assert "dgx-release" in box.ask("apt-mark showmanual").split()
    assert "Candidate: (none)" in box.ask("apt-cache policy nvidia-dkms-580-open")
    # Nothing is rebooted for the asking: it says what is pending, and that is no failure.
    assert box.boot_id() == boot
    assert "a reboot into 6.17.0-1026-nvidia is pending" in "\n".join(run.messages)
    assert "nvidia_driver_allow_reboot: true" in "\n".join(run.messages)


def test_nothing_is_left_for_a_second_run() -> None:
    run = box.run()
    assert run.status == "successful", run.failures
    assert run.count("changed", box.BOX) == 0


def test_a_box_whose_packages_somebody_changes_is_not_rebooted() -> None:
    boot = box.boot_id()
    with box.lock():
        pid = box.ask("systemctl show --property=MainPID --value lab-lock")
        run = box.run(nvidia_driver_allow_reboot=True, nvidia_driver_lock_timeout=5)
    assert run.status == "failed"
    # There was nothing to install, so nobody waited for that.
    assert run.count("changed", box.BOX) == 0
    assert "goes on serving" in run.failures[-1]
    assert f"[DPKG_BUSY] another program changes packages: process {pid}" in run.failures[-1]
    assert box.boot_id() == boot


def test_a_reboot_that_does_not_happen_is_noticed() -> None:
    boot = box.boot_id()
    box.ask("mv /usr/sbin/shutdown /usr/sbin/shutdown.away && ln -s /bin/true /usr/sbin/shutdown")
    try:
        run = box.run(nvidia_driver_allow_reboot=True, nvidia_driver_reboot_timeout=8)
    finally:
        box.ask("mv /usr/sbin/shutdown.away /usr/sbin/shutdown")
    assert run.status == "failed"
    assert "driver-1 did not reboot" in run.failures[0]
    assert box.boot_id() == boot


def test_a_reboot_is_proven() -> None:
    boot = box.boot_id()
    assert box.loaded() == (box.OLD_KERNEL, "")
    run = box.run(nvidia_driver_allow_reboot=True)
    assert run.status == "successful", run.failures
    assert box.boot_id() != boot
    assert box.loaded() == (box.OLD_KERNEL, box.OLD_DRIVER)


def test_a_box_that_has_booted_with_its_driver_is_left_alone() -> None:
    boot = box.boot_id()
    run = box.run(nvidia_driver_allow_reboot=True)
    assert run.status == "successful", run.failures
    assert run.count("changed", box.BOX) == 0
    assert box.boot_id() == boot

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What would lose the GPU at the next boot: it is named, and a box that may be rebooted is not."""

from __future__ import annotations

import collections.abc as c
import typing as t

import pytest

from tests.lab import driver_box as box

PLACE = f"/lib/modules/{box.OLD_KERNEL}/kernel/nvidia-580-open"
CASES: dict[str, tuple[c.Callable[[], t.ContextManager[None]], str, str]] = {
    "forged signer": (lambda: box.modules("forged"), "DRIVER_MODULE_FORGED_SIGNER", "only pretend to be signed"),
    "wrong key": (lambda: box.modules("mok"), "DRIVER_MODULE_WRONG_KEY", "spark Secure Boot Module Signature key"),
    "unsigned": (lambda: box.modules("unsigned"), "DRIVER_MODULE_UNSIGNED", "carry no signature"),
    "tampered": (lambda: box.modules("tampered"), "DRIVER_MODULE_TAMPERED", "changed after they were signed"),
    "proprietary": (lambda: box.modules("closed"), "DRIVER_MODULE_PROPRIETARY", "NVIDIA"),
    "another version": (
        lambda: box.modules("canonical", driver=box.NEW_DRIVER),
        "DRIVER_VERSION_DIFFERS",
        box.NEW_DRIVER,
    ),
    "DKMS in updates": (lambda: box.modules("mok", place="updates/dkms"), "DRIVER_DKMS_WINS", "updates/dkms"),
    "no module": (lambda: box.without(f"{PLACE}/nvidia.ko"), "DRIVER_MODULE_MISSING", "nvidia"),
    "no initrd": (lambda: box.without(f"/boot/initrd.img-{box.OLD_KERNEL}"), "KERNEL_INITRD_MISSING", "initrd"),
    "no kernel image": (
        lambda: box.without(f"/boot/vmlinuz-{box.OLD_KERNEL}"),
        "KERNEL_IMAGE_MISSING",
        box.OLD_KERNEL,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_gate_stays_shut(case: str) -> None:
    make, finding, words = CASES[case]
    before = box.state()
    with make():
        run = box.run(nvidia_driver_allow_reboot=True)
    assert run.status == "failed", run.output
    assert "goes on serving" in run.failures[0]
    assert f"[{finding}]" in run.failures[0]
    assert words in run.failures[0]
    # Packages and boot are those of before, and the loaded driver is still there.
    assert box.state() == before
    assert box.loaded() == (box.OLD_KERNEL, box.OLD_DRIVER)


def test_the_right_modules_are_back() -> None:
    run = box.run(nvidia_driver_allow_reboot=True)
    assert run.status == "successful", run.failures
    assert run.count("changed", box.BOX) == 0

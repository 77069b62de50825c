# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is wrong with a kernel: its image and surroundings, and which modules it would load.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses

from ansible_collections.gb10.fleet.plugins.module_utils import _driver_modules
from ansible_collections.gb10.fleet.plugins.module_utils._driver_issue import Effect, Issue, issue
from ansible_collections.gb10.fleet.plugins.module_utils._driver_state import Kernel, State
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Severity
from ansible_collections.gb10.fleet.plugins.module_utils._kernel_modules import NAMES, NEEDED


def issues(kernel: Kernel, state: State) -> list[Issue]:
    """Return what is wrong with a kernel. What neither runs nor boots next is no error, however wrong it is."""
    found = [*_surroundings(kernel, state)]
    if kernel.modules:
        found += _index(kernel)
        found += _driver_modules.issues(kernel, state)
    found += _missing(kernel)
    if not (kernel.running or kernel.next):
        found = [_milder(one) for one in found]
    return found


def _milder(one: Issue) -> Issue:
    severity: Severity = "info" if one.finding.id == "DRIVER_MODULE_MISSING" else "warning"
    if one.finding.severity != "error":
        return one
    return dataclasses.replace(one, finding=dataclasses.replace(one.finding, severity=severity))


def _surroundings(kernel: Kernel, state: State) -> c.Iterator[Issue]:
    release = kernel.release
    if not kernel.image and not kernel.image_remedy:
        yield issue(
            "KERNEL_IMAGE_MISSING",
            "error" if kernel.next else "warning",
            f"there is no image of kernel {release} in /boot",
            evidence=f"no /boot/vmlinuz-{release}",
            remedy=f"apt-get install linux-image-{release}",
            gpu="no",
            safe="no",
        )
    elif kernel.image_problem:
        yield issue(
            "KERNEL_IMAGE_UNREADABLE",
            "warning",
            f"the certificates of kernel {release} are not known, so no signature for it can be verified",
            evidence=kernel.image_problem,
            remedy=kernel.image_remedy or f"reinstall linux-image-{release}",
            gpu="unknown",
            safe="unknown",
        )
    if kernel.image_signed is False and state.secure_boot == "enabled":
        yield issue(
            "KERNEL_IMAGE_UNSIGNED",
            "error",
            f"kernel {release} is not signed, and Secure Boot will not start it",
            evidence=f"{kernel.image} has no signature",
            remedy=f"apt-get install linux-image-{release}; keep linux-image-unsigned-* away with an apt pin of -1",
            gpu="no",
            safe="no",
        )
    if kernel.image and kernel.initrd is False:
        yield issue(
            "KERNEL_INITRD_MISSING",
            "error",
            f"kernel {release} has no initrd, so it would panic at boot",
            evidence=f"no /boot/initrd.img-{release}, or it is empty",
            remedy=f"update-initramfs -c -k {release}",
            gpu="no",
            safe="no",
        )
    if kernel.boot_entry is False:
        yield issue(
            "KERNEL_BOOT_ENTRY_MISSING",
            "error",
            f"the boot loader has no entry for kernel {release}",
            evidence=f"/boot/grub/grub.cfg names {', '.join(state.boot.releases or ()) or 'no kernel'}",
            remedy="update-grub",
            gpu="no",
            safe="no",
        )


def _index(kernel: Kernel) -> c.Iterator[Issue]:
    release = kernel.release
    if not kernel.has_index:
        yield issue(
            "KERNEL_MODULES_DEP_MISSING",
            "error",
            f"depmod has not run for kernel {release}: modprobe finds nothing there",
            evidence=f"no /lib/modules/{release}/modules.dep.bin, or not all of it",
            remedy=f"depmod {release}",
            gpu="no",
            safe="no",
        )
        return
    for module in kernel.modules:
        choice = module.choice
        if not choice.path:
            other = f"; {choice.others[0]} is there" if choice.others else ""
            yield issue(
                "KERNEL_MODULES_DEP_STALE",
                "error",
                f"modules.dep.bin of kernel {release} does not know where {choice.name} is: depmod has not run since",
                evidence=f"/lib/modules/{release}/modules.dep.bin names no file of {choice.name} that is there{other}",
                remedy=f"depmod {release}",
                gpu="no",
                safe="no",
            )
        elif choice.stale:
            yield issue(
                "KERNEL_MODULES_DEP_STALE",
                "error",
                f"the next depmod for kernel {release} takes another {choice.name} than modules.dep.bin names now",
                evidence=f"now {choice.path}, then {choice.preferred}",
                remedy=f"depmod {release}, and look again",
                gpu="unknown",
                safe="unknown",
            )


def _missing(kernel: Kernel) -> c.Iterator[Issue]:
    release = kernel.release
    for folder in kernel.without_signatures:
        yield issue(
            "DRIVER_SIGNATURES_MISSING",
            "error",
            f"the modules of kernel {release} came without their signatures",
            evidence=f"{folder} has objects and no .ko.sig",
            remedy=f"apt-get install linux-signatures-nvidia-{release}, then dpkg --configure -a",
            gpu="no",
            safe="no",
        )
    present = {module.choice.name for module in kernel.modules if module.choice.path or module.choice.others}
    lacking = [name for name in NAMES if name not in present]
    if not lacking:
        return
    if not kernel.complete:
        yield issue(
            "DRIVER_MODULE_UNREADABLE",
            "warning",
            f"whether kernel {release} has {', '.join(lacking)} cannot be told",
            evidence=f"folders below /lib/modules/{release} may not be read",
            remedy="run it with become: true",
            gpu="unknown",
            safe="unknown",
        )
        return
    needed = any(name in lacking for name in NEEDED)
    effect: Effect = "no" if needed else ""
    yield issue(
        "DRIVER_MODULE_MISSING",
        "error" if needed else "warning",
        f"kernel {release} has no module {', '.join(lacking)}" + (": a boot into it loses the GPU" if needed else ""),
        evidence=f"nothing below /lib/modules/{release}",
        remedy=f"apt-get install linux-modules-nvidia-<branch>-open-{release}",
        gpu=effect,
        safe=effect,
    )

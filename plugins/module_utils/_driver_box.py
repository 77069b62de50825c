# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is wrong around the driver: what is loaded, the boot loader, userspace, CDI, and what dpkg left undone.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c

from ansible_collections.gb10.fleet.plugins.module_utils._driver_issue import Issue, issue
from ansible_collections.gb10.fleet.plugins.module_utils._driver_state import State, Wanted
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding


def issues(state: State, wanted: Wanted) -> list[Issue]:
    """Return what is wrong with the box as a whole."""
    if state.absent:
        none = Finding(
            "DRIVER_ABSENT",
            "info",
            "there is nothing of NVIDIA's driver on the box",
            remedy="run the role nvidia_driver",
        )
        return [Issue(none), *_boot(state), *_packages(state)]
    return [
        *_userspace(state),
        *_barred(state),
        *_loaded(state),
        *_gpu(state),
        *_boot(state),
        *_pins(state, wanted),
        *_cdi(state),
        *_packages(state),
    ]


def _userspace(state: State) -> c.Iterator[Issue]:
    if not state.userspace:
        yield issue(
            "DRIVER_USERSPACE_MISSING",
            "error",
            "there are modules of NVIDIA's driver, but not its libraries",
            evidence="neither libcuda.so nor libnvidia-ml.so with a version below /usr/lib, nor their packages",
            remedy="apt-get install nvidia-driver-<branch>-open of the modules' version",
            gpu="no",
            safe="no",
        )
    elif len(state.userspace) > 1:
        yield issue(
            "DRIVER_USERSPACE_MIXED",
            "error",
            f"the driver's libraries are of several versions: {', '.join(state.userspace)}",
            evidence="; ".join(f"{version}: {files[0]}" for version, files in state.userspace.items()),
            remedy="remove those of the version that is not wanted",
            gpu="unknown",
            safe="no",
        )


def _barred(state: State) -> c.Iterator[Issue]:
    if state.barred:
        yield issue(
            "DRIVER_MODULE_BARRED",
            "error",
            f"modprobe is told not to load {', '.join(state.barred)}: the next boot would have no GPU",
            evidence="; ".join(state.barred.values()),
            remedy="remove the line, and run update-initramfs -u, where a copy of it may be",
            gpu="no",
            safe="no",
        )


def _loaded(state: State) -> c.Iterator[Issue]:
    loaded, kernel = state.loaded, state.current
    installed = kernel.version if kernel else ""
    nvidia = kernel.module("nvidia") if kernel else None
    if not loaded.modules:
        if installed and state.gpu.present is not False:
            yield issue(
                "DRIVER_NOT_LOADED",
                "error" if state.gpu.present else "warning",
                f"driver {installed} is installed for the running kernel, but not loaded",
                evidence="/proc/modules has no nvidia",
                remedy="modprobe nvidia, and look into the kernel's log if it refuses",
            )
        return
    newer = next(
        (one for one in (installed, state.userspace_version) if one and loaded.version and one != loaded.version), ""
    )
    if newer:
        yield issue(
            "DRIVER_LOADED_STALE",
            "error",
            f"driver {loaded.version} is loaded, but {newer} is installed: programs that use the GPU fail from now on",
            evidence="/sys/module/nvidia/version, /proc/driver/nvidia/version",
            remedy="reboot, once the kernel that boots next is safe",
        )
    elif nvidia and loaded.build_id and nvidia.info.build_id and loaded.build_id != nvidia.info.build_id:
        yield issue(
            "DRIVER_LOADED_OTHER_BUILD",
            "warning",
            f"the loaded driver {loaded.version} is another build than {nvidia.choice.path}",
            evidence=f"build id {loaded.build_id} is loaded, {nvidia.info.build_id} is on disk",
            remedy="reboot, so that what was checked is what runs",
        )
    if loaded.verified is False:
        yield issue(
            "DRIVER_LOADED_UNVERIFIED",
            "warning",
            "the kernel could not verify the driver that is loaded now",
            evidence="/sys/module/nvidia/taint contains E",
            remedy="install signed modules and reboot",
        )


def _gpu(state: State) -> c.Iterator[Issue]:
    if state.gpu.present and state.loaded.modules and not state.gpu.names:
        yield issue(
            "GPU_NOT_VISIBLE",
            "error",
            "the driver is loaded, and the PCI bus has a GPU that it does not drive",
            evidence="/proc/driver/nvidia/gpus is empty",
            remedy="look for NVRM in the kernel's log; a cold start, without AC power, helps at times",
        )
    differing = [version for version in state.gpu.firmware if state.loaded.version and version != state.loaded.version]
    if differing:
        yield issue(
            "DRIVER_FIRMWARE_DIFFERS",
            "error",
            f"the GPU runs firmware {differing[0]} under driver {state.loaded.version}",
            evidence="/proc/driver/nvidia/gpus/*/information",
            remedy="install firmware and driver of one version, then reboot",
        )


def _boot(state: State) -> c.Iterator[Issue]:
    boot = state.boot
    if not boot.kernel:
        yield issue(
            "KERNEL_NEXT_UNKNOWN",
            "warning",
            "which kernel boots next cannot be told",
            evidence=boot.reason or "no kernel in /boot",
            remedy="run it with become: true, or name the kernel with next_kernel",
            safe="unknown",
            about_next=True,
        )
    elif not boot.certain:
        yield issue(
            "KERNEL_NEXT_GUESSED",
            "warning",
            f"kernel {boot.kernel} probably boots next",
            evidence=boot.reason,
            remedy="run it with become: true, or name the kernel with next_kernel",
            safe="unknown",
            about_next=True,
        )
    if boot.lost_default:
        yield issue(
            "GRUB_DEFAULT_NOT_FOUND",
            "warning",
            f"GRUB's default {boot.lost_default} matches no entry, so that it starts the first one without a word",
            evidence=boot.reason,
            remedy="write the default as '<id of the submenu>><id of the entry>'",
        )
    if boot.menu_hidden:
        yield issue(
            "GRUB_MENU_HIDDEN",
            "warning",
            "GRUB hides its menu, so that no other kernel can be chosen on a box that does not boot",
            evidence="/boot/grub/grub.cfg" + (f", because of {boot.hidden_by}" if boot.hidden_by else ""),
            remedy="show it for some seconds by /etc/default/grub.d/zz-menu.cfg, which comes last, and run update-grub",
        )


def _pins(state: State, wanted: Wanted) -> c.Iterator[Issue]:
    pin = wanted.expected_kernel
    for what, release in (("runs", state.running), ("boots next", state.boot.kernel)):
        if pin and release and release != pin:
            yield issue(
                "KERNEL_NOT_PINNED",
                "warning",
                f"kernel {release} {what}, but the fleet is pinned to {pin}",
                evidence=state.boot.reason,
                remedy=f"install {pin} with its modules, make it the default, and hold it with the driver",
                safe="no" if what == "boots next" else "",
                about_next=True,
            )
    installed = (state.next.version if state.next else "") or state.userspace_version
    if wanted.expected_version and installed and installed != wanted.expected_version:
        yield issue(
            "DRIVER_NOT_PINNED",
            "warning",
            f"driver {installed} is installed, but the fleet is pinned to {wanted.expected_version}",
            remedy="install the driver that the fleet is pinned to, or change the pin",
            safe="no",
        )


def _cdi(state: State) -> c.Iterator[Issue]:
    version = state.loaded.version or state.userspace_version
    for spec in state.cdi:
        if spec.versions and version and version not in spec.versions:
            yield issue(
                "CDI_SPEC_STALE",
                "warning",
                f"{spec.path} is of another driver than {version}: containers start without its libraries",
                evidence=f"{spec.path} names files of {', '.join(spec.versions)}",
                remedy=f"after the reboot: nvidia-ctk cdi generate --output={spec.path}",
            )
    if len(state.cdi) > 1:
        yield issue(
            "CDI_SPEC_TWICE",
            "warning",
            "the GPU is declared by several CDI specifications, which exclude each other",
            evidence=", ".join(spec.path for spec in state.cdi),
            remedy="keep the one that nvidia-cdi-refresh writes",
        )


def _packages(state: State) -> c.Iterator[Issue]:
    packages = state.packages
    if state.lock:
        yield issue(
            "DPKG_BUSY",
            "info",
            f"another program changes packages: {state.lock.words()}",
            evidence=f"/{state.lock.lock} is locked",
            remedy="let it come to an end, and look again: a reboot in the middle of it leaves packages half done",
            safe="unknown",
        )
    if packages is None:
        return
    if packages.interrupted and not state.lock:
        yield issue(
            "DPKG_INTERRUPTED",
            "error",
            "dpkg is at work, or was interrupted at it",
            evidence="/var/lib/dpkg/updates has changes that are not in /var/lib/dpkg/status",
            remedy="dpkg --configure -a, where no other program is changing packages",
            safe="no",
        )
    if packages.unfinished:
        yield issue(
            "DPKG_UNFINISHED",
            "error",
            f"dpkg has left {len(packages.unfinished)} packages half done",
            evidence=", ".join(f"{name}: {what}" for name, what in packages.unfinished.items()),
            remedy="dpkg --configure -a; where it asks for a password of Secure Boot, remove nvidia-dkms-* first",
            safe="no",
        )
    if packages.half_removed:
        yield issue(
            "DPKG_REPOSITORY_REMOVED",
            "warning",
            "the package of NVIDIA's repository is half removed, and its key with it",
            evidence=", ".join(packages.half_removed),
            remedy=f"apt-get install --reinstall {packages.half_removed[0]}, before anything else",
        )
    if packages.dkms:
        yield issue(
            "DRIVER_DKMS_INSTALLED",
            "warning",
            "the package that builds NVIDIA's modules on the box is installed: they win at the next kernel",
            evidence=", ".join(packages.dkms),
            remedy=f"in one transaction with the modules' meta-package: apt-get install {packages.dkms[0]}-",
        )
    for drift in packages.drifts():
        yield issue(
            "DRIVER_METAPACKAGES_DRIFTED",
            "warning",
            f"{drift.image.name} and {drift.tracker.name} are of different kernels: one may have no modules",
            evidence=f"{drift.image.version} and {drift.tracker.version}",
            remedy="wait with the reboot until both are of one version, and hold both",
        )
    alone = packages.driver_held_alone()
    if alone:
        yield issue(
            "DRIVER_HELD_ALONE",
            "warning",
            f"{alone} is on hold, but the kernel is not: it moves on without modules",
            evidence=f"on hold: {', '.join(packages.held)}",
            remedy="hold the kernel's meta-packages together with the modules', or neither",
        )

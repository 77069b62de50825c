# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What people reported of drivers and kernels on GB10, as boxes, and the right verdict on each."""

from __future__ import annotations

import fcntl
import multiprocessing
import multiprocessing.synchronize
import pathlib
import shutil
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.filter.claims_for import FilterModule
from ansible_collections.gb10.fleet.plugins.module_utils import _driver_state, _driver_verdict, _module_info
from ansible_collections.gb10.fleet.plugins.module_utils._sysroot import Sysroot
from tests.unit.plugins.module_utils import driver_builder as build
from tests.unit.plugins.module_utils.driver_builder import MODULES, OLDER, RELEASE, VERSION, Box

SIGNERS = (r"^Canonical Ltd\. Kernel Module Signing( \d{4} Kmod)?$",)
SEVEN = "7.0.0-1019-nvidia"
claims_for = FilterModule().filters()["claims_for"]


@pytest.fixture
def box(tmp_path: pathlib.Path) -> Box:
    return Box(tmp_path)


def look(box: Box, **wanted: t.Any) -> dict[str, t.Any]:
    request = _driver_state.Wanted(signers=SIGNERS, **wanted)
    return _driver_verdict.report(_driver_state.observe(Sysroot(box.root), request), request)


def finding(result: dict[str, t.Any], name: str) -> dict[str, str]:
    return next(one for one in result["findings"] if one["id"] == name)


def ids(result: dict[str, t.Any]) -> set[str]:
    return {one["id"] for one in result["findings"]}


def test_the_kernel_moved_and_took_its_modules_along(box: Box) -> None:
    """NVIDIA/open-gpu-kernel-modules#1358: signer and version are right, and two boxes do not serve together."""
    box.kernel(SEVEN)
    box.modules(SEVEN)
    box.write("/proc/sys/kernel/osrelease", SEVEN)
    box.write("/boot/grub/grub.cfg", build.grub_config(SEVEN, RELEASE))
    assert look(box)["verdict"] == "good"
    result = look(box, expected_kernel=RELEASE)
    pin = finding(result, "KERNEL_NOT_PINNED")
    assert pin["severity"] == "warning"
    assert RELEASE in pin["remedy"]
    assert result["fallback_kernel"] == RELEASE
    (denied,) = [one for one in claims_for(result, "2026-11-29", {"nodes": 2}) if one["severity"] == "error"]
    assert denied["id"] == "KERNEL_7_0_0_1019_TWO_NODES"


def test_dpkg_was_interrupted_by_a_power_loss(box: Box) -> None:
    """What it had not come to write into its status file lies beside it, in files that are named by numbers."""
    box.packages({"nvidia-driver-580-open": f"{VERSION}-0ubuntu0.24.04.1"})
    box.write("/var/lib/dpkg/updates/tmp.i", "")
    assert look(box)["reboot"]["safe"] == "yes"
    box.write("/var/lib/dpkg/updates/0001", "")
    result = look(box)
    assert result["reboot"]["safe"] == "no"
    assert result["reboot"]["blockers"] == ["DPKG_INTERRUPTED"]


def _hold(path: str, ready: multiprocessing.synchronize.Event, done: multiprocessing.synchronize.Event) -> None:
    with pathlib.Path(path).open("w", encoding="utf-8") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        ready.set()
        done.wait(60)


def test_a_box_is_not_rebooted_while_somebody_changes_its_packages(box: Box) -> None:
    """What is half done then is no fault: it is waited for, and looked at again."""
    lock = box.write("/var/lib/dpkg/lock-frontend", "")
    box.write("/var/lib/dpkg/updates/0001", "")
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(str(lock), ready, done))
    process.start()
    try:
        assert ready.wait(60)
        result = look(box)
    finally:
        done.set()
        process.join()
    assert result["reboot"]["safe"] == "unknown"
    assert result["reboot"]["blockers"] == ["DPKG_BUSY"]
    assert f"process {process.pid}" in finding(result, "DPKG_BUSY")["message"]


def test_dkms_hangs_at_the_prompt_for_a_password(box: Box) -> None:
    """A driver's meta-package alone pulls DKMS, whose prompt nobody answers; dpkg is left half done."""
    box.packages(
        {
            "nvidia-dkms-595-open": "install ok half-configured|595.84-0ubuntu0.24.04.1",
            "nvidia-driver-595-open": "install ok unpacked|595.84-0ubuntu0.24.04.1",
        }
    )
    shutil.rmtree(box.path(f"/lib/modules/{RELEASE}"))
    box.modules(RELEASE, "595.84", by=build.signer(build.OWNER), folder="updates/dkms")
    box.libraries("595.84")
    result = look(box)
    assert (result["verdict"], result["reboot"]["safe"]) == ("bad", "no")
    assert {"DPKG_UNFINISHED", "DRIVER_DKMS_WINS", "DRIVER_MODULE_WRONG_KEY"} <= set(result["reboot"]["blockers"])
    assert "nvidia-dkms-595-open: half-configured" in finding(result, "DPKG_UNFINISHED")["evidence"]
    assert "remove nvidia-dkms-*" in finding(result, "DPKG_UNFINISHED")["remedy"]
    assert f"linux-modules-nvidia-595-open-{RELEASE}" in finding(result, "DRIVER_DKMS_WINS")["remedy"]


def test_a_guide_with_a_ppa_and_a_local_key(box: Box) -> None:
    """gist solatticus/a0d0b810: the GPU works, and the box is not in the state that was promised."""
    owner = build.signer(build.OWNER)
    for release in (RELEASE, OLDER):
        shutil.rmtree(box.path(f"/lib/modules/{release}"))
        box.modules(release, "580.95.05", by=owner, folder="updates/dkms", suffix=".ko.xz")
    box.enroll(owner)
    box.load("580.95.05")
    box.libraries("580.95.05")
    box.packages({"nvidia-dkms-580-open": "580.95.05-0ubuntu1"})
    box.write("/proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: NVIDIA GB10\nGPU Firmware: 580.95.05\n")
    result = look(box)
    assert result["verdict"] == "bad"
    assert result["kernels"][0]["gpu"] == "yes"
    wrong = finding(result, "DRIVER_MODULE_WRONG_KEY")
    assert build.OWNER in wrong["evidence"]
    assert build.CANONICAL in wrong["evidence"]
    assert "nvidia-dkms-580-open-" in wrong["remedy"]
    assert "linux-modules-nvidia-580-open-" in wrong["remedy"]
    assert finding(result, "DRIVER_DKMS_INSTALLED")["evidence"] == "nvidia-dkms-580-open"


@pytest.mark.parametrize("from_packages", [True, False])
def test_userspace_was_replaced_under_the_loaded_module(box: Box, from_packages: bool) -> None:
    """oddmario/NVIDIA-Ubuntu-Driver-Guide#4: 550.107.02 is installed, 550.90.07 is loaded."""
    for release in (RELEASE, OLDER):
        shutil.rmtree(box.path(f"/lib/modules/{release}"))
        box.modules(release, "550.107.02")
    box.remove("/sys/module/nvidia/version")
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"
    box.write("/proc/driver/nvidia/version", line)
    box.write("/proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: NVIDIA GB10\n")
    if from_packages:
        box.libraries()
        box.packages({"libnvidia-compute-550": "550.107.02-0ubuntu0.24.04.1"})
    else:
        box.libraries("550.107.02")
    result = look(box)
    assert result["verdict"] == "reboot_required"
    assert (result["loaded"]["version"], result["userspace"]["version"]) == ("550.90.07", "550.107.02")
    assert (result["loaded"]["flavour"], result["loaded"]["current"]) == ("proprietary", False)
    assert "550.90.07 is loaded, but 550.107.02 is installed" in finding(result, "DRIVER_LOADED_STALE")["message"]


@pytest.mark.parametrize(
    ("driver", "errors"), [("580.173.02", 0), ("580.142", 0), ("590.48.01", 1), ("595.58.03", 1), ("595.84", 0)]
)
def test_no_branch_is_refused_for_its_number(box: Box, driver: str, errors: int) -> None:
    for release in (RELEASE, OLDER):
        shutil.rmtree(box.path(f"/lib/modules/{release}"))
        box.modules(release, driver)
    box.load(driver)
    box.libraries(driver)
    box.write("/proc/driver/nvidia/gpus/000f:01:00.0/information", f"Model: NVIDIA GB10\nGPU Firmware: {driver}\n")
    result = look(box, expected_version=driver)
    assert result["verdict"] == "good"
    assert sum(one["severity"] == "error" for one in claims_for(result, "2026-11-29")) == errors


@pytest.mark.parametrize(("on", "severity"), [(True, "error"), (False, "warning")])
def test_unsigned_modules_are_worse_under_secure_boot(box: Box, on: bool, severity: str) -> None:
    """NVIDIA/gpu-operator#1726: "Loading of unsigned module is rejected", and nobody says which."""
    box.modules(is_signed=False)
    box.secure_boot(on=on)
    unsigned = finding(look(box), "DRIVER_MODULE_UNSIGNED")
    assert unsigned["severity"] == severity
    assert "nvidia, nvidia-uvm, nvidia-modeset, nvidia-drm" in unsigned["message"]
    assert "/kernel/nvidia-580-open/nvidia.ko" in unsigned["evidence"]


def test_signatures_in_a_package_of_their_own(box: Box) -> None:
    """NVIDIA/gpu-driver-container PR 35: objects without their signatures; files that only look like modules."""
    shutil.rmtree(box.path(box.folder(RELEASE)))
    bits = f"/lib/modules/{RELEASE}/kernel/nvidia-580/bits"
    for name in MODULES:
        box.write(f"{bits}/{name}.o", "")
        box.write(f"{bits}/nv-{name}.mod.o", "")
    box.depmod(RELEASE, "kernel/nothing")
    result = look(box)
    missing = finding(result, "DRIVER_SIGNATURES_MISSING")
    assert f"linux-signatures-nvidia-{RELEASE}" in missing["remedy"]
    assert result["reboot"]["safe"] == "no"
    for name in MODULES:
        box.write(f"{bits}/{name}.ko.sig", "")
    assert "DRIVER_SIGNATURES_MISSING" not in ids(look(box))


def test_held_packages_are_named(box: Box) -> None:
    """A branch cannot be changed while packages of the old one are on hold."""
    flavour = "nvidia-hwe-24.04"
    held = (
        f"linux-headers-{flavour}",
        f"linux-image-{flavour}",
        f"linux-modules-nvidia-580-open-{flavour}",
        f"linux-modules-nvidia-fs-{flavour}",
        f"linux-{flavour}",
        f"linux-tools-{flavour}",
    )
    box.packages(dict.fromkeys(held, "hold ok installed|6.17.0-1029.29"))
    result = look(box)
    assert result["packages"]["held"] == sorted(held)
    assert result["verdict"] == "good"


def test_dgx_os_hides_the_menu_of_grub(box: Box) -> None:
    settings = "GRUB_TIMEOUT=0\nGRUB_TIMEOUT_STYLE=hidden\nGRUB_RECORDFAIL_TIMEOUT=0\n"
    box.write("/etc/default/grub", "GRUB_TIMEOUT=10\nGRUB_TIMEOUT_STYLE=menu\n")
    box.write("/etc/default/grub.d/no-grubmenu.cfg", settings)
    box.write("/boot/grub/grub.cfg", build.grub_config(RELEASE, OLDER, style="hidden", timeout=0))
    result = look(box)
    hidden = finding(result, "GRUB_MENU_HIDDEN")
    assert "/etc/default/grub.d/no-grubmenu.cfg" in hidden["evidence"]
    assert "zz-" in hidden["remedy"]
    assert result["boot"]["menu_hidden"] is True


def test_the_bare_id_of_an_entry_boots_the_newest_kernel(box: Box) -> None:
    bare = f"gnulinux-{OLDER}-advanced-1234-ABCD"
    box.write("/boot/grub/grub.cfg", build.grub_config(RELEASE, OLDER, default=bare))
    result = look(box)
    assert (result["reboot"]["kernel"], result["reboot"]["kernel_certain"]) == (RELEASE, True)
    assert ">" in finding(result, "GRUB_DEFAULT_NOT_FOUND")["remedy"]


def test_three_traps_of_apt(box: Box) -> None:
    box.packages(
        {
            "nvidia-spark-repo": "deinstall ok config-files|1.1-1",
            "dgx-release": "install ok unpacked|7.5.0",
            "nvidia-driver-580-open": f"{VERSION}-0ubuntu0.24.04.1",
        }
    )
    result = look(box)
    assert finding(result, "DPKG_REPOSITORY_REMOVED")["remedy"].startswith(
        "apt-get install --reinstall nvidia-spark-repo"
    )
    assert finding(result, "DPKG_UNFINISHED")["evidence"] == "dgx-release: unpacked"
    assert result["reboot"]["safe"] == "no"


def test_a_cdi_specification_of_the_driver_before(box: Box) -> None:
    spec = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  mounts:\n"
    for name in ("libcuda.so.580.142", "libnvidia-ml.so.580.142", "libcuda.so.1"):
        spec += f"  - hostPath: /usr/lib/aarch64-linux-gnu/{name}\n"
    box.write("/etc/cdi/nvidia.yaml", spec)
    result = look(box)
    assert result["cdi"] == [{"path": "/etc/cdi/nvidia.yaml", "versions": ["580.142"], "current": False}]
    stale = finding(result, "CDI_SPEC_STALE")
    assert "580.142" in stale["evidence"]
    assert VERSION in stale["message"]
    box.write("/run/cdi/nvidia.yaml", spec.replace("580.142", VERSION))
    assert "CDI_SPEC_TWICE" in ids(look(box))
    box.remove("/etc/cdi/nvidia.yaml")
    assert look(box)["verdict"] == "good"
    assert ids(look(box)) == set()


def test_a_reading_without_rights_is_no_absence(box: Box) -> None:
    """spark-arena/sparkrun#203: what may not be read is not absent."""
    image = box.path(f"/boot/vmlinuz-{RELEASE}")
    image.unlink()
    image.mkdir()  # nobody reads a folder as a file
    result = look(box)
    assert result["verdict"] == "unknown"
    assert finding(result, "KERNEL_IMAGE_UNREADABLE")["remedy"] == "run it with become: true"
    assert result["kernels"][0]["version"] == VERSION


def test_peermem_is_not_judged(box: Box) -> None:
    """One vendor's image has it signed by NVIDIA Support; it cannot load on a GB10 anyway."""
    peermem = build.signed(build.module("nvidia-peermem"), build.signer("NVIDIA Support"))
    box.write(f"{box.folder(RELEASE)}/nvidia-peermem.ko", peermem)
    result = look(box)
    assert (result["verdict"], [one["name"] for one in result["kernels"][0]["modules"]]) == ("good", list(MODULES))


PREBUILT = """\
version:        580.142
srcversion:     C4BC8E95CA62E8363647ABA
vermagic:       6.17.0-1014-nvidia SMP preempt mod_unload modversions aarch64"""
DKMS = """\
firmware:       nvidia/535.129.03/gsp_tu10x.bin
version:        535.129.03
license:        NVIDIA
retpoline:      Y
name:           nvidia
vermagic:       6.2.0-37-generic SMP preempt mod_unload modversions """
IN_TREE = """\
intree:         Y
vermagic:       4.2.0-27-generic SMP mod_unload modversions 686 """


@pytest.mark.parametrize(
    ("text", "version", "flavour", "release"),
    [
        (PREBUILT, "580.142", "unknown", "6.17.0-1014-nvidia"),
        (DKMS, "535.129.03", "proprietary", "6.2.0-37-generic"),
        (IN_TREE, "", "unknown", "4.2.0-27-generic"),
        ("license:        Dual MIT/GPL\nversion:        595.84", "595.84", "open", ""),
    ],
)
def test_what_modinfo_printed_elsewhere(text: str, version: str, flavour: str, release: str) -> None:
    """The fields of real modules, put back into the form in which a module has them."""
    fields = (line.split(":", 1) for line in text.splitlines())
    section = b"".join(f"{key}={value.lstrip()}".encode() + b"\0" for key, value in fields)
    found = _module_info.ModuleInfo.from_elf(build.elf({".modinfo": section}))
    assert (found.version, found.flavour, found.release) == (version, flavour, release)


@pytest.mark.parametrize(
    ("line", "version", "flavour"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build  (dvs)", "580.142", "open"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31", "550.90.07", "proprietary"),
        ("NVRM version: something new", "", "unknown"),
    ],
)
def test_what_the_loaded_driver_says(box: Box, line: str, version: str, flavour: str) -> None:
    box.remove("/sys/module/nvidia/version")
    box.write("/proc/driver/nvidia/version", f"{line}\nGCC version:  gcc version 13.3.0\n")
    loaded = look(box)["loaded"]
    assert (loaded["version"], loaded["flavour"]) == (version, flavour)


def test_proc_keys() -> None:
    real = build.signer()
    assert _driver_state.keyring(build.keys(real)) == frozenset({real.key_id})
    assert _driver_state.keyring(build.keys()) is None
    assert _driver_state.keyring(None) is None
    assert _driver_state.keyring("048c8d61 I--Q---     2 perm 1f3f0000     0 65534 keyring   _uid.0: empty\n") is None

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What spoils a healthy box, one thing at a time, and what is then said of it: verdict, reboot, findings."""

from __future__ import annotations

import collections.abc as c
import lzma
import os
import pathlib
import re
import shutil
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _driver_state, _driver_verdict
from ansible_collections.gb10.fleet.plugins.module_utils._sysroot import Sysroot
from tests.unit.plugins.module_utils import driver_builder as build
from tests.unit.plugins.module_utils.driver_builder import MODULES, OLDER, RELEASE, VERSION, Box

SIGNERS = (r"^Canonical Ltd\. Kernel Module Signing( \d{4} Kmod)?$",)
OTHER = "580.173.03"
NEWER = "6.17.0-1031-nvidia"
FOLDER = f"/lib/modules/{RELEASE}/kernel/nvidia-580-open"


@pytest.fixture
def box(tmp_path: pathlib.Path) -> Box:
    return Box(tmp_path)


def look(box: Box, **wanted: t.Any) -> dict[str, t.Any]:
    request = _driver_state.Wanted(signers=SIGNERS, **wanted)
    return _driver_verdict.report(_driver_state.observe(Sysroot(box.root), request), request)


def ids(result: dict[str, t.Any]) -> set[str]:
    return {finding["id"] for finding in result["findings"]}


def finding(result: dict[str, t.Any], name: str) -> dict[str, str]:
    return next(one for one in result["findings"] if one["id"] == name)


def test_a_healthy_box(box: Box) -> None:
    result = look(box)
    assert (result["verdict"], result["findings"]) == ("good", [])
    assert result["reboot"] == {
        "pending": False,
        "reasons": [],
        "kernel": RELEASE,
        "kernel_certain": True,
        "kernel_reason": "/boot/grub/grub.cfg: the default 0 is 'Ubuntu'",
        "safe": "yes",
        "blockers": [],
    }
    assert (result["running_kernel"], result["fallback_kernel"]) == (RELEASE, OLDER)
    assert result["gpu"] == {"present": True, "visible": True, "names": ["NVIDIA GB10"]}
    for kernel in result["kernels"]:
        assert (kernel["provider"], kernel["signature_valid"], kernel["signer"]) == ("canonical", True, build.CANONICAL)
        assert (kernel["flavour"], kernel["version"]) == ("open", VERSION)
        assert (kernel["gpu"], kernel["safe_to_boot"], kernel["blockers"]) == ("yes", "yes", [])
        assert {module["signature"] for module in kernel["modules"]} == {"valid"}
        assert {module["verified_by"] for module in kernel["modules"]} == {build.CANONICAL}
    assert [one["certificates"][0]["in_keyring"] for one in result["kernels"]] == [True, None]


def test_a_box_without_a_driver(tmp_path: pathlib.Path) -> None:
    box = Box(tmp_path)
    for folder in ("/lib/modules", "/sys/module", "/proc/driver", "/usr/lib"):
        shutil.rmtree(box.path(folder))
    box.remove("/proc/modules")
    result = look(box)
    assert result["verdict"] == "absent"
    assert result["reboot"]["safe"] == "no"
    assert ids(result) == {"DRIVER_ABSENT"}
    assert [one["provider"] for one in result["kernels"]] == ["none", "none"]


def tampered(box: Box) -> None:
    path = box.path(f"{FOLDER}/nvidia-uvm.ko")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def dkms(box: Box, owner: build.Signer) -> None:
    box.modules(by=owner, folder="updates/dkms", suffix=".ko.xz")


def forged(box: Box) -> None:
    box.modules(by=build.signer(build.CANONICAL, 1))


def forged_with_the_same_serial(box: Box) -> None:
    real = box.trusted.certificate.serial_number
    box.modules(by=build.signer(build.CANONICAL, 2, serial=real))


def cut_off(box: Box) -> None:
    path = box.path(f"{FOLDER}/nvidia.ko")
    path.write_bytes(path.read_bytes()[: -len(build.MAGIC) - 100] + build.MAGIC)


def without(name: str) -> c.Callable[[Box], None]:
    def spoil(box: Box) -> None:
        box.remove(f"{FOLDER}/{name}.ko")
        index = f"/lib/modules/{RELEASE}/modules.dep"
        lines = box.path(index).read_text().splitlines()
        box.write(index, "".join(f"{line}\n" for line in lines if f"/{name}.ko:" not in line))

    return spoil


def moved_kernel(box: Box) -> None:
    """The kernel's meta-package moved on, that of the modules did not."""
    box.kernel(NEWER)
    box.write("/boot/grub/grub.cfg", build.grub_config(NEWER, RELEASE, OLDER))


def packages(**versions: str) -> c.Callable[[Box], None]:
    return lambda box: box.packages({name.replace("_", "-"): value for name, value in versions.items()})


OWNER = build.signer(build.OWNER)

# What is done to the box; the finding that has to follow and its severity; verdict; whether a reboot is safe; and
# whether the modules of the running kernel would have the GPU.
LOST = ("error", "bad", "no", "no")
FORBIDDEN = ("error", "bad", "no", "yes")
NO_MATTER = ("warning", "good", "yes", "yes")
SPOILT: dict[str, tuple[c.Callable[[Box], t.Any], str, tuple[str, str, str, str]]] = {
    "unsigned": (lambda box: box.modules(is_signed=False), "DRIVER_MODULE_UNSIGNED", LOST),
    "tampered": (tampered, "DRIVER_MODULE_TAMPERED", LOST),
    "forged": (forged, "DRIVER_MODULE_FORGED_SIGNER", LOST),
    "forged, same serial": (forged_with_the_same_serial, "DRIVER_MODULE_FORGED_SIGNER", LOST),
    "wrong key": (lambda box: box.modules(by=build.signer("NVIDIA Support")), "DRIVER_MODULE_WRONG_KEY", LOST),
    "cut off": (cut_off, "DRIVER_MODULE_SIGNATURE_BROKEN", LOST),
    "dkms wins": (lambda box: dkms(box, OWNER), "DRIVER_DKMS_WINS", LOST),
    "proprietary": (
        lambda box: box.modules(license_="NVIDIA"),
        "DRIVER_MODULE_PROPRIETARY",
        ("error", "bad", "no", "unknown"),
    ),
    "other version": (lambda box: box.libraries(OTHER), "DRIVER_VERSION_DIFFERS", LOST),
    "no libraries": (lambda box: box.libraries(), "DRIVER_USERSPACE_MISSING", LOST),
    "mixed libraries": (
        lambda box: box.libraries(VERSION, OTHER),
        "DRIVER_USERSPACE_MIXED",
        ("error", "bad", "no", "unknown"),
    ),
    "no nvidia": (without("nvidia"), "DRIVER_MODULE_MISSING", LOST),
    "no nvidia-uvm": (without("nvidia-uvm"), "DRIVER_MODULE_MISSING", LOST),
    "no nvidia-drm": (without("nvidia-drm"), "DRIVER_MODULE_MISSING", NO_MATTER),
    "kernel moved": (moved_kernel, "DRIVER_MODULE_MISSING", FORBIDDEN),
    "no initrd": (lambda box: box.remove(f"/boot/initrd.img-{RELEASE}"), "KERNEL_INITRD_MISSING", LOST),
    "empty initrd": (lambda box: box.write(f"/boot/initrd.img-{RELEASE}", ""), "KERNEL_INITRD_MISSING", LOST),
    "barred": (
        lambda box: box.write("/etc/modprobe.d/off.conf", "install nvidia /bin/false\n"),
        "DRIVER_MODULE_BARRED",
        LOST,
    ),
    "depmod was killed": (
        lambda box: box.write(f"/lib/modules/{RELEASE}/modules.dep.bin", b"\xb0\x07\xf4\x57\0\2\0\1\x20"),
        "KERNEL_MODULES_DEP_MISSING",
        LOST,
    ),
    "no depmod": (
        lambda box: box.remove(f"/lib/modules/{RELEASE}/modules.dep.bin"),
        "KERNEL_MODULES_DEP_MISSING",
        LOST,
    ),
    "half configured": (packages(nvidia_utils_580="install ok half-configured|580.1-1"), "DPKG_UNFINISHED", FORBIDDEN),
    "broken package": (packages(bash="install reinstreq installed|5"), "DPKG_UNFINISHED", FORBIDDEN),
    "stale": (lambda box: box.load("580.159.03"), "DRIVER_LOADED_STALE", ("error", "reboot_required", "yes", "yes")),
    "not verified": (lambda box: box.load(VERSION, taint="OE"), "DRIVER_LOADED_UNVERIFIED", NO_MATTER),
    "dkms package": (packages(nvidia_dkms_580_open="580.173.02-1"), "DRIVER_DKMS_INSTALLED", NO_MATTER),
    "repository": (packages(nvidia_spark_repo="deinstall ok config-files|1.1-1"), "DPKG_REPOSITORY_REMOVED", NO_MATTER),
    "driver held": (
        packages(nvidia_driver_580_open="hold ok installed|580.1-1", linux_image_nvidia="6.17.0-1029.29"),
        "DRIVER_HELD_ALONE",
        NO_MATTER,
    ),
    "drift": (
        packages(linux_image_nvidia="6.17.0-1029.29", linux_modules_nvidia_580_open_nvidia="6.17.0-1026.26+1"),
        "DRIVER_METAPACKAGES_DRIFTED",
        NO_MATTER,
    ),
}


@pytest.mark.parametrize(("spoil", "name", "expected"), SPOILT.values(), ids=SPOILT)
def test_one_thing_at_a_time(
    box: Box, spoil: c.Callable[[Box], t.Any], name: str, expected: tuple[str, str, str, str]
) -> None:
    spoil(box)
    result = look(box)
    found = finding(result, name)
    gpu = next(one for one in result["kernels"] if one["running"])["gpu"]
    assert (found["severity"], result["verdict"], result["reboot"]["safe"], gpu) == expected
    assert (name in result["reboot"]["blockers"]) == (result["reboot"]["safe"] == "no")
    assert found["message"]
    assert found["evidence"]
    assert found["remedy"]


def test_every_finding_is_documented() -> None:
    checkout = pathlib.Path(__file__).parents[4]
    # What installs the driver has a section of its own.
    others = {"_driver_refusal.py", "_driver_request.py", "_driver_transaction.py"}
    files = (checkout / "plugins/module_utils").glob("_driver_*.py")
    sources = "".join(path.read_text() for path in files if path.name not in others)
    section = (checkout / "docs/findings.md").read_text().split("## Driver of a box")[1].split("\n## ")[0]
    documented = re.findall(r"^\| ([A-Z0-9_]+) \|", section, re.MULTILINE)
    assert documented == sorted(documented)
    assert set(documented) == set(re.findall(r'"((?:DRIVER|KERNEL|GRUB|DPKG|CDI|GPU)_[A-Z_]+)"', sources))


def test_the_old_kernel_is_no_error(box: Box) -> None:
    for name in MODULES:
        box.remove(f"{box.folder(OLDER)}/{name}.ko")
    box.write(f"/lib/modules/{OLDER}/modules.dep", "kernel/drivers/net/tun.ko.zst:\n")
    result = look(box)
    assert (result["verdict"], result["reboot"]["safe"], result["fallback_kernel"]) == ("good", "yes", "")
    assert finding(result, "DRIVER_MODULE_MISSING")["severity"] == "info"
    assert finding(result, "KERNEL_NO_FALLBACK")["severity"] == "warning"


def test_a_machine_owner_key_works_and_is_not_what_was_promised(box: Box) -> None:
    dkms(box, OWNER)
    box.enroll(OWNER)
    result = look(box)
    kernel = result["kernels"][0]
    assert (kernel["gpu"], kernel["safe_to_boot"], kernel["provider"]) == ("yes", "no", "dkms")
    assert [kernel["modules"][0][key] for key in ("verified_by", "kernel_accepts", "signature")] == [
        build.OWNER,
        True,
        "wrong_key",
    ]
    won = finding(result, "DRIVER_DKMS_WINS")
    assert f"{FOLDER}/nvidia.ko" in won["evidence"]
    assert f"linux-modules-nvidia-580-open-{RELEASE}" in won["remedy"]
    assert "nvidia-dkms-580-open-" in won["remedy"]
    wrong = finding(result, "DRIVER_MODULE_WRONG_KEY")
    assert build.OWNER in wrong["evidence"]
    assert build.CANONICAL in wrong["evidence"]


def test_a_local_key_that_nobody_enrolled_is_named_and_refused(box: Box) -> None:
    dkms(box, OWNER)
    box.write("/var/lib/shim-signed/mok/MOK.der", OWNER.der)
    kernel = look(box)["kernels"][0]
    assert [kernel["modules"][0][key] for key in ("verified_by", "kernel_accepts")] == [build.OWNER, False]
    assert kernel["gpu"] == "no"


@pytest.mark.parametrize(
    ("secure_boot", "severity", "gpu"), [(True, "error", "no"), (False, "warning", "yes"), (None, "error", "unknown")]
)
def test_unsigned_and_secure_boot(box: Box, secure_boot: bool | None, severity: str, gpu: str) -> None:
    box.modules(is_signed=False)
    if secure_boot is None:
        shutil.rmtree(box.path("/sys/firmware"))
    else:
        box.secure_boot(on=secure_boot)
    result = look(box)
    assert finding(result, "DRIVER_MODULE_UNSIGNED")["severity"] == severity
    assert result["kernels"][0]["gpu"] == gpu
    assert result["reboot"]["safe"] == "no"


def test_proprietary_modules_of_the_right_signer_are_refused(box: Box) -> None:
    box.modules(license_="NVIDIA")
    result = look(box)
    kernel = result["kernels"][0]
    assert (kernel["signature_valid"], kernel["flavour"], kernel["safe_to_boot"]) == (True, "proprietary", "no")
    assert ids(result) == {"DRIVER_MODULE_PROPRIETARY"}


def test_a_kernel_that_cannot_be_read_makes_it_unknown(box: Box) -> None:
    box.kernel(RELEASE, b"\0" * 4096)
    result = look(box)
    assert (result["verdict"], result["reboot"]["safe"]) == ("unknown", "unknown")
    assert result["reboot"]["blockers"] == ["KERNEL_IMAGE_UNREADABLE"]
    assert result["kernels"][0]["signature_valid"] is None
    assert result["kernels"][0]["provider"] == "unknown"
    assert result["kernels"][0]["certificates"] is None


def as_nobody(box: Box, monkeypatch: pytest.MonkeyPatch) -> dict[str, t.Any]:
    """Look as a user without rights. pytest's own folder is closed to others, but not for who stands inside already."""
    box.root.chmod(0o755)
    monkeypatch.chdir(box.root)
    box.root = pathlib.Path()
    os.seteuid(65534)
    try:
        return look(box)
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="changing to another user needs root")
def test_without_root_it_is_unknown_and_says_what_to_do(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (f"/boot/vmlinuz-{RELEASE}", f"/boot/vmlinuz-{OLDER}", "/boot/grub/grub.cfg"):
        box.path(name).chmod(0o600)
    box.write("/proc/keys", "")
    result = as_nobody(box, monkeypatch)
    assert (result["verdict"], result["reboot"]["safe"]) == ("unknown", "unknown")
    assert {"KERNEL_IMAGE_UNREADABLE", "KERNEL_NEXT_GUESSED", "DRIVER_FILES_UNREADABLE"} <= ids(result)
    assert finding(result, "KERNEL_IMAGE_UNREADABLE")["remedy"] == "run it with become: true"
    assert any(one.startswith("/boot/grub/grub.cfg: ") for one in result["unreadable"])
    assert result["kernels"][0]["version"] == VERSION
    assert result["kernels"][0]["certificates"] is None
    assert result["loaded"]["version"] == VERSION


def test_a_guess_is_good_enough_where_every_kernel_is_safe(box: Box) -> None:
    box.remove("/boot/grub/grub.cfg")
    result = look(box)
    assert (result["reboot"]["kernel"], result["reboot"]["kernel_certain"]) == (RELEASE, False)
    assert (result["reboot"]["safe"], result["reboot"]["pending"], result["verdict"]) == ("yes", None, "good")
    box.modules(OLDER, is_signed=False)
    assert look(box)["reboot"]["safe"] == "unknown"
    assert look(box)["reboot"]["blockers"] == ["KERNEL_NEXT_GUESSED"]


def test_the_caller_may_name_the_kernel(box: Box) -> None:
    box.modules(OLDER, is_signed=False)
    assert look(box, next_kernel=OLDER)["reboot"] == {
        "pending": True,
        "reasons": [f"kernel {RELEASE} runs, and {OLDER} boots next"],
        "kernel": OLDER,
        "kernel_certain": True,
        "kernel_reason": "the caller said so",
        "safe": "no",
        "blockers": ["DRIVER_MODULE_UNSIGNED"],
    }
    result = look(box, next_kernel="6.17.0-9999-nvidia")
    assert result["reboot"]["safe"] == "no"
    assert {"KERNEL_IMAGE_MISSING", "DRIVER_MODULE_MISSING", "KERNEL_BOOT_ENTRY_MISSING"} <= set(
        result["reboot"]["blockers"]
    )


def test_only_some_kernels_are_looked_at(box: Box) -> None:
    box.kernel(NEWER)
    assert [one["release"] for one in look(box, kernels=(OLDER,))["kernels"]] == [RELEASE, OLDER]
    assert [one["release"] for one in look(box, kernels=())["kernels"]] == [RELEASE]


def test_pins(box: Box) -> None:
    result = look(box, expected_kernel=OLDER, expected_version="580.142")
    assert {"KERNEL_NOT_PINNED", "DRIVER_NOT_PINNED"} == ids(result)
    assert (result["reboot"]["safe"], result["verdict"]) == ("no", "bad")
    assert look(box, expected_kernel=RELEASE, expected_version=VERSION)["verdict"] == "good"


def test_several_reasons_for_a_reboot(box: Box) -> None:
    box.load("580.159.03")
    box.write("/run/reboot-required.pkgs", "linux-base\nlinux-base\nnvidia-driver-580-open\n")
    box.write("/run/reboot-required", "")
    assert look(box)["reboot"]["reasons"] == [
        f"driver 580.159.03 is loaded, and {VERSION} is installed",
        "a package asks for it (linux-base, nvidia-driver-580-open)",
    ]


def test_another_build_of_the_same_version_is_loaded(box: Box) -> None:
    note = b"\4\0\0\0\x14\0\0\0\3\0\0\0GNU\0"
    box.write("/sys/module/nvidia/notes/.note.gnu.build-id", note + b"\x11" * 20)
    assert look(box)["loaded"]["current"] is True
    box.write("/sys/module/nvidia/notes/.note.gnu.build-id", note + b"\x22" * 20)
    result = look(box)
    assert (result["loaded"]["current"], result["verdict"]) == (False, "reboot_required")
    assert "DRIVER_LOADED_OTHER_BUILD" in ids(result)


def test_a_driver_that_is_not_loaded(box: Box) -> None:
    box.remove("/proc/modules", "/sys/module/nvidia/version", "/proc/driver/nvidia/version")
    result = look(box)
    assert (result["loaded"]["modules"], result["loaded"]["flavour"], result["loaded"]["current"]) == ([], "none", None)
    assert finding(result, "DRIVER_NOT_LOADED")["severity"] == "error"
    assert result["verdict"] == "reboot_required"
    box.write("/sys/bus/pci/devices/000f:01:00.0/vendor", "0x15b3\n")
    without_gpu = look(box)
    assert "DRIVER_NOT_LOADED" not in ids(without_gpu)
    assert (without_gpu["reboot"]["pending"], without_gpu["verdict"]) == (False, "good")


def test_a_gpu_that_the_driver_does_not_drive(box: Box) -> None:
    shutil.rmtree(box.path("/proc/driver/nvidia/gpus"))
    result = look(box)
    assert (result["gpu"]["present"], result["gpu"]["visible"], result["verdict"]) == (True, False, "bad")
    assert "GPU_NOT_VISIBLE" in ids(result)


def test_firmware_of_another_version(box: Box) -> None:
    box.write("/proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: NVIDIA GB10\nGPU Firmware: 580.142\n")
    assert "DRIVER_FIRMWARE_DIFFERS" in ids(look(box))


def test_a_certificate_that_the_running_kernel_does_not_hold(box: Box) -> None:
    box.write("/proc/keys", build.keys(build.signer("Somebody Else")))
    result = look(box)
    assert result["kernels"][0]["certificates"][0]["in_keyring"] is False
    assert finding(result, "DRIVER_CERTIFICATE_NOT_IN_KEYRING")["severity"] == "warning"
    assert result["reboot"]["safe"] == "yes"


def test_an_unsigned_kernel_under_secure_boot(box: Box) -> None:
    image = build.kernel(box.trusted)
    box.kernel(RELEASE, build.efi(image, is_signed=False))
    result = look(box)
    assert (result["kernels"][0]["image_signed"], result["reboot"]["safe"]) == (False, "no")
    assert "KERNEL_IMAGE_UNSIGNED" in result["reboot"]["blockers"]
    box.kernel(RELEASE, build.efi(image, is_signed=True))
    assert look(box)["verdict"] == "good"
    box.kernel(RELEASE, build.efi(image, is_signed=False))
    box.secure_boot(on=False)
    assert look(box)["verdict"] == "good"


def test_a_key_of_a_kind_that_is_not_checked_is_unknown(box: Box) -> None:
    strange = build.signer(build.CANONICAL, 5, kind="p521")
    box.kernel(RELEASE, build.kernel(strange))
    box.modules(by=strange)
    result = look(box)
    assert {module["signature"] for module in result["kernels"][0]["modules"]} == {"unknown"}
    assert (result["verdict"], result["reboot"]["blockers"]) == ("unknown", ["DRIVER_SIGNATURE_UNKNOWN"])


def test_two_branches_of_the_same_rank(box: Box) -> None:
    box.modules(version="595.84")
    box.remove(f"/lib/modules/{RELEASE}/modules.dep.bin")
    result = look(box)
    assert {module["chosen_by"] for module in result["kernels"][0]["modules"]} == {"tie"}
    assert "DRIVER_MODULE_TIE" in ids(result)


def test_an_index_that_depmod_would_change(box: Box) -> None:
    index = box.path(f"/lib/modules/{RELEASE}/modules.dep").read_text()
    dkms(box, OWNER)
    box.write(f"/lib/modules/{RELEASE}/modules.dep", index)
    result = look(box)
    assert result["kernels"][0]["modules"][0]["path"] == f"{FOLDER}/nvidia.ko"
    stale = finding(result, "KERNEL_MODULES_DEP_STALE")
    assert "updates/dkms/nvidia.ko.xz" in stale["evidence"]
    assert (result["verdict"], result["reboot"]["safe"]) == ("unknown", "unknown")


def test_an_index_that_names_what_is_gone(box: Box) -> None:
    index = box.path(f"/lib/modules/{RELEASE}/modules.dep").read_text()
    box.write(f"/lib/modules/{RELEASE}/modules.dep", index.replace("nvidia-580-open", "nvidia-570-open"))
    result = look(box)
    assert "KERNEL_MODULES_DEP_STALE" in result["reboot"]["blockers"]
    assert result["kernels"][0]["gpu"] == "no"


def test_vermagic_of_another_kernel(box: Box) -> None:
    content = build.signed(build.module("nvidia", release=OLDER), box.trusted)
    box.write(f"{FOLDER}/nvidia.ko", content)
    result = look(box)
    assert OLDER in finding(result, "DRIVER_VERMAGIC_DIFFERS")["evidence"]
    assert result["reboot"]["safe"] == "no"


def test_modules_of_several_versions(box: Box) -> None:
    box.write(f"{FOLDER}/nvidia-uvm.ko", build.signed(build.module("nvidia-uvm", OTHER), box.trusted))
    result = look(box)
    assert (result["kernels"][0]["version"], result["reboot"]["safe"]) == ("", "no")
    assert "DRIVER_MODULES_DIFFER" in ids(result)


def test_modules_that_lie_elsewhere(box: Box) -> None:
    shutil.rmtree(box.path(FOLDER))
    box.modules(folder="kernel/drivers/video")
    result = look(box)
    assert (result["kernels"][0]["provider"], result["verdict"]) == ("other", "good")
    assert "DRIVER_MODULE_ELSEWHERE" in ids(result)


def test_a_damaged_module(box: Box) -> None:
    box.write(f"{FOLDER}/nvidia.ko", b"not a module")
    result = look(box)
    assert "it is no ELF file" in finding(result, "DRIVER_MODULE_DAMAGED")["evidence"]
    assert result["kernels"][0]["gpu"] == "no"


def test_a_module_under_the_name_of_another(box: Box) -> None:
    """A file that is rightly signed, and is something else."""
    box.write(f"{FOLDER}/nvidia.ko", build.signed(build.module("nouveau"), box.trusted))
    result = look(box)
    assert result["kernels"][0]["modules"][0]["signature"] == "valid"
    assert "name nouveau" in finding(result, "DRIVER_MODULE_DAMAGED")["evidence"]
    assert result["reboot"]["safe"] == "no"


@pytest.mark.skipif(os.geteuid() != 0, reason="changing to another user needs root")
def test_folders_that_may_not_be_read(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (f"/lib/modules/{RELEASE}/kernel", "/boot"):
        box.path(folder).chmod(0o700)
    result = as_nobody(box, monkeypatch)
    kernel = next(one for one in result["kernels"] if one["running"])
    assert (kernel["initrd"], kernel["gpu"], result["verdict"]) == (None, "unknown", "unknown")
    assert {"KERNEL_IMAGE_UNREADABLE", "DRIVER_MODULE_UNREADABLE"} <= set(kernel["blockers"])
    assert "DRIVER_MODULE_MISSING" not in ids(result)


@pytest.mark.parametrize(
    "suffix",
    [".ko.xz", pytest.param(".ko.zst", marks=pytest.mark.skipif(not shutil.which("zstd"), reason="there is no zstd"))],
)
def test_compressed_modules(box: Box, suffix: str) -> None:
    shutil.rmtree(box.path(FOLDER))
    box.modules(suffix=suffix)
    result = look(box)
    assert (result["verdict"], result["kernels"][0]["signature_valid"]) == ("good", True)


def test_a_module_whose_compression_is_damaged(box: Box) -> None:
    shutil.rmtree(box.path(FOLDER))
    box.modules(suffix=".ko.xz")
    path = box.path(f"{FOLDER}/nvidia.ko.xz")
    path.write_bytes(lzma.compress(build.module())[:200])
    assert "cut off" in finding(look(box), "DRIVER_MODULE_DAMAGED")["evidence"]


def test_zstd_without_a_program(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(box.path(FOLDER))
    for name in MODULES:
        box.write(f"{FOLDER}/{name}.ko.zst", b"\x28\xb5\x2f\xfd")
    box.depmod(RELEASE, "kernel/nvidia-580-open", ".ko.zst")
    monkeypatch.setenv("PATH", str(box.root))
    result = look(box)
    assert finding(result, "DRIVER_MODULE_UNREADABLE")["remedy"] == "install the package zstd on the box"
    assert (result["verdict"], result["kernels"][0]["version"]) == ("unknown", "")


def test_versions_come_from_packages_where_there_are_no_files(box: Box) -> None:
    box.libraries()
    box.packages(
        {"libnvidia-compute-580": "580.173.02-0ubuntu0.24.04.1", "nvidia-utils-580": "580.173.02-0ubuntu0.24.04.1"}
    )
    result = look(box)
    assert result["userspace"] == {
        "version": VERSION,
        "versions": {VERSION: ["libnvidia-compute-580", "nvidia-utils-580"]},
    }
    assert result["verdict"] == "good"

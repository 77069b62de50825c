# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The packages of a DGX Spark that decide about its driver, with their real names and dependencies.

What is in them is small: kernel modules that are real but do nothing, a kernel image that has its header and its
certificates and nothing else, programs that say what the lab's kernel has loaded. The names, sections and relations are
those that were seen on DGX OS 7 and in Ubuntu 24.04 in 2026.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from lab.build import Artefact, call, chroot_argv, key_of
from lab.driver import modules
from lab.driver.modules import NEW_DRIVER, NEW_KERNEL, OLD_DRIVER, OLD_KERNEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lab.state import Lab

FILES = Path(__file__).resolve().parent / "box"
FLAVOUR = "nvidia-hwe-24.04"
_JUDGED = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm")
_KERNEL_VERSIONS = {OLD_KERNEL: "6.17.0-1026.26", NEW_KERNEL: "6.17.0-1029.29"}

# What a repository offers, one after the other in the life of a box.
SUITES = {
    # A box as it left the factory: a kernel, and the driver for it.
    "factory": ((OLD_KERNEL,), (OLD_KERNEL,), OLD_DRIVER),
    # Kernel and driver have moved on, together.
    "current": ((OLD_KERNEL, NEW_KERNEL), (OLD_KERNEL, NEW_KERNEL), NEW_DRIVER),
    # The kernel has moved on, and its modules are not there yet.
    "drifted": ((OLD_KERNEL, NEW_KERNEL), (OLD_KERNEL,), OLD_DRIVER),
}


@dataclasses.dataclass(frozen=True)
class Deb:
    """A package: what stands in its control file, and its files by path."""

    name: str
    version: str
    relations: dict[str, str] = dataclasses.field(default_factory=dict)
    files: dict[str, bytes | Path] = dataclasses.field(default_factory=dict)
    scripts: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def file_name(self) -> str:
        return f"{self.name}_{self.version}_all.deb"

    def control(self) -> str:
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Section": "restricted/kernel",
            "Priority": "optional",
            "Architecture": "all",
            "Maintainer": "the lab <lab@localhost>",
            **self.relations,
            "Description": f"stand-in for {self.name} in the lab",
        }
        return "".join(f"{key}: {value}\n" for key, value in fields.items())

    def write_tree(self, folder: Path) -> None:
        """Write what dpkg-deb packs."""
        (folder / "DEBIAN").mkdir(parents=True)
        (folder / "DEBIAN/control").write_text(self.control(), encoding="utf-8")
        for name, text in self.scripts.items():
            (folder / "DEBIAN" / name).write_text(text, encoding="utf-8")
            (folder / "DEBIAN" / name).chmod(0o755)
        for path, content in self.files.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.read_bytes() if isinstance(content, Path) else content)
            place.chmod(0o755 if "bin/" in path else 0o600 if path.startswith("boot/") else 0o644)


def kernel_image(keys: Path) -> bytes:
    """A kernel image as Ubuntu's for arm64 looks to whoever reads it: gzip, the header, and certificates inside."""
    header = bytearray(0x40)
    header[0x38:0x3C] = b"ARM\x64"
    certificates = [(keys / f"{name}.der").read_bytes() for name in ("canonical", "build")]
    body = b"".join(certificate.ljust(4096, b"\0") for certificate in certificates)
    return gzip.compress(bytes(header).ljust(8192, b"\0") + body.ljust(65536, b"\0"), mtime=0)


def _range(name: str, version: str) -> str:
    """A relation that only one upstream version satisfies, as the real packages have it."""
    return f"{name} (<= {version}-1), {name} (>= {version})"


def kernel_packages(kernel: str, keys: Path) -> list[Deb]:
    """A kernel: image, initrd and boot entry; it brings no modules of NVIDIA's."""
    version = _KERNEL_VERSIONS[kernel]
    configure = f"#!/bin/sh\nset -e\ngb10-lab-boot add {kernel}\n"
    remove = f"#!/bin/sh\nset -e\ngb10-lab-boot remove {kernel}\n"
    return [
        Deb(
            f"linux-image-{kernel}",
            version,
            {"Depends": "gb10-lab-boot"},
            {
                f"boot/vmlinuz-{kernel}": kernel_image(keys),
                f"boot/config-{kernel}": b"CONFIG_MODULE_SIG=y\n",
                f"usr/lib/modules/{kernel}/modules.builtin": b"",
                f"usr/lib/modules/{kernel}/modules.order": b"",
            },
            {"postinst": configure, "postrm": remove},
        )
    ]


def kernel_metas(kernel: str) -> list[Deb]:
    """The meta-packages that follow the newest kernel."""
    version = _KERNEL_VERSIONS[kernel]
    return [
        Deb(f"linux-image-{FLAVOUR}", version, {"Depends": f"linux-image-{kernel}"}),
        Deb(f"linux-headers-{FLAVOUR}", version),
        Deb(
            f"linux-{FLAVOUR}",
            version,
            {"Depends": f"linux-image-{FLAVOUR} (= {version}), linux-headers-{FLAVOUR} (= {version})"},
        ),
    ]


def _build_number(driver: str) -> str:
    return "1" if driver == OLD_DRIVER else "2"


def payload(kernel: str, driver: str, folder: Path) -> Deb:
    """The signed modules for one kernel."""
    place = f"lib/modules/{kernel}/kernel/nvidia-580-open"
    depmod = f"#!/bin/sh\nset -e\ngb10-lab-boot modules {kernel}\n"
    return Deb(
        f"linux-modules-nvidia-580-open-{kernel}",
        f"{_KERNEL_VERSIONS[kernel]}+{_build_number(driver)}",
        {
            "Built-Using": f"nvidia-dkms-580-open (= {driver}-0ubuntu0.24.04.1)",
            "Depends": f"linux-image-{kernel} | linux-image-unsigned-{kernel}, "
            + _range("nvidia-kernel-common-580", driver),
        },
        {f"usr/{place}/{name}.ko": folder / kernel / driver / "canonical" / f"{name}.ko" for name in _JUDGED},
        {"postinst": depmod, "postrm": depmod},
    )


def tracker(kernel: str, driver: str) -> Deb:
    """What follows the newest kernel that has modules, and stands in for DKMS."""
    version = f"{_KERNEL_VERSIONS[kernel]}+{_build_number(driver)}"
    return Deb(
        f"linux-modules-nvidia-580-open-{FLAVOUR}",
        version,
        {
            "Depends": f"linux-modules-nvidia-580-open-{kernel} (= {version}), "
            + _range("nvidia-kernel-common-580", driver),
            "Provides": f"nvidia-dkms-580-open (= {driver}-0ubuntu0.24.04.1)",
        },
    )


def driver_packages(driver: str, folder: Path) -> list[Deb]:
    """Everything of one driver version that does not depend on a kernel."""
    version = f"{driver}-0ubuntu0.24.04.1"
    library = f"usr/lib/{platform.machine()}-linux-gnu"
    same = f"(= {version})"
    # Compiled on the box in real life; what matters is where the modules lie and who has signed them.
    compiled: dict[str, bytes | Path] = {
        f"usr/lib/modules/{kernel}/updates/dkms/{name}.ko.zst": folder / kernel / driver / "mok" / f"{name}.ko.zst"
        for kernel in (OLD_KERNEL, NEW_KERNEL)
        for name in _JUDGED
    }
    depmod = "".join(f"gb10-lab-boot modules {kernel}\n" for kernel in (OLD_KERNEL, NEW_KERNEL))
    depmod = f"#!/bin/sh\nset -e\n{depmod}"
    return [
        Deb("nvidia-kernel-common-580", version),
        Deb("nvidia-kernel-source-580-open", version),
        Deb(
            "libnvidia-compute-580",
            version,
            {},
            {f"{library}/{name}.so.{driver}": b"\x7fELF stand-in\n" for name in ("libcuda", "libnvidia-ml")},
        ),
        Deb(
            "nvidia-utils-580",
            version,
            {"Depends": f"libnvidia-compute-580 {same}"},
            {"usr/bin/nvidia-smi": FILES / "nvidia-smi"},
        ),
        Deb(
            "nvidia-dkms-580-open",
            version,
            {
                "Depends": f"nvidia-kernel-source-580-open {same}, " + _range("nvidia-kernel-common-580", driver),
                "Provides": "nvidia-dkms-kernel",
                "Conflicts": "nvidia-dkms-kernel",
                "Replaces": "nvidia-dkms-kernel",
            },
            compiled,
            {"postinst": depmod, "postrm": depmod},
        ),
        Deb(
            "nvidia-driver-580-open",
            version,
            {
                "Depends": ", ".join(
                    (
                        _range("nvidia-dkms-580-open", driver),
                        _range("nvidia-kernel-common-580", driver),
                        f"nvidia-kernel-source-580-open {same}",
                        f"nvidia-utils-580 {same}",
                    )
                )
            },
        ),
    ]


def platform_packages() -> list[Deb]:
    """What makes a box a DGX, and a meta-package that nails the driver of the factory."""
    refresh = "nvidia-cdi-refresh"
    return [
        Deb("gb10-lab-boot", "1", {"Depends": "kmod"}, {"usr/sbin/gb10-lab-boot": FILES / "gb10-lab-boot"}),
        Deb("dgx-release", "7.5.0", {}, {"etc/dgx-release": b'DGX_NAME="DGX Spark"\nDGX_OTA_VERSION="7.5.0"\n'}),
        Deb("nvidia-spark-repo", "1.1-1"),
        Deb("dgx-spark-factory", "7.5.0", {"Depends": "dgx-release, nvidia-spark-repo"}),
        Deb("dgx-spark-ota-update-meta", "26.03.1", {"Depends": f"nvidia-driver-580-open (<= {OLD_DRIVER}-1)"}),
        Deb(
            "nvidia-container-toolkit",
            "1.19.0-1",
            {},
            {
                "usr/bin/nvidia-ctk": FILES / "nvidia-ctk",
                "usr/lib/systemd/system/nvidia-cdi-refresh.service": FILES / "nvidia-cdi-refresh.service",
                "usr/lib/systemd/system/nvidia-cdi-refresh.path": FILES / "nvidia-cdi-refresh.path",
            },
            {"postinst": f"#!/bin/sh\nset -e\nsystemctl enable --now {refresh}.path {refresh}.service\n"},
        ),
    ]


def suite(name: str, built: Path) -> list[Deb]:
    """Return what a suite offers."""
    kernels, with_modules, driver = SUITES[name]
    folder = built / "modules"
    found = [deb for kernel in kernels for deb in kernel_packages(kernel, built / "keys")]
    found += kernel_metas(kernels[-1])
    found += [payload(kernel, driver, folder) for kernel in with_modules]
    found += [tracker(with_modules[-1], driver), *driver_packages(driver, folder), *platform_packages()]
    return found


def artefact(lab: Lab) -> Artefact:
    parts = (Path(__file__), *sorted(FILES.iterdir()))
    return Artefact(lab, "driver-repository", key_of(modules.artefact(lab).key, platform.machine(), *parts))


def build(lab: Lab) -> Path:
    """Make the repository: ``pool``, an index for each suite, and ``modules`` with every kind of signature."""
    built = modules.build(lab)

    def fill(target: Path) -> None:
        trees = target / "trees"
        suites = {name: suite(name, built) for name in SUITES}
        debs = {deb.file_name: deb for found in suites.values() for deb in found}
        for file_name, deb in debs.items():
            deb.write_tree(trees / file_name)
        (target / "pool").mkdir()
        dpkg_deb = "dpkg-deb --root-owner-group -Zgzip --build"
        pack = f'cd /media/trees; for tree in *; do {dpkg_deb} "$tree" "/media/pool/$tree"; done'
        argv = chroot_argv(modules.root_artefact(lab).path, ["sh", "-ec", pack], binds={target: "/media"})
        call(argv, log=lab.home / "log" / "driver-repository.log", what="Packing the packages of the driver")
        shutil.rmtree(trees)
        for name, found in suites.items():
            (target / name).mkdir()
            (target / name / "Packages").write_text(index(found, target), encoding="utf-8")
        shutil.copytree(built / "modules", target / "modules")
        shutil.copytree(built / "keys", target / "keys")

    return artefact(lab).ensure(fill)


def index(debs: Iterable[Deb], target: Path) -> str:
    """The text of a suite's index."""
    stanzas = []
    for deb in debs:
        data = (target / "pool" / deb.file_name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        stanzas.append(f"{deb.control()}Filename: pool/{deb.file_name}\nSize: {len(data)}\nSHA256: {digest}\n")
    return "\n".join(stanzas)

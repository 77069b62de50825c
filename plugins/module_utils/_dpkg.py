# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What dpkg knows of the driver's packages: versions, holds, what is half done, and meta-packages that drifted apart.

Kernel and driver come from different sources, and Ubuntu rolls each out to a part of all machines at a time. So a box
can get a kernel before the modules for it, and lose its GPU at the next boot.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import re
import typing as t

_FIELD: t.Final = re.compile(r"^(Package|Status|Version): (.*)$", re.MULTILINE)
_OF_INTEREST: t.Final = re.compile(
    r"(lib)?nvidia-|linux-(image|modules-nvidia|objects-nvidia|signatures-nvidia|nvidia|generic)|dgx-|cuda-drivers"
)
_DKMS: t.Final = re.compile(r"nvidia(-[a-z0-9]+)*-dkms(-|$)")
# linux-modules-nvidia-580-open-nvidia-hwe-24.04: branch, variant and flavour; what follows a payload is a release.
_TRACKER: t.Final = re.compile(r"linux-modules-nvidia-(\d+)(-server)?(-open)?-([a-z].*)")
_USERSPACE: t.Final = re.compile(r"(libnvidia-compute|nvidia-utils)-\d+(-server)?")
_DRIVER: t.Final = re.compile(r"nvidia-driver-\d+(-server)?(-open)?")
_SETTLED: t.Final = ("installed", "config-files", "not-installed")


@dataclasses.dataclass(frozen=True, slots=True)
class Package:
    """A package as the status file has it: what is wanted of it, whether it is broken, its state and version."""

    name: str
    wanted: str
    flag: str
    state: str
    version: str

    @property
    def installed(self) -> bool:
        """Return whether it is installed and configured."""
        return self.state == "installed"

    @property
    def upstream(self) -> str:
        """Return the version without epoch and Debian revision: 580.142 of 580.142-0ubuntu0.24.04.1."""
        return self.version.split(":", 1)[-1].rsplit("-", 1)[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """Two meta-packages that should be of one kernel version, and are not."""

    image: Package
    tracker: Package


@dataclasses.dataclass(frozen=True, slots=True)
class Packages:
    """The packages of a box: those of interest by name, and of all others those on hold or left half done."""

    known: c.Mapping[str, Package]
    interrupted: bool = False
    """Whether dpkg has changes that it has not come to write into its status file: it is at work, or was killed."""

    @classmethod
    def from_status(cls, text: str, updates: c.Sequence[str] = ()) -> Packages:
        """Parse /var/lib/dpkg/status, and the files of /var/lib/dpkg/updates, which come after it."""
        found: dict[str, Package] = {}
        for one in (text, *updates):
            _parse(found, one)
        return cls(found, interrupted=bool(updates))

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of what is installed and of interest."""
        return {
            name: package.version
            for name, package in sorted(self.known.items())
            if package.installed and _OF_INTEREST.match(name)
        }

    @property
    def held(self) -> tuple[str, ...]:
        """Return the packages on hold."""
        return tuple(sorted(name for name, package in self.known.items() if package.wanted == "hold"))

    @property
    def unfinished(self) -> dict[str, str]:
        """Return the state of packages that are neither installed nor removed, or that need to be installed anew."""
        return {
            name: package.state if package.state not in _SETTLED else package.flag
            for name, package in sorted(self.known.items())
            if _is_unfinished(package)
        }

    @property
    def dkms(self) -> tuple[str, ...]:
        """Return the installed packages that build NVIDIA's modules on the box."""
        return tuple(sorted(name for name, one in self.known.items() if one.installed and _DKMS.match(name)))

    @property
    def half_removed(self) -> tuple[str, ...]:
        """Return NVIDIA's repository packages of which only the configuration is left: their key is gone with them."""
        return tuple(
            sorted(
                name
                for name, package in self.known.items()
                if package.state == "config-files" and re.match(r"nvidia-spark-repo|dgx-repo|cuda-keyring", name)
            )
        )

    @property
    def drivers(self) -> tuple[Package, ...]:
        """Return the installed driver meta-packages."""
        return tuple(
            package for name, package in sorted(self.known.items()) if _DRIVER.fullmatch(name) and package.installed
        )

    @property
    def trackers(self) -> tuple[tuple[str, Package], ...]:
        """Return the meta-packages that follow the newest modules, with the kernel flavour of each."""
        found = []
        for name, package in sorted(self.known.items()):
            match = _TRACKER.fullmatch(name)
            if match and package.installed:
                found.append((match[4], package))
        return tuple(found)

    def userspace(self) -> dict[str, list[str]]:
        """Return the packages of the driver's libraries by upstream version."""
        found: dict[str, list[str]] = {}
        for name, package in sorted(self.known.items()):
            if _USERSPACE.fullmatch(name) and package.installed:
                found.setdefault(package.upstream, []).append(name)
        return found

    def drifts(self) -> tuple[Drift, ...]:
        """Return the pairs of kernel and modules meta-packages whose versions differ in more than the build."""
        found = []
        for flavour, tracker in self.trackers:
            image = self.known.get(f"linux-image-{flavour}")
            if image and image.installed and kernel_version(image.version) != kernel_version(tracker.version):
                found.append(Drift(image, tracker))
        return tuple(found)

    def driver_held_alone(self) -> str:
        """Return the driver package that is on hold while the kernel may move on, or an empty string."""
        if any(name.startswith("linux-image-") for name in self.held):
            return ""
        moving = [name for name in self.known if re.match(r"linux-image-[a-z]", name) and self.known[name].installed]
        held = [name for name in self.held if _DRIVER.fullmatch(name) or _TRACKER.fullmatch(name)]
        return held[0] if held and moving else ""


def kernel_version(version: str) -> str:
    """Return the kernel's part of a meta-package's version: 6.17.0-1029.29 of 6.17.0-1029.29+1."""
    return version.split("+", 1)[0]


def _is_unfinished(package: Package) -> bool:
    return package.state not in _SETTLED or package.flag != "ok"


def _parse(found: dict[str, Package], text: str) -> None:
    fields: dict[str, str] = {}
    for match in _FIELD.finditer(text):
        if match[1] == "Package":
            _take(found, fields)
            fields = {}
        fields[match[1]] = match[2].strip()
    _take(found, fields)


def _take(found: dict[str, Package], fields: c.Mapping[str, str]) -> None:
    words = fields.get("Status", "").split()
    if "Package" not in fields or len(words) != 3:
        return
    package = Package(fields["Package"], words[0], words[1], words[2], fields.get("Version", ""))
    if package.state == "not-installed":
        return
    if (
        _OF_INTEREST.match(package.name)
        or _DKMS.match(package.name)
        or package.wanted == "hold"
        or _is_unfinished(package)
    ):
        found[package.name] = package

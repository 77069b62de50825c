# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which packages make up Canonical's pre-signed driver, what is missing of them, and what a plan must not do. Pure.

``nvidia-driver-<branch>-open`` asks for ``nvidia-dkms-<branch>-open``, which would compile modules that no key of the
kernel has signed. The tracker (``linux-modules-nvidia-<branch>-open-<flavour>``) provides the same name and brings
modules that Canonical has signed. So the two belong into one transaction, with a minus for DKMS.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import fnmatch
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _apt

PREFERENCES: t.Final = "etc/apt/preferences.d/gb10-fleet-driver.pref"
_IMAGE: t.Final = re.compile(r"^linux-image-(\d\S*)$")
# Packages of one branch of the driver, whatever they are for: libnvidia-compute-580, linux-modules-nvidia-580-open-...
OF_BRANCH: t.Final = re.compile(
    r"^(?:lib)?(?:nvidia|xserver-xorg-video-nvidia|linux-(?:modules|objects|signatures)-nvidia)\b[a-z0-9-]*?-(\d{3})(?:-|$)"
)


def is_dkms(name: str) -> bool:
    """Return whether a package compiles modules of the driver on the box, whoever made it.

    Ubuntu has nvidia-dkms-580-open, Debian nvidia-kernel-dkms, NVIDIA's own repository nvidia-kernel-open-dkms.
    """
    return name.startswith("nvidia") and "dkms" in name.split("-")


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What has to be on the box. ``kernels`` are the running one and the one that boots next, where they differ."""

    branch: str
    flavour: str
    kernels: tuple[str, ...]
    version: str = ""
    upgrade: bool = False
    platform: tuple[str, ...] = ()
    lock_timeout_s: int = 600

    @classmethod
    def from_dict(cls, data: c.Mapping[str, t.Any]) -> Request:
        """Return the request that was written down as plain data."""
        lists = {name: tuple(data[name]) for name in ("kernels", "platform")}
        return cls(**{**data, **lists})

    @property
    def driver(self) -> str:
        """The meta-package of the driver."""
        return f"nvidia-driver-{self.branch}-open"

    @property
    def tracker(self) -> str:
        """The meta-package that follows the newest kernel of a flavour."""
        return f"linux-modules-nvidia-{self.branch}-open-{self.flavour}"

    @property
    def kernel_metas(self) -> tuple[str, ...]:
        """The meta-packages of the kernel that move together with the tracker, where they are installed."""
        names = ("linux", "linux-image", "linux-headers", "linux-tools", "linux-modules-nvidia-fs")
        return tuple(f"{name}-{self.flavour}" for name in names)

    @property
    def dkms(self) -> tuple[str, ...]:
        """The packages that would compile what Canonical has signed."""
        return (f"nvidia-dkms-{self.branch}-open", f"nvidia-dkms-{self.branch}")

    def payload(self, kernel: str) -> str:
        """Return the package with the signed modules for one kernel."""
        return f"linux-modules-nvidia-{self.branch}-open-{kernel}"

    def names(self) -> tuple[str, ...]:
        """Return every package that the request may be about."""
        return (self.driver, self.tracker, *map(self.payload, self.kernels), *self.dkms, *self.kernel_metas)


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """What apt and dpkg say of a box. ``own_holds`` are those that the collection has placed earlier."""

    packages: c.Mapping[str, _apt.Package]
    automatic: frozenset[str]
    candidates: c.Mapping[str, _apt.Candidate]
    preferences: str = ""
    own_holds: frozenset[str] = frozenset()

    def installed(self, name: str) -> bool:
        """Return whether a package is there as a whole."""
        package = self.packages.get(name)
        return package is not None and package.installed

    @property
    def held(self) -> frozenset[str]:
        """The packages that must not change."""
        return frozenset(name for name, package in self.packages.items() if package.want == "hold")

    @property
    def foreign_holds(self) -> frozenset[str]:
        """The packages that somebody else wants not to change."""
        return self.held - self.own_holds

    @property
    def dkms(self) -> tuple[str, ...]:
        """The packages on the box that compile modules of the driver."""
        return tuple(sorted(name for name, one in self.packages.items() if is_dkms(name) and one.installed))


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """What is missing: in the order in which it is done. Empty where everything is as it has to be."""

    protect: tuple[str, ...]
    preferences: bool
    packages: bool
    hold: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.protect or self.preferences or self.packages or self.hold)


def steps(request: Request, box: Box) -> Steps:
    """Return what is missing on a box, from what is installed; no plan is needed for that."""
    return Steps(
        protect=tuple(sorted(set(box.automatic) & set(_platform(request, box)))),
        preferences=box.preferences != preferences(request),
        packages=not _satisfied(request, box),
        hold=tuple(name for name in to_hold(request, box) if name not in box.held),
    )


def to_hold(request: Request, box: Box) -> tuple[str, ...]:
    """Return what is held together: the kernel's meta-packages, the tracker and the driver.

    The driver alone would be a trap: the kernel moves on, and the new one has no modules.
    """
    return tuple(name for name in (*request.kernel_metas, request.tracker, request.driver) if box.installed(name))


def _satisfied(request: Request, box: Box) -> bool:
    wanted = [request.driver, request.tracker]
    # A kernel that apt has no modules for (any more) cannot get them; the plan says so.
    wanted += [name for name in map(request.payload, request.kernels) if name in box.candidates]
    if box.dkms or not all(map(box.installed, wanted)):
        return False
    version = box.packages[request.driver].version
    if request.version and _apt.upstream(version) != request.version:
        return False
    moving = [name for name in (*wanted, *request.kernel_metas) if box.installed(name)] if request.upgrade else []
    return all(box.candidates[name].version == box.packages[name].version for name in moving if name in box.candidates)


def _platform(request: Request, box: Box) -> list[str]:
    return [
        name
        for name, package in box.packages.items()
        if package.installed
        and not OF_BRANCH.match(name)
        and any(fnmatch.fnmatchcase(name, pattern) for pattern in request.platform)
    ]


def preferences(request: Request) -> str:
    """Return the pins: no DKMS, no unsigned kernel, and the version where one is asked for."""
    pins = [
        (
            "Modules that are compiled here are signed by no key that the kernel knows.",
            "nvidia-dkms-* nvidia-dkms nvidia-kernel-*dkms nvidia-open-kernel-dkms",
            "release *",
            -1,
        ),
        (
            "Secure Boot does not start them; holding the others does not keep them out.",
            "linux-image-unsigned-*",
            "release *",
            -1,
        ),
    ]
    if request.version:
        names = " ".join(
            f"{begin}-{request.branch}{end}"
            for begin in ("nvidia-*", "libnvidia-*", "xserver-xorg-video-nvidia")
            for end in ("", "-*")
        )
        pins.append(("The version that the inventory names.", names, f"version {request.version}-*", 1001))
    stanzas = [f"# {why}\nPackage: {name}\nPin: {pin}\nPin-Priority: {priority}\n" for why, name, pin, priority in pins]
    return "\n".join(("# Written by gb10.fleet (role nvidia_driver).\n", *stanzas))


def wanted(request: Request, box: Box) -> tuple[str, ...]:
    """Return what is asked of apt, in one transaction: "name-" is to go, or to stay away."""
    kernels = [name for name in map(request.payload, request.kernels) if name in box.candidates]
    metas = [name for name in request.kernel_metas if box.installed(name)]
    # apt refuses a minus for a name that it does not know.
    away = sorted({name for name in request.dkms if name in box.candidates} | set(box.dkms))
    return tuple(dict.fromkeys((request.tracker, *kernels, request.driver, *metas, *(f"{name}-" for name in away))))


def new_kernels(actions: c.Iterable[_apt.Action]) -> list[str]:
    """Return the kernels that a plan installs, the highest version last."""
    found = (_IMAGE.match(action.name) for action in actions if action.kind == "install")
    return sorted((match[1] for match in found if match), key=release)


def next_kernel(request: Request, actions: c.Iterable[_apt.Action]) -> str:
    """Return the kernel that boots next after a plan: a new one has the highest version, and that is the default."""
    known = [*request.kernels[-1:], *new_kernels(actions)]
    return known[-1] if known else ""


def release(kernel: str) -> list[int]:
    """Return the numbers of a kernel's release, to sort by."""
    return [int(number) for number in re.findall(r"\d+", kernel)]

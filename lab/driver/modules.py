# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Real kernel modules, compiled from Debian's headers and signed with keys that are made for the purpose."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from lab import roots
from lab.build import Artefact, call, chroot_argv, key_of

if TYPE_CHECKING:
    from lab.state import Lab

_HERE = Path(__file__).resolve().parent
_SUITE = "trixie"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

# What DGX OS 7 boxes had in turn: a kernel and its driver, and the next of each.
OLD_KERNEL, NEW_KERNEL = "6.17.0-1026-nvidia", "6.17.0-1029-nvidia"
OLD_DRIVER, NEW_DRIVER = "580.142", "580.173.02"
_PAIRS = (
    (OLD_KERNEL, OLD_DRIVER),
    (OLD_KERNEL, NEW_DRIVER),
    (NEW_KERNEL, OLD_DRIVER),
    (NEW_KERNEL, NEW_DRIVER),
)


def _packages() -> list[str]:
    headers = f"linux-headers-{_ARCHITECTURES[platform.machine()]}"
    return sorted(("gcc", "kmod", headers, "make", "openssl", "xz-utils", "zstd"))


def root_artefact(lab: Lab) -> Artefact:
    """Debian with a compiler and the headers of its kernel."""
    return Artefact(lab, "kernel-root", key_of(_SUITE, *_packages(), platform.machine()))


def artefact(lab: Lab) -> Artefact:
    pairs = [":".join(pair) for pair in _PAIRS]
    return Artefact(lab, "kernel-modules", key_of(root_artefact(lab).key, *pairs, _HERE / "compile"))


def build(lab: Lab) -> Path:
    """Compile and sign: ``keys`` has the certificates, ``modules/KERNEL/DRIVER/KIND`` the modules of each kind."""

    def fill(target: Path) -> None:
        root = root_artefact(lab).ensure(
            lambda place: roots.debootstrap(_SUITE, _packages(), place, lab.home / "log" / "kernel-root.log")
        )
        pairs = [":".join(pair) for pair in _PAIRS]
        argv = chroot_argv(root, ["/mnt/compile", *pairs], binds={_HERE: "/mnt", target: "/media"})
        call(argv, log=lab.home / "log" / "kernel-modules.log", what="Compiling kernel modules")

    return artefact(lab).ensure(fill)

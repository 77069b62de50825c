# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Debian root directories made by debootstrap."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from lab.build import ISOLATED, Artefact, call, chroot_argv, copy_tree, key_of

if TYPE_CHECKING:
    from lab.state import Lab

FILES = Path(__file__).resolve().parent / "host"

_HOST_PACKAGES = (
    "ca-certificates", "curl", "dbus", "docker.io", "docker-registry", "iproute2", "iptables", "iputils-ping", "kmod",
    "less", "lsof", "netplan.io", "openssh-server", "openssl", "procps", "python3", "sudo", "systemd", "systemd-sysv",
    "udev", "zstd",
)  # fmt: skip
# Since trixie the client is a package of its own, and bookworm brings it with docker.io.
_MORE_PACKAGES = {"trixie": ("docker-cli",), "bookworm": ()}

# Where each file of lab/host goes, and its mode.
_PLACES = {
    "lab-init": ("sbin/lab-init", 0o755),
    "lab-layer": ("usr/local/sbin/lab-layer", 0o755),
    "registry.yml": ("etc/gb10-lab/registry.yml", 0o644),
    "lab-registry.service": ("etc/systemd/system/lab-registry.service", 0o644),
    "docker.conf": ("etc/systemd/system/docker.service.d/gb10-lab.conf", 0o644),
    "udev-trigger.conf": ("etc/systemd/system/systemd-udev-trigger.service.d/gb10-lab.conf", 0o644),
    "journald.conf": ("etc/systemd/journald.conf.d/gb10-lab.conf", 0o644),
    "sudoers": ("etc/sudoers.d/gb10-lab", 0o440),
}


USER_ID = 1000
"""User and group of the user spark, as lab/host/setup makes it."""


def debootstrap(suite: str, include: list[str], target: Path, log: Path) -> None:
    """Install a minimal Debian into an empty directory.

    The mirror is debootstrap's own default, through the proxy that the environment names.
    """
    packages = f"--include={','.join(include)}"
    argv = [*ISOLATED, "--mount-proc", "debootstrap", "--variant=minbase", packages, suite, str(target)]
    call(argv, log=log, what=f"Installing Debian {suite} with debootstrap")
    shutil.rmtree(target / "var" / "lib" / "apt" / "lists", ignore_errors=True)
    for package in (target / "var" / "cache" / "apt" / "archives").glob("*.deb"):
        package.unlink()


def host_packages(suite: str) -> list[str]:
    return sorted((*_HOST_PACKAGES, *_MORE_PACKAGES[suite]))


def host_base(lab: Lab, suite: str) -> Artefact:
    """The Debian part of a host: slow to make, and it changes only with the list of packages."""
    return Artefact(lab, f"host-{suite}", key_of(suite, *host_packages(suite), platform.machine()))


def host_image_key(lab: Lab, suite: str) -> str:
    """What tells one host image from the next: the Debian part and our own files."""
    return key_of(host_base(lab, suite).key, Path(__file__), *sorted(FILES.iterdir()))


def build_host_base(lab: Lab, suite: str) -> Path:
    """Install Debian with systemd, sshd and a container engine."""
    log = lab.home / "log" / f"host-{suite}.log"
    return host_base(lab, suite).ensure(lambda target: debootstrap(suite, host_packages(suite), target, log))


def fill_host_root(lab: Lab, suite: str, target: Path) -> None:
    """Add our own files to a copy of the Debian part and set it up."""
    copy_tree(host_base(lab, suite).path, target)
    for name, (place, mode) in _PLACES.items():
        file = target / place
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FILES / name, file)
        file.chmod(mode)
    argv = chroot_argv(target, ["sh", "/mnt/setup"], binds={FILES: "/mnt"})
    call(argv, log=lab.home / "log" / f"host-setup-{suite}.log", what="Setting up the host image")

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a machine needs before it can run the lab. Standard library only: it is asked before anything is installed."""

from __future__ import annotations

import http.client
import os
import platform
import shutil
import socket
from pathlib import Path

GIB = 1 << 30
DISK_GIB = 9
"""Free space for a first build, wherever the engine's data and the checkout lie."""
MEMORY_GIB = 7
"""Two engines of 1.4 GiB, two hosts, and what the rest of the machine needs."""

_PROGRAMS = {
    "debootstrap": "debootstrap",
    "strip": "binutils",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "tar": "tar",
    "unshare": "util-linux",
    "mount": "mount",
}
_FILES = {
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "/etc/ssl/certs/ca-certificates.crt": "ca-certificates",
}
PACKAGES = tuple(sorted({*_PROGRAMS.values(), *_FILES.values(), "docker.io"}))


def engine_socket() -> str | None:
    """Path of the engine's socket; None when DOCKER_HOST names another kind of address."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    return address.removeprefix("unix://") if address.startswith("unix://") else None


def engine_answers() -> bool:
    """Whether a Docker Engine answers on this machine."""
    path = engine_socket()
    if path is None:
        return False
    connection = http.client.HTTPConnection("localhost", timeout=5)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(5)
            link.connect(path)
            connection.sock = link
            connection.request("GET", "/_ping")
            return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


def has_program(name: str) -> bool:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def missing_packages() -> list[str]:
    """Debian and Ubuntu packages to install, by name."""
    missing = {package for program, package in _PROGRAMS.items() if not has_program(program)}
    missing |= {package for file, package in _FILES.items() if not Path(file).exists()}
    if not engine_answers() and not has_program("dockerd"):
        missing.add("docker.io")
    return sorted(missing)


def engine_root() -> Path:
    """Where the engine keeps its data by default."""
    return Path("/var/lib/docker")


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def memory_gib() -> float:
    """Memory of the machine."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) / (1 << 20)
    return 0.0


def refusals(checkout: Path, *, built: bool) -> list[str]:
    """Why this machine cannot run the lab, one sentence each; empty when it can.

    Args:
        checkout: Where the lab is to keep its files.
        built: Whether a build is already there, so that little disk is needed.
    """
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in {"x86_64", "aarch64"}:
        return [f"The lab needs Linux on x86_64 or aarch64, and this is {system} on {machine}: use another machine."]
    found = []
    if os.geteuid() != 0:
        found.append("The lab needs root for mounts and network namespaces: run the command as root or with sudo.")
    return found + _missing_parts() + _missing_room(checkout, built=built)


def _missing_parts() -> list[str]:
    found = []
    packages = missing_packages()
    if packages:
        found.append(f'Packages are missing: run "apt-get update && apt-get install -y {" ".join(packages)}".')
    if engine_socket() is None:
        address = os.environ.get("DOCKER_HOST")
        found.append(f"DOCKER_HOST is {address}, but the lab needs the engine of this machine: unset it.")
    elif "docker.io" not in packages and not engine_answers():
        how = '"systemctl start docker", or "dockerd &" where no systemd runs'
        found.append(f"No Docker Engine answers at {engine_socket()}: start it with {how}.")
    scripts = Path("/usr/share/debootstrap/scripts")
    if scripts.is_dir() and not (scripts / "trixie").exists():
        found.append("This debootstrap does not know Debian trixie: install version 1.0.128 or newer.")
    return found


def _missing_room(checkout: Path, *, built: bool) -> list[str]:
    found = []
    for path in [] if built else sorted({_existing(checkout), _existing(engine_root())}):
        free = shutil.disk_usage(path).free / GIB
        if free < DISK_GIB:
            found.append(f"{path} has {free:.1f} GiB free and a first build needs {DISK_GIB}: free some space there.")
    memory = memory_gib()
    if memory < MEMORY_GIB:
        found.append(f"This machine has {memory:.1f} GiB of memory and the lab needs {MEMORY_GIB}: use a larger one.")
    return found

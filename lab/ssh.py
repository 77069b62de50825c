# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keys and client configuration: `ssh -F .lab/ssh_config spark-1` asks nothing and trusts only the lab's hosts."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from lab.names import LabError
from lab.state import Lab, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

USER = "spark"


def ensure_key(path: Path, comment: str) -> Path:
    """An Ed25519 key pair; one that is there already stays."""
    if path.exists() and path.with_suffix(".pub").exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    path.with_suffix(".pub").unlink(missing_ok=True)
    done = subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        msg = f'ssh-keygen could not make the key "{path}": {done.stderr.strip()}'
        raise LabError(msg)
    return path


def client_key(lab: Lab) -> Path:
    return ensure_key(lab.home / "ssh" / "id_ed25519", f"gb10-lab-{lab.names.lab}")


def host_key(lab: Lab, host: str) -> Path:
    """A host's own key; it outlives the host, so that clients need not forget it when the lab comes up again."""
    return ensure_key(lab.home / "ssh" / "hosts" / host, host)


def known_hosts(addresses: Mapping[str, str], public_keys: Mapping[str, str]) -> str:
    """Text of a known_hosts file: each host's key under its name and its address."""
    lines = []
    for host, address in addresses.items():
        kind, key, *_ = public_keys[host].split()
        lines.append(f"{host},{address} {kind} {key}\n")
    return "".join(lines)


def client_config(addresses: Mapping[str, str], key: Path, known: Path) -> str:
    """Text of the client configuration."""
    lines = ["# Written by the lab. Use it with: ssh -F THIS_FILE spark-1, or as root: ssh -F THIS_FILE root@spark-1\n"]
    for host, address in addresses.items():
        lines.append(f"Host {host} {address}\n  HostName {address}\n  HostKeyAlias {host}\n")
    lines.append(
        "Host *\n"
        f"  User {USER}\n"
        "  Port 22\n"
        f'  IdentityFile "{key}"\n'
        "  IdentitiesOnly yes\n"
        f'  UserKnownHostsFile "{known}"\n'
        "  GlobalKnownHostsFile none\n"
        "  StrictHostKeyChecking yes\n"
        "  PasswordAuthentication no\n"
        "  ConnectTimeout 10\n"
    )
    return "".join(lines)


def write_client_files(lab: Lab, addresses: Mapping[str, str]) -> None:
    """Write known_hosts and ssh_config for the given hosts."""
    known = lab.home / "ssh" / "known_hosts"
    keys = {host: host_key(lab, host).with_suffix(".pub").read_text(encoding="utf-8") for host in addresses}
    write_atomically(known, known_hosts(addresses, keys))
    write_atomically(lab.ssh_config, client_config(addresses, client_key(lab), known))


def wait_for_login(lab: Lab, hosts: Iterable[str]) -> None:
    """Log in once to each host, as Ansible will."""
    for host in hosts:
        done = subprocess.run(
            ["ssh", "-F", str(lab.ssh_config), "-o", "ConnectionAttempts=20", host, "sudo", "-n", "true"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode:
            msg = f'Logging in to "{host}" failed: {done.stderr.strip()}'
            raise LabError(msg)

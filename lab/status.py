# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`lab status`: what is there, as a table or as JSON."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from lab import hosts
from lab.engine_api import ask
from lab.names import LABEL
from lab.state import Lab, read_json

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

_LOOK = """
cat /proc/sys/kernel/random/boot_id
systemctl is-system-running
docker version --format '{{.Server.Version}}' 2>/dev/null || echo no
systemctl is-active lab-registry.service
docker ps --format '{{.Image}}' | wc -l
python3 -c 'import platform; print(platform.python_version())'
"""


def look(container: Container) -> dict[str, str]:
    """Ask one host about itself."""
    _, text = ask(container, ["sh", "-c", _LOOK])
    keys = ("boot_id", "system", "engine", "registry", "containers", "python")
    return dict(zip(keys, text.split("\n"), strict=False))


def gather(lab: Lab, client: docker.DockerClient) -> dict[str, Any]:
    """State of the lab."""
    found: dict[str, Any] = {"lab_id": lab.names.lab, "hosts": {}, **read_json(lab.facts_file)}
    found.pop("lab_hosts", None)
    found["hosts"] = {}
    now = dt.datetime.now(dt.UTC)
    for host, address in hosts.addresses(lab, client).items():
        container = client.containers.get(lab.names.container(host))
        entry: dict[str, Any] = {
            "state": container.status,
            "address": address,
            "suite": container.labels.get(f"{LABEL}.suite", "unknown"),
            "container": container.name,
        }
        if container.status == "running":
            # Docker writes nanoseconds, which Python does not read.
            started = dt.datetime.fromisoformat(container.attrs["State"]["StartedAt"][:19] + "+00:00")
            entry |= {"uptime_s": int((now - started).total_seconds()), **look(container)}
        found["hosts"][host] = entry
    return found


def table(rows: list[list[str]]) -> str:
    """Columns wide enough for their contents."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def render(state: dict[str, Any]) -> str:
    """The state as text for a person."""
    if not state["hosts"]:
        return f'Lab {state["lab_id"]}: no hosts. Start them with "python -m lab up".'
    columns = (
        "state",
        "address",
        "suite",
        "python",
        "system",
        "engine",
        "registry",
        "containers",
        "uptime_s",
        "boot_id",
    )
    rows = [["host", *columns]]
    rows += [[host, *(str(entry.get(name, "-")) for name in columns)] for host, entry in state["hosts"].items()]
    parts = [f"Lab {state['lab_id']}, vLLM {state.get('vllm', 'unknown')}", table(rows)]
    images = state.get("lab_images", {})
    if images:
        parts.append(table([["image", "reference"]] + [[n, f"{i['name']}@{i['digest']}"] for n, i in images.items()]))
    found = state.get("lab_models", {})
    if found:
        parts.append(table([["model", "repo", "revision"]] + [[n, m["repo"], m["revision"]] for n, m in found.items()]))
    parts.append(f"ssh -F {state.get('ssh_config', '.lab/ssh_config')} {next(iter(state['hosts']))}")
    return "\n\n".join(parts)

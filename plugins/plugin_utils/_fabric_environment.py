# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The environment of every rank, and what its container needs for RDMA.

Names of interfaces and devices are those of the rank's own box: cages may differ from box to box. Nothing is set to an
empty string, which NCCL reads as a value, and nothing that NCCL finds out better by itself.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_input import Wanted
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_planned import PlannedBox, PlannedTwin

# Over which interface the ranks find each other. vLLM's own name is the last one.
_INTERFACE_VARIABLES: t.Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
# NVIDIA's script for three Sparks and eugr/spark-vllm-docker, 2026-07: what NCCL needs in a ring.
_RING: t.Final[c.Mapping[str, str]] = {
    "NCCL_IB_MERGE_NICS": "0",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
}
_RDMA: t.Final[c.Mapping[str, t.Any]] = {
    "devices": ["/dev/infiniband"],
    "ulimits": {"memlock": "-1", "stack": "67108864"},
    "capabilities": ["IPC_LOCK"],
}


def container_of(*, rdma: bool) -> dict[str, t.Any]:
    """Return what the container of an engine needs beside the network and the memory of its host."""
    return dict(_RDMA) if rdma else {"devices": [], "ulimits": {}, "capabilities": []}


def docker_arguments(environment: c.Mapping[str, str], container: c.Mapping[str, t.Any]) -> list[str]:
    """Return the same for `docker run`, beside the network and the memory of the host."""
    return [
        *(f"--device={one}" for one in container["devices"]),
        *(f"--cap-add={one}" for one in container["capabilities"]),
        *(f"--ulimit={name}={value}" for name, value in container["ulimits"].items()),
        *(f"--env={name}={value}" for name, value in environment.items()),
    ]


def environment_of(
    box: PlannedBox, wanted: Wanted, interface: str, address: str, *, rdma: bool
) -> tuple[dict[str, str], list[Finding]]:
    """Return the environment of a rank, and what stands against a part of it."""
    index, found = _gid_index(box) if rdma else ("", [])
    set_here = {
        "VLLM_HOST_IP": address,
        **dict.fromkeys(_INTERFACE_VARIABLES, interface),
        "NCCL_IB_HCA": ",".join(twin.rdma for twin in box.twins) if rdma else "",
        # Fail where RDMA cannot be used, in place of going over TCP without a word.
        "NCCL_NET": "IB" if rdma else "",
        "NCCL_IB_GID_INDEX": index,
        **(_RING if wanted.topology == "ring" and rdma else {}),
        **wanted.environment,
        **box.member.environment,
    }
    return {name: str(value) for name, value in set_here.items() if value != ""}, found


def _gid_index(box: PlannedBox) -> tuple[str, list[Finding]]:
    """Return the GID index where it was asked for; NCCL takes one for all devices of a rank."""
    wish = box.member.gid_index
    if wish is None:
        return "", []
    if isinstance(wish, int):
        return str(wish), []
    by_twin = {twin.interface: _entries(twin) for twin in box.twins}
    if not all(any(gid["address"] for gid in twin.observed.get("gids", ())) for twin in box.twins):
        return "", [_pending(box.member.box)]
    indexes = {index for some in by_twin.values() for index in some}
    if len(indexes) == 1 and all(len(some) == 1 for some in by_twin.values()):
        return str(indexes.pop()), []
    return "", [_not_unique(box.member.box, by_twin)]


def _entries(twin: PlannedTwin) -> list[int]:
    """Return where a twin's own address stands as RoCE v2; an index that others have seen means nothing here."""
    return [
        gid["index"]
        for gid in twin.observed.get("gids", ())
        if gid["type"] == "RoCE v2" and gid["address"] == str(twin.address.ip) and gid["netdev"] == twin.interface
    ]


def _pending(box: str) -> Finding:
    return Finding(
        id="GID_INDEX_PENDING",
        severity="info",
        message=(
            f"the GID index of {box} can be looked up once its twins have their addresses; it is left to NCCL "
            "until then"
        ),
        evidence="no IPv4 entry in the GID tables yet",
        remedy="run again after the fabric was set up",
    )


def _not_unique(box: str, by_twin: c.Mapping[str, list[int]]) -> Finding:
    shown = "; ".join(f"{name} {', '.join(map(str, some)) or 'none'}" for name, some in by_twin.items())
    return Finding(
        id="GID_INDEX_NOT_UNIQUE",
        severity="error",
        message=f"no single GID index of {box} stands for the addresses of all its twins, and NCCL takes one for all",
        evidence=f"RoCE v2 entries of the planned addresses: {shown}",
        remedy="leave gid_index out, so that NCCL chooses for each device",
    )

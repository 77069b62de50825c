# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads the fabric of a box from its files: sysfs, procfs, netplan's folders, the limits of logins.

Addresses are no files; the kernel is asked for them (``ip -json address``) and the answer is handed in.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import os
import pathlib
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _netplan_names
from ansible_collections.gb10.fleet.plugins.module_utils._fabric import (
    Address,
    Fabric,
    Gid,
    Locked,
    Management,
    OtherInterface,
    PciAddress,
    PcieLink,
    Twin,
    pair,
)
from ansible_collections.gb10.fleet.plugins.module_utils._fabric_texts import firmware_of, power_not_advertised

# linux/if.h: what `ip link set ... up` sets.
_IFF_UP: t.Final = 0x1
_MELLANOX: t.Final = "0x15b3"
_EMPTY_GID: t.Final = "0000:0000:0000:0000:0000:0000:0000:0000"
_NETPLAN: t.Final = ("etc/netplan", "run/netplan", "lib/netplan", "usr/lib/netplan")
# Where dgx-spark-mlnx-hotplug says that a port without a cable is taken off the bus.
_HOTPLUG_FLAG: t.Final = "etc/nvidia/cx7-hotplug-enabled"
_MEMLOCK: t.Final = re.compile(r"^\s*(?:\*|root)\s+(soft|hard|-)\s+memlock\s+(\S+)", re.MULTILINE)
_MOST_PARENTS: t.Final = 64

Addresses = c.Mapping[str, tuple[Address, ...]]


def read(
    sysroot: pathlib.Path, addresses: Addresses, *, kernel_log: str = "", pid: int | None = None, own_netplan: str = ""
) -> Fabric:
    """Read the fabric.

    Args:
        sysroot: The folder that stands for the root of the file system.
        addresses: The addresses of every interface.
        kernel_log: The kernel's log since the box started.
        pid: A process of the connection that asks; its ancestors tell which address the box was reached at.
        own_netplan: The netplan file that the collection writes, which is nobody else's.
    """
    firmware = firmware_of(kernel_log)
    rdma = _rdma_by_netdev(sysroot)
    netplan = _netplan_texts(sysroot, own_netplan)
    twins, others = [], []
    for folder in _entries(sysroot / "sys/class/net"):
        name = folder.name
        pci = PciAddress.parse(_linked(folder / "device"))
        if pci is not None and (_text(folder / "device/vendor") == _MELLANOX or name in rdma):
            twins.append(
                _twin(
                    folder,
                    pci,
                    rdma=rdma.get(name),
                    addresses=addresses.get(name, ()),
                    firmware=firmware,
                    netplan=netplan,
                )
            )
        elif name != "lo":
            others.append(_other(sysroot, folder, addresses.get(name, ())))
    ports, single = pair(twin for twin in twins if not twin.virtual)
    return Fabric(
        ports=ports,
        single=single,
        virtual=tuple(twin for twin in twins if twin.virtual),
        others=tuple(others),
        management=_management(sysroot, addresses, others, twins, pid),
        without_interface=_without_interface(sysroot),
        hotplug=(sysroot / _HOTPLUG_FLAG).exists(),
        power_not_advertised=power_not_advertised(kernel_log),
        infiniband_devices=tuple(entry.name for entry in _entries(sysroot / "dev/infiniband")),
        memlock=_memlock(sysroot),
    )


def _twin(
    folder: pathlib.Path,
    pci: PciAddress,
    *,
    rdma: pathlib.Path | None,
    addresses: tuple[Address, ...],
    firmware: c.Mapping[str, str],
    netplan: c.Mapping[str, str],
) -> Twin:
    device = folder / "device"
    port = rdma / "ports/1" if rdma else None
    own = _netplan_names.Link(folder.name, _text(folder / "address"), _linked(device / "driver"))
    return Twin(
        interface=folder.name,
        pci=pci,
        phys_port=_text(folder / "phys_port_name"),
        rdma=rdma.name if rdma else "",
        rdma_state=_word(port, "state"),
        physical_state=re.sub(r"(?<=[a-z])(?=[A-Z])", "_", _word(port, "phys_state")).upper(),  # as `rdma link` has it
        rate_gbps=_number(_text(port / "rate")) if port else None,
        operstate=_text(folder / "operstate"),
        enabled=_enabled(_text(folder / "flags")),
        carrier={"1": True, "0": False}.get(_text(folder / "carrier")),
        mtu=_whole(_text(folder / "mtu")),
        mac=_text(folder / "address"),
        node_guid=_text(rdma / "node_guid").replace(":", "") if rdma else "",
        firmware=(_text(rdma / "fw_ver") if rdma else "") or firmware.get(str(pci), ""),
        board=_text(rdma / "board_id") if rdma else "",
        pcie=PcieLink(
            _number(_text(device / "current_link_speed")),
            _whole(_text(device / "current_link_width")),
            _number(_text(device / "max_link_speed")),
            _whole(_text(device / "max_link_width")),
        ),
        addresses=addresses,
        gids=tuple(_gids(port)) if port else (),
        master=_linked(folder / "master"),
        virtual=(device / "physfn").exists(),
        netplan_files=tuple(path for path, text in netplan.items() if _netplan_names.defines(text, own)),
    )


def _enabled(flags: str) -> bool | None:
    """Return whether an interface is switched on, None where its flags are not known."""
    return bool(int(flags, 16) & _IFF_UP) if re.fullmatch(r"0x[0-9a-f]+", flags) else None


def _gids(port: pathlib.Path) -> c.Iterator[Gid]:
    """Yield the filled entries of the GID table of a port, in order."""
    for entry in sorted(_entries(port / "gids"), key=lambda one: int(one.name) if one.name.isdigit() else -1):
        gid = _text(entry)
        if entry.name.isdigit() and gid and gid != _EMPTY_GID:
            kind = _text(port / "gid_attrs/types" / entry.name)
            yield Gid.make(int(entry.name), kind, gid, _text(port / "gid_attrs/ndevs" / entry.name))


def _rdma_by_netdev(sysroot: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the RDMA device of every interface that has one."""
    return {
        netdev.name: device
        for device in _entries(sysroot / "sys/class/infiniband")
        for netdev in _entries(device / "device/net")
    }


def _without_interface(sysroot: pathlib.Path) -> tuple[str, ...]:
    """Return the functions of the chip that are on the bus and that no driver has made an interface of."""
    return tuple(
        device.name
        for device in _entries(sysroot / "sys/bus/pci/devices")
        if _text(device / "vendor") == _MELLANOX
        and _text(device / "class").startswith("0x02")
        and not _entries(device / "net")
    )


def _other(sysroot: pathlib.Path, folder: pathlib.Path, addresses: tuple[Address, ...]) -> OtherInterface:
    return OtherInterface(
        interface=folder.name,
        addresses=addresses,
        operstate=_text(folder / "operstate"),
        mtu=_whole(_text(folder / "mtu")),
        mac=_text(folder / "address"),
        master=_linked(folder / "master"),
        wireless=(folder / "wireless").exists() or (folder / "phy80211").exists(),
        default_route=folder.name in _default_routes(sysroot),
    )


def _default_routes(sysroot: pathlib.Path) -> set[str]:
    """Return the interfaces with an IPv4 default route."""
    lines = _text(sysroot / "proc/net/route").splitlines()[1:]
    fields = [line.split() for line in lines]
    return {one[0] for one in fields if len(one) > 7 and one[1] == "00000000" and one[7] == "00000000"}


def _management(
    sysroot: pathlib.Path,
    addresses: Addresses,
    others: c.Iterable[OtherInterface],
    twins: c.Iterable[Twin],
    pid: int | None,
) -> Management:
    """Return over which interfaces the box is reached: that of this connection, and those with a default route."""
    client, server = _session(sysroot, pid)
    session = [name for name, some in addresses.items() if server and any(one.address == server for one in some)]
    routes = sorted(_default_routes(sysroot))
    names = tuple(dict.fromkeys([*session, *routes]))
    wireless = {one.interface for one in others if one.wireless}
    # A default route over a cable to another Spark is no way to reach the box, unless this connection came that way.
    fabric = {twin.interface for twin in twins}
    ways = [name for name in names if name not in fabric or name in session]
    return Management(names, client, bool(ways) and all(name in wireless for name in ways), tuple(session))


def _session(sysroot: pathlib.Path, pid: int | None) -> tuple[str, str]:
    """Return the far and the near address of the SSH connection that a process belongs to, empty where it has none.

    sudo takes SSH_CONNECTION away; the login before it still has it.
    """
    for _step in range(_MOST_PARENTS if pid else 0):
        process = sysroot / "proc" / str(pid)
        match = re.search(rb"(?:^|\0)SSH_CONNECTION=(\S+) \d+ (\S+) \d+", _bytes(process / "environ"))
        if match:
            return match[1].decode("ascii", "replace"), match[2].decode("ascii", "replace")
        parent = re.search(r"^PPid:\s+(\d+)", _text(process / "status"), re.MULTILINE)
        if parent is None or parent[1] == "0":
            break
        pid = int(parent[1])
    return "", ""


def _netplan_texts(sysroot: pathlib.Path, own: str) -> dict[str, str]:
    """Return the texts of the netplan files but our own. They may hold passwords, and never leave this process."""
    return {
        f"/{path.relative_to(sysroot)}": _text(path)
        for folder in _NETPLAN
        for path in _entries(sysroot / folder)
        if path.suffix == ".yaml" and f"/{path.relative_to(sysroot)}" != own
    }


def _memlock(sysroot: pathlib.Path) -> Locked:
    """Return what a login may lock; as pam_limits has it, the file that comes last counts."""
    found: dict[str, str] = {}
    files = [sysroot / "etc/security/limits.conf", *_entries(sysroot / "etc/security/limits.d")]
    for path in files:
        for kind, value in _MEMLOCK.findall(_text(path)):
            found.update({"soft": value, "hard": value} if kind == "-" else {kind: value})
    return Locked(found.get("soft", ""), found.get("hard", ""))


# --- files -----------------------------------------------------------------------------------------------------------


def _entries(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # not there, or gone while it was looked at: a cable was pulled
        return []


def _bytes(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the carrier of an interface that is off cannot be read, for one
        return b""


def _text(path: pathlib.Path) -> str:
    return _bytes(path).decode("utf-8", "replace").strip()


def _linked(path: pathlib.Path) -> str:
    """Return the name of what a link leads to, empty where it is no link."""
    try:
        return pathlib.PurePath(os.path.realpath(path)).name if path.is_symlink() else ""
    except OSError:
        return ""


def _word(port: pathlib.Path | None, name: str) -> str:
    """Return the word of a state such as "4: ACTIVE"."""
    return _text(port / name).rpartition(":")[2].strip() if port else ""


def _number(text: str) -> float | None:
    match = re.match(r"\d+(?:\.\d+)?", text)
    return float(match[0]) if match else None


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None

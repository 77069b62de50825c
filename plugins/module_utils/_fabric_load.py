# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Loads all twins of a box at once: TCP streams, each bound to its interface, to a sink on the other box.

What TCP from one Python process reaches is no measure of the hardware. It is one of whether both twins carry data at
the same time, and how evenly; RDMA is judged by nccl_info.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import dataclasses
import socket
import threading
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding

PORT: t.Final = 29990
_BLOCK: t.Final = 1 << 20
_STREAMS: t.Final = 2
_CONNECT_S: t.Final = 10.0
_BACKLOG: t.Final = 64
# Twins share a cable and a load, so that one of them carrying less than this part of the other is no accident.
_UNEVEN: t.Final = 0.4


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """A way over one twin."""

    interface: str
    source: str
    target: str
    peer: str


@dataclasses.dataclass(frozen=True, slots=True)
class Carried:
    """What went over one twin while all were loaded, in Gb/s; ``error`` says why it is nothing."""

    path: Path
    gbps: float
    error: str = ""


def serve(addresses: c.Iterable[str], seconds: float, port: int = PORT) -> None:
    """Take whatever comes to the given addresses, for so many seconds."""
    listeners = [_listener(address, port) for address in addresses]
    for listener in listeners:
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    time.sleep(seconds)


def _listener(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(_BACKLOG)
    return listener


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _peer = listener.accept()
        threading.Thread(target=_sink, args=(connection,), daemon=True).start()


def _sink(connection: socket.socket) -> None:
    buffer = bytearray(_BLOCK)
    with connection, contextlib.suppress(OSError):
        while connection.recv_into(buffer):
            pass


def load(paths: c.Sequence[Path], seconds: float, port: int = PORT) -> tuple[Carried, ...]:
    """Send over all paths at the same time for so many seconds, and return what each carried."""
    sent = [[0] * _STREAMS for _path in paths]
    errors = [""] * len(paths)
    start = threading.Barrier(len(paths) * _STREAMS)

    def stream(index: int, number: int) -> None:
        block = memoryview(bytes(_BLOCK))
        try:
            with _connected(paths[index], port) as connection:
                with contextlib.suppress(threading.BrokenBarrierError):
                    start.wait(_CONNECT_S)
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    sent[index][number] += connection.send(block)
        except OSError as error:
            errors[index] = f"{error.strerror or error}"
            start.abort()

    threads = [
        threading.Thread(target=stream, args=(index, number))
        for index in range(len(paths))
        for number in range(_STREAMS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(
        Carried(path, round(sum(sent[index]) * 8 / seconds / 1e9, 2), errors[index]) for index, path in enumerate(paths)
    )


def findings(carried: c.Sequence[Carried]) -> tuple[Finding, ...]:
    """Return what the figures give away: a twin that carries nothing, or much less than the best one."""
    found = []
    best = max((one.gbps for one in carried), default=0.0)
    shown = ", ".join(f"{one.path.interface} {one.gbps:g} Gb/s" for one in carried)
    for one in carried:
        if one.error or not one.gbps:
            found.append(
                Finding(
                    id="TWIN_CARRIES_NOTHING",
                    severity="error",
                    message=f"{one.path.interface} carried nothing to {one.path.peer} while all twins were loaded",
                    evidence=one.error or shown,
                    remedy="see that no firewall drops TCP between the twins, and look at both ends with fabric_info",
                )
            )
        elif one.gbps < _UNEVEN * best:
            found.append(
                Finding(
                    id="TWINS_UNEVEN",
                    severity="warning",
                    message=f"{one.path.interface} carried much less than the best twin while all were loaded",
                    evidence=shown,
                    remedy="compare MTU, PCIe width and GID table of both twins; measure RDMA before judging",
                )
            )
    return tuple(found)


def _connected(path: Path, port: int) -> socket.socket:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_S)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, path.interface.encode())
        connection.bind((path.source, 0))
        connection.connect((path.target, port))
    except OSError:
        connection.close()
        raise
    return connection

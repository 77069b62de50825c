# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads what NCCL says (NCCL_DEBUG=INFO), what nccl-tests measure, and what ib_write_bw measures.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import re
import typing as t

Transport = t.Literal["IB", "Socket", "mixed", "unknown"]

# "spark-1:72112:72112 [0] NCCL INFO ...": who says it is there in NCCL's own output, and not in what vLLM passes on.
_HOST: t.Final = re.compile(r"(?:^|\s)([A-Za-z0-9][\w.-]*):\d+:\d+ \[\d+\] NCCL ")
_NET_IB: t.Final = re.compile(
    r"NET/IB : Using (?P<devices>.*?)(?:\[RO\])?\s*;\s*OOB (?P<oob>\S+?):(?P<address>\S+?)(?:<\d+>|\s|$)"
)
_DEVICE: t.Final = re.compile(r"\[\d+\](\S+?):\d+/(\w+)")
_NET_SOCKET: t.Final = re.compile(r"NET/Socket : Using ((?:\[\d+\]\S+\s*)+)")
_NETWORK: t.Final = re.compile(r"Using network (\S+)|Initialized NET plugin (\S+)")
_CHANNEL: t.Final = re.compile(r"\bChannel \d+(?:/\d+)? : \d+")
_COMPLETE: t.Final = re.compile(r"Init COMPLETE\s*$|Connected all (?:rings|trees)", re.MULTILINE)
_SET: t.Final = re.compile(r"\b(NCCL_\w+)(?: set(?: by environment)? to |=)(\S*)")
_EMPTY: t.Final = ("", '""', "''")
_TEST: t.Final = re.compile(r"Collective test (?:starting|concluded): (\w+?)_perf|\b(\w+?)_perf\b")
_VERSIONS: t.Final = re.compile(r"# nccl-tests version (\S+) nccl-headers=(\d+) nccl-library=(\d+)")
_RANK: t.Final = re.compile(r"^#\s+Rank\s+(\d+) .*? on\s+(\S+) device", re.MULTILINE)
# size, count, type, redop, root; then time, algbw, busbw and wrong for out of place, and the same for in place.
_ROW: t.Final = re.compile(
    r"^\s*(?P<size>\d+)\s+\d+\s+(?P<type>\w+)\s+\S+\s+-?\d+"
    r"\s+[\d.]+\s+[\d.]+\s+(?P<out>[\d.]+)\s+(?P<wrong_out>\d+|N/A)"
    r"(?:\s+[\d.]+\s+[\d.]+\s+(?P<in>[\d.]+)\s+(?P<wrong_in>\d+|N/A))?\s*$",
    re.MULTILINE,
)
_AVERAGE: t.Final = re.compile(r"# Avg bus bandwidth\s*:\s*([\d.]+)")
_IB_DEVICE: t.Final = re.compile(r"\bDevice\s*:\s*(\S+)")
_IB_MTU: t.Final = re.compile(r"\bMtu\s*:\s*(\d+)\[B\]")
_IB_GID: t.Final = re.compile(r"\bGID index\s*:\s*(\d+)")
_IB_HEAD: t.Final = re.compile(r"#bytes\s+#iterations\s+BW peak\[(?P<unit>Gb/sec|MB/sec|MiB/sec)\]")
_IB_ROW: t.Final = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+[\d.]+", re.MULTILINE)
_TO_GBPS: t.Final[c.Mapping[str, float]] = {"Gb/sec": 1.0, "MB/sec": 8e-3, "MiB/sec": 8 * 2**20 / 1e9}


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of nccl-tests: bus bandwidth in GB/s, out of place and in place; ``wrong`` counts wrong elements."""

    size: int
    out_gbs: float
    in_gbs: float | None
    wrong: int

    @property
    def busbw_gbs(self) -> float:
        """Return the mean of both, which is what nccl-tests average."""
        return self.out_gbs if self.in_gbs is None else (self.out_gbs + self.in_gbs) / 2


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """What one host uses: its RDMA devices, and the interface over which the ranks find each other."""

    host: str
    hcas: tuple[str, ...]
    oob_interface: str
    oob_address: str


@dataclasses.dataclass(frozen=True, slots=True)
class WriteTest:
    """A run of ib_write_bw over one device, in Gb/s. ``mtu`` is the RDMA MTU: 4096 over jumbo frames, 1024 without."""

    device: str
    mtu: int | None
    gid_index: int | None
    average_gbps: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NcclOutput:
    """Everything that was read. What was not said is empty or None.

    ``empty`` are the variables that any rank has as an empty string; ``settings`` has one value for all ranks.
    """

    collective: str = ""
    version: str = ""
    ranks: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    average_gbs: float | None = None
    transport: Transport = "unknown"
    hosts: tuple[Host, ...] = ()
    settings: c.Mapping[str, str] = dataclasses.field(default_factory=dict)
    empty: tuple[str, ...] = ()
    no_device: bool = False
    channels: bool = False
    complete: bool = False
    write_tests: tuple[WriteTest, ...] = ()
    text: str = ""

    @property
    def hcas(self) -> tuple[str, ...]:
        """Return the RDMA devices that any host uses, in the order in which they are named."""
        return tuple(dict.fromkeys(hca for host in self.hosts for hca in host.hcas))

    @property
    def largest(self) -> Row | None:
        """Return the line of the largest message, which is the only one that tells about bandwidth."""
        return max(self.rows, key=lambda row: row.size, default=None)

    @property
    def busbw_gbs(self) -> float | None:
        """Return the bus bandwidth of the largest message.

        The average counts where there is no row at all: that of a sweep means nothing, and whether it is of one cannot
        be told by the rows that are left of it.
        """
        return self.average_gbs if self.largest is None else round(self.largest.busbw_gbs, 3)


def parse(text: str) -> NcclOutput:
    """Read the output of one run, of one rank or of all of them."""
    names = [first or second for first, second in _TEST.findall(text)]
    versions = _VERSIONS.search(text)
    average = _AVERAGE.search(text)
    settings = [(name, value.rstrip(".,")) for name, value in _SET.findall(text)]
    return NcclOutput(
        collective=names[0] if names else "",
        version=_nccl_version(versions[3]) if versions else "",
        ranks=tuple(host for _rank, host in _RANK.findall(text)),
        rows=tuple(_rows(text)),
        average_gbs=float(average[1]) if average else None,
        transport=_transport(text),
        hosts=tuple(_hosts(text)),
        settings=dict(settings),
        empty=tuple(sorted({name for name, value in settings if value in _EMPTY})),
        no_device="NET/IB : No device found" in text,
        channels=bool(_CHANNEL.search(text)),
        complete=bool(_COMPLETE.search(text)),
        write_tests=tuple(_write_tests(text)),
        text=text,
    )


def _nccl_version(number: str) -> str:
    """Return 2.28.3 for 22803, as the library numbers itself."""
    value = int(number)
    return f"{value // 10000}.{value // 100 % 100}.{value % 100}"


def _rows(text: str) -> c.Iterator[Row]:
    for match in _ROW.finditer(text):
        wrong = [int(match[name]) for name in ("wrong_out", "wrong_in") if match[name] and match[name].isdigit()]
        yield Row(
            size=int(match["size"]),
            out_gbs=float(match["out"]),
            in_gbs=float(match["in"]) if match["in"] else None,
            wrong=sum(wrong),
        )


def _transport(text: str) -> Transport:
    """Return what NCCL settled on. "NET/IB : Using [RO]" without a device is no use of IB."""
    seen = {first or second for first, second in _NETWORK.findall(text)}
    if any(_DEVICE.search(match["devices"]) for match in _NET_IB.finditer(text)):
        seen.add("IB")
    if _NET_SOCKET.search(text):
        seen.add("Socket")
    over_ib, over_socket = "IB" in seen, "Socket" in seen
    if over_ib and over_socket:
        return "mixed"
    return "IB" if over_ib else "Socket" if over_socket else "unknown"


def _hosts(text: str) -> c.Iterator[Host]:
    seen = set()
    for line in text.splitlines():
        match = _NET_IB.search(line)
        if match is None:
            continue
        name = _HOST.search(line)
        found = Host(
            name[1] if name else "", tuple(one for one, _kind in _DEVICE.findall(match["devices"])), match["oob"],
            match["address"],
        )  # fmt: skip
        if found not in seen:
            seen.add(found)
            yield found


def _write_tests(text: str) -> c.Iterator[WriteTest]:
    """Yield the runs of ib_write_bw; each begins with its title, and a text may hold those of both twins."""
    for part in re.split(r"(?=RDMA_Write BW Test)", text)[1:]:
        head = _IB_HEAD.search(part)
        row = _IB_ROW.search(part, head.end()) if head else None
        device, mtu, gid = _IB_DEVICE.search(part), _IB_MTU.search(part), _IB_GID.search(part)
        if head and row:
            yield WriteTest(
                device=device[1] if device else "",
                mtu=int(mtu[1]) if mtu else None,
                gid_index=int(gid[1]) if gid else None,
                average_gbps=round(float(row[4]) * _TO_GBPS[head["unit"]], 2),
            )

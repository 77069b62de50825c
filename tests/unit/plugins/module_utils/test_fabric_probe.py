# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Full frames over every twin, and all twins loaded at once."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _fabric_load, _fabric_ping
from ansible_collections.gb10.fleet.plugins.module_utils._fabric_load import Carried, Path
from ansible_collections.gb10.fleet.plugins.module_utils._fabric_ping import Way

MACS = ("02:42:ac:1f:64:0c", "02:42:ac:1f:65:0c")
WAYS = [
    Way(interface, f"172.31.{number}.11", f"172.31.{number}.12", "spark-2", interface, mac)
    for interface, number, mac in zip(("enp1s0f0np0", "enP2p1s0f0np0"), (100, 101), MACS, strict=True)
]


def output(received: int, rtt: float = 0.05) -> str:
    """Return what ping -q prints."""
    text = (
        f"--- 172.31.100.12 ping statistics ---\n3 packets transmitted, {received} received, 0% packet loss, time "
        "402ms\n"
    )
    return text + (f"rtt min/avg/max/mdev = 0.01/{rtt}/0.09/0.01 ms\n" if received else "")


def probe(full: int, small: int, *, rtt: float = 0.05, answers: str = "", error: str = "") -> list[tuple[str, str]]:
    """Probe both twins of which the first one answers like this, and return the findings."""

    def run(argv: list[str]) -> tuple[int, str, str]:
        assert argv[argv.index("-M") + 1] == "do"
        if argv[argv.index("-I") + 1] != "enp1s0f0np0":
            return 0, output(3), ""
        received = full if argv[argv.index("-s") + 1] == "8972" else small
        return (0 if received else 1), output(received, rtt), error

    found = [_fabric_ping.ping(way, 9000, run, lambda _interface, _target: answers) for way in WAYS]
    return [(finding.id, finding.message) for finding in _fabric_ping.findings(found, 9000)]


def test_everything_comes_back() -> None:
    assert probe(3, 3) == []


@pytest.mark.parametrize(
    ("full", "small", "options", "expected", "says"),
    [
        (0, 3, {"error": "message too long, mtu=1500"}, "JUMBO_FRAMES_LOST", "those of 9000 bytes do not"),
        (2, 3, {}, "JUMBO_FRAMES_LOST", "small frames come back"),
        (0, 0, {}, "TWIN_UNREACHABLE", "nothing comes back"),
        (0, 0, {"answers": MACS[0]}, "TWIN_UNREACHABLE", "nothing comes back"),  # the right one, behind a firewall
        (0, 0, {"answers": MACS[1]}, "CABLES_CROSSED", "is cabled to enP2p1s0f0np0 of spark-2"),
        (0, 0, {"answers": "02:00:00:00:00:01"}, "CABLES_CROSSED", "an interface with the address 02:00:00:00:00:01"),
        (3, 3, {"rtt": 1.8}, "FABRIC_SLOW_ANSWERS", "takes 1.8 ms"),
    ],
)  # fmt: skip
def test_what_is_wrong(full: int, small: int, options: dict[str, str], expected: str, says: str) -> None:
    found = probe(full, small, **options)  # type: ignore[arg-type]

    assert [name for name, _message in found] == [expected]
    assert says in found[0][1]


def arp(operation: int, mac: str, address: str) -> bytes:
    """Return an ARP frame."""
    raw = bytes.fromhex(mac.replace(":", ""))
    body = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, operation, raw, socket.inet_aton(address), bytes(6), bytes(4))
    return b"\xff" * 6 + raw + b"\x08\x06" + body


def test_who_answers() -> None:
    assert _fabric_ping.answer_in(arp(2, MACS[1], "172.31.100.12"), "172.31.100.12") == MACS[1]
    assert _fabric_ping.answer_in(arp(2, MACS[1], "172.31.100.13"), "172.31.100.12") == ""
    assert _fabric_ping.answer_in(arp(1, MACS[1], "172.31.100.12"), "172.31.100.12") == ""
    assert _fabric_ping.answer_in(b"short", "172.31.100.12") == ""


def test_load_over_two_paths_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sink = threading.Thread(target=_fabric_load.serve, args=(["127.0.0.1", "127.0.0.2"], 2.0, port), daemon=True)
    sink.start()
    paths = [Path("lo", "127.0.0.1", target, "itself") for target in ("127.0.0.1", "127.0.0.2")]
    carried = _retry(paths, port)

    assert [one.error for one in carried] == ["", ""]
    assert all(one.gbps > 0 for one in carried)


def _retry(paths: list[Path], port: int) -> tuple[Carried, ...]:
    for _attempt in range(50):  # until the sink listens
        carried = _fabric_load.load(paths, 0.2, port)
        if not any(one.error for one in carried):
            break
        threading.Event().wait(0.02)
    return carried


def test_a_path_without_a_sink_does_not_keep_the_other_one_waiting() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        paths = [Path("lo", "127.0.0.1", "127.0.0.1", "itself"), Path("no-such", "127.0.0.1", "127.0.0.1", "itself")]
        carried = _fabric_load.load(paths, 0.1, port)

    assert all(one.error for one in carried)


@pytest.mark.parametrize(
    ("gbps", "error", "expected"),
    [
        ((40.0, 38.0), "", []),
        ((40.0, 12.0), "", ["TWINS_UNEVEN"]),
        ((40.0, 0.0), "Connection refused", ["TWIN_CARRIES_NOTHING"]),
        ((0.0, 0.0), "", ["TWIN_CARRIES_NOTHING", "TWIN_CARRIES_NOTHING"]),
    ],
)
def test_findings_of_a_load(gbps: tuple[float, float], error: str, expected: list[str]) -> None:
    paths = [Path(way.interface, way.source, way.target, way.peer) for way in WAYS]
    carried = [Carried(paths[0], gbps[0]), Carried(paths[1], gbps[1], error)]

    assert [finding.id for finding in _fabric_load.findings(carried)] == expected

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sends frames of full size over every twin, each bound to its interface, and says what is wrong where none comes back.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import dataclasses
import re
import select
import socket
import struct
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding

# What IPv4 and ICMP add to the payload of a ping.
HEADERS: t.Final = 28
_SMALL: t.Final = 56
_COUNT: t.Final = 3
_SLOW_MS: t.Final = 1.0
_ARP_S: t.Final = 1.0
_ETHERTYPE_ARP: t.Final = 0x0806
_RECEIVED: t.Final = re.compile(r"(\d+) packets transmitted, (\d+) (?:packets )?received")
_RTT: t.Final = re.compile(r"(?:rtt|round-trip) min/avg/max\S* = [\d.]+/([\d.]+)/")

Run = c.Callable[[list[str]], tuple[int, str, str]]
Ask = c.Callable[[str, str], str]


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """From an interface to an address that has to answer there. ``mac`` is that of the other end, where it is known."""

    interface: str
    source: str
    target: str
    peer: str
    peer_interface: str = ""
    mac: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What came back: of full frames, of small ones where full ones did not, and who is at the other end."""

    way: Way
    sent: int
    received: int
    rtt_ms: float | None
    small_received: int | None = None
    answered_by: str = ""
    error: str = ""

    @property
    def whole(self) -> bool:
        """Return whether every full frame came back."""
        return self.sent > 0 and self.received == self.sent


def ping(way: Way, mtu: int, run: Run, ask: Ask) -> Answer:
    """Send full frames over one way, which must not be split; look closer where they do not come back."""
    sent, received, rtt, error = _ping(way, mtu - HEADERS, run)
    if received == sent > 0:
        return Answer(way, sent, received, rtt)
    _sent, small, _rtt, _error = _ping(way, _SMALL, run)
    mac = ask(way.interface, way.target) if small == 0 else ""
    return Answer(way, sent, received, rtt, small, mac, error)


def _ping(way: Way, payload: int, run: Run) -> tuple[int, int, float | None, str]:
    argv = ["ping", "-n", "-q", "-M", "do", "-s", str(payload), "-c", str(_COUNT), "-i", "0.2", "-W", "1"]
    _code, out, err = run([*argv, "-I", way.interface, way.target])
    counts, rtt = _RECEIVED.search(out), _RTT.search(out)
    return (
        int(counts[1]) if counts else _COUNT,
        int(counts[2]) if counts else 0,
        float(rtt[1]) if rtt else None,
        " ".join(err.split()),
    )


def findings(answers: c.Sequence[Answer], mtu: int) -> tuple[Finding, ...]:
    """Return what the answers give away."""
    return tuple(finding for answer in answers if (finding := _finding(answer, answers, mtu)))


def _finding(answer: Answer, answers: c.Sequence[Answer], mtu: int) -> Finding | None:
    way = answer.way
    words = f"{way.interface} ({way.source}) to {way.target} on {way.peer}"
    if answer.whole:
        if answer.rtt_ms is None or answer.rtt_ms <= _SLOW_MS:
            return None
        return Finding(
            id="FABRIC_SLOW_ANSWERS",
            severity="warning",
            message=f"{words} takes {answer.rtt_ms:g} ms, and a cable takes a tenth of one",
            evidence=f"{answer.received} of {answer.sent} frames came back",
            remedy="see that nothing routes this traffic over another network, and reboot both boxes after re-cabling",
        )
    if answer.small_received:
        return Finding(
            id="JUMBO_FRAMES_LOST",
            severity="error",
            message=f"{words}: small frames come back, those of {mtu} bytes do not",
            evidence=answer.error or f"{answer.received} of {answer.sent} full frames came back",
            remedy=f"set an MTU of {mtu} on both twins of both boxes, and on the switch where there is one",
        )
    if answer.answered_by and way.mac and answer.answered_by != way.mac:
        other = next((one.way for one in answers if one.way.mac == answer.answered_by), None)
        end = (
            f"{other.peer_interface} of {other.peer}"
            if other
            else f"an interface with the address {answer.answered_by}"
        )
        return Finding(
            id="CABLES_CROSSED",
            severity="error",
            message=f"{way.interface} is cabled to {end}, and the plan has {way.peer_interface} of {way.peer} there",
            evidence=f"{answer.answered_by} answers for {way.target}",
            remedy="swap the cables at one end, or say which cages belong together in fabric.members (cages)",
        )
    return Finding(
        id="TWIN_UNREACHABLE",
        severity="error",
        message=f"{words}: nothing comes back",
        evidence=answer.error or f"{answer.received} of {answer.sent} frames came back",
        remedy=(
            "see that both ends are up (fabric_info on both boxes), and that no firewall drops traffic between "
            "the twins"
        ),
    )


def who_has(interface: str, target: str) -> str:
    """Return the hardware address that answers for an IPv4 address behind an interface, empty where none does."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETHERTYPE_ARP)) as wire,
    ):
        wire.bind((interface, _ETHERTYPE_ARP))
        own = wire.getsockname()[4]
        # Without a sender's address: an ARP probe, which is answered whatever subnet it comes from.
        request = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, own, bytes(4), bytes(6), socket.inet_aton(target))
        wire.send(b"\xff" * 6 + own + struct.pack("!H", _ETHERTYPE_ARP) + request)
        deadline = time.monotonic() + _ARP_S
        while (left := deadline - time.monotonic()) > 0 and select.select([wire], [], [], left)[0]:
            if mac := answer_in(wire.recv(128), target):
                return mac
    return ""


def answer_in(frame: bytes, target: str) -> str:
    """Return the hardware address in an ARP reply that is about an IPv4 address, empty where it is none."""
    if len(frame) < 42 or frame[12:14] != b"\x08\x06" or frame[20:22] != b"\x00\x02":
        return ""
    return frame[22:28].hex(":") if frame[28:32] == socket.inet_aton(target) else ""

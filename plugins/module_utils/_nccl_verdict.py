# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judges a run of NCCL: by its transport first, then by its bandwidth against a ladder of dated figures.

The ladder comes in as data (plugins/plugin_utils/data/nccl_ladder.yml, put in by the action plugin of nccl_info).

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, Severity, worst
from ansible_collections.gb10.fleet.plugins.module_utils._nccl import NcclOutput

Verdict = t.Literal["good", "slow", "bad", "unknown"]
Step = c.Mapping[str, t.Any]

_SEVERITY: t.Final[c.Mapping[str, Severity]] = {"slow": "warning", "bad": "error"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Sign:
    """What a line of a log means."""

    id: str
    pattern: str
    meaning: str
    remedy: str


# GPU Direct RDMA being off is normal on a GB10, and so is
# vLLM's shared memory broadcast waiting while weights load: neither is here.
_SIGNS: t.Final = (
    _Sign(
        "RDMA_MEMORY_NOT_REGISTERED",
        r"ibv_reg_mr\w* failed with error Cannot allocate memory",
        "RDMA could not lock memory: the limit of the container is too low, or the kernel has none to give",
        "start the container with --ulimit memlock=-1 and --cap-add IPC_LOCK; with that in place, boot a 6.17 kernel",
    ),
    _Sign(
        "NO_DIRECT_PATH_BETWEEN_ALL_RANKS",
        r"ibv_modify_qp failed with (?:error )?(?:110\b|Connection timed out)",
        "a queue pair could not be connected: not every pair of ranks has a cable between them, or a cable is crossed",
        "in a ring, use an NCCL in the image that routes by subnet; with a pair, prove each twin with fabric_probe",
    ),
    _Sign(
        "GID_NOT_REACHABLE",
        r"ibv_modify_qp(?: failed)?(?: with error)?:? ?(?:Invalid argument|Network (?:is )?unreachable|22\b|101\b)",
        "a queue pair could not be connected: a twin has only fe80:: addresses in its GID table, or "
        "NCCL_IB_GID_INDEX is wrong",
        "give every twin an IPv4 address, and leave NCCL_IB_GID_INDEX unset",
    ),
    _Sign(
        "NCCL_TRANSPORT_RETRIES_EXCEEDED",
        r"Got completion from peer .* with status=12",
        "the other end did not acknowledge what was sent: twins in a bond, different MTUs, or a dead peer",
        "take the twins out of any bond, give both the same MTU on all boxes, then prove each with fabric_probe",
    ),
    _Sign(
        "NCCL_IFNAME_NOT_ON_HOST",
        r"Unable to find address for:? \S+|no socket interface found|Bootstrap : no socket interface",
        "a rank was told the name of an interface that its box does not have",
        "give every rank the names of its own box: ports may differ from box to box",
    ),
    _Sign(
        "NET_PLUGIN_NOT_INITIALIZED",
        r"Failed to initialize any NET plugin",
        "NCCL has no network: it was told to use RDMA, and the container has no RDMA device",
        "give the container /dev/infiniband and locked memory without a limit",
    ),
)


def verdict_of(output: NcclOutput, found: c.Collection[Finding]) -> Verdict:
    """Return what the findings and the measurements come to."""
    gravest = worst(found)
    if gravest == "error":
        return "bad"
    if gravest == "warning":
        return "slow"
    measured = output.busbw_gbs is not None or output.write_tests
    too_small = any(finding.id == "NCCL_MESSAGES_TOO_SMALL" for finding in found)
    return "good" if measured and not too_small else "unknown"


def findings(output: NcclOutput, ladder: c.Mapping[str, t.Any], *, topology: str = "pair") -> tuple[Finding, ...]:
    """Return what a run says: first what it used, then how fast that was."""
    found = (*_transport(output), *_signs(output), *_bandwidth(output, ladder, topology), *_writes(output, ladder))
    known = (output.hosts, output.version, output.settings, output.channels, output.complete, output.rows)
    said = (*found, *known, output.transport != "unknown", output.busbw_gbs is not None, output.write_tests)
    return found if any(said) else (_nothing(output),)


def _nothing(output: NcclOutput) -> Finding:
    return Finding(
        id="NCCL_OUTPUT_NOT_RECOGNIZED",
        severity="info",
        message="nothing in the output is of NCCL, so it says neither what was used nor how fast that was",
        evidence=f"{len(output.text)} characters",
        remedy="hand over the whole output of nccl-tests, of an engine with NCCL_DEBUG=INFO, or of ib_write_bw",
    )


def step_for(value: float, steps: c.Sequence[Step]) -> Step:
    """Return the step of a ladder that a figure is on."""
    return max((step for step in steps if value >= float(step["from"])), key=lambda step: float(step["from"]))


def _transport(output: NcclOutput) -> c.Iterator[Finding]:
    if output.no_device or any(not host.hcas for host in output.hosts):
        yield Finding(
            id="NET_IB_NO_DEVICE",
            severity="error",
            message=(
                "NCCL found no RDMA device: there is no /dev/infiniband in the container, or NCCL_IB_HCA names none"
            ),
            evidence="NET/IB : No device found" if output.no_device else "NET/IB : Using, with no device after it",
            remedy="give the container --device /dev/infiniband, and name both twins of this box in NCCL_IB_HCA",
        )
    if output.transport in {"Socket", "mixed"}:
        yield Finding(
            id="FELL_BACK_TO_SOCKET",
            severity="error",
            message="NCCL sends over TCP, quietly, at about 2 GB/s",
            evidence=_line(output.text, r"Using network Socket|NET/Socket : Using|NET plugin Socket"),
            remedy="cure why RDMA is not used; NCCL_NET=IB makes NCCL fail instead of falling back",
        )
    for host in output.hosts:
        if len(host.hcas) == 1:
            yield Finding(
                id="ONLY_ONE_TWIN_IN_NCCL_IB_HCA",
                severity="warning",
                message=(
                    f"{host.host or 'a rank'} uses one RDMA device, and its twin carries nothing: half of the bandwidth"
                ),
                evidence=f"NET/IB : Using {host.hcas[0]}",
                remedy="name both twins of the cabled port in NCCL_IB_HCA",
            )
    if output.empty:
        yield empty_settings(output.empty)
    if output.channels and not output.complete:
        yield Finding(
            id="NCCL_INIT_INCOMPLETE",
            severity="error",
            message="the log ends after channels were set up: the ranks do not reach each other over RDMA",
            evidence=_line(output.text, r"\bChannel \d+"),
            remedy="if nothing follows for two minutes: compare GID tables, firewalls and MTUs of both boxes",
        )


def empty_settings(names: c.Sequence[str]) -> Finding:
    """Return the finding about variables that are set to nothing."""
    return Finding(
        id="EMPTY_NCCL_ENV",
        severity="error",
        message=(
            f"{', '.join(names)} is set to an empty string, which NCCL reads as a value: an index becomes 0, an "
            "fe80:: entry"
        ),
        evidence=f"{names[0]}=",
        remedy="leave the variable out altogether",
    )


def _signs(output: NcclOutput) -> c.Iterator[Finding]:
    for sign in _SIGNS:
        line = _line(output.text, sign.pattern)
        if line:
            yield Finding(id=sign.id, severity="error", message=sign.meaning, evidence=line, remedy=sign.remedy)
    wrong = sum(row.wrong for row in output.rows)
    if wrong:
        yield Finding(
            id="NCCL_WRONG_RESULTS",
            severity="error",
            message=f"{wrong} elements were wrong after the collective: data is damaged on the way",
            evidence="the #wrong columns",
            remedy="replace the cable; do not serve over this fabric",
        )


def _bandwidth(output: NcclOutput, ladder: c.Mapping[str, t.Any], topology: str) -> c.Iterator[Finding]:
    value = output.busbw_gbs
    if value is None:
        return
    if output.largest and output.largest.size < int(ladder["smallest_bytes"]):
        yield Finding(
            id="NCCL_MESSAGES_TOO_SMALL",
            severity="info",
            message="the largest message is too small to tell about bandwidth",
            evidence=f"{output.largest.size} bytes",
            remedy=f"measure with messages of {ladder['smallest_bytes']} bytes or more",
        )
        return
    collectives = ladder["collectives"]
    steps = ladder["ring"] if topology == "ring" else collectives.get(output.collective, collectives["default"])
    step = step_for(value, steps)
    if step["verdict"] != "good":
        yield _below("NCCL_BUS_BANDWIDTH_LOW", f"bus bandwidth is {value:.2f} GB/s", step, steps, "GB/s")


def _writes(output: NcclOutput, ladder: c.Mapping[str, t.Any]) -> c.Iterator[Finding]:
    for test in output.write_tests:
        step = step_for(test.average_gbps, ladder["write"])
        words = f"RDMA writes over {test.device or 'a twin'} reach {test.average_gbps:g} Gb/s"
        if step["verdict"] != "good":
            yield _below("CX7_BANDWIDTH_LOW", words, step, ladder["write"], "Gb/s")
        elif test.mtu is not None and test.mtu < 4096:
            yield Finding(
                id="RDMA_MTU_SMALL",
                severity="info",
                message=f"{test.device} uses an RDMA MTU of {test.mtu} bytes: its interface has no jumbo frames",
                evidence=f"Mtu : {test.mtu}[B]",
                remedy="set an MTU of 9000 on both twins of both boxes",
            )


def _below(identifier: str, words: str, step: Step, steps: c.Sequence[Step], unit: str) -> Finding:
    """Return the finding for a figure that is not good; the lowest steps are a fault of their own."""
    floor = max(float(one["from"]) for one in steps if one["verdict"] == "good")
    collapsed = step["verdict"] == "bad" and "held back" in step["cause"]
    return Finding(
        id="CX7_BANDWIDTH_COLLAPSED" if collapsed else identifier,
        severity=_SEVERITY[step["verdict"]],
        message=f"{words}, not {floor:g} {unit} or more: {step['cause']}",
        evidence=f"{step['source']} ({step['date']})",
        remedy=str(step["remedy"]),
    )


def _line(text: str, pattern: str) -> str:
    """Return the first line that matches, empty where none does."""
    search = re.compile(pattern).search
    return next((line.strip()[:300] for line in text.splitlines() if search(line)), "")

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What NCCL and its tests print, in the layouts of public reports, and what it has to be called."""

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _nccl, _nccl_verdict
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_facts import nccl_ladder

BOTH = (
    "box-a:411:411 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; "
    "OOB enp1s0f1np1:192.168.100.11<0>\nbox-a:411:411 [0] NCCL INFO Using network IB\n"
)
OTHER_CAGE = (
    "box-b:97:97 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; "
    "OOB enp1s0f0np0:192.168.100.12<0>\n"
)
ONE = "NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:192.168.100.11<0>\n"
NORMAL = """\
NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'rocep1s0f1'
Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
Connected all rings, use ring PXN 0 GDR 0
ncclCommInitRank comm 0x55aa rank 0 nranks 2 cudaDev 0 - Init COMPLETE
(Worker_TP0 pid=9) INFO [shm_broadcast.py:705] No available shared memory broadcast block found in 60 seconds
"""
FALLBACK = """\
NCCL INFO NCCL_IB_HCA set to rocep1s0f0v7
NCCL INFO NET/IB : No device found.
NCCL INFO NET/IB : Using [RO]; OOB net1:10.0.0.9<0>
NCCL INFO Failed to initialize NET plugin IB
NCCL INFO NET/Socket : Using [0]net1:10.0.0.9<0>
NCCL INFO Initialized NET plugin Socket
"""


def table(busbw: float, *, size: int = 268435456, test: str = "all_gather", wrong: int = 0) -> str:
    """Return the output of nccl-tests for one size, and the rows of smaller ones before it."""
    small = (
        "           2           1     float    none      -1    30.1    0.00    0.00       0    30.0    0.00    "
        "0.00       0\n"
    )
    row = (
        f"{size:12d}   {size // 4}     float    none      -1   11000   40.0   {busbw - 0.2:.2f}       0"
        f"   11000   40.0   {busbw + 0.2:.2f}       {wrong}\n"
    )
    return (
        f"# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809\n# Collective test starting: {test}_perf\n"
        "#  Rank  0 Group  0 Pid  77 on box-a device  0 [000f:01:00] NVIDIA GB10\n"
        f"#  Rank  1 Group  0 Pid  78 on box-b device  0 [000f:01:00] NVIDIA GB10\n{small}{row}"
        f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {busbw / 2:.4f} \n# Collective test "
        f"concluded: {test}_perf\n"
    )


def judged(text: str, topology: str = "pair") -> tuple[str, list[str]]:
    """Return the verdict and the ids of the findings."""
    output = _nccl.parse(text)
    found = _nccl_verdict.findings(output, nccl_ladder(), topology=topology)
    return _nccl_verdict.verdict_of(output, found), [finding.id for finding in found]


def test_a_healthy_run() -> None:
    output = _nccl.parse(BOTH + OTHER_CAGE + NORMAL + table(23.9))

    assert (output.transport, output.collective, output.version) == ("IB", "all_gather", "2.28.9")
    assert output.busbw_gbs == pytest.approx(23.9)  # of the largest message: the average says 11.95
    assert output.ranks == ("box-a", "box-b")
    assert [(host.host, host.hcas, host.oob_interface, host.oob_address) for host in output.hosts] == [
        ("box-a", ("rocep1s0f1", "roceP2p1s0f1"), "enp1s0f1np1", "192.168.100.11"),
        ("box-b", ("rocep1s0f0", "roceP2p1s0f0"), "enp1s0f0np0", "192.168.100.12"),
    ]
    assert judged(BOTH + OTHER_CAGE + NORMAL + table(23.9)) == ("good", [])


def test_an_average_counts_where_there_is_nothing_better() -> None:
    assert _nccl.parse("# Avg bus bandwidth : 23.8932\n").busbw_gbs == 23.8932
    assert _nccl.parse("nothing of the kind").busbw_gbs is None


def test_an_average_does_not_count_beside_the_last_row_of_a_sweep() -> None:
    """A text that was cut has one row, and the average of all sizes; nothing tells it from a run of one size.

    Of one size the average has more digits than its row (23.8932 and 23.895): less than any step of the ladder is wide.
    """
    row = "8589934592  1073741824  float  none  -1  1  34.43  {}  0  1  35.04  {}  N/A\n# Avg bus bandwidth : {}\n"
    swept = "# Collective test starting: alltoall_perf\n" + row.format("17.21", "17.52", "6.72901")

    assert _nccl.parse(swept).busbw_gbs == 17.365
    assert judged(swept) == ("good", [])
    assert _nccl.parse(row.format("23.68", "24.11", "23.8932")).busbw_gbs == 23.895


@pytest.mark.parametrize(
    ("busbw", "verdict", "expected", "says"),
    [
        (24.3, "good", [], ""),
        (21.875, "good", [], ""),
        (19.95, "slow", ["NCCL_BUS_BANDWIDTH_LOW"], "jumbo frames"),
        (17.85, "slow", ["NCCL_BUS_BANDWIDTH_LOW"], "jumbo frames"),
        (15.5, "slow", ["NCCL_BUS_BANDWIDTH_LOW"], "firmware"),
        (10.25, "bad", ["NCCL_BUS_BANDWIDTH_LOW"], "both cages are cabled"),
        (2.84, "bad", ["CX7_BANDWIDTH_COLLAPSED"], "plugged into a running box"),
        (2.1, "bad", ["CX7_BANDWIDTH_COLLAPSED"], "TCP"),
    ],
)
def test_the_ladder(busbw: float, verdict: str, expected: list[str], says: str) -> None:
    output = _nccl.parse(table(busbw))
    found = _nccl_verdict.findings(output, nccl_ladder())

    assert judged(table(busbw)) == (verdict, expected)
    assert says in " ".join(finding.message for finding in found)


def test_other_collectives_and_topologies_have_ladders_of_their_own() -> None:
    assert judged(table(17.4, test="alltoall")) == ("good", [])
    assert judged(table(10.5), "ring") == ("good", [])
    assert judged(table(7.6), "ring") == ("slow", ["NCCL_BUS_BANDWIDTH_LOW"])


@pytest.mark.parametrize("text", ["", "hello\n", "\x00\x7fELF"])
def test_what_is_no_output_of_nccl(text: str) -> None:
    assert judged(text) == ("unknown", ["NCCL_OUTPUT_NOT_RECOGNIZED"])


def test_small_messages_measure_no_bandwidth() -> None:
    assert judged(table(6.7, size=8 << 20)) == ("unknown", ["NCCL_MESSAGES_TOO_SMALL"])


def test_wrong_results_are_worse_than_slow_ones() -> None:
    assert judged(BOTH + table(23.9, wrong=3)) == ("bad", ["NCCL_WRONG_RESULTS"])


REGISTER = "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
RETRIES = "NCCL WARN NET/IB: Got completion from peer 10.0.0.1<3> with status=12 opcode=129 vendor err 129\n"
STOPPED = 'Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n(then nothing, "Init COMPLETE" never came)\n'
QUIET = "NCCL INFO NET/IB : No device found.\nNCCL INFO Using network Socket\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOTH, []),
        (NORMAL, []),
        (ONE, ["ONLY_ONE_TWIN_IN_NCCL_IB_HCA"]),
        (FALLBACK, ["NET_IB_NO_DEVICE", "FELL_BACK_TO_SOCKET"]),
        (QUIET, ["NET_IB_NO_DEVICE", "FELL_BACK_TO_SOCKET"]),
        ("NCCL INFO NET/IB : Using [RO]; OOB net1:10.0.0.9<0>\n", ["NET_IB_NO_DEVICE"]),
        ("NCCL WARN Failed to initialize any NET plugin\nNCCL error: invalid usage\n", ["NET_PLUGIN_NOT_INITIALIZED"]),
        (REGISTER, ["RDMA_MEMORY_NOT_REGISTERED"]),
        ("ibv_modify_qp failed with error Invalid argument\n", ["GID_NOT_REACHABLE"]),
        ("ibv_modify_qp: Network is unreachable\n", ["GID_NOT_REACHABLE"]),
        ("ibv_modify_qp failed: Network unreachable\n", ["GID_NOT_REACHABLE"]),
        ("ibv_modify_qp failed with 110 (Connection timed out)\n", ["NO_DIRECT_PATH_BETWEEN_ALL_RANKS"]),
        (RETRIES, ["NCCL_TRANSPORT_RETRIES_EXCEEDED"]),
        ("RuntimeError: gloo: Unable to find address for: enp1s0f1np1\n", ["NCCL_IFNAME_NOT_ON_HOST"]),
        (STOPPED, ["NCCL_INIT_INCOMPLETE"]),
        ("NCCL_IB_GID_INDEX set by environment to .\n", ["EMPTY_NCCL_ENV"]),
        ("export NCCL_IB_MERGE_NICS=\n", ["EMPTY_NCCL_ENV"]),
    ],
)
def test_signs(text: str, expected: list[str]) -> None:
    verdict, found = judged(text)

    assert found == expected
    assert verdict == {(): "unknown", ("ONLY_ONE_TWIN_IN_NCCL_IB_HCA",): "slow"}.get(tuple(expected), "bad")


def test_a_fast_run_over_one_twin_is_not_good() -> None:
    assert judged(ONE + table(22.5)) == ("slow", ["ONLY_ONE_TWIN_IN_NCCL_IB_HCA"])


def test_an_exact_selector_keeps_its_sign() -> None:
    assert _nccl.parse("NCCL_IB_HCA==rocep1s0f1\n").settings == {"NCCL_IB_HCA": "=rocep1s0f1"}


@pytest.mark.parametrize("order", [1, -1])
def test_a_variable_that_is_empty_on_one_rank_alone(order: int) -> None:
    ranks = ["NCCL_IB_GID_INDEX set by environment to .", "NCCL_IB_GID_INDEX set by environment to 3."]
    assert judged("\n".join(ranks[::order])) == ("bad", ["EMPTY_NCCL_ENV"])


def write_test(device: str, average: float, mtu: int = 4096, unit: str = "Gb/sec") -> str:
    """Return the output of ib_write_bw."""
    return (
        "                    RDMA_Write BW Test\n"
        f" Dual-port       : OFF          Device         : {device}\n Mtu             : {mtu}[B]\n GID index  "
        "     : 3\n"
        f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]\n"
        f" 65536      1059332          0.00               {average}              0.176557\n"
    )


@pytest.mark.parametrize(
    ("text", "verdict", "expected"),
    [
        (write_test("rocep1s0f1", 97.28) + write_test("roceP2p1s0f1", 92.57), "good", []),
        (write_test("roceP2p1s0f1", 92.57, mtu=1024), "good", ["RDMA_MTU_SMALL"]),
        (write_test("roceP2p1s0f1", 46.0), "slow", ["CX7_BANDWIDTH_LOW"]),
        (write_test("roceP2p1s0f1", 13.23), "bad", ["CX7_BANDWIDTH_COLLAPSED"]),
        (write_test("roceP2p1s0f1", 12160.0, unit="MB/sec"), "good", []),
    ],
)
def test_rdma_writes_over_one_twin(text: str, verdict: str, expected: list[str]) -> None:
    assert judged(text) == (verdict, expected)


def test_both_twins_in_one_text() -> None:
    tests = _nccl.parse(write_test("rocep1s0f1", 97.28) + write_test("roceP2p1s0f1", 92.57)).write_tests

    assert [(one.device, one.average_gbps, one.mtu, one.gid_index) for one in tests] == [
        ("rocep1s0f1", 97.28, 4096, 3),
        ("roceP2p1s0f1", 92.57, 4096, 3),
    ]


def test_every_step_has_a_source_and_a_date() -> None:
    ladder = nccl_ladder()
    lists = [*ladder["collectives"].values(), ladder["ring"], ladder["write"]]

    for steps in lists:
        assert min(step["from"] for step in steps) == 0
        assert {step["verdict"] for step in steps} == {"good", "slow", "bad"}
        for step in steps:
            assert step["source"]
            assert step["date"] >= "2026"
            assert bool(step["cause"]) == bool(step["remedy"]) == (step["verdict"] != "good")

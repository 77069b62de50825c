# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._log_lines import read_line, read_lines

MESSAGE = "GPU KV cache size: 654,112 tokens"
VLLM = f"(EngineCore_DP0 pid=281) INFO 10-20 09:50:31 [kv_cache_utils.py:864] {MESSAGE}"


@pytest.mark.parametrize(
    ("before", "stamp"),
    [
        ("", ""),
        ("2026-10-20T09:50:31.123456789Z ", "2026-10-20T09:50:31.123456789Z"),
        ("2026-05-01 21:55:53.439 | ", "2026-05-01T21:55:53.439"),
        ("2026-10-20T09:50:31+0000 spark-1 vllm-coordinator[4711]: ", "2026-10-20T09:50:31+0000"),
        ("2026-10-20T09:50:31.123456+00:00 spark-1 vllm-a@b[4711]: ", "2026-10-20T09:50:31.123456+00:00"),
        ("1760953831.123456 spark-1 vllm-coordinator[4711]: ", "1760953831.123456"),
        ("Oct 20 09:50:31 spark-1 vllm[17578]: ", ""),
        ("vllm-1  | ", ""),
    ],
)
def test_what_stands_before_a_message_is_taken_off(before: str, stamp: str) -> None:
    line = read_line(before + VLLM)

    assert (line.message, line.stamp) == (MESSAGE, stamp)
    assert (line.process, line.pid, line.level) == ("EngineCore_DP0", "281", "INFO")
    assert (line.time, line.source) == ("10-20 09:50:31", "kv_cache_utils.py:864")


@pytest.mark.parametrize(
    ("raw", "message", "process", "rank", "level"),
    [
        (
            "\x1b[1;36m(VllmWorker rank=1 pid=219)\x1b[0;0m INFO 08-31 14:45:44 [a.py:1] x",
            "x",
            "VllmWorker",
            "1",
            "INFO",
        ),
        ("[1;36m(VllmWorker rank=1 pid=219)[0;0m INFO 08-31 14:45:44 [a.py:1] x", "x", "VllmWorker", "1", "INFO"),
        ("(Worker_DP0_TP3_EP3 pid=9) WARNING 06-22 11:17:44 [a.py:1] x", "x", "Worker_DP0_TP3_EP3", "3", "WARNING"),
        ("[rank2]: ValueError: x", "ValueError: x", "", "2", ""),
        (
            "(APIServer pid=1) INFO:     Application startup complete.",
            "Application startup complete.",
            "APIServer",
            "",
            "INFO",
        ),
        ("INFO ... [shm_broadcast.py:705] x", "x", "", "", "INFO"),
        ('(EngineCore pid=2)   File "x.py", line 1', '  File "x.py", line 1', "EngineCore", "", ""),
        ("(EngineCore pid=2) ERROR 09-11 10:00:00 [core.py:1]   File", "  File", "EngineCore", "", "ERROR"),
        ("(not a process) text", "(not a process) text", "", "", ""),
        ("plain text", "plain text", "", "", ""),
        ("", "", "", "", ""),
    ],
)
def test_lines_of_all_kinds(raw: str, message: str, process: str, rank: str, level: str) -> None:
    line = read_line(raw)

    assert (line.message, line.process, line.rank, line.level) == (message, process, rank, level)


def test_a_line_without_a_time_has_that_of_its_writer() -> None:
    lines = read_lines(
        "(A pid=1) INFO 09-11 10:00:00 [a.py:1] x\n(B pid=2) INFO 09-11 10:00:09 [a.py:1] y\n(A pid=1) z\nq"
    )

    assert [line.time for line in lines] == ["09-11 10:00:00", "09-11 10:00:09", "09-11 10:00:00", "09-11 10:00:09"]


def test_a_progress_bar_does_not_hide_what_follows_it() -> None:
    assert [line.message for line in read_lines("Loading:  50%\rLoading: 100%\r\nDone")] == [
        "Loading:  50%",
        "Loading: 100%",
        "Done",
    ]


def test_an_endless_line_is_cut() -> None:
    assert len(read_lines("x" * 10_000_000)[0].message) < 50_000

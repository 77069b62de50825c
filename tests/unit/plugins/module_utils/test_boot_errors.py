# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._boot_causes import CAUSES
from ansible_collections.gb10.fleet.plugins.module_utils._boot_log import Log, parse_boot_logs
from tests.unit.plugins.module_utils.fixtures import boot_logs
from tests.unit.plugins.module_utils.fixtures.boot_messages import MESSAGES


def first(*texts: str) -> dict[str, t.Any]:
    """Return the first error of logs named spark-1, spark-2 and so on."""
    parsed = parse_boot_logs([Log(f"spark-{number}", text) for number, text in enumerate(texts, 1)])
    error = parsed.as_dict()["first_error"]
    assert error is not None
    return t.cast("dict[str, t.Any]", error)


def test_the_cause_is_told_from_what_follows_and_from_what_was_survived() -> None:
    error = first(boot_logs.NO_MEMORY)

    assert error["id"] == "BOOT_FREE_MEMORY_TOO_SMALL"
    assert (error["process"], error["time"], error["source"]) == ("EngineCore", "09-11 10:00:00", "core.py:1108")
    assert error["numbers"] == {
        "free_gib": 24.7,
        "total_gib": 121.69,
        "utilization": 0.8,
        "requested_gib": 97.35,
        "short_by_gib": 72.65,
        "largest_utilization": 0.2,
    }


def test_one_error_that_comes_back_three_times() -> None:
    parsed = parse_boot_logs([Log("spark-1", boot_logs.WORKER_FAILED)])

    assert [(error.process, error.echo) for error in parsed.errors] == [
        ("Worker", False),
        ("EngineCore", True),
        ("", True),
        ("", True),
    ]
    assert parsed.first is parsed.errors[0]
    assert parsed.first.as_dict()["numbers"] == {"module": "numba"}


@pytest.mark.parametrize("quiet_first", [True, False])
def test_the_loudest_rank_is_not_the_one_that_failed(quiet_first: bool) -> None:
    logs = [boot_logs.RANK_0_QUIET, boot_logs.RANK_1_LOUD]

    error = first(*(logs if quiet_first else reversed(logs)))

    assert error["log"] == ("spark-1" if quiet_first else "spark-2")
    assert (error["rank"], error["id"], error["echo"]) == (0, "BOOT_FREE_MEMORY_TOO_SMALL", False)
    assert error["numbers"]["largest_utilization"] == 0.9


def test_only_echoes_are_called_echoes() -> None:
    error = first(boot_logs.RANK_1_LOUD)

    assert (error["rank"], error["echo"]) == (1, True)


def test_an_earlier_cause_on_another_box_wins_by_its_clock() -> None:
    early = (
        "(Worker_TP1 pid=5) ERROR 09-11 09:59:58 [x.py:1] RuntimeError: ibv_reg_mr_iova2 failed: Cannot allocate memory"
    )

    assert first(boot_logs.RANK_0_QUIET, early)["log"] == "spark-2"
    assert first(boot_logs.RANK_0_QUIET, early.replace("09:59:58", "10:00:05"))["log"] == "spark-1"


def test_january_comes_after_december() -> None:
    old = "(A pid=1) ERROR 12-31 23:59:58 [x.py:1] RuntimeError: one"
    new = "(A pid=1) ERROR 01-01 00:00:03 [x.py:1] RuntimeError: two"

    assert first(new, old)["message"] == "RuntimeError: one"


def test_stamps_decide_where_vllm_gives_no_time() -> None:
    error = first("2026-09-11T10:00:09Z ValueError: later", "2026-09-11T10:00:01Z ValueError: earlier")

    assert error["message"] == "ValueError: earlier"


def test_logs_without_a_common_clock_say_so() -> None:
    parsed = parse_boot_logs([Log("a", "ValueError: one"), Log("b", "2026-09-11T10:00:01Z ValueError: two")])

    assert parsed.first is not None
    assert parsed.first.message == "ValueError: one"
    assert "BOOT_ERROR_ORDER_UNKNOWN" in [finding.id for finding in parsed.findings]


def test_mixed_tracebacks_of_two_processes() -> None:
    text = """\
(Worker_TP0 pid=1) Traceback (most recent call last):
(Worker_TP1 pid=2) Traceback (most recent call last):
(Worker_TP0 pid=1)   File "a.py", line 1, in f
(Worker_TP1 pid=2)   File "b.py", line 1, in g
(Worker_TP1 pid=2) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
(Worker_TP0 pid=1) RuntimeError: NCCL error in: x.cpp, remote process exited
"""
    error = first(text)

    assert (error["rank"], error["id"]) == (1, "BOOT_CUDA_OUT_OF_MEMORY")


def test_a_boot_that_fails_without_an_exception() -> None:
    error = first("(EngineCore pid=2) ERROR 09-11 10:00:00 [x.py:3] The sky is falling.")

    assert (error["id"], error["message"]) == ("BOOT_FAILED", "The sky is falling.")


def test_an_error_that_the_boot_survives_is_none() -> None:
    text = "(EngineCore pid=2) ERROR 09-11 10:00:00 [x.py:3] Not nice.\nINFO:     Application startup complete.\n"

    parsed = parse_boot_logs([Log("a", text)])

    assert (parsed.first, parsed.state) == (None, "ready")


STOPPED = """\
INFO:     Application startup complete.
(APIServer pid=28975) INFO 11-29 18:19:05 [launcher.py:254] [shutdown] API server: shutdown triggered
(APIServer pid=28975) ERROR 11-29 18:19:05 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=28975) ERROR 11-29 18:19:05 [async_llm.py:906] Traceback (most recent call last):
(APIServer pid=28975) ERROR 11-29 18:19:05 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore
INFO:     Shutting down
"""


def test_a_server_that_is_told_to_stop_has_not_failed() -> None:
    assert parse_boot_logs([Log("a", STOPPED)]).state == "ready"
    assert parse_boot_logs([Log("a", STOPPED.replace("[shutdown]", "[x]"))]).state == "failed"
    killed = "ERROR 11-29 18:19:01 [x.py:1] Worker proc Worker_TP0 died unexpectedly (exit code: -9), shutting down\n"
    assert first(STOPPED.replace("(APIServer", killed + "(APIServer", 1))["id"] == "BOOT_WORKER_KILLED"


@pytest.mark.parametrize("secret", ["hf_abcdefghijklmnop", "sk-abcdefghijkl"])
def test_secrets_in_a_message_are_blotted_out(secret: str) -> None:
    error = first(f"RuntimeError: request with token {secret} was refused")

    assert error["message"] == "RuntimeError: request with token *** was refused"


def test_a_message_in_two_lines_is_read_as_one() -> None:
    wrapped = MESSAGES["BOOT_FREE_MEMORY_TOO_SMALL"].replace("less than", "less\nthan")
    pydantic = (
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "(APIServer pid=1)   Value error, User-specified max_model_len (65536) is greater than the derived "
        "max_model_len (max_position_embeddings=32768)"
    )

    assert first(f"ValueError: {wrapped}")["numbers"]["requested_gib"] == 85.18
    assert first(pydantic)["id"] == "BOOT_CONTEXT_ABOVE_CHECKPOINT"
    assert first(pydantic)["numbers"] == {"max_model_len": 65536}


@pytest.mark.parametrize("name", MESSAGES)
def test_known_messages_have_a_meaning(name: str) -> None:
    assert first(MESSAGES[name])["id"] == name


def test_every_cause_is_tested() -> None:
    assert {cause.id for cause in CAUSES} == set(MESSAGES)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        (
            "BOOT_KV_CACHE_TOO_SMALL",
            {
                "max_model_len": 196608,
                "needed_gib": 23.25,
                "available_gib": 22.5,
                "estimated_max_len": 190272,
                "short_by_gib": 0.75,
            },
        ),
        ("BOOT_MEMORY_CHANGED_WHILE_PROFILING", {"before_gib": 82.94, "after_gib": 90.17, "grew_by_gib": 7.23}),
        ("BOOT_TOO_FEW_GPUS", {"wanted": 2, "there": 1}),
        ("BOOT_WORKER_KILLED", {"worker": "Worker_TP1", "exit_code": -9}),
        (
            "BOOT_FLASHINFER_VERSIONS_DIFFER",
            {"package": "cubin", "package_version": "0.6.13", "flashinfer": "0.6.16.post3"},
        ),
        ("BOOT_NO_KERNEL_IMAGE", {}),
    ],
)
def test_numbers_are_read_out_of_messages(name: str, numbers: dict[str, t.Any]) -> None:
    assert first(MESSAGES[name])["numbers"] == numbers


def test_the_form_before_0_33_has_no_bracket() -> None:
    assert first(MESSAGES["BOOT_KV_CACHE_TOO_SMALL"].replace("(23.25", "23.25"))["numbers"]["needed_gib"] == 23.25

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a log says after its server was ready. Lines are composed from the forms of vLLM 0.10.2 to 0.33.0."""

# ruff: noqa: E501 (a log line is as long as it is)
from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._boot_expectations import compare_with_plan
from ansible_collections.gb10.fleet.plugins.module_utils._boot_log import BootLog, Log, parse_boot_logs
from tests.unit.plugins.module_utils.fixtures import boot_logs

READY = boot_logs.V0_28_0_PINNED
SERVED = """\
(APIServer pid=1) INFO:     10.0.0.5:5013 - "POST /v1/chat/completions HTTP/1.1" 200 OK
(APIServer pid=1) INFO 09-11 10:09:00 [loggers.py:271] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%, Prefix cache hit rate: 0.0%
"""
TOO_LONG = """\
(APIServer pid=1) ERROR 09-11 10:01:00 [serving_chat.py:257] Error in preprocessing prompt inputs
(APIServer pid=1) ERROR 09-11 10:01:00 [serving_chat.py:257] Traceback (most recent call last):
(APIServer pid=1) ERROR 09-11 10:01:00 [serving_chat.py:257]   File "/usr/lib/python3.12/vllm/entrypoints/openai/serving_chat.py", line 235, in create_chat_completion
(APIServer pid=1) ERROR 09-11 10:01:00 [serving_chat.py:257] ValueError: This model's maximum context length is 131072 tokens. However, you requested 140000 tokens.
(APIServer pid=1) INFO:     10.0.0.5:5012 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request
"""
TOOL_CALL = """\
(APIServer pid=1) ERROR 09-11 10:01:00 [hermes_tool_parser.py:114] Error in extracting tool call from response.
(APIServer pid=1) ERROR 09-11 10:01:00 [hermes_tool_parser.py:114] Traceback (most recent call last):
(APIServer pid=1) ERROR 09-11 10:01:00 [hermes_tool_parser.py:114]   File "/usr/lib/python3.12/json/decoder.py", line 355, in decode
(APIServer pid=1) ERROR 09-11 10:01:00 [hermes_tool_parser.py:114] json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
"""
ASGI = """\
(APIServer pid=1) INFO:     10.0.0.5:5012 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
(APIServer pid=1) ERROR:    Exception in ASGI application
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/usr/lib/python3.12/uvicorn/protocols/http/httptools_impl.py", line 409, in run_asgi
(APIServer pid=1) KeyError: 'role'

(APIServer pid=1) During handling of the above exception, another exception occurred:

(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/usr/lib/python3.12/vllm/entrypoints/chat_utils.py", line 9, in parse
(APIServer pid=1) RuntimeError: no CUDA out of memory in the user's text
"""
GRAMMAR = """\
(EngineCore pid=281) ERROR 09-11 10:01:00 [core.py:2056] Unexpected error pre-processing request cmpl-1
(EngineCore pid=281) ERROR 09-11 10:01:00 [core.py:2056] Traceback (most recent call last):
(EngineCore pid=281) ERROR 09-11 10:01:00 [core.py:2056]   File "/usr/lib/python3.12/vllm/v1/engine/core.py", line 2040, in process
(EngineCore pid=281) ERROR 09-11 10:01:00 [core.py:2056] RuntimeError: the schema cannot be compiled
"""
SURVIVED = {"too long": TOO_LONG, "tool call": TOOL_CALL, "asgi": ASGI, "grammar": GRAMMAR}
# What an engine says that dies at work: the worker, the engine core, the API server.
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
DEAD = """\
(APIServer pid=1) ERROR 09-11 11:00:02 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=1) ERROR 09-11 11:00:02 [async_llm.py:906] Traceback (most recent call last):
(APIServer pid=1) ERROR 09-11 11:00:02 [async_llm.py:906]   File "/usr/lib/python3.12/vllm/v1/engine/core_client.py", line 846, in get_output_async
(APIServer pid=1) ERROR 09-11 11:00:02 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
(APIServer pid=1) INFO:     10.0.0.5:5014 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
(APIServer pid=1) INFO:     Shutting down
"""
FATAL = f"""\
(EngineCore pid=281) ERROR 09-11 11:00:01 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=281) ERROR 09-11 11:00:01 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=281) ERROR 09-11 11:00:01 [core.py:1512]   File "/usr/lib/python3.12/vllm/v1/engine/core.py", line 1500, in run_engine_core
(EngineCore pid=281) ERROR 09-11 11:00:01 [core.py:1512] {ILLEGAL}
{DEAD}"""
WORKERS = """\
(Worker_TP1 pid=448) ERROR 09-11 11:00:00 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker_TP1 pid=448) ERROR 09-11 11:00:00 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker_TP1 pid=448) ERROR 09-11 11:00:00 [multiproc_executor.py:1063]   File "/usr/lib/python3.12/vllm/v1/worker/gpu_model_runner.py", line 9, in execute_model
(Worker_TP1 pid=448) ERROR 09-11 11:00:00 [multiproc_executor.py:1063] AssertionError: wrong number of blocks
(Worker_TP0 pid=447) ERROR 09-11 11:00:00 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker_TP0 pid=447) ERROR 09-11 11:00:00 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker_TP0 pid=447) ERROR 09-11 11:00:00 [multiproc_executor.py:1063] RuntimeError: NCCL error: remote process exited, Connection closed by peer
"""


def parse(*texts: str) -> BootLog:
    return parse_boot_logs([Log(f"spark-{number}", text) for number, text in enumerate(texts, 1)])


def bare(text: str) -> str:
    """Return a log as one writes it that does not say who speaks."""
    return "".join(line.partition(") ")[2] + "\n" for line in text.splitlines())


@pytest.mark.parametrize("after", ["", SERVED])
@pytest.mark.parametrize("name", SURVIVED)
def test_the_error_of_one_request_is_none_of_the_boot(name: str, after: str) -> None:
    parsed = parse(READY + SERVED + SURVIVED[name] + after)

    assert (parsed.state, parsed.first, [one for one in parsed.findings if one.severity == "error"]) == (
        "ready",
        None,
        [],
    )


@pytest.mark.parametrize("name", SURVIVED)
def test_also_where_the_log_does_not_say_who_speaks(name: str) -> None:
    assert parse(bare(READY + SURVIVED[name])).state == "ready"


def test_a_backend_that_the_log_lacks_is_missed_after_the_error_of_a_request_too() -> None:
    found = compare_with_plan(parse(READY + TOO_LONG), {"mla_prefill_backend": "FLASH_ATTN"}, None)

    assert [one.id for one in found] == ["BOOT_BACKEND_NOT_LOGGED"]


@pytest.mark.parametrize("before", ["", *SURVIVED.values()])
def test_an_engine_that_dies_at_work_has_failed_of_its_own_error(before: str) -> None:
    parsed = parse(READY + before + SERVED + FATAL)

    assert parsed.state == "failed"
    assert parsed.first is not None
    assert (parsed.first.id, parsed.first.process) == ("BOOT_ILLEGAL_MEMORY_ACCESS", "EngineCore")


def test_of_several_ranks_in_one_log_the_first_to_die_counts() -> None:
    fatal = FATAL.replace(ILLEGAL, "RuntimeError: Worker failed with error 'wrong number of blocks'")

    parsed = parse(READY + TOO_LONG + WORKERS + fatal)

    assert parsed.first is not None
    assert (parsed.state, parsed.first.rank, parsed.first.message) == (
        *("failed", "1"),
        "AssertionError: wrong number of blocks",
    )


def test_of_several_boxes_the_first_to_die_counts() -> None:
    follower = READY.replace("(APIServer pid=1) INFO:     Application startup complete.\n", "") + WORKERS

    parsed = parse(READY + TOO_LONG + DEAD, follower)

    assert parsed.first is not None
    assert (parsed.state, parsed.first.log, parsed.first.rank) == ("failed", "spark-2", "1")


def test_an_engine_that_is_gone_without_a_word_leaves_an_echo() -> None:
    parsed = parse(READY + TOO_LONG + DEAD)

    assert parsed.first is not None
    assert (parsed.state, parsed.first.echo) == ("failed", True)


@pytest.mark.parametrize(
    ("said", "first"),
    [
        (f"(EngineCore pid=281) {ILLEGAL}\n", "BOOT_ILLEGAL_MEMORY_ACCESS"),
        ("[rank0]: RuntimeError: NCCL error in: x.cpp, unhandled system error\n", "BOOT_NCCL_FAILED"),
        ("(EngineCore pid=281) Fatal Python error: Segmentation fault\n", "BOOT_FAILED"),
        (
            """\
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/usr/local/bin/vllm", line 10, in <module>
(APIServer pid=1) OSError: [Errno 24] Too many open files
""",
            "BOOT_FAILED",
        ),
        (
            "(EngineCore pid=281) ERROR 09-11 11:00:00 [x.py:316] Worker proc W-0 died unexpectedly (exit code: -9), shutting",
            "BOOT_WORKER_KILLED",
        ),
    ],
)
def test_a_log_that_breaks_off_at_the_end_of_its_engine(said: str, first: str) -> None:
    parsed = parse(READY + TOO_LONG + said)

    assert parsed.first is not None
    assert (parsed.state, parsed.first.id) == ("failed", first)


def test_a_worker_that_hits_an_exception_and_serves_on_has_not_failed() -> None:
    assert parse(READY + WORKERS.split("(Worker_TP0", maxsplit=1)[0] + SERVED).state == "ready"
    assert parse(READY + f"(EngineCore pid=281) {ILLEGAL}\n" + SERVED).state == "ready"


def test_a_log_that_begins_after_the_boot_is_known_by_what_was_served() -> None:
    assert (parse(TOO_LONG + SERVED).state, parse(SERVED + TOO_LONG).first) == ("ready", None)
    first = parse(TOO_LONG + SERVED + FATAL).first
    assert first is not None
    assert first.id == "BOOT_ILLEGAL_MEMORY_ACCESS"


def test_an_engine_that_ends_without_any_error_has_failed_all_the_same() -> None:
    parsed = parse(READY + "terminate called after throwing an instance of 'c10::Error'\n")

    assert (parsed.state, parsed.first) == ("failed", None)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _engine_signs as engine

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:generation_tokens_total{engine="0",model_name="m"} 1.84223e+05
vllm:generation_tokens_created{engine="0",model_name="m"} 1.76e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 5000.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 913.0
process_cpu_seconds_total 12.5
"""


def counters(**changed: float) -> engine.Counters:
    values: dict[str, t.Any] = {"generation_tokens": 10, "prompt_tokens": 20, "steps": 30, "running": 1, "waiting": 0}
    return engine.Counters(**(values | changed))


def test_the_counters_are_read() -> None:
    assert engine.Counters.from_metrics(METRICS) == engine.Counters(184223, 5000, 913, 3, 1, 0.25)


def test_several_engines_are_summed_up() -> None:
    both = METRICS + METRICS.replace('engine="0"', 'engine="1"')
    assert engine.Counters.from_metrics(both) == engine.Counters(368446, 10000, 1826, 6, 2, 0.5)


@pytest.mark.parametrize("text", ["", "<html>", "process_cpu_seconds_total 1.0\n", "vllm:num_requests_running NaN\n"])
def test_what_is_not_vllms_gives_no_counters(text: str) -> None:
    assert engine.Counters.from_metrics(text) is None


def test_the_kv_cache_is_read_by_its_older_name_too() -> None:
    read = engine.Counters.from_metrics(METRICS.replace("kv_cache_usage_perc", "gpu_cache_usage_perc"))
    assert read is not None
    assert read.kv_usage == 0.25


@pytest.mark.parametrize("value", ["oops", "+Inf", "NaN"])
def test_a_value_that_is_no_number_is_left_out(value: str) -> None:
    read = engine.Counters.from_metrics(f"vllm:num_requests_running 2\nvllm:generation_tokens_total {value}\n")
    assert read == engine.Counters(0, 0, 0, 2, 0)


@pytest.mark.parametrize(
    ("later", "worked"),
    [
        (counters(), False),
        (counters(running=5, waiting=5), False),
        (counters(generation_tokens=11), True),
        (counters(prompt_tokens=21), True),
        (counters(steps=31), True),
        # A chunk of a long prompt: no output, so nothing is counted, but the KV cache fills.
        (counters(kv_usage=0.01), True),
        (counters(generation_tokens=0, prompt_tokens=0, steps=0), True),
    ],
)
def test_an_engine_worked_if_any_counter_moved(later: engine.Counters, worked: bool) -> None:
    assert later.worked_since(counters()) is worked


HEADER = "utilization.gpu [%], clocks.current.sm [MHz], clocks.sm [MHz], clocks.applications.gr [MHz], power.draw [W]\n"


@pytest.mark.parametrize(
    ("row", "low"),
    [
        ("96 %, 0, 799 MHz, 2418 MHz, 19.50 W", True),
        ("96 %, 0, 2100 MHz, 2418 MHz, 22.00 W", True),
        ("96 %, 0, 2281 MHz, 2418 MHz, 92.50 W", False),
        ("96 %, 0, 2150 MHz, 2418 MHz, 80.00 W", False),
        ("0 %, 0, 208 MHz, 2418 MHz, 4.10 W", False),
        ("96 %, 0, 799 MHz, [N/A], [N/A]", True),
        ("96 %, 0, [N/A], [N/A], 92.50 W", False),
        ("[N/A], 0, 799 MHz, 2418 MHz, 19.50 W", False),
    ],
)
def test_a_busy_gpu_at_a_low_clock_or_power_is_starved(row: str, low: bool) -> None:
    gpu = engine.Gpu.from_csv(HEADER + row + "\n")
    assert gpu is not None
    assert gpu.is_low_power is low


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "NVIDIA-SMI has failed\nbecause\n", HEADER, HEADER + "[N/A], [N/A]\n"]
)
def test_without_a_reading_there_is_no_gpu(text: str) -> None:
    assert engine.Gpu.from_csv(text) is None


def test_the_reading_is_plain_data() -> None:
    gpu = engine.Gpu.from_csv(HEADER + "96 %, 0, 799 MHz, 2418 MHz, 19.50 W\n")
    assert gpu is not None
    assert gpu.as_dict() == {"utilization": 96, "sm_clock": 799, "application_clock": 2418, "power": 19.5}


@pytest.mark.parametrize(
    ("answer", "read"), [((0, HEADER), HEADER), ((6, "No devices were found"), None), (None, None)]
)
def test_the_gpu_is_read_with_nvidia_smi(answer: tuple[int, str] | None, read: str | None) -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], _timeout: float) -> tuple[int, str] | None:
        asked.append(argv)
        return answer

    assert engine.read_gpu(run) == read
    assert asked[0][0] == "nvidia-smi"
    assert "power.draw" in asked[0][1]


@pytest.mark.parametrize(
    ("steps", "works", "reads"), [([1], True, 1), ([0, 0, 1], True, 3), ([0] * 5, False, 5), ([0, None, 1], False, 2)]
)
def test_an_engine_works_that_makes_a_step_while_it_is_looked_at(
    steps: list[int | None], works: bool, reads: int
) -> None:
    left = list(steps)
    slept: list[float] = []

    def read() -> engine.Counters | None:
        step = left.pop(0)
        return None if step is None else counters(steps=913 + step)

    assert engine.works_now(counters(steps=913), read, within_s=5, sleep=slept.append) is works
    assert slept == [1.0] * reads


LOG = """\
INFO 11-29 10:05:00 [loggers.py:310] Engine 000: Avg prompt throughput: 812.4 tokens/s, Avg generation throughput: \
61.2 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%
INFO 11-29 10:05:10 [loggers.py:310] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: \
0.0 tokens/s
INFO: Running: 0 reqs, Waiting: 2 reqs, GPU KV cache usage: 0.0%
INFO 11-29 10:05:20 [loggers.py:310] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: \
0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%
"""


def test_statistics_lines_are_read_from_a_log() -> None:
    stats = engine.EngineStats.all_from_log(LOG)
    assert [(line.running, line.waiting, line.generation_tokens_per_s) for line in stats] == [
        (2, 0, 61.2),
        (0, 2, 0.0),
        (0, 0, 0.0),
    ]
    assert [line.is_stuck for line in stats] == [False, True, False]

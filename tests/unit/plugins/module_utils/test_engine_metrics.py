# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""vLLM's counters. Names and labels are those of the loggers of vLLM 0.10.2 to 0.33.0, the numbers are made up."""

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._drafter_trend import Trend
from ansible_collections.gb10.fleet.plugins.module_utils._engine_metrics import Drafts, EngineMetrics

TWO_ENGINES = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 600.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 200.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.79e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 1200.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 400.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 500.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 140.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 400.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 100.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 140.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="1"} 1.79e+09
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 640.0
vllm:corrupted_requests_total{engine="0",model_name="m"} NaN
"""


def test_counters_are_summed_over_engines_and_the_cache_is_that_of_the_fullest() -> None:
    found = EngineMetrics.from_text(TWO_ENGINES)
    assert found == EngineMetrics(Drafts(800, 1600, 640, (500, 140)), 0.75, 2, 1000, 640, None)
    assert found.drafts is not None
    assert (found.drafts.acceptance, found.drafts.mean_length) == (0.4, 1.8)
    assert found.drafts.as_dict()["acceptance_at"] == [0.625, 0.175]


def test_an_engine_without_speculation_has_no_drafts_rather_than_none_accepted() -> None:
    found = EngineMetrics.from_text('vllm:num_requests_running{engine="0"} 0.0\n')
    assert found == EngineMetrics(None, None, None, None, None, None)


def test_the_older_name_of_the_cache_usage() -> None:
    assert EngineMetrics.from_text("vllm:gpu_cache_usage_perc 0.5\n").kv_usage == 0.5


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, Drafts(5, 10, 4), Drafts(5, 10, 4)),
        (Drafts(5, 10, 4, (4,)), Drafts(9, 18, 9, (7, 2)), Drafts(4, 8, 5, (3, 2))),
        # a counter that went back is one of a new engine
        (Drafts(50, 100, 40), Drafts(5, 10, 4), Drafts(5, 10, 4)),
    ],
)
def test_what_was_counted_since(before: Drafts | None, now: Drafts, expected: Drafts) -> None:
    assert now.since(before) == expected


def test_nothing_drafted_is_no_acceptance_of_zero() -> None:
    assert (Drafts(0, 0, 0).acceptance, Drafts(0, 0, 0).mean_length) == (None, None)
    assert Drafts(0, 0, 0).as_dict()["acceptance_at"] == []


def test_a_trend_is_of_drafted_tokens_and_not_of_time() -> None:
    trend = Trend().with_reading(Drafts(1, 1999, 1999)).with_reading(None)
    assert trend == Trend()
    trend = trend.with_reading(Drafts(500, 2000, 1500))
    assert (trend.last, trend.usual, trend.baseline) == (0.75, 0.75, (0.75,))

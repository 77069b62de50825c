# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils import _group_plan

GROUP = {"members": [{"rank": 0, "box": "spark-1"}, {"rank": 1, "box": "spark-2"}]}
BIG: dict[str, t.Any] = {"name": "big", "serving_group": GROUP, "max_num_seqs": 4}
SMALL: dict[str, t.Any] = {"name": "small"}


def plans(first: tuple[t.Any, t.Any], second: tuple[t.Any, t.Any]) -> dict[str, t.Any]:
    keys = ("kv_cache_memory_bytes", "gpu_memory_utilization")
    boxes = {"spark-1": first, "spark-2": second}
    return {box: {"instances": {"big": dict(zip(keys, one, strict=True))}} for box, one in boxes.items()}


def test_the_smallest_pool_of_all_ranks_is_that_of_every_rank() -> None:
    agreed = _group_plan.same_pools([BIG, SMALL], plans((30, 0.6), (20, 0.5)))
    assert agreed == [{**BIG, "kv_cache_memory_bytes": 20, "gpu_memory_utilization": 0.5}, SMALL]


def test_pool_and_fraction_are_the_smallest_each() -> None:
    (agreed,) = _group_plan.same_pools([BIG], plans((20, 0.6), (20, 0.5)))
    assert (agreed["kv_cache_memory_bytes"], agreed["gpu_memory_utilization"]) == (20, 0.5)


@pytest.mark.parametrize("found", [plans((20, 0.5), (20, 0.5)), plans((20, 0.5), (None, None)), {}])
def test_ranks_that_agree_and_groups_that_are_not_planned_are_left_alone(found: dict[str, t.Any]) -> None:
    assert _group_plan.same_pools([BIG, SMALL], found) == [BIG, SMALL]


@pytest.mark.parametrize(("size", "heads"), [(1, 3), (2, 0), (2, 4), (4, 64)])
def test_heads_that_can_be_dealt_out_are_no_finding(size: int, heads: int) -> None:
    checkpoint = {"geometry": {"attention_heads": heads}}
    assert not _group_plan.head_findings({"name": "big", "tensor_parallel_size": size}, checkpoint)


def test_heads_that_cannot_be_dealt_out_are_refused_with_what_can() -> None:
    checkpoint = {"geometry": {"attention_heads": 28}}
    (finding,) = _group_plan.head_findings({"name": "big", "tensor_parallel_size": 3}, checkpoint)
    assert (finding.id, finding.severity) == ("HEADS_NOT_DIVISIBLE", "error")
    assert "tensor_parallel_size 3 does not divide the model's 28 attention heads" in finding.message
    assert "Sizes that do: 1, 2, 4." in finding.remedy

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


FULL = {"kind": "full_attention", "kv_heads": 8, "count": 20}
# Latent attention keeps one head for all; recurrent layers keep none.
LATENT, RECURRENT = {"kind": "latent_attention", "count": 61}, {"kind": "gated_delta_net", "count": 36}


@pytest.mark.parametrize(
    ("tensor", "pipeline", "geometry"),
    [
        (1, 1, {"attention_heads": 3}),
        (2, 1, {}),
        (2, 1, {"attention_heads": 4}),
        (4, 1, {"attention_heads": 64, "layers": [FULL]}),
        (16, 1, {"attention_heads": 64, "layers": [FULL]}),  # each KV head is on two ranks
        (4, 1, {"attention_heads": 64, "layers": [LATENT]}),
        (2, 2, {"attention_heads": 32, "layers": [{**FULL, "kv_heads": 2}, RECURRENT]}),
        (1, 3, {"attention_heads": 28, "layers": [FULL]}),
    ],
)
def test_a_model_that_can_be_dealt_out_is_no_finding(tensor: int, pipeline: int, geometry: dict[str, t.Any]) -> None:
    instance = {"name": "big", "tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    assert not _group_plan.layout_findings(instance, {"geometry": geometry})


def test_heads_that_cannot_be_dealt_out_are_refused_with_what_can() -> None:
    checkpoint = {"geometry": {"attention_heads": 28}}
    (finding,) = _group_plan.layout_findings({"name": "big", "tensor_parallel_size": 3}, checkpoint)
    assert (finding.id, finding.severity) == ("HEADS_NOT_DIVISIBLE", "error")
    assert finding.message == "tensor_parallel_size 3 does not divide the 28 attention heads of the model."
    assert finding.remedy == "Use one of 1, 2, 4, and pipeline_parallel_size for the rest."


def test_kv_heads_and_layers_that_cannot_be_dealt_out_are_refused() -> None:
    geometry = {"attention_heads": 48, "layers": [{**FULL, "kv_heads": 6}, {**FULL, "kv_heads": 4, "count": 1}]}
    instance = {"name": "big", "tensor_parallel_size": 4, "pipeline_parallel_size": 22}
    found = _group_plan.layout_findings(instance, {"geometry": geometry})
    assert [one.id for one in found] == ["KV_HEADS_NOT_DIVISIBLE", "LAYERS_FEWER_THAN_STAGES"]
    assert "the 6 KV heads" in found[0].message

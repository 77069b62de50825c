# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which layers, weights and cache each stage of a pipeline has.

fixtures/kv_pipeline.json is what get_kv_cache_configs and get_pp_indices of vLLM 0.32.0 say (run on 2026-11-30, no code
of theirs replaced): models of full (F) and sliding-window (S) layers with 8 KV heads of 128, 2 bytes, and maybe one
more full layer on the last stage; how many blocks all stages have, and the bytes that each one holds, every stage given
kv_bytes.
"""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import ModelGeometry
from ansible_collections.gb10.fleet.plugins.module_utils._model_layers import (
    Attention,
    Layer,
    NoCache,
    count_layers,
    order_of,
)
from ansible_collections.gb10.fleet.plugins.plugin_utils import _pipeline as pipeline
from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_cache import KvFit, KvLayout, KvRequest, kv_layout

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
ROWS: list[dict[str, t.Any]] = json.loads((FIXTURES / "kv_pipeline.json").read_text(encoding="utf-8"))
FULL, WINDOW = Attention(8, 128, 128), Attention(8, 128, 128, window=1024)


def layout(pattern: str, stages: int, stage: int = 0, draft: int = 0, *, ordered: bool = True) -> KvLayout:
    """Return the cache of a stage of a model whose layers are spelt as a pattern of F, S and - (no cache)."""
    kinds: dict[str, Layer] = {"F": FULL, "S": WINDOW, "-": NoCache()}
    layers = [kinds[one] for one in pattern]
    counts = count_layers(layers)
    geometry = ModelGeometry(
        "Example",
        "example",
        counts,
        count_layers([FULL]),
        order_of(layers, counts) if ordered else (),
        attention_heads=8,
    )
    request = KvRequest(
        "0.32.0",
        4096,
        num_speculative_tokens=draft,
        stage_layers=pipeline.partition(len(pattern), stages) if stages > 1 else (),
        stage=stage,
    )
    return kv_layout(geometry, request)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{len(row['pattern'])} layers, {len(row['held'])} stages")
def test_every_stage_holds_what_vllm_gives_it(row: dict[str, t.Any]) -> None:
    stages = len(row["held"])
    every = [layout(row["pattern"], stages, stage, row["draft"]) for stage in range(stages)]
    for one in every:
        found = one.fit(row["kv_bytes"])
        assert isinstance(found, KvFit)
        assert found.num_blocks == row["num_blocks"]
    assert [one.held(row["kv_bytes"]) for one in every] == [
        # Without a pipeline vLLM's last bytes, which make no block, are not asked back.
        held if stages > 1 else row["kv_bytes"]
        for held in row["held"]
    ]


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (61, 2, (31, 30)),
        (61, 4, (15, 15, 16, 15)),
        (62, 4, (15, 16, 16, 15)),
        (63, 4, (16, 16, 16, 15)),
        (94, 3, (31, 32, 31)),
        (95, 3, (32, 32, 31)),
        (36, 3, (12, 12, 12)),
        (4, 4, (1, 1, 1, 1)),
    ],
)
def test_layers_that_are_left_over_go_to_the_middle(layers: int, stages: int, expected: tuple[int, ...]) -> None:
    assert pipeline.partition(layers, stages) == expected
    assert [pipeline.stages_of(expected).count(stage) for stage in range(stages)] == list(expected)


def test_layers_dealt_out_by_hand() -> None:
    assert pipeline.partition(61, 2, "33,28") == (33, 28)
    for wrong in ("33,27", "61", "a,b", "20,20,21", "62,-1", "33,28,"):
        with pytest.raises(pipeline.PartitionError):
            pipeline.partition(61, 2, wrong)


def test_layers_without_a_cache_count_as_layers() -> None:
    # The cache is on the second stage alone.
    first, second = (layout("----FFFF", 2, stage) for stage in (0, 1))
    assert first.bytes_per_block == second.bytes_per_block == second.own_bytes_per_block
    assert (first.held(1 << 30), first.own_bytes_per_block) == (0, 0)
    assert first.from_own(1 << 30) > 0


def test_without_the_order_of_the_layers_each_rank_is_taken_to_hold_them_all() -> None:
    unknown, known = layout("SF" * 12, 2, ordered=False), layout("SF" * 12, 2)
    assert (unknown.stages, unknown.held(1 << 30)) == ((), 1 << 30)
    assert unknown.bytes_per_block == 2 * known.bytes_per_block
    # Layers that are all alike are in order whatever is written.
    assert layout("F" * 24, 2, ordered=False).stages == layout("F" * 24, 2).stages != ()


def test_the_largest_cache_of_a_stage_is_never_more_than_there_is_room_for() -> None:
    for stage in range(3):
        one = layout("F" * 61, 3, stage)
        for room in (0, 1, one.own_bytes_per_block, (10 << 30) + 12345):
            assert one.held(one.from_own(room)) <= room < one.held(one.from_own(room)) + one.own_bytes_per_block


PARTS = {"embedding": 100, "lm_head": 90, "draft": 40, "multimodal": 5, "experts": 0}


@pytest.mark.parametrize(
    ("tied", "drafts", "expected"),
    [
        (False, False, (10 + 20 + 107, 30 + 40 + 7, 50 + 90 + 40 + 7)),
        (False, True, (137, 77, 187 + 100)),  # a drafter has a table of embeddings of its own
        (True, False, (137, 77, 187 + 100)),  # the head is the table of embeddings
    ],
)
def test_embeddings_are_on_the_first_stage_and_the_head_on_the_last(
    tied: bool, drafts: bool, expected: tuple[int, ...]
) -> None:
    layers = [10, 20, 30, 40, 50]
    # 5 of the tower and 2 that have no place are taken to be everywhere.
    parts = pipeline.WeightParts.read(layers, PARTS, sum(layers) + 235 + 2, tied=tied)
    counts = pipeline.partition(5, 3)
    assert counts == (2, 2, 1)
    assert tuple(parts.of_stage(counts, stage, drafts=drafts) for stage in range(3)) == expected
    assert sum(parts.of_stage(counts, stage, drafts=False) for stage in range(3)) >= sum(layers) + 237

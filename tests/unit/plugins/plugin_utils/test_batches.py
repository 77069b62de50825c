# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils import _batches

BOXES = ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize(
    ("together", "wanted", "order", "sizes"),
    [
        ([], [1, "100%"], "abcdef", (1, 5)),
        ([["b", "e"]], [1, "100%"], "abecdf", (1, 5)),
        ([["a", "d"]], [1, "100%"], "adbcef", (2, 4)),
        ([["d", "a"]], [1, "100%"], "dabcef", (2, 4)),
        ([["b", "c", "d"]], [2], "abcdef", (1, 3, 2)),
        ([["a", "b"], ["c", "d"], ["e", "f"]], [1], "abcdef", (2, 2, 2)),
        ([["a", "b"], ["c", "d"]], [3], "abcdef", (2, 3, 1)),
        ([], 2, "abcdef", (2, 2, 2)),
        ([], ["50%"], "abcdef", (3, 3)),
        ([], ["1%"], "abcdef", (1, 1, 1, 1, 1, 1)),
        ([], ["2"], "abcdef", (2, 2, 2)),
        ([["a", "z"]], [1, "100%"], "abcdef", (1, 5)),
    ],
)
def test_boxes_are_dealt_out_and_what_belongs_together_stays_together(
    together: list[list[str]], wanted: object, order: str, sizes: tuple[int, ...]
) -> None:
    assert _batches.batches(BOXES, together, wanted) == _batches.Batches(tuple(order), sizes)


@pytest.mark.parametrize(
    ("together", "forks", "sizes"),
    [([["e", "f"]], 5, (1, 5)), ([["e", "f"]], 3, (1, 3, 2)), ([["e", "f"]], 2, (1, 2, 1, 2)), ([], 2, (1, 5))],
)
def test_no_rank_is_left_over_for_when_ansible_has_a_hand_free(
    together: list[list[str]], forks: int, sizes: tuple[int, ...]
) -> None:
    assert _batches.batches(BOXES, together, forks=forks).sizes == sizes


def test_a_group_that_ansible_cannot_start_at_once_is_refused_with_what_would_do() -> None:
    with pytest.raises(_batches.BatchError, match=r"a, b, c are ranks of one engine .* run it with --forks 3"):
        _batches.batches(BOXES, [["a", "b", "c"]], forks=2)


def test_no_boxes_are_no_batches() -> None:
    assert _batches.batches([], []) == _batches.Batches((), ())


@pytest.mark.parametrize("wanted", [[], [0], ["half"], [True], [None], {}, [-1], ["1000%"], [1, "150%"]])
def test_what_is_no_size_is_refused(wanted: t.Any) -> None:
    with pytest.raises(_batches.BatchError, match=r"fleet_batches: .* write numbers of boxes or shares"):
        _batches.batches(BOXES, [], wanted)

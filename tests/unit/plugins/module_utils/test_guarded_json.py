# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import (
    JsonError,
    integer,
    load_object,
    mapping,
    shown,
    strings,
)


def test_an_object_is_read() -> None:
    # vLLM's own configs hold Infinity (Nemotron's time_step_limit).
    assert load_object(b'{"a": [1, Infinity]}', max_containers=2) == {"a": [1, float("inf")]}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not valid JSON"),
        (b"[]", "a list where an object is expected"),
        (b"7", "a int where an object is expected"),
        (b'{"a": [[]]}', "3 lists and objects"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not valid JSON"),
    ],
)
def test_anything_else_is_refused_with_a_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(JsonError, match=reason):
        load_object(raw, max_containers=2)


def test_keys_that_appear_twice_are_refused_only_on_request() -> None:
    raw = b'{"a": 1, "a": 2}'

    assert load_object(raw, max_containers=1) == {"a": 2}
    with pytest.raises(JsonError, match="twice"):
        load_object(raw, max_containers=1, unique_keys=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("plain", "plain"), ("a\nb\x1b[2J", "a?b?[2J"), ("x" * 9, "xxxxxxxx..."), (None, "None")],
)
def test_names_are_made_safe_to_print(text: object, expected: str) -> None:
    assert shown(text, 8) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(7, 7), (0, 0), (-1, None), (True, None), ("7", None), (1.0, None), (1 << 60, None), (None, None)],
)
def test_integers_are_whole_and_not_absurd(value: object, expected: int | None) -> None:
    assert integer(value) == expected


def test_shapes_that_are_not_there_are_empty() -> None:
    assert mapping([1]) == {}
    assert strings(["a", 1, None, "b"]) == ("a", "b")
    assert strings("a") == ("a",)
    assert strings({"a": 1}) == ()

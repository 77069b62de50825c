# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._name_patterns import (
    Budget,
    NamePatterns,
    PatternError,
    Style,
    compile_guarded,
)

LAYER = "model.layers.1.mlp.gate_proj"


@pytest.mark.parametrize(
    ("style", "entry", "name", "expected"),
    [
        ("compressed-tensors", "lm_head", "lm_head", True),
        ("compressed-tensors", "lm_head", "model.lm_head", False),
        ("compressed-tensors", r"re:.*mlp\.(gate|up)_proj$", LAYER, True),
        ("compressed-tensors", r"re:mlp", LAYER, False),
        ("compressed-tensors", "model.layers.1*", LAYER, False),
        ("modelopt", "model.layers.1*", LAYER, True),
        ("modelopt", "model.layers.1.*", LAYER, True),
        ("modelopt", "model.layers.1.*", "model.layers.10.mlp.gate_proj", False),
        ("modelopt", "*.mlp.*", LAYER, True),
        ("modelopt", "model.layers.1", LAYER, True),
        ("modelopt", "model.layers.1", "model.layers.10.mlp.gate_proj", False),
        ("modelopt", "mlp.gate", LAYER, False),
        ("modelopt", "vision_tower", "vision_tower.blocks.0.qkv", True),
        ("plain", "model.layers.*.self_attn", "model.layers.7.self_attn.q_proj", True),
        ("plain", "model.layers.*.self_attn", LAYER, False),
        ("plain", "gate_proj", LAYER, True),
        ("substring", "gate", LAYER, True),
        ("substring", "router", LAYER, False),
    ],
)
def test_lists_match_as_their_tools_mean_them(style: Style, entry: str, name: str, expected: bool) -> None:
    assert NamePatterns.read([entry], style).names([name], Budget()) is expected


def test_any_of_several_names_will_do() -> None:
    patterns = NamePatterns.read(["model.layers.1.mlp.gate_up_proj"], "modelopt")

    assert patterns.names([LAYER, "model.layers.1.mlp.gate_up_proj"], Budget())


def test_a_class_of_modules_is_no_name() -> None:
    patterns = NamePatterns.read(["Linear"], "compressed-tensors")

    assert patterns.linear
    assert patterns
    assert not patterns.names([LAYER], Budget())
    assert not NamePatterns()


@pytest.mark.parametrize(
    "pattern",
    [
        r".*self_attn.*",
        r".*layers\.(56|57|58)\.mlp.*",
        r"^(?!.*experts).*_proj$",
        r"model\.layers\.[0-9]{1,2}\..*",
        r".*\.(?:q|k|v)_proj",
        r"(?:visual|audio).*",
        r".*[*+]+x",
    ],
)
def test_patterns_of_real_checkpoints_are_run(pattern: str) -> None:
    assert isinstance(compile_guarded(pattern), re.Pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a*)*b",
        r"(a+)+$",
        r"(?:a|aa)+$",
        r"(x+x+)+y",
        r"((ab)*c)*d",
        r"(.*a){20}",
        r"(a{1,9}){1,9}b",
        r".*a.*b.*c.*d.*e.*f.*g",
        r"([^\]]*)*z",
        r"x" * 3_000,
        r"(unbalanced",
        r"*",
        r"(?P<a>x)(?P<a>y)",
    ],
)
def test_patterns_that_are_not_safe_or_not_valid_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match="pattern"):
        compile_guarded(pattern)


def test_refused_patterns_are_kept_for_the_report_and_the_rest_still_works() -> None:
    patterns = NamePatterns.read(["re:(a*)*b", "lm_head", "re:.*x"], "compressed-tensors")

    assert len(patterns.refused) == 1
    assert "(a*)*b" in patterns.refused[0]
    assert patterns.names(["lm_head"], Budget())
    assert patterns.names(["matrix"], Budget())


@pytest.mark.parametrize("entry", ["*a*b*c*d*e*f*g", "*" + "x" * 3_000])
def test_costly_wildcards_are_refused(entry: str) -> None:
    assert NamePatterns.read([entry], "modelopt").refused


def test_time_is_bounded() -> None:
    ticks: t.Iterator[float] = iter([0.0, 19.0, 21.0])
    budget = Budget(20.0, clock=lambda: next(ticks))
    patterns = NamePatterns.read(["re:.*y"], "compressed-tensors")

    assert not patterns.names(["x"], budget)
    with pytest.raises(PatternError, match="too long"):
        patterns.names(["x"], budget)

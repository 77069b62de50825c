# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filter vllm_args."""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.filter.vllm_args import FilterModule

vllm_args = FilterModule().filters()["vllm_args"]


def test_words() -> None:
    assert vllm_args({"vllm": "0.33.0", "checkpoint": {"repo": "a/b"}, "port": 8001}) == ["a/b", "--port", "8001"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("x", "an instance is a mapping"),
        ({}, "says which vllm: it is for"),
        ({"vllm": "0.33.0", "args": {"swap_space": 4}}, "gb10.fleet.vllm_args: vLLM 0.33.0 has no flag --swap-space"),
    ],
)
def test_one_sentence(value: t.Any, says: str) -> None:
    with pytest.raises(AnsibleFilterError, match=says):
        vllm_args(value)

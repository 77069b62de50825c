# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filter lint_vllm_args."""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.filter.lint_vllm_args import FilterModule

lint_vllm_args = FilterModule().filters()["lint_vllm_args"]


def test_an_instance() -> None:
    answer = lint_vllm_args({"vllm": "0.24.0", "env": {"VLLM_NVFP4_GEMM_BACKEND": "marlin"}, "max_num_seqs": 8})
    assert (answer["parses"], answer["release"], answer["exact"]) == (True, "0.24.0", True)
    assert [finding["id"] for finding in answer["findings"]] == ["ENV_REMOVED"]


def test_words() -> None:
    answer = lint_vllm_args(["--linear-backend", "flashinfer-b12x"], "0.22.0")
    assert answer["parses"] is False
    assert answer["findings"][0]["remedy"].startswith("vLLM 0.24.0 to 0.33.0 take it")


@pytest.mark.parametrize(
    ("value", "more", "says"),
    [
        ({"max_num_seqs": 8}, (), "does not say which vllm: it is for"),
        (["--seed", "1"], (), "a list of words and the version"),
        ("--seed 1", ("0.33.0",), "a list of words and the version"),
    ],
)
def test_one_sentence(value: t.Any, more: tuple[str, ...], says: str) -> None:
    with pytest.raises(AnsibleFilterError, match=says):
        lint_vllm_args(value, *more)

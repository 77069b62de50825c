# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gb10.fleet.plugins.filter import memory_plan, memory_plan_text
from ansible_collections.gb10.fleet.plugins.plugin_utils._memory_plan import plan_memory

BOX = {"total_bytes": 120 << 30, "available_bytes": 110 << 30}
INSTANCE: dict[str, t.Any] = {
    "name": "tiny",
    "vllm": "0.28.0",
    "config": {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "weights_bytes": 1 << 30,
    "max_model_len": 4096,
    "max_num_seqs": 4,
}


def test_filters_are_named_as_their_files() -> None:
    assert list(memory_plan.FilterModule().filters()) == ["memory_plan"]
    assert list(memory_plan_text.FilterModule().filters()) == ["memory_plan_text"]


def test_passes_options_on() -> None:
    plan = memory_plan.memory_plan(BOX, [INSTANCE], host_reserve_bytes=5 << 30, cap=0.5)
    assert plan == plan_memory(BOX, [INSTANCE], host_reserve_bytes=5 << 30, cap=0.5)
    assert plan["box"]["numbers"]["cap"]["value"] == 60 << 30


def test_errors_name_the_filter() -> None:
    with pytest.raises(AnsibleFilterError, match=r"gb10\.fleet\.memory_plan: instances is not a list"):
        memory_plan.memory_plan(BOX, INSTANCE)
    with pytest.raises(AnsibleFilterError, match=r"gb10\.fleet\.memory_plan: box_memory: total_bytes is missing"):
        memory_plan.memory_plan({}, [])
    with pytest.raises(AnsibleFilterError, match=r"gb10\.fleet\.memory_plan_text: this is no plan"):
        memory_plan_text.memory_plan_text({})


def test_text_of_a_plan() -> None:
    text = memory_plan_text.memory_plan_text(memory_plan.memory_plan(BOX, [INSTANCE]))
    assert text.startswith("box: 120.00 GiB, fits\n[")

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib
import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader

from ansible_collections.gb10.fleet.plugins.filter import fabric_plan
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_plan import plan_fabric


def test_filter_is_named_as_its_file() -> None:
    assert list(fabric_plan.FilterModule().filters()) == ["fabric_plan"]


def test_passes_options_on() -> None:
    fabric = {"members": ["a", "b"]}
    layout = {"tensor_parallel_size": 4}

    assert fabric_plan.fabric_plan(fabric, {}, {"a": "10.0.0.1"}, layout) == plan_fabric(fabric, {}, {}, layout)


def test_a_problem_is_one_sentence_with_file_key_and_remedy(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "fabric.yml"
    path.write_text("---\nfabric:\n  members: [spark-1, spark-2]\n  subnets:\n    - 10.1.0.0/24\n    - 10.1.0.0/24\n")
    fabric = DataLoader().load_from_file(str(path))["fabric"]

    with pytest.raises(AnsibleFilterError) as error:
        fabric_plan.fabric_plan(fabric)

    message = str(error.value)
    assert message.startswith(
        f"{path}:6: fabric.subnets[1]: 10.1.0.0/24 overlaps with fabric.subnets[0] (10.1.0.0/24); "
    )
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["observed", "ansible_hosts", "layout"])
def test_arguments_of_the_wrong_kind(name: str) -> None:
    wrong: dict[str, t.Any] = {name: []}
    with pytest.raises(AnsibleFilterError, match=f"{name} is a list, not a mapping"):
        fabric_plan.fabric_plan({"members": ["a", "b"]}, **wrong)

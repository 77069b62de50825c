# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gb10.fleet.plugins.modules import nccl_info
from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_facts import nccl_ladder

TEXT = "# Collective test starting: all_reduce_perf\n# Avg bus bandwidth    : 10.2500 \n"


def run(arguments: dict[str, t.Any], capsys: pytest.CaptureFixture[str]) -> dict[str, t.Any]:
    """Run the module in this process, as its action plugin would, and return what it prints."""
    with patch_module_args({"ladder": nccl_ladder(), **arguments}), pytest.raises(SystemExit):
        nccl_info.main()
    return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))


def test_every_returned_value_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    result = run({"text": TEXT}, capsys)

    assert result.pop("changed") is False
    result.pop("invocation", None)
    assert set(result) == set(yaml.safe_load(nccl_info.RETURN))
    assert (result["verdict"], result["busbw_gbs"], result["collective"]) == ("bad", 10.25, "all_reduce")


def test_a_file_on_the_box(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.txt"
    path.write_text(TEXT)

    assert run({"path": str(path), "topology": "ring"}, capsys)["verdict"] == "good"
    assert "cannot be read: No such file" in run({"path": str(tmp_path / "no")}, capsys)["msg"]

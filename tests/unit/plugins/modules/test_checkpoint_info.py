# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import json
import typing as t

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gb10.fleet.plugins.module_utils._weight_scheme import SCHEMES
from ansible_collections.gb10.fleet.plugins.modules import checkpoint_info
from tests.unit.plugins.module_utils import checkpoint_builder as build

if t.TYPE_CHECKING:
    from pathlib import Path


def run(path: Path, capsys: pytest.CaptureFixture[str], *, check: bool = False) -> dict[str, t.Any]:
    """Run the module in this process and return what it prints."""
    with patch_module_args({"path": str(path), "_ansible_check_mode": check}), pytest.raises(SystemExit):
        checkpoint_info.main()
    return t.cast("dict[str, t.Any]", json.load(io.StringIO(capsys.readouterr().out)))


@pytest.mark.parametrize("check", [False, True])
def test_every_returned_value_is_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str], check: bool) -> None:
    build.write_json(tmp_path / "config.json", build.small_qwen3())
    build.write_shard(tmp_path / "model.safetensors", build.dense_tensors(build.plain))

    result = run(tmp_path, capsys, check=check)

    documented = yaml.safe_load(checkpoint_info.RETURN)
    assert result.pop("changed") is False
    result.pop("invocation", None)
    assert set(result) == set(documented)
    kinds = {"str": str, "dict": dict, "list": list, "int": int, "bool": bool}
    for name, value in result.items():
        assert value is None or isinstance(value, kinds[documented[name]["type"]]), name
    assert set(result["parts"]) == set(documented["parts"]["contains"])


def test_every_scheme_is_documented() -> None:
    text = " ".join(yaml.safe_load(checkpoint_info.RETURN)["scheme"]["description"])

    assert [scheme for scheme in SCHEMES if f"V({scheme})" not in text] == []


def test_what_is_no_checkpoint_fails_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path / "absent", capsys)

    assert result["failed"] is True
    assert result["msg"] == f"{tmp_path}/absent does not exist; give the directory that holds the checkpoint."

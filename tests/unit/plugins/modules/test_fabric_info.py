# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib
import re
import typing as t

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gb10.fleet.plugins.modules import fabric_info
from tests.unit.support import fabric_tree as tree

CHECKOUT = pathlib.Path(__file__).parents[4]


def run(arguments: dict[str, t.Any], capsys: pytest.CaptureFixture[str]) -> dict[str, t.Any]:
    """Run the module in this process and return what it prints."""
    with patch_module_args(arguments), pytest.raises(SystemExit):
        fabric_info.main()
    return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))


def test_every_returned_value_is_documented(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree.build(tmp_path, tree.spark())
    addresses = tree.ip_json({"enp1s0f0np0": ("192.168.100.11/24",), "enP2p1s0f0np0": ("192.168.101.11/24",)})
    result = run({"sysroot": str(tmp_path), "addresses": addresses, "kernel_log": ""}, capsys)

    documented = yaml.safe_load(fabric_info.RETURN)
    assert result.pop("changed") is False
    result.pop("invocation", None)
    assert set(result) == set(documented)
    assert result["verdict"] == "ready"
    described = " ".join(documented["ports"]["description"])
    for name in {*result["ports"][0], *result["ports"][0]["twins"][0]} - {"name", "cage", "paired_by", "twins"}:
        assert f"C({name})" in described, name


def test_texts_stand_for_another_box(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["rocep1s0f0 port 1 ==> enp1s0f0np0 (Up)\nroceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)\n"]
    result = run({"texts": texts}, capsys)

    assert (result["verdict"], [one["id"] for one in result["findings"]]) == ("faulty", ["TWIN_DOWN"])


def test_what_is_no_list_of_addresses(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run({"sysroot": str(tmp_path), "addresses": "[7]", "kernel_log": ""}, capsys)

    assert result["failed"]
    assert result["msg"].startswith(
        "The addresses of the box cannot be read: this is not what `ip -json address` prints"
    )


def test_a_folder_that_is_not_there_is_no_box_without_a_chip(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for sysroot, says in ((str(tmp_path / "no"), "there is no folder"), ("etc", "does not begin with /")):
        result = run({"sysroot": sysroot, "addresses": "[]", "kernel_log": ""}, capsys)
        assert result["failed"]
        assert says in result["msg"]


def test_every_finding_is_documented() -> None:
    text = (CHECKOUT / "docs/findings.md").read_text(encoding="utf-8")
    sources = [
        *(CHECKOUT / "plugins/module_utils").glob("_fabric*.py"),
        *(CHECKOUT / "plugins/module_utils").glob("_nccl*.py"),
        *(CHECKOUT / "plugins/plugin_utils").glob("_fabric*.py"),
    ]
    found = {name for path in sources for name in re.findall(r'(?:id=|_Sign\(\s+)"([A-Z0-9_]+)"', path.read_text())}

    assert len(found) > 45
    assert not [name for name in found if f"| {name} |" not in text]

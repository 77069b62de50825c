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

from ansible_collections.gb10.fleet.plugins.modules import driver_info
from tests.unit.plugins.module_utils.driver_builder import OLDER, RELEASE, VERSION, Box


@pytest.fixture
def box(tmp_path: pathlib.Path) -> Box:
    return Box(tmp_path)


def run(capsys: pytest.CaptureFixture[str], **arguments: t.Any) -> dict[str, t.Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        driver_info.main()
    answer: dict[str, t.Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_box_is_read_and_not_changed(capsys: pytest.CaptureFixture[str], box: Box) -> None:
    before = {path: path.stat().st_mtime_ns for path in box.root.rglob("*")}
    result = run(capsys, sysroot=str(box.root))
    assert (result["verdict"], result["changed"], result["msg"]) == ("good", False, "good, a reboot would be safe: yes")
    assert {path: path.stat().st_mtime_ns for path in box.root.rglob("*")} == before


def test_check_mode_does_the_same(capsys: pytest.CaptureFixture[str], box: Box) -> None:
    plain = run(capsys, sysroot=str(box.root))
    checked = run(capsys, sysroot=str(box.root), _ansible_check_mode=True)
    assert plain == checked


def keys_of(value: t.Any, documented: dict[str, t.Any], where: str = "") -> None:
    """Compare what is returned with what is documented, as deep as the documentation goes."""
    assert set(value) == set(documented), where
    for name, one in documented.items():
        inner = one.get("contains")
        if inner and value[name] is not None:
            for element in value[name] if isinstance(value[name], list) else [value[name]]:
                keys_of(element, inner, f"{where}.{name}")


def test_every_returned_value_is_documented(capsys: pytest.CaptureFixture[str], box: Box) -> None:
    box.packages({"nvidia-driver-580-open": "580.173.02-0ubuntu0.24.04.1"})
    box.write("/run/cdi/nvidia.yaml", f"kind: nvidia.com/gpu\n- hostPath: /usr/lib/libcuda.so.{VERSION}\n")
    result = run(capsys, sysroot=str(box.root))
    returned = {name: value for name, value in result.items() if name not in ("changed", "msg", "invocation")}
    keys_of(returned, yaml.safe_load(driver_info.RETURN))
    assert result["cdi"] == [{"path": "/run/cdi/nvidia.yaml", "versions": [VERSION], "current": True}]
    assert result["packages"]["versions"] == {"nvidia-driver-580-open": "580.173.02-0ubuntu0.24.04.1"}


def test_an_empty_root(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    result = run(capsys, sysroot=str(tmp_path))
    assert (result["verdict"], result["reboot"]["safe"], result["packages"]) == ("absent", "unknown", None)


def test_options_reach_the_verdict(capsys: pytest.CaptureFixture[str], box: Box) -> None:
    result = run(
        capsys,
        sysroot=str(box.root),
        kernels=[OLDER],
        next_kernel=OLDER,
        expected_kernel=RELEASE,
        expected_version="580.142",
        signers=["^Nobody$"],
    )
    found = {one["id"] for one in result["findings"]}
    assert {"KERNEL_NOT_PINNED", "DRIVER_NOT_PINNED", "DRIVER_MODULE_WRONG_KEY"} <= found
    assert result["reboot"]["kernel"] == OLDER


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"next_kernel": "../etc"}, "next_kernel: '../etc' is no release of a kernel; write what `uname -r` prints."),
        ({"next_kernel": ".."}, "next_kernel: '..' is no release"),
        ({"kernels": ["6.17", "a b"]}, "kernels: 'a b' is no release"),
        ({"expected_kernel": "*"}, "expected_kernel: '*' is no release"),
        ({"signers": ["("]}, "signers: '(' is no regular expression"),
    ],
)
def test_wrong_options(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, arguments: dict[str, t.Any], says: str
) -> None:
    result = run(capsys, sysroot=str(tmp_path), **arguments)
    assert result["failed"] is True
    assert says in result["msg"]

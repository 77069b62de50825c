# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gb10.fleet.plugins.modules import cubin_info
from ansible_collections.gb10.fleet.plugins.plugin_utils import _kernel_families
from tests.unit.plugins.module_utils import cubin_builder as build

MARLIN = "_ZN6marlin6MarlinILl1EEEvv"
SO = build.shared_object(build.fatbin(build.entry(build.cubin(120, "f", [MARLIN]), 120, "f", codec="zstd")))


def run(capsys: pytest.CaptureFixture[str], **arguments: t.Any) -> dict[str, t.Any]:
    with patch_module_args({**_kernel_families.load(), **arguments}), pytest.raises(SystemExit):
        cubin_info.main()
    answer: dict[str, t.Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    files = {
        "vllm/_C.abi3.so": SO,
        "vllm/_version.py": b"__version__ = version = '0.33.0'\n",
        "vllm-0.33.0.dist-info/METADATA": b"Name: vllm\nVersion: 0.33.0\n",
    }
    return build.wheel(tmp_path / "vllm-0.33.0.whl", files)


def test_a_wheel_is_judged(capsys: pytest.CaptureFixture[str], wheel: Path) -> None:
    result = run(capsys, paths=[str(wheel)], requires=["marlin_dense"])
    assert (result["verdict"], result["complete"], result["changed"]) == ("native", True, False)
    assert result["families"]["marlin_dense"] == "native"
    assert result["families"]["nvfp4_dense"] == "none"
    assert result["packages"]["vllm"]["stamp"] == "0.33.0"
    assert result["findings"] == []
    assert result["jit"]["possible"] is None


def test_every_returned_value_is_documented(capsys: pytest.CaptureFixture[str], wheel: Path) -> None:
    result = run(capsys, paths=[str(wheel)])
    documented = yaml.safe_load(cubin_info.RETURN)
    always = {name for name, one in documented.items() if one["returned"] == "success"}
    assert set(result) - {"changed", "msg", "invocation"} == always


def test_check_mode_does_the_same(capsys: pytest.CaptureFixture[str], wheel: Path) -> None:
    plain = run(capsys, paths=[str(wheel)])
    checked = run(capsys, paths=[str(wheel)], _ansible_check_mode=True)
    for result in (plain, checked):
        result.pop("invocation", None)
    assert plain == checked


def test_another_capability_gives_another_verdict(capsys: pytest.CaptureFixture[str], wheel: Path) -> None:
    result = run(capsys, paths=[str(wheel)], capability="9.0", requires=["marlin_dense"], expected_version="0.22.0")
    assert result["verdict"] == "none"
    assert [one["id"] for one in result["findings"]] == [
        "REQUIRED_KERNELS_MISSING",
        "KERNELS_NOT_LOADABLE",
        "VERSION_NOT_EXPECTED",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of the following is required: paths, image, container, archive"),
        ({"paths": ["/x"], "image": "x:1"}, "parameters are mutually exclusive: paths|image|container"),
        ({"paths": ["/no/such/path"]}, "paths: /no/such/path does not exist on this host"),
        ({"paths": ["/"], "capability": "new"}, "capability 'new' is not a compute capability: write it as 12.1"),
        ({"archive": "/no/such.tar"}, "archive /no/such.tar cannot be read"),
        ({"image": "../x"}, "image '../x' is no image reference"),
        ({"image": "x:1", "engine": "/no/such/docker"}, "/no/such/docker cannot be run on this host"),
        ({"container": "a b"}, "container 'a b' is no name or id of a container"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: dict[str, t.Any], message: str
) -> None:
    result = run(capsys, **arguments)
    assert result["failed"] is True
    assert result["msg"].startswith(message)
    assert "Traceback" not in result["msg"]


@pytest.mark.parametrize(
    ("image", "tags", "expected"),
    [
        ("vllm:v0.33.0", ["other:1"], "vllm:v0.33.0"),
        ("vllm@sha256:ab", ["vllm:v0.33.0"], "vllm:v0.33.0"),
        ("sha256:ab", ["vllm:v0.33.0"], "vllm:v0.33.0"),
        ("", ["vllm:v0.33.0"], "vllm:v0.33.0"),
        ("vllm@sha256:ab", [], ""),
    ],
)
def test_the_name_that_claims_a_version(image: str, tags: list[str], expected: str) -> None:
    assert cubin_info._tag(image, {"image": {"tags": tags}}) == expected

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _cubin, _cubin_report

TARGETS = {"12.1": {"target": "sm_121a", "cuda": "12.9"}}
ROW = {"path": "/x.so", "entries": 3}


def kernels(title: str, **numbers: t.Any) -> dict[str, t.Any]:
    empty = {"native": 0, "ptx": 0, "not_loadable": 0, "archs": {}, "files": [], "jit": False}
    return {"title": title, **empty, **numbers}


FOUND: dict[str, t.Any] = {
    "capability": "12.1",
    "complete": True,
    "verdict": "native",
    "families": {"nvfp4_moe": "none", "marlin_moe": "ptx", "mamba": "native", "flashinfer_moe": "none"},
    "kernels": {
        "nvfp4_moe": kernels("NVFP4 MoE", not_loadable=1, archs={"sm_120a": 1}),
        "marlin_moe": kernels("Marlin MoE", ptx=732, native=204, archs={"compute_80": 732}),
        "mamba": kernels("Mamba", native=200),
        "flashinfer_moe": kernels("FlashInfer MoE", jit=True),
    },
    "files": [ROW],
    "packages": {},
    "findings": [],
}


def report(changes: dict[str, t.Any] | None = None, **options: t.Any) -> dict[str, t.Any]:
    return _cubin_report.report({**copy.deepcopy(FOUND), **(changes or {})}, jit_targets=TARGETS, **options)


def ids(result: dict[str, t.Any]) -> dict[str, str]:
    return {one["id"]: one["severity"] for one in result["findings"]}


def tools(**versions: str) -> dict[str, t.Any]:
    return {"tools": {name: {"path": f"/bin/{name}", "version": version} for name, version in versions.items()}}


@pytest.mark.parametrize(
    ("changes", "possible", "reason"),
    [
        ({}, None, "files were checked, not an image"),
        (tools(), False, "there is no nvcc on PATH"),
        (tools(nvcc_off_path="13.0.88"), False, "nvcc is at /bin/nvcc_off_path but not on PATH"),
        (tools(nvcc="12.8.93"), False, "nvcc 12.8.93 does not know sm_121a, which CUDA 12.9 brought"),
        (tools(nvcc="12.9.86"), True, "nvcc 12.9.86 knows sm_121a"),
        (tools(nvcc="13.0.88"), True, "nvcc 13.0.88 knows sm_121a"),
        (tools(nvcc=""), None, "the version of /bin/nvcc could not be read"),
        ({**tools(nvcc="13.0.88"), "capability": "11.0"}, None, "it is not known what is compiled for capability 11.0"),
    ],
)
def test_whether_flashinfer_can_compile(changes: dict[str, t.Any], possible: bool | None, reason: str) -> None:
    result = report(changes)
    assert result["jit"]["possible"] is possible
    assert result["jit"]["reason"].startswith(reason)
    assert result["kernels"]["flashinfer_moe"]["jit"] is possible
    assert result["kernels"]["mamba"]["jit"] is False


@pytest.mark.parametrize(
    ("requires", "changes", "verdict", "missing"),
    [
        ([], {}, "native", False),
        (["mamba"], {}, "native", False),
        (["mamba", "marlin_moe"], {}, "ptx", False),
        (["mamba", "nvfp4_moe"], {}, "none", True),
        (["flashinfer_moe"], {}, "none", True),
        (["flashinfer_moe"], tools(nvcc="13.0.88"), "ptx", False),
        (["flashinfer_moe"], tools(nvcc="12.8.93"), "none", True),
        (["mamba"], {"families": {**FOUND["families"], "mamba": "unknown"}}, "unknown", True),
    ],
)
def test_the_verdict_is_the_weakest_of_what_is_required(
    requires: list[str], changes: dict[str, t.Any], verdict: str, missing: bool
) -> None:
    result = report(changes, requires=requires)
    assert result["verdict"] == verdict
    assert ("REQUIRED_KERNELS_MISSING" in ids(result)) is missing


def test_a_missing_family_names_what_would_do() -> None:
    finding = report(requires=["nvfp4_moe"])["findings"][0]
    assert finding["message"] == "NVFP4 MoE: required, and not there for 12.1"
    assert finding["evidence"] == "nvfp4_moe: sm_120a"
    assert finding["remedy"] == "Use another image, or the Marlin backend, which this one has (marlin_moe)."


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(_cubin.CubinError, match=r"^requires: nvfp4moe is no kernel family; known are nvfp4_moe"):
        report(requires=["nvfp4moe"])


def test_kernels_are_commented() -> None:
    assert ids(report()) == {"KERNELS_NOT_LOADABLE": "warning", "KERNELS_NEED_DRIVER_JIT": "info"}
    changed = copy.deepcopy(FOUND["kernels"])
    changed["mamba"]["block_scale"] = False
    assert ids(report({"kernels": changed}))["FP4_WITHOUT_BLOCK_SCALE"] == "warning"
    assert ids(report({"files": []}))["NO_GPU_CODE"] == "warning"


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        (tools(nvcc="13.0.88", triton_ptxas="12.8.93"), {}, {"PTXAS_TOO_OLD": "error"}),
        (tools(nvcc="13.0.88", triton_ptxas="12.9.86"), {}, {}),
        (tools(nvcc="13.2.10"), {"driver_cuda": "13.0"}, {"IMAGE_TOOLKIT_NEWER_THAN_DRIVER": "warning"}),
        (tools(nvcc="13.0.88"), {"driver_cuda": "13.0"}, {}),
        (tools(nvcc="13.0.88"), {}, {}),
        (tools(), {}, {"FLASHINFER_JIT_NOT_POSSIBLE": "info"}),
    ],
)
def test_compilers_are_commented(
    changes: dict[str, t.Any], options: dict[str, t.Any], expected: dict[str, str]
) -> None:
    plain = {"families": {"mamba": "native"}, "kernels": {"mamba": kernels("Mamba", native=200)}}
    assert ids(report({**plain, **changes}, **options)) == expected


@pytest.mark.parametrize(
    ("mine", "theirs", "checked", "severity"),
    [
        ("0.6.16.post3", "0.6.13", True, "error"),
        ("0.6.16.post3", "0.6.13", False, "warning"),
        ("0.7.4", "0.6.13", True, "warning"),
        ("0.6.13", "0.6.13", True, None),
    ],
)
def test_another_flashinfer_cubin_is_said(mine: str, theirs: str, checked: bool, severity: str | None) -> None:
    packages = {"flashinfer_python": {"version": mine}, "flashinfer_cubin": {"version": theirs}}
    changes = {"packages": packages, "flashinfer_version_check": checked}
    found = ids(report(changes, cubin_ignored_since="0.7.2"))
    assert found.get("FLASHINFER_CUBIN_VERSION_MISMATCH") == severity


def test_a_package_that_contradicts_itself_is_said() -> None:
    packages = {
        "vllm": {"version": "0.33.0", "stamp": "0.1.dev18498"},
        "torch": {"version": "2.11.0", "stamp": "2.11.0+cu130"},
    }
    found = ids(report({"packages": packages}, tag="vllm:v0.25.1"))
    assert found["VERSION_STAMP_MISMATCH"] == "warning"
    assert found["VERSION_STAMP_IMPLAUSIBLE"] == "error"
    assert "VERSION_NOT_EXPECTED" in ids(report({"packages": {"vllm": {"stamp": "0.22.0"}}}, expected_version="0.33.0"))


def test_what_an_image_says_is_taken_apart() -> None:
    odd = [{"id": "X", "message": "m" * 9000, "severity": "fatal", "surprise": 1}, {"severity": "warning"}]
    first, second, *_rest = report({"findings": odd})["findings"]
    assert (first["id"], first["severity"], len(first["message"])) == ("X", "error", 2000)
    assert (second["id"], second["severity"]) == ("", "warning")

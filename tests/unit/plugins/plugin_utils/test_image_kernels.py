# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checkpoint declares, vLLM selects, image delivers."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest
import yaml

from ansible_collections.gb10.fleet.plugins.plugin_utils import _expected_backend, _kernel_families
from ansible_collections.gb10.fleet.plugins.plugin_utils._image_kernels import judge

CHECKOUT = pathlib.Path(__file__).parents[4]
NATIVE = {"nvfp4_dense": "native", "nvfp4_moe": "native", "marlin_dense": "native", "marlin_moe": "native"}
# What docs/cubins.md says of vLLM 0.19.1: FP4 for sm_120a, which does not load on 12.1, and Marlin partly as PTX.
OLD = {"nvfp4_dense": "none", "nvfp4_moe": "none", "marlin_dense": "ptx", "marlin_moe": "ptx"}
NO_FLASHINFER = {"flashinfer_moe": "none", "flashinfer_fp4_gemm": "none"}
MOE = {"parts": {"experts": "nvfp4_w4a4", "dense": "nvfp4_w4a4"}}


def image(
    families: dict[str, str],
    *,
    jit: bool | None = True,
    packages: dict[str, dict[str, str]] | None = None,
    **more: t.Any,
) -> dict[str, t.Any]:
    """Return what cubin_info returns of an image."""
    every = {"flashinfer_moe": "none", "flashinfer_fp4_gemm": "none", **families}
    there = {"vllm": {"version": "0.32.0", "stamp": "0.32.0"}}
    there |= {name: {"version": "0.7.4"} for name in ("flashinfer_python", "flashinfer_cubin")}
    return {
        "capability": "12.1",
        "complete": True,
        "families": every,
        "kernels": {name: {"jit": jit if name.startswith("flashinfer") else False} for name in every},
        "files": [{"path": "_C.abi3.so", "entries": 4}],
        "packages": there if packages is None else packages,
        "tools": {},
        "jit": {"possible": jit, "reason": "there is no nvcc on PATH" if jit is False else ""},
        "image": {"tags": []},
        "findings": [],
        **more,
    }


def instance(**more: t.Any) -> dict[str, t.Any]:
    return {
        "name": "writer",
        "vllm": "0.32.0",
        "checkpoint": {"repo": "example/writer", "revision": "f" * 40},
        "image": {"name": "example/vllm", "reference": "example/vllm@sha256:1"},
        "served_model_name": ["writer"],
        "max_model_len": 4096,
        "max_num_seqs": 4,
        "port": 8000,
        "gpu_memory_utilization": 0.5,
        "args": {},
        "env": {},
        **more,
    }


def found(one: dict[str, t.Any], checkpoint: dict[str, t.Any], seen: dict[str, t.Any] | None) -> list[tuple[str, str]]:
    return [(finding.id, finding.severity) for finding in judge(one, checkpoint, seen).findings]


@pytest.mark.parametrize(
    ("families", "jit", "checkpoint", "expects", "findings"),
    [
        # A release of today with nvcc: FlashInfer compiles what it needs.
        (
            NATIVE,
            True,
            MOE,
            {"moe_backend": "FLASHINFER_CUTLASS", "linear_backend": "FlashInferCutlassNvFp4LinearKernel"},
            [],
        ),
        # The same, compiled before: no compiler is needed.
        (
            {**NATIVE, "flashinfer_moe": "native", "flashinfer_fp4_gemm": "native"},
            False,
            MOE,
            {"moe_backend": "FLASHINFER_CUTLASS", "linear_backend": "FlashInferCutlassNvFp4LinearKernel"},
            [],
        ),
        # Without either vLLM picks FlashInfer all the same, and dies at the first request.
        (
            NATIVE,
            False,
            MOE,
            {"moe_backend": "FLASHINFER_CUTLASS", "linear_backend": "FlashInferCutlassNvFp4LinearKernel"},
            [("KERNELS_CANNOT_BE_COMPILED", "error"), ("KERNELS_CANNOT_BE_COMPILED", "error")],
        ),
        # Whether it can compile is not known: nothing is claimed.
        (
            NATIVE,
            None,
            MOE,
            {"moe_backend": "FLASHINFER_CUTLASS", "linear_backend": "FlashInferCutlassNvFp4LinearKernel"},
            [],
        ),
        # Kernels for sm_120a: dense layers go on to the next that is there.
        (
            OLD,
            True,
            {"parts": {"dense": "nvfp4_w4a4"}},
            {"linear_backend": "FlashInferB12xNvFp4LinearKernel"},
            [("EXPECTED_BACKEND_FALLS_BACK", "warning")],
        ),
        # 16-bit activations: Marlin is right and no fault; as PTX it only takes its time.
        (NATIVE, True, {"parts": {"experts": "nvfp4_w4a16"}}, {"moe_backend": "MARLIN"}, []),
        (
            OLD,
            True,
            {"parts": {"experts": "int4_autoround", "dense": "int4_autoround"}},
            {"moe_backend": "MARLIN", "linear_backend": "MarlinLinearKernel"},
            [("KERNELS_NEED_DRIVER_JIT", "info"), ("KERNELS_NEED_DRIVER_JIT", "info")],
        ),
        # Nothing of what it could take is there.
        (
            {**NATIVE, "marlin_moe": "none"},
            True,
            {"parts": {"experts": "mxfp4"}},
            {},
            [("IMAGE_CANNOT_RUN_CHECKPOINT", "error")],
        ),
        # Triton compiles for itself.
        (
            dict.fromkeys(NATIVE, "none"),
            True,
            {"parts": {"experts": "fp8"}},
            {"moe_backend": ["TRITON", "FLASHINFER_CUTLASS"]},
            [],
        ),
        # Plain weights need none of these kernels, and of an unknown scheme nothing is known.
        (OLD, True, {"parts": {"dense": "bf16"}}, {}, []),
        (OLD, True, {"parts": {"dense": "unknown"}}, {}, []),
        (OLD, True, {}, {}, []),
    ],
)
def test_by_image_and_checkpoint(
    families: dict[str, str],
    jit: bool | None,
    checkpoint: dict[str, t.Any],
    expects: dict[str, t.Any],
    findings: list[tuple[str, str]],
) -> None:
    seen = image(families, jit=jit)
    assert dict(judge(instance(), checkpoint, seen).expects) == expects
    assert found(instance(), checkpoint, seen) == findings


def test_an_image_that_was_not_looked_at_is_trusted() -> None:
    answer = judge(instance(), MOE, None)
    assert answer.findings == ()
    assert answer.expects["moe_backend"] == "FLASHINFER_CUTLASS"


def test_what_the_model_role_expects_is_laid_over_it() -> None:
    one = instance(expects={"moe_backend": "MARLIN", "attention_backend": "TRITON_ATTN"})
    assert dict(judge(one, MOE, None).expects) == {
        "moe_backend": "MARLIN",
        "linear_backend": "FlashInferCutlassNvFp4LinearKernel",
        "attention_backend": "TRITON_ATTN",
    }


@pytest.mark.parametrize("packages", [{}, {"flashinfer_python": {"version": "0.7.4"}}])
def test_flashinfer_that_vllm_will_not_use_is_passed_over(packages: dict[str, dict[str, str]]) -> None:
    # Without flashinfer-cubin it asks for nvcc, and this image has none.
    seen = image(NATIVE, jit=False, packages={"vllm": {"version": "0.32.0", "stamp": "0.32.0"}, **packages})
    answer = judge(instance(), {"parts": {"experts": "nvfp4_w4a4"}}, seen)
    assert answer.expects["moe_backend"] == "VLLM_CUTLASS"
    (finding,) = answer.findings
    assert (finding.id, finding.severity) == ("EXPECTED_BACKEND_FALLS_BACK", "warning")
    assert "lacks the kernels of FLASHINFER_CUTLASS for 12.1" in finding.message


@pytest.mark.parametrize(
    ("args", "families", "jit", "says"),
    [
        ({"moe_backend": "cutlass"}, {**NATIVE, "nvfp4_moe": "none"}, True, "no nvfp4_moe that runs on 12.1"),
        ({"moe-backend": "flashinfer_cutlass"}, NATIVE, False, "no flashinfer_moe that runs on 12.1"),
        ({"moe_backend": "b12x"}, NATIVE, True, "no b12x that runs on 12.1"),
    ],
)
def test_a_backend_that_is_asked_for_has_to_be_there(
    args: dict[str, str], families: dict[str, str], jit: bool, says: str
) -> None:
    (finding,) = judge(instance(args=args), {"parts": {"experts": "nvfp4_w4a4"}}, image(families, jit=jit)).findings
    assert (finding.id, finding.severity) == ("FORCED_BACKEND_NOT_IN_IMAGE", "error")
    assert says in finding.message
    assert "set it to marlin, which the image has" in finding.remedy


def test_the_remedy_names_the_wheels_that_have_it() -> None:
    seen = image({**NATIVE, "marlin_moe": "none"})
    (finding,) = judge(instance(), {"parts": {"experts": "mxfp4"}}, seen).findings
    assert finding.remedy == "Use another image: vLLM 0.23.0 and newer has MARLIN (docs/cubins.md)."


def test_marlin_is_named_where_nothing_else_compiles() -> None:
    (finding,) = judge(instance(), {"parts": {"experts": "nvfp4_w4a4"}}, image(NATIVE, jit=False)).findings
    assert "Set moe_backend: marlin in args (the image has it)" in finding.remedy
    assert finding.evidence == "flashinfer_moe: there is no nvcc on PATH"


@pytest.mark.parametrize(
    ("more", "checkpoint", "expected"),
    [
        ({"files": [{"path": "_C.abi3.so", "entries": 0}]}, MOE, [("IMAGE_WITHOUT_GPU_CODE", "error")]),
        (
            {"complete": False, "findings": [{"id": "CUBIN_UNREADABLE", "severity": "error", "message": "cut off"}]},
            {},
            [("IMAGE_KERNELS_UNKNOWN", "warning")],
        ),
        ({"packages": {"vllm": {"stamp": "0.22.0"}}}, {}, [("VERSION_NOT_EXPECTED", "error")]),
        (
            {"packages": {"vllm": {"stamp": "0.32.0"}}, "image": {"tags": ["example/vllm:nightly"]}},
            {},
            [("STALE_IMAGE", "warning")],
        ),
    ],
)
def test_of_the_image_itself(
    more: dict[str, t.Any], checkpoint: dict[str, t.Any], expected: list[tuple[str, str]]
) -> None:
    assert found(instance(), checkpoint, image(NATIVE, **more)) == expected


@pytest.mark.parametrize(("env", "expected"), [({}, ["PTXAS_TOO_OLD"]), ({"TRITON_PTXAS_PATH": "/usr/bin/ptxas"}, [])])
def test_a_ptxas_that_the_model_role_replaces_is_no_fault(env: dict[str, str], expected: list[str]) -> None:
    too_old = {"id": "PTXAS_TOO_OLD", "severity": "error", "message": "too old", "evidence": "", "remedy": ""}
    seen = image(NATIVE, findings=[too_old])
    assert [finding.id for finding in judge(instance(env=env), {}, seen).findings] == expected


def test_since_when_the_wheels_are_native_is_what_the_table_says() -> None:
    rows = json.loads((CHECKOUT / "docs" / "cubins.json").read_text(encoding="utf-8"))
    wheels = [row for row in rows if row["wheel"].startswith("vllm-") and "aarch64" in row["wheel"]]
    wheels.sort(key=lambda row: [int(part) for part in row["stamp"].split("+")[0].split(".")[:3]])
    data = yaml.safe_load(pathlib.Path(_expected_backend.__file__).parent.joinpath("data/backends.yml").read_text())
    assert data["native_since"]
    for family, since in data["native_since"].items():
        first = next(row["stamp"] for row in wheels if row["families"][family]["verdict"] == "native")
        assert first == since


def test_the_table_of_backends_names_families_and_packages_that_exist() -> None:
    data = yaml.safe_load(pathlib.Path(_expected_backend.__file__).parent.joinpath("data/backends.yml").read_text())
    known = _kernel_families.load()
    families = {row["id"] for row in known["families"]}
    jit = {row["id"] for row in known["families"] if row.get("jit")}
    for name, kernel in data["kernels"].items():
        assert kernel.get("family", "nvfp4_moe") in families, name
        assert kernel.get("takes", "flashinfer_moe") in jit, name
    named = {
        name for rule in data["schemes"].values() for part in ("moe", "linear") for name in rule[part].get("only", ())
    }
    assert named <= set(data["kernels"])

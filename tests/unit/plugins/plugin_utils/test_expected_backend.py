# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kernels that a release picks on a GB10."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.plugin_utils._expected_backend import Kernels, expected_backends


@pytest.mark.parametrize(
    ("version", "scheme", "expects"),
    [
        (
            "0.22.0",
            "nvfp4_w4a4",
            {"moe_backend": "FLASHINFER_CUTLASS", "linear_backend": "FlashInferCutlassNvFp4LinearKernel"},
        ),
        (
            "0.33.0",
            "nvfp4_w4a4",
            {"moe_backend": "FLASHINFER_CUTLASS", "linear_backend": "FlashInferCutlassNvFp4LinearKernel"},
        ),
        ("0.32.0", "nvfp4_w4a16", {"moe_backend": "MARLIN", "linear_backend": "MarlinNvFp4LinearKernel"}),
        ("0.32.0", "int4_autoround", {"moe_backend": "MARLIN", "linear_backend": "MarlinLinearKernel"}),
        ("0.32.0", "mxfp4", {"moe_backend": "MARLIN"}),
        ("0.32.0", "fp8", {"moe_backend": ["TRITON", "VLLM_CUTLASS", "FLASHINFER_CUTLASS", "MARLIN"]}),
        ("0.32.0", "bf16", {}),
        ("0.32.0", None, {}),
        ("0.9.0", "nvfp4_w4a4", {}),
        ("0.10.2", "nvfp4_w4a4", {}),
    ],
)
def test_by_scheme_and_version(version: str, scheme: str | None, expects: dict[str, t.Any]) -> None:
    assert expected_backends(version, scheme).as_expects() == expects


def test_an_image_without_fp4_kernels_falls_to_marlin() -> None:
    families = {"nvfp4_dense": "none", "nvfp4_moe": "none", "marlin_dense": "native"}
    expected = expected_backends("0.22.0", "nvfp4_w4a4", kernels=Kernels(families))
    assert expected.linear.names == ("MarlinNvFp4LinearKernel",)
    assert expected.moe.names == ("FLASHINFER_CUTLASS",)


def test_b12x_is_next_for_dense_layers_from_0_28() -> None:
    families = {"nvfp4_dense": "none"}
    assert expected_backends("0.28.0", "nvfp4_w4a4", kernels=Kernels(families)).linear.names == (
        "FlashInferB12xNvFp4LinearKernel",
    )
    assert "stands in for 0.27.2.dev1" in expected_backends("0.27.2.dev1", "nvfp4_w4a4").moe.why


def test_a_forced_backend_is_expected() -> None:
    expected = expected_backends("0.32.0", "nvfp4_w4a4", flags={"moe_backend": "flashinfer_b12x"})
    assert expected.moe.names == ("FLASHINFER_B12X",)
    assert expected.moe.why == "--moe-backend flashinfer_b12x was given"
    assert expected_backends("0.32.0", "fp8", flags={"moe_backend": "no_such"}).moe.names == ()
    assert not expected_backends("0.32.0", "fp8").moe.is_certain

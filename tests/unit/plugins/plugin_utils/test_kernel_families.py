# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.gb10.fleet.plugins.module_utils import _cubin, _cubin_image
from ansible_collections.gb10.fleet.plugins.plugin_utils import _kernel_families

ROWS = yaml.safe_load(_kernel_families.TABLE.read_text(encoding="utf-8"))["families"]
FAMILIES = [_cubin.Family.from_dict(row) for row in _kernel_families.load()["families"]]
# One real device symbol for each family and some traps, with the file and the architecture that it came from.
SYMBOLS = json.loads((Path(__file__).parent / "fixtures/kernel_symbols.json").read_text(encoding="utf-8"))


def families_of(symbol: str, file: str, capability: int) -> list[str]:
    name = symbol.encode()
    return sorted(
        family.id
        for family in FAMILIES
        if family.lives_in(file)
        and any(
            all(text in name for text in need) and not any(text in name for text in avoid)
            for need, avoid in family.alternatives(capability) or ()
        )
    )


@pytest.mark.parametrize("row", SYMBOLS, ids=lambda row: f"{row['arch']}-{row['symbol'][:40]}")
def test_a_real_symbol_belongs_to_its_family(row: dict[str, t.Any]) -> None:
    assert families_of(row["symbol"], row["file"], 121) == row["families_12"]


@pytest.mark.parametrize("arch", ["Sm100", "Sm90"])
def test_a_kernel_written_for_another_architecture_is_no_evidence(arch: str) -> None:
    of_arch = [row for row in SYMBOLS if f"Mainloop{arch}" in row["symbol"]]
    assert [families_of(row["symbol"], row["file"], 121) for row in of_arch] == [[]] * len(of_arch)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("vllm/_C_stable_libtorch.abi3.so", ["nvfp4_dense"]),
        ("_C_stable_libtorch.abi3.so", ["nvfp4_dense"]),
        ("flashinfer/0.7.2/121a/cached_ops/fp4_gemm_cutlass_sm120/fp4_gemm_cutlass_sm120.so", ["flashinfer_fp4_gemm"]),
        ("flashinfer_jit_cache/jit_cache/fp4_gemm_cutlass_sm120/fp4_gemm_cutlass_sm120.so", ["flashinfer_fp4_gemm"]),
        ("torch/lib/libtorch_cuda.so", []),
    ],
)
def test_the_file_tells_whose_cutlass_kernel_it_is(file: str, expected: list[str]) -> None:
    symbol = next(row["symbol"] for row in SYMBOLS if row["families_12"] == ["nvfp4_dense"])
    assert families_of(symbol, file, 121) == expected


def test_every_family_is_dated_and_sourced_and_has_its_own_name() -> None:
    assert all(row["source"] and re.fullmatch(r"\d{4}-\d\d-\d\d", str(row["date"])) for row in ROWS)
    names = [row["id"] for row in ROWS]
    assert len(set(names)) == len(names)


def test_every_family_that_vllm_compiles_has_a_real_symbol() -> None:
    seen = {
        family for row in SYMBOLS for family in (*row["families_12"], *families_of(row["symbol"], row["file"], 100))
    }
    elsewhere = {"flashinfer_prefill", "flashinfer_decode", "flashinfer_moe", "flashinfer_fp4_gemm"}
    assert seen | elsewhere == {row["id"] for row in ROWS}


def test_the_table_fits_into_an_argument() -> None:
    data = _kernel_families.load()
    assert len(json.dumps(data, separators=(",", ":"))) < _cubin_image.MAX_REQUEST / 4
    assert set(data) == {"families", "packages", "jit_targets", "flashinfer_cubin_ignored_since"}

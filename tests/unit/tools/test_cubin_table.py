# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The published table says what the wheels had, and the page is what its facts render to."""

from __future__ import annotations

import json
import re
import typing as t

import pytest

from tools import cubin_equal, cubin_table

FACTS: list[dict[str, t.Any]] = json.loads(cubin_table.FACTS.read_text(encoding="utf-8"))
VLLM = {
    re.sub(r"^vllm-([\d.]+)-.*_(aarch64|x86_64)\.whl$", r"\1 \2", row["wheel"]): {
        name: facts["verdict"] for name, facts in row["families"].items()
    }
    for row in FACTS
    if row["wheel"].startswith("vllm-")
}
CUTLASS = ("nvfp4_dense", "nvfp4_moe", "fp8_dense", "fp8_blockwise")
MARLIN = ("marlin_dense", "marlin_moe")


def test_0_19_1_has_the_kernels_for_another_chip_only() -> None:
    assert [VLLM["0.19.1 aarch64"][family] for family in CUTLASS] == ["none"] * 4
    assert [VLLM["0.19.1 aarch64"][family] for family in MARLIN] == ["ptx"] * 2


@pytest.mark.parametrize("wheel", sorted(set(VLLM) - {"0.19.1 aarch64", "0.19.1 x86_64"}))
def test_every_later_wheel_has_them_and_marlin_since_0_23(wheel: str) -> None:
    marlin = "ptx" if tuple(map(int, wheel.split(maxsplit=1)[0].split("."))) < (0, 23) else "native"
    assert [VLLM[wheel][family] for family in CUTLASS] == ["native"] * 4
    assert [VLLM[wheel][family] for family in MARLIN] == [marlin] * 2
    assert (VLLM[wheel]["fa2"], VLLM[wheel]["fa3"], VLLM[wheel]["marlin_repack"]) == ("ptx", "none", "ptx")


def test_flashinfer_cubin_has_nothing_for_12_x() -> None:
    rows = [row for row in FACTS if row["wheel"].startswith("flashinfer_cubin")]
    archs = {arch for row in rows for file in row["files"] for arch in file["archs"]}
    assert archs == {"sm_100", "sm_100a", "sm_100f", "sm_103a"}
    assert sum(file["entries"] for row in rows for file in row["files"]) == 28_651


def test_every_row_is_dated_and_hashed() -> None:
    assert all(re.fullmatch(r"[0-9a-f]{64}", row["sha256"]) for row in FACTS)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]) for row in FACTS)
    assert len({row["sha256"] for row in FACTS}) == len(FACTS)


def test_the_page_is_what_the_facts_render_to(tmp_path: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "cubins.md"
    before = cubin_table.PAGE.read_text(encoding="utf-8")
    page.write_text(before, encoding="utf-8")
    monkeypatch.setattr(cubin_table, "PAGE", page)
    cubin_table.render()
    assert page.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (None, "-"),
        ({"verdict": "native", "native": 4, "ptx": 0, "archs": {}}, "**native** 4"),
        ({"verdict": "ptx", "native": 204, "ptx": 732, "archs": {}}, "ptx 732, native 204"),
        ({"verdict": "ptx", "native": 0, "ptx": 10, "archs": {}}, "ptx 10"),
        ({"verdict": "none", "native": 0, "ptx": 0, "archs": {"sm_120a": 4}}, "none (sm_120a)"),
    ],
)
def test_a_cell_says_the_verdict_and_its_number(facts: dict[str, t.Any] | None, expected: str) -> None:
    assert cubin_table.cell({"families": {"x": facts} if facts else {}}, "x") == expected


def test_the_full_listing_of_cuobjdump_is_read(tmp_path: t.Any) -> None:
    program = tmp_path / "cuobjdump"
    program.write_text(
        "#!/bin/sh\n"
        "printf '\\nFatbin ptx code:\\n====\\narch = sm_80\\ncode version = [9,0]\\nhost = linux\\ncompressed\\n'\n"
        "printf '\\nFatbin elf code:\\n====\\narch = sm_120f\\ncode version = [1,8]\\nhost = linux\\n'\n"
    )
    program.chmod(0o755)
    assert cubin_equal.by_cuobjdump(str(program), tmp_path) == [
        ("ptx", "sm_80", 9, 0, True),
        ("elf", "sm_120f", 1, 8, False),
    ]

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import os
import typing as t
import zipfile
from pathlib import Path

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _cubin
from tests.unit.plugins.module_utils import cubin_builder as build

FIXTURES = Path(__file__).parent / "fixtures" / "cubin"
SO = build.shared_object(build.fatbin(build.entry(build.cubin(120, "f", ["kernel"]), 120, "f", codec="zstd")))
FAMILY = {"id": "demo", "match": {"any": [{"all": ["kernel"]}]}}
STAMP = b"__version__ = version = '0.33.0'\n__commit_id__ = commit_id = 'g4ba787ec9'\n"
METADATA = b"Metadata-Version: 2.4\nName: vllm\nVersion: 0.33.0\n\nName: other\n"


def scan(path: Path, **request: t.Any) -> dict[str, t.Any]:
    return _cubin.scan_request({"families": [FAMILY], "paths": [str(path)], **request})


def ids(result: dict[str, t.Any]) -> list[str]:
    return [one["id"] for one in result["findings"]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    package = tmp_path / "site-packages" / "vllm"
    (package / "sub").mkdir(parents=True)
    (package / "_C.abi3.so").write_bytes(SO)
    (package / "sub" / "k.cubin").write_bytes(build.cubin(120, "a", ["kernel"]))
    (package / "sub" / "note.txt").write_bytes(SO)
    (package / "_version.py").write_bytes(STAMP)
    (package / "sub" / "version.py").write_bytes(b"__version__ = '9.9'\n")
    info = tmp_path / "site-packages" / "vllm-0.33.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(METADATA)
    return package


def test_a_tree_is_read_with_its_version(tree: Path) -> None:
    result = scan(tree)
    assert [Path(row["path"]).name for row in result["files"]] == ["_C.abi3.so", "k.cubin"]
    assert [row["verdict"] for row in result["files"]] == ["native", "none"]
    assert result["files"][0]["sha256"] == hashlib.sha256(SO).hexdigest()
    assert result["packages"] == {"vllm": {"stamp": "0.33.0", "commit": "g4ba787ec9", "version": "0.33.0"}}
    assert (result["complete"], result["verdict"], result["families"]) == (True, "native", {"demo": "native"})
    assert result["kernels"]["demo"]["archs"] == {"sm_120a": 1, "sm_120f": 1}


def test_links_are_not_followed_out_of_the_tree(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "evil.so").write_bytes(SO)
    (tree / "file.so").symlink_to(outside / "evil.so")
    (tree / "folder").symlink_to(outside)
    (tree / "inside.so").symlink_to(tree / "_C.abi3.so")
    result = scan(tree)
    assert not any("evil" in row["path"] for row in result["files"])
    assert ids(result) == ["CUBIN_LINK_OUTSIDE"] * 2
    assert not result["complete"]


def test_pipes_and_unreadable_files_do_not_hang_or_raise(tree: Path) -> None:
    os.mkfifo(tree / "pipe.so")
    (tree / "empty.cubin").write_bytes(b"")
    result = scan(tree)
    assert sorted(ids(result)) == ["CUBIN_TRUNCATED", "CUBIN_UNREADABLE"]


def test_many_bare_cubins_are_one_row(tmp_path: Path) -> None:
    for number in range(_cubin.ROLLUP + 1):
        (tmp_path / f"{number}.cubin").write_bytes(build.cubin(100, "a" if number % 2 else ""))
    result = scan(tmp_path)
    (row,) = result["files"]
    assert (row["path"], row["kind"], row["entries"], row["verdict"]) == (str(tmp_path), "cubins", 65, "none")
    assert row["archs"] == {"sm_100": 33, "sm_100a": 32}
    before = row["sha256"]
    (tmp_path / "0.cubin").write_bytes(build.cubin(100, "", ["other"]))
    assert scan(tmp_path)["files"][0]["sha256"] != before


def test_the_number_of_files_is_bounded(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cubin, "MAX_FILES", 1)
    assert "CUBIN_TOO_LARGE" in ids(scan(tree))


# ---- wheels

FILES = {"vllm/_C.abi3.so": SO, "vllm/_version.py": STAMP, "vllm-0.33.0.dist-info/METADATA": METADATA}


def test_a_wheel_is_read_without_unpacking(tmp_path: Path) -> None:
    wheel = build.wheel(tmp_path / "vllm.whl", FILES)
    result = scan(wheel)
    (row,) = result["files"]
    assert row["path"] == f"{wheel}/vllm/_C.abi3.so"
    assert row["sha256"] == hashlib.sha256(SO).hexdigest()
    assert result["packages"] == {"vllm": {"stamp": "0.33.0", "commit": "g4ba787ec9", "version": "0.33.0"}}
    assert (result["complete"], result["families"]) == (True, {"demo": "native"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vllm.whl"]


def test_a_large_member_goes_through_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cubin, "_SMALL", 100)
    result = scan(build.wheel(tmp_path / "vllm.whl", FILES))
    assert (result["complete"], result["families"]) == (True, {"demo": "native"})


def test_a_file_that_the_record_does_not_describe_is_said(tmp_path: Path) -> None:
    wheel = build.wheel(tmp_path / "x.whl", FILES, record={**FILES, "vllm/_C.abi3.so": SO + b"\0"})
    result = scan(wheel)
    assert ids(result) == ["CUBIN_MALFORMED"]
    assert "RECORD" in result["findings"][0]["message"]


def damaged(wheel: bytes, how: str) -> bytes:
    if how == "cut":
        return wheel[: len(wheel) // 2]
    if how == "flipped":
        return wheel[:200] + bytes([wheel[200] ^ 0xFF]) + wheel[201:]
    if how == "local header":
        return b"XX" + wheel[2:]
    if how == "directory":
        return wheel.replace(b"PK\1\2", rb"PK\9\9", 1)
    return wheel[:-22] + wheel[-22:-10] + b"\xff\xff\xff\x7f" + wheel[-6:]


@pytest.mark.parametrize(
    ("how", "finding"),
    [
        ("cut", "CUBIN_TRUNCATED"),
        ("flipped", "CUBIN_TRUNCATED"),
        ("local header", "CUBIN_MALFORMED"),
        ("directory", "CUBIN_MALFORMED"),
        ("huge directory", "CUBIN_TOO_LARGE"),
    ],
)
def test_a_damaged_wheel_is_said(tmp_path: Path, how: str, finding: str) -> None:
    wheel = build.wheel(tmp_path / "x.whl", FILES)
    wheel.write_bytes(damaged(wheel.read_bytes(), how))
    result = scan(wheel)
    assert finding in ids(result)
    assert not result["complete"]


def test_a_member_that_inflates_to_more_than_it_says_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cubin, "MAX_MEMBER", 1000)
    wheel = tmp_path / "bomb.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("bomb.so", bytes(50_000_000))
    assert ids(scan(wheel))[0] == "CUBIN_TOO_LARGE"


# ---- environments


@pytest.fixture
def root(tree: Path, tmp_path: Path) -> Path:
    site = tmp_path / "root/usr/local/lib/python3.12/dist-packages"
    site.parent.mkdir(parents=True)
    tree.parent.rename(site)
    (site / "unrelated").mkdir()
    (site / "unrelated" / "x.so").write_bytes(SO)
    cache = tmp_path / "root/home/me/.cache/flashinfer/0.7.2/121a/cached_ops/fused_moe_120"
    cache.mkdir(parents=True)
    (cache / "fused_moe_120.so").write_bytes(SO)
    tools = tmp_path / "root/usr/local/cuda/bin"
    tools.mkdir(parents=True)
    for name, text in (("nvcc", b"\x7fELF..Cuda compilation tools, release 12.8, V12.8.93\0"), ("ptxas", b"none")):
        (tools / name).write_bytes(text)
        (tools / name).chmod(0o755)
    return tmp_path / "root"


def environment(root: Path, **env: str) -> dict[str, t.Any]:
    found = _cubin.Scan("12.1", [_cubin.Family.from_dict(FAMILY)])
    packages = ["vllm", "flashinfer_*"]
    extra = _cubin.scan_environment(found, packages, str(root), {"HOME": "/home/me", **env})
    return {**found.result(), **extra}


def test_an_environment_is_its_packages_caches_and_compilers(root: Path) -> None:
    result = environment(root, PATH="/usr/bin:/usr/local/cuda/bin")
    assert [Path(row["path"]).name for row in result["files"]] == ["fused_moe_120.so", "_C.abi3.so", "k.cubin"]
    assert result["packages"]["vllm"]["version"] == "0.33.0"
    cuda = f"{root}/usr/local/cuda/bin"
    assert result["tools"] == {
        "nvcc": {"path": f"{cuda}/nvcc", "version": "12.8.93"},
        "ptxas": {"path": f"{cuda}/ptxas", "version": ""},
    }
    assert result["flashinfer_version_check"] is True


def test_a_compiler_off_path_is_told_apart(root: Path) -> None:
    result = environment(root, PATH="/usr/bin", FLASHINFER_DISABLE_VERSION_CHECK="1")
    assert list(result["tools"]) == ["nvcc_off_path"]
    assert result["flashinfer_version_check"] is False


def test_an_editable_install_is_found(root: Path, tmp_path: Path) -> None:
    site = root / "usr/local/lib/python3.12/dist-packages"
    (root / "src").mkdir()
    (site / "vllm").rename(root / "src/vllm")
    url = {"url": "file:///src", "dir_info": {"editable": True}}
    (site / "vllm-0.33.0.dist-info/direct_url.json").write_text(json.dumps(url))
    result = environment(root)
    assert f"{root}/src/vllm/_C.abi3.so" in [row["path"] for row in result["files"]]


def test_a_wrapper_script_leads_to_the_tool(root: Path, tmp_path: Path) -> None:
    wrapper = tmp_path / "nvcc"
    wrapper.write_text(f'#!/bin/sh\nexec {root}/usr/local/cuda/bin/nvcc "$@"\n')
    assert _cubin.tool_version(str(wrapper)) == "12.8.93"
    wrapper.write_text(f"#!/bin/sh\nexec {wrapper}\n")
    assert _cubin.tool_version(str(wrapper)) == ""

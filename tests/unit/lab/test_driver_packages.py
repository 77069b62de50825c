# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import gzip
import pathlib

import pytest

from lab.driver import modules, packages


@pytest.fixture
def built(tmp_path: pathlib.Path) -> pathlib.Path:
    """What compiling leaves behind, without the compiling."""
    (tmp_path / "keys").mkdir()
    for name in ("canonical", "build"):
        (tmp_path / "keys" / f"{name}.der").write_bytes(b"\x30\x82" + name.encode())
    return tmp_path


def names(suite: str, built: pathlib.Path) -> dict[str, packages.Deb]:
    return {deb.name: deb for deb in packages.suite(suite, built)}


def test_the_driver_depends_on_dkms_and_the_tracker_provides_it(built: pathlib.Path) -> None:
    found = names("factory", built)
    assert "nvidia-dkms-580-open (<= 580.142-1)" in found["nvidia-driver-580-open"].relations["Depends"]
    tracker = found["linux-modules-nvidia-580-open-nvidia-hwe-24.04"]
    assert tracker.relations["Provides"] == "nvidia-dkms-580-open (= 580.142-0ubuntu0.24.04.1)"


def test_the_modules_of_a_kernel_are_locked_to_kernel_and_driver(built: pathlib.Path) -> None:
    payload = names("current", built)[f"linux-modules-nvidia-580-open-{modules.NEW_KERNEL}"]
    wanted = "linux-image-6.17.0-1029-nvidia | linux-image-unsigned-6.17.0-1029-nvidia, "
    wanted += "nvidia-kernel-common-580 (<= 580.173.02-1), nvidia-kernel-common-580 (>= 580.173.02)"
    assert payload.relations["Depends"] == wanted


def test_a_drifted_suite_has_a_kernel_without_modules(built: pathlib.Path) -> None:
    found = names("drifted", built)
    assert f"linux-image-{modules.NEW_KERNEL}" in found
    assert f"linux-modules-nvidia-580-open-{modules.NEW_KERNEL}" not in found


def test_a_package_has_one_content_in_all_suites(built: pathlib.Path) -> None:
    found: dict[str, packages.Deb] = {}
    for suite in packages.SUITES:
        for deb in packages.suite(suite, built):
            assert found.setdefault(deb.file_name, deb) == deb


def test_a_kernel_image_has_the_header_of_arm64_and_its_certificates(built: pathlib.Path) -> None:
    image = gzip.decompress(packages.kernel_image(built / "keys"))
    assert image[0x38:0x3C] == b"ARM\x64"
    for name in ("canonical", "build"):
        assert (built / "keys" / f"{name}.der").read_bytes() in image


def test_an_index_names_each_package_with_its_digest(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pool").mkdir()
    deb = packages.Deb("a", "1", {"Depends": "b"})
    (tmp_path / "pool" / deb.file_name).write_bytes(b"content")
    text = packages.index([deb], tmp_path)
    assert "Package: a\nVersion: 1\n" in text
    assert "Depends: b\n" in text
    assert "Filename: pool/a_1_all.deb\nSize: 7\nSHA256: ed7002b439e9ac845f22357d822bac14" in text

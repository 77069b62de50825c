# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lab.hosts import Contents, cgroups

if TYPE_CHECKING:
    from pathlib import Path


def test_cgroup_version_1(tmp_path: Path) -> None:
    found = cgroups(tmp_path)
    assert found.options["cgroupns"] == "host"
    assert found.arguments == ["systemd.unified_cgroup_hierarchy=0"]
    assert found.environment == {"SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE": "1"}


def test_cgroup_version_2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    found = cgroups(tmp_path)
    assert found.options == {"cgroupns": "private"}
    assert found.arguments == []
    assert found.environment == {}


def test_a_host_is_made_anew_when_any_part_changes(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("one")
    contents = Contents(
        image="image:1",
        registry=tmp_path / "registry-1",
        seed_metadata=tmp_path / "seed-1/docker",
        seed_layer=tmp_path / "seed-1/layer",
        seed_mount="overlay2/x/diff",
        models=tmp_path / "models-1",
        public_key="ssh-ed25519 AAAA",
        host_key=key,
    )
    keys = {contents.key}
    changed = [
        dataclasses.replace(contents, image="image:2"),
        dataclasses.replace(contents, registry=tmp_path / "registry-2"),
        dataclasses.replace(contents, seed_metadata=tmp_path / "seed-2/docker"),
        dataclasses.replace(contents, models=tmp_path / "models-2"),
        dataclasses.replace(contents, public_key="ssh-ed25519 BBBB"),
    ]
    keys |= {other.key for other in changed}
    key.write_text("two")
    keys.add(contents.key)
    assert len(keys) == 7

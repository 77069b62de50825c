# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.models import add_to_cache, revision_of

if TYPE_CHECKING:
    from pathlib import Path


def test_revision_depends_on_names_and_contents_only() -> None:
    one = revision_of({"a": "1", "b": "2"})
    assert one == revision_of({"b": "2", "a": "1"})
    assert one != revision_of({"a": "1", "b": "3"})
    assert one != revision_of({"a": "1", "c": "2"})
    assert len(one) == 40


def test_cache_is_laid_out_as_the_client_does_it(tmp_path: Path) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(b"weights")
    revision = add_to_cache(tmp_path / "hub", "coordinator", source)
    repository = tmp_path / "hub/models--gb10-lab--coordinator"
    snapshot = repository / "snapshots" / revision
    assert (repository / "refs/main").read_text() == revision
    assert (snapshot / "model.safetensors").read_bytes() == b"weights"
    assert (snapshot / "config.json").readlink().parts[:3] == ("..", "..", "blobs")
    assert len(list((repository / "blobs").iterdir())) == 2

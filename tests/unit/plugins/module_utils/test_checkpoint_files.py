# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint import inspect_checkpoint
from ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_files import (
    CheckpointError,
    CheckpointFileError,
    CheckpointTree,
)
from tests.unit.plugins.module_utils import checkpoint_builder as build

if t.TYPE_CHECKING:
    from pathlib import Path


def cached_model(hub: Path, *, revisions: tuple[str, ...] = ("a1b2c3",), main: str | None = "a1b2c3") -> Path:
    """Write a model of the Hugging Face cache: blobs, snapshots of links, and refs/main."""
    model = hub / "models--openai--tiny"
    blobs = model / "blobs"
    blobs.mkdir(parents=True)
    build.write_json(blobs / "c0ffee", build.small_qwen3())
    build.write_shard(blobs / "5afe", build.dense_tensors(build.plain))
    for revision in revisions:
        snapshot = model / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").symlink_to("../../blobs/c0ffee")
        (snapshot / "model.safetensors").symlink_to("../../blobs/5afe")
    if main is not None:
        (model / "refs").mkdir()
        (model / "refs" / "main").write_text(main, encoding="utf-8")
    return model


def finding_ids(path: Path) -> set[str]:
    return {entry.id for entry in inspect_checkpoint(str(path)).findings if entry.severity == "error"}


@pytest.mark.parametrize("below", ["", "snapshots/a1b2c3"])
def test_the_hugging_face_cache_is_read_through_its_links(tmp_path: Path, below: str) -> None:
    model = cached_model(tmp_path)

    report = inspect_checkpoint(str(model / below)).as_dict()

    assert report["name"] == "openai/tiny"
    assert report["directory"] == str(model / "snapshots" / "a1b2c3")
    assert (report["weights_complete"], report["scheme"]) == (True, "bf16")
    assert report["findings"] == []


def test_refs_main_decides_between_snapshots(tmp_path: Path) -> None:
    model = cached_model(tmp_path, revisions=("a1b2c3", "d4e5f6"), main="d4e5f6\n")

    assert CheckpointTree.open(str(model)).root.name == "d4e5f6"


@pytest.mark.parametrize("main", [None, "gone", "../../../etc", "x" * 300])
def test_several_snapshots_and_no_usable_reference(tmp_path: Path, main: str | None) -> None:
    model = cached_model(tmp_path, revisions=("a1b2c3", "d4e5f6"), main=main)

    with pytest.raises(CheckpointError, match=r"holds 2 snapshots \(a1b2c3, d4e5f6\); give the path of one of them"):
        CheckpointTree.open(str(model))


def test_a_cache_that_is_itself_behind_a_link(tmp_path: Path) -> None:
    cached_model(tmp_path / "disk")
    (tmp_path / "hub").symlink_to("disk")

    assert finding_ids(tmp_path / "hub" / "models--openai--tiny") == set()


def test_a_blob_that_was_not_downloaded_is_a_missing_shard(tmp_path: Path) -> None:
    model = cached_model(tmp_path)
    snapshot = model / "snapshots" / "a1b2c3"
    (snapshot / "model-00001-of-00002.safetensors").symlink_to("../../blobs/5afe")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model-00002-of-00002.safetensors").symlink_to("../../blobs/0bad")

    report = inspect_checkpoint(str(snapshot)).as_dict()

    assert report["shards_missing"] == ["model-00002-of-00002.safetensors"]


def plain_checkpoint(directory: Path) -> Path:
    directory.mkdir()
    build.write_json(directory / "config.json", build.small_qwen3())
    build.write_shard(directory / "model.safetensors", build.dense_tensors(build.plain))
    return directory


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_links_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    directory = plain_checkpoint(tmp_path / "model")
    (directory / name).rename(tmp_path / name)
    (directory / name).symlink_to(tmp_path / name)

    assert "CHECKPOINT_LINK_OUTSIDE" in finding_ids(directory)


def test_links_within_the_directory_are_read(tmp_path: Path) -> None:
    directory = plain_checkpoint(tmp_path / "model")
    (directory / "config.json").rename(directory / "real.json")
    (directory / "config.json").symlink_to("real.json")

    assert finding_ids(directory) == set()


def test_links_of_a_cache_may_not_leave_its_blobs(tmp_path: Path) -> None:
    model = cached_model(tmp_path)
    secret = model / "secret.json"
    build.write_json(secret, {})
    config = model / "snapshots" / "a1b2c3" / "config.json"
    config.unlink()
    config.symlink_to("../../secret.json")

    assert "CHECKPOINT_LINK_OUTSIDE" in finding_ids(model)


def test_a_blobs_directory_that_is_a_link_is_not_trusted(tmp_path: Path) -> None:
    model = cached_model(tmp_path)
    (model / "blobs").rename(tmp_path / "elsewhere")
    (model / "blobs").symlink_to(tmp_path / "elsewhere")

    assert "CHECKPOINT_LINK_OUTSIDE" in finding_ids(model)


def test_a_blob_that_is_a_link_out_is_refused(tmp_path: Path) -> None:
    model = cached_model(tmp_path)
    (model / "blobs" / "c0ffee").rename(tmp_path / "c0ffee")
    (model / "blobs" / "c0ffee").symlink_to(tmp_path / "c0ffee")

    assert "CHECKPOINT_LINK_OUTSIDE" in finding_ids(model)


def test_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    directory = plain_checkpoint(tmp_path / "model")
    (directory / "model.safetensors").unlink()
    os.mkfifo(directory / "model.safetensors")

    assert finding_ids(directory) == {"CHECKPOINT_SHARD_UNREADABLE"}


@pytest.mark.parametrize(
    "shard", ["../outside.safetensors", "/etc/passwd", "a/../../b.safetensors", "nul\0.safetensors"]
)
def test_an_index_cannot_name_files_outside(tmp_path: Path, shard: str) -> None:
    directory = plain_checkpoint(tmp_path / "model")
    build.write_index(directory, {shard: build.plain("x"), "model.safetensors": {}})

    assert "CHECKPOINT_LINK_OUTSIDE" in finding_ids(directory)


def test_a_directory_in_place_of_a_shard(tmp_path: Path) -> None:
    directory = plain_checkpoint(tmp_path / "model")
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").mkdir()

    assert finding_ids(directory) == {"CHECKPOINT_SHARD_UNREADABLE"}


def test_a_config_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    directory = plain_checkpoint(tmp_path / "model")
    with (directory / "config.json").open("wb") as stream:
        stream.truncate(1 << 40)

    with pytest.raises(CheckpointFileError, match="more than the"):
        CheckpointTree.open(str(directory)).read_json("config.json")


def test_a_directory_with_absurdly_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ansible_collections.gb10.fleet.plugins.module_utils._checkpoint_files._MAX_ENTRIES"
    monkeypatch.setattr(name, 1)

    with pytest.raises(CheckpointError, match="it is no checkpoint"):
        CheckpointTree.open(str(plain_checkpoint(tmp_path / "model")))

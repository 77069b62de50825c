# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from typing import TYPE_CHECKING

from lab.registry import Image, Storage, tar_of_files, tar_of_tree

if TYPE_CHECKING:
    from pathlib import Path


def make(root: Path) -> tuple[Storage, Image]:
    storage = Storage(root)
    layer = storage.add_layer(iter([tar_of_files({"etc/x/release": "one\n"})]))
    return storage, storage.add_image("vllm/vllm-openai", "v1", (layer,), {"Entrypoint": ["vllm", "serve"]}, "x86_64")


def test_digests_name_their_blobs(tmp_path: Path) -> None:
    storage, image = make(tmp_path)
    manifest = json.loads(storage.blob_path(image.digest).read_bytes())
    for blob in (manifest["config"], *manifest["layers"]):
        data = storage.blob_path(blob["digest"]).read_bytes()
        assert len(data) == blob["size"]
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == blob["digest"]
    config = json.loads(storage.blob_path(manifest["config"]["digest"]).read_bytes())
    packed = storage.blob_path(manifest["layers"][0]["digest"]).read_bytes()
    assert config["architecture"] == "amd64"
    assert config["config"]["Entrypoint"] == ["vllm", "serve"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(gzip.decompress(packed)).hexdigest()}"]


def test_registry_finds_the_image_by_tag_and_digest(tmp_path: Path) -> None:
    _, image = make(tmp_path)
    repository = tmp_path / "docker/registry/v2/repositories/vllm/vllm-openai"
    hexadecimal = image.digest.removeprefix("sha256:")
    assert (repository / "_manifests/tags/v1/current/link").read_text() == image.digest
    assert (repository / f"_manifests/revisions/sha256/{hexadecimal}/link").read_text() == image.digest
    assert len(list((repository / "_layers/sha256").iterdir())) == 2
    assert not list(tmp_path.glob("docker/registry/v2/upload.*"))


def test_same_files_same_digest(tmp_path: Path) -> None:
    assert make(tmp_path / "a")[1] == make(tmp_path / "b")[1]


def test_image_from_json(tmp_path: Path) -> None:
    _, image = make(tmp_path)
    data = {"name": image.name, "tag": image.tag, "digest": image.digest, "layers": [vars(image.layers[0])]}
    assert Image.from_json(json.loads(json.dumps(data))) == image


def test_tar_of_files_has_directories() -> None:
    with tarfile.open(fileobj=io.BytesIO(tar_of_files({"etc/x/release": "one\n"}))) as archive:
        assert [(m.name, m.isdir()) for m in archive] == [("etc", True), ("etc/x", True), ("etc/x/release", False)]


def test_tar_of_tree_forgets_times(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("b")
    (tmp_path / "a").write_text("a")
    first = b"".join(tar_of_tree(tmp_path))
    os.utime(tmp_path / "a", (1, 1))
    assert b"".join(tar_of_tree(tmp_path)) == first

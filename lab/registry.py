# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write images straight into the storage of a Docker registry, which the hosts then serve read-only.

The storage layout is that of the distribution registry ("registry v2" file system driver): blobs by digest, and link
files that name them. Writing it here needs no registry process, no port and no second copy in the outer engine, and
the same files always give the same digests.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import subprocess
import tarfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.names import LabError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"

# Images must not carry the time of their making, or every build would have other digests.
_CREATED = "2026-01-01T00:00:00Z"
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer: the digest of the compressed blob and of the tar inside it."""

    digest: str
    diff_id: str
    size: int


@dataclasses.dataclass(frozen=True)
class Image:
    """One image in a repository, as others address it."""

    name: str
    tag: str
    digest: str
    layers: tuple[Layer, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Image:
        """Read what `dataclasses.asdict` gave."""
        layers = tuple(Layer(**layer) for layer in data["layers"])
        return cls(data["name"], data["tag"], data["digest"], layers)


class Storage:
    """The directory that a registry serves."""

    def __init__(self, root: Path) -> None:
        self._v2 = root / "docker" / "registry" / "v2"

    def blob_path(self, digest: str) -> Path:
        hexadecimal = digest.removeprefix("sha256:")
        return self._v2 / "blobs" / "sha256" / hexadecimal[:2] / hexadecimal / "data"

    def add_blob(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        path = self.blob_path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return digest

    def add_layer(self, chunks: Iterator[bytes]) -> Layer:
        """Store a tar stream as a compressed layer."""
        self._v2.mkdir(parents=True, exist_ok=True)
        partial = self._v2 / f"upload.{os.getpid()}"
        # Level 1: a quarter of the default's time for a tenth more bytes. wbits 31 is gzip with no time stamp.
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        inside, outside, size = hashlib.sha256(), hashlib.sha256(), 0
        with partial.open("wb") as sink:
            for chunk in chunks:
                inside.update(chunk)
                packed = packer.compress(chunk)
                outside.update(packed)
                size += sink.write(packed)
            packed = packer.flush()
            outside.update(packed)
            size += sink.write(packed)
        layer = Layer(f"sha256:{outside.hexdigest()}", f"sha256:{inside.hexdigest()}", size)
        path = self.blob_path(layer.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(path)
        return layer

    def add_image(self, name: str, tag: str, layers: tuple[Layer, ...], config: dict[str, Any], machine: str) -> Image:
        """Store configuration, manifest and tag of an image whose layers are already there."""
        body = {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[machine],
            "config": config,
            "created": _CREATED,
            "history": [{"created": _CREATED, "created_by": "gb10.fleet lab"} for _ in layers],
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
        encoded = json.dumps(body, sort_keys=True).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "size": len(encoded), "digest": self.add_blob(encoded)},
            "layers": [{"mediaType": _LAYER, "size": layer.size, "digest": layer.digest} for layer in layers],
        }
        digest = self.add_blob(json.dumps(manifest, sort_keys=True).encode())
        repository = self._v2 / "repositories" / name
        for blob in (manifest["config"]["digest"], *(layer.digest for layer in layers)):  # type: ignore[index]
            _link(repository / "_layers" / "sha256" / blob.removeprefix("sha256:"), blob)
        tag_directory = repository / "_manifests" / "tags" / tag
        _link(repository / "_manifests" / "revisions" / "sha256" / digest.removeprefix("sha256:"), digest)
        _link(tag_directory / "index" / "sha256" / digest.removeprefix("sha256:"), digest)
        _link(tag_directory / "current", digest)
        return Image(name, tag, digest, layers)


def _link(directory: Path, digest: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "link").write_text(digest, encoding="ascii")


def tar_of_files(files: dict[str, str]) -> bytes:
    """A tar of a few text files, the same bytes every time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        directories = {parent for name in files for parent in Path(name).parents if parent != Path()}
        for directory in sorted(directories):
            entry = tarfile.TarInfo(str(directory))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, text in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def tar_of_tree(root: Path) -> Iterator[bytes]:
    """A tar of a directory in a fixed order and without times."""
    argv = ["tar", "--sort=name", "--mtime=@0", "--numeric-owner", "--format=gnu", "-C", str(root), "-c", "."]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        if process.stdout is None:
            return
        while chunk := process.stdout.read(_CHUNK):
            yield chunk
    if process.returncode:
        msg = f'Packing "{root}" failed: tar ended with exit status {process.returncode}.'
        raise LabError(msg)

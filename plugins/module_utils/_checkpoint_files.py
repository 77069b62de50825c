# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a checkpoint directory, opened so that a hostile one can neither lead elsewhere nor block the reader.

A plain directory and a snapshot of the Hugging Face cache (models--ORG--NAME/snapshots/REVISION, whose entries are
links into ../../blobs) are both read. Any other link that leads out of the directory is refused.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import typing as t
from pathlib import Path

from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import JsonError, load_object, shown

_MAX_ENTRIES = 20_000
_CONFIG_BYTES = 16 << 20
_CONFIG_CONTAINERS = 400_000
# Kimi-K3 has 750,000 tensors, so its index takes about 75 MB, nearly all of it in one object.
_INDEX_BYTES = 96 << 20
_INDEX_CONTAINERS = 10_000
_REVISION = re.compile(r"^[\w.-]{1,128}$")


class CheckpointError(ValueError):
    """The directory cannot be read as a checkpoint at all; the message says what, where and what to do."""


class CheckpointFileError(ValueError):
    """One file cannot be read; ``kind`` is missing, outside, special, unreadable, too_large or malformed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointTree:
    """A checkpoint directory: where it really is, what it is called, and the names in it."""

    root: Path
    blobs: Path | None
    label: str
    names: tuple[str, ...]

    @classmethod
    def open(cls, path: str) -> CheckpointTree:
        """Find the checkpoint behind a path, which may also name a model of the Hugging Face cache as a whole."""
        root = Path(os.path.realpath(path))
        if not root.exists():
            raise CheckpointError(f"{shown(path)} does not exist; give the directory that holds the checkpoint.")
        if not root.is_dir():
            raise CheckpointError(f"{shown(path)} is not a directory; give the directory that holds the checkpoint.")
        if root.name.startswith("models--") and (root / "snapshots").is_dir():
            root = _snapshot(root)
        model = root.parent.parent
        cached = root.parent.name == "snapshots" and model.name.startswith("models--")
        names: list[str] = []
        try:
            with os.scandir(root) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if len(names) > _MAX_ENTRIES:
                        raise CheckpointError(f"{root} holds more than {_MAX_ENTRIES} entries; it is no checkpoint.")
        except OSError as exc:
            raise CheckpointError(f"{root} cannot be read ({exc.strerror}); run the task with become.") from None
        label = model.name.removeprefix("models--").replace("--", "/") if cached else root.name
        return cls(root, model / "blobs" if cached else None, label, tuple(sorted(names)))

    def open_file(self, name: str) -> tuple[t.BinaryIO, int]:
        """Open a regular file below the root and return it with its size; raise CheckpointFileError otherwise."""
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise CheckpointFileError("outside", f"{shown(name)} leads out of the checkpoint directory")
        path = self.root / name
        if not os.path.lexists(path):
            raise CheckpointFileError("missing", f"{shown(name)} is missing")
        real = Path(os.path.realpath(path))
        if not self._inside(real):
            raise CheckpointFileError(
                "outside", f"{shown(name)} is a link that leads out of the checkpoint, to {shown(real)}"
            )
        if not real.exists():
            raise CheckpointFileError("missing", f"{shown(name)} is a link to {shown(real.name)}, which is missing")
        try:
            # Non-blocking, for a named pipe would wait for a writer; the type is checked on what was opened.
            handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            raise CheckpointFileError("unreadable", f"{shown(name)} cannot be opened ({exc.strerror})") from None
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            os.close(handle)
            raise CheckpointFileError("special", f"{shown(name)} is not a regular file")
        return os.fdopen(handle, "rb"), info.st_size

    def read_json(self, name: str, *, index: bool = False) -> dict[str, t.Any]:
        """Read a JSON object from a file of the checkpoint; raise CheckpointFileError where there is none."""
        limit, containers = (_INDEX_BYTES, _INDEX_CONTAINERS) if index else (_CONFIG_BYTES, _CONFIG_CONTAINERS)
        stream, size = self.open_file(name)
        with stream:
            if size > limit:
                raise CheckpointFileError(
                    "too_large", f"{shown(name)} has {size} bytes, more than the {limit} that are read"
                )
            try:
                raw = stream.read(limit + 1)
            except OSError as exc:
                raise CheckpointFileError("unreadable", f"{shown(name)} cannot be read ({exc.strerror})") from None
        try:
            return load_object(raw[:limit], max_containers=containers)
        except JsonError as exc:
            raise CheckpointFileError("malformed", f"{shown(name)} cannot be used: {exc}") from None

    def _inside(self, real: Path) -> bool:
        if real.is_relative_to(self.root):
            return True
        # The blobs directory itself must stay where the cache keeps it.
        blobs = self.blobs
        return blobs is not None and not blobs.is_symlink() and real.parent == blobs


def _snapshot(model: Path) -> Path:
    """Return the snapshot of a cached model: the one that refs/main names, or the only one."""
    snapshots = sorted(entry for entry in (model / "snapshots").iterdir() if entry.is_dir() and not entry.is_symlink())
    reference = model / "refs" / "main"
    if reference.is_file() and reference.stat().st_size <= 256:
        revision = reference.read_text(encoding="utf-8", errors="replace").strip()
        if _REVISION.match(revision) and model / "snapshots" / revision in snapshots:
            return model / "snapshots" / revision
    if len(snapshots) == 1:
        return snapshots[0]
    names = ", ".join(entry.name for entry in snapshots[:5]) or "none"
    raise CheckpointError(f"{model} holds {len(snapshots)} snapshots ({shown(names)}); give the path of one of them.")


@dataclasses.dataclass(frozen=True, slots=True)
class GgufHeader:
    """The first bytes of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, read 2026-11-29)."""

    version: int
    tensors: int


def read_gguf(stream: t.BinaryIO) -> GgufHeader | None:
    """Return the header of a GGUF file, None where the file is none."""
    raw = stream.read(24)
    if len(raw) < 24 or raw[:4] != b"GGUF":
        return None
    return GgufHeader(int.from_bytes(raw[4:8], "little"), int.from_bytes(raw[8:16], "little"))

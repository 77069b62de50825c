# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads the GPU code of an image from tar streams (docker cp) and from saved image archives, starting nothing.

The tar reader is our own because these files can come from anywhere: it bounds what a header may make it read, follows
no link and writes no file.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import mmap
import re
import typing as t
import zlib
from pathlib import Path, PurePosixPath

from ansible_collections.gb10.fleet.plugins.module_utils import _cubin

MAX_HEADER = 1 << 20  # bytes of a long name or of extended attributes
MAX_JSON = 8 << 20  # bytes of a manifest or a configuration
MAX_MEMBERS = 5_000_000  # members of a tar; vLLM's images have some 200,000 files
_PIECE = 1 << 20


class ArchiveError(_cubin.CubinError):
    """The archive is no image archive: the message says what is missing and what to do."""


class Reader(t.Protocol):
    """What a tar is read from: a file, a pipe, a decompressor."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to size bytes, and none at the end."""


class Member(t.NamedTuple):
    """A member of a tar. Its data is there until the next member is asked for."""

    name: str
    kind: str  # file, directory, link, other
    size: int
    offset: int
    data: t.Iterator[bytes]


def _number(field: bytes) -> int:
    """Return a tar number: octal text, or binary with the highest bit set."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]*", text):
        raise ValueError("a number in a tar header is damaged")
    return int(text or b"0", 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _exactly(stream: Reader, size: int) -> bytes:
    parts = []
    while size:
        part = stream.read(size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class _Data:
    """The data of one member, which is skipped as far as nobody read it."""

    def __init__(self, stream: Reader, size: int) -> None:
        self.stream = stream
        self.left = size
        self.padding = -size % 512

    def __iter__(self) -> t.Iterator[bytes]:
        while self.left:
            part = self.stream.read(min(self.left, _PIECE))
            if not part:
                raise ValueError("the tar ends inside a file")
            self.left -= len(part)
            yield part

    def finish(self) -> None:
        for _part in self:
            pass
        if len(_exactly(self.stream, self.padding)) < self.padding:
            raise ValueError("the tar ends inside a file")


def members(stream: Reader) -> t.Iterator[Member]:
    """Yield the members of a tar as they come. A damaged tar is a ValueError."""
    position, long_name, count = 0, "", 0
    size_override: int | None = None
    while True:
        header = _exactly(stream, 512)
        position += 512
        if not header.strip(b"\0"):
            if len(header) < 512:
                raise ValueError("the tar has no end")
            return
        if len(header) < 512 or _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * 32:
            raise ValueError("a tar header is damaged or cut off")
        count += 1
        if count > MAX_MEMBERS:
            raise ValueError(f"the tar has more than {MAX_MEMBERS} members")
        kind, size = header[156:157], _number(header[124:136])
        if kind in {b"x", b"g", b"L", b"K"}:
            if size > MAX_HEADER:
                raise ValueError(f"a tar header of {size} bytes")
            data = _Data(stream, size)
            extra = b"".join(data)
            data.finish()
            position += size + data.padding
            if kind == b"L":
                long_name = _text(extra)
            elif kind == b"x":
                long_name, size_override = _pax(extra)
            continue
        size = size if size_override is None else size_override
        prefix = _text(header[345:500]) if header[257:262] == b"ustar" else ""
        name = long_name or (f"{prefix}/" if prefix else "") + _text(header[:100])
        size = size if kind in {b"0", b"\0", b"7"} else 0
        data = _Data(stream, size)
        kinds = {b"0": "file", b"\0": "file", b"7": "file", b"5": "directory", b"1": "link", b"2": "link"}
        yield Member(str(PurePosixPath("/", name)), kinds.get(kind, "other"), size, position, iter(data))
        data.finish()
        position += size + data.padding
        long_name, size_override = "", None


def _pax(extra: bytes) -> tuple[str, int | None]:
    """Return the path and the size of an extended header, where it has them."""
    path, size = "", None
    while extra:
        length = re.match(rb"(\d{1,7}) ", extra)
        if not length or int(length[1]) < len(length[0]) or int(length[1]) > len(extra):
            raise ValueError("an extended tar header is damaged")
        record = extra[len(length[0]) : int(length[1])].rstrip(b"\n")
        extra = extra[int(length[1]) :]
        key, _equals, value = record.partition(b"=")
        if key == b"path":
            path = value.decode("utf-8", "surrogateescape")
        elif key == b"size" and value.isdigit():
            size = int(value)
    return path, size


class Picker:
    """Knows which files of an image matter, and puts them into a scan."""

    def __init__(self, scan: _cubin.Scan, packages: t.Sequence[str], env: t.Mapping[str, str] | None = None) -> None:
        self.scan = scan
        self.packages = packages
        self.env = env or {}
        self.tools: dict[str, dict[str, str]] = {}
        paths = [path.rstrip("/") for path in self.env.get("PATH", "").split(":") if path]
        self.on_path = set(paths)

    def place(self, path: str) -> str:
        """Return the path below the site-packages or the compile cache, or nothing if the file does not matter."""
        match = re.search(r"/(?:site|dist)-packages/(.+)$", path)
        if match:
            top = match[1].split("/")[0].lower()
            stem = top.split("-")[0] if top.endswith(".dist-info") else top
            return match[1] if any(fnmatch.fnmatch(stem, pattern) for pattern in self.packages) else ""
        match = re.search(r"/\.cache/(flashinfer/.+)$", path)
        return match[1] if match else ""

    def tool(self, path: str) -> str:
        """Return which compiler this is, by the names that scan_environment gives them."""
        folder, _slash, base = path.rpartition("/")
        if path.endswith("/triton/backends/nvidia/bin/ptxas"):
            return "triton_ptxas"
        if base == "nvcc" and re.fullmatch(r"/usr/local/cuda[\w.-]*/bin|/usr/bin|/usr/local/bin", folder):
            cuda = "/usr/local/cuda/bin" in self.on_path and folder.startswith("/usr/local/cuda")
            return "nvcc" if folder in self.on_path or cuda else "nvcc_off_path"
        return "ptxas" if base == "ptxas" and folder.startswith("/usr/local/cuda") else ""

    def wants(self, path: str) -> bool:
        """Return whether take() has a use for the file."""
        base = path.rpartition("/")[2]
        return bool(self.tool(path)) or (
            bool(self.place(path)) and (bool(_cubin.GPU_NAME.search(base)) or base in {*_cubin.STAMP_FILES, "METADATA"})
        )

    def take(self, member: Member) -> None:
        """Read a file into the scan."""
        tool, place = self.tool(member.name), self.place(member.name)
        if tool:
            self.tools.setdefault(tool, {"path": member.name, "version": _version_in(member.data)})
        elif _cubin.GPU_NAME.search(member.name):
            self.scan.add_stream(member.name, member.data, place)
        elif place.count("/") == 1 and member.size <= MAX_HEADER:
            self.scan.package_text(place, b"".join(member.data).decode("utf-8", "replace"))

    def environment(self) -> dict[str, t.Any]:
        """Return what scan_environment returns of a machine that it runs on."""
        return {"tools": self.tools, "flashinfer_version_check": not self.env.get("FLASHINFER_DISABLE_VERSION_CHECK")}


def _version_in(data: t.Iterator[bytes]) -> str:
    tail = b""
    for piece in data:
        match = re.search(rb"Cuda compilation tools, release \d+\.\d+, V(\d+\.\d+\.\d+)", tail + piece)
        if match:
            return match[1].decode()
        tail = piece[-128:]
    return ""


def take_stream(picker: Picker, stream: Reader, base: str = "/") -> int:
    """Put a tar, as docker cp writes it, into the scan; its names are below base. Returns how many files were taken."""
    taken = 0
    try:
        for member in members(stream):
            name = str(PurePosixPath(base, member.name.lstrip("/")))
            if member.kind == "file" and picker.wants(name):
                picker.take(member._replace(name=name))
                taken += 1
    except (ValueError, OSError) as error:
        picker.scan.trouble("CUBIN_TRUNCATED", f"the copy of {base} is damaged or incomplete", str(error))
    return taken


# ---- Saved images


class _Inflated:
    """Decompresses a layer (gzip, zstd or plain) while it is read."""

    def __init__(self, buf: mmap.mmap, start: int, size: int) -> None:
        self.pieces = self._pieces(buf, start, start + size)
        self.rest = b""

    @staticmethod
    def _pieces(buf: mmap.mmap, at: int, end: int) -> t.Iterator[bytes]:
        head = buf[at : at + 4]
        if head[:2] == b"\x1f\x8b":
            inflate = zlib.decompressobj(31)
            while at < end and not inflate.eof:
                chunk = buf[at : min(at + _PIECE, end)]
                at += len(chunk)
                while chunk:
                    yield inflate.decompress(chunk, _PIECE)
                    chunk = inflate.unconsumed_tail
        elif head == b"\x28\xb5\x2f\xfd":
            codec = _cubin.codec("zstd")
            if not codec:
                raise ValueError("a layer is packed with zstd, and there is no libzstd here")
            yield from codec(buf, at, end - at)
        else:
            while at < end:
                yield buf[at : min(at + _PIECE, end)]
                at += _PIECE

    def read(self, size: int = -1, /) -> bytes:
        while not self.rest:
            piece = next(self.pieces, None)
            if piece is None:
                return b""
            self.rest = piece
        part, self.rest = self.rest[:size], self.rest[size:]
        return part


class _Hidden:
    """What upper layers have replaced or deleted."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.opaque: set[str] = set()

    def __contains__(self, path: str) -> bool:
        parents = [str(parent) for parent in PurePosixPath(path).parents]
        return path in self.paths or any(one in self.paths or one in self.opaque for one in parents)


def take_archive(path: str, picker_for: t.Callable[[dict[str, t.Any]], Picker], image: str = "") -> Picker:
    """Read an image as docker save or an OCI layout in a tar has it, layer by layer from the top.

    ``picker_for`` makes the picker from the image's configuration; ``image`` names one of several images in it.
    """
    with Path(path).open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as buf:
        try:
            index = {member.name: member for member in members(handle) if member.kind == "file"}
        except ValueError as error:
            raise ArchiveError(f"archive {path} is no whole tar file ({error}): save the image again") from None
        config, layers = _manifest(path, buf, index, image)
        picker = picker_for(config)
        hidden = _Hidden()
        for layer in reversed(layers):
            member = index.get(layer)
            if not member:
                picker.scan.trouble("CUBIN_TRUNCATED", f"{path}: layer {layer} is not in the archive")
                continue
            try:
                _take_layer(picker, _Inflated(buf, member.offset, member.size), hidden)
            except (ValueError, OSError, zlib.error, _cubin.DamageError) as error:
                picker.scan.trouble("CUBIN_TRUNCATED", f"{path}: layer {layer} is damaged", str(error))
        return picker


def _take_layer(picker: Picker, stream: Reader, hidden: _Hidden) -> None:
    paths: set[str] = set()
    opaque: set[str] = set()
    for member in members(stream):
        folder, _slash, base = member.name.rpartition("/")
        if base == ".wh..wh..opq":
            opaque.add(folder or "/")
        elif base.startswith(".wh."):
            paths.add(f"{folder}/{base[4:]}")
        elif member.kind == "link":
            paths.add(member.name)
        elif member.kind == "file" and picker.wants(member.name):
            paths.add(member.name)
            if member.name not in hidden:
                picker.take(member)
        if len(paths) > MAX_MEMBERS:
            raise ValueError("the layer has too many members")
    hidden.paths |= paths
    hidden.opaque |= opaque


def _manifest(
    path: str, buf: mmap.mmap, index: t.Mapping[str, Member], image: str
) -> tuple[dict[str, t.Any], list[str]]:
    """Return the configuration and the layers of the image in the archive."""

    def load(name: str) -> t.Any:
        member = index.get(name)
        if not member or member.size > MAX_JSON:
            raise ArchiveError(f"archive {path} has no {name.lstrip('/')}: make it with docker save or skopeo copy")
        try:
            return json.loads(buf[member.offset : member.offset + member.size])
        except ValueError:
            raise ArchiveError(f"archive {path}: {name.lstrip('/')} is no JSON: save the image again") from None

    def blob(descriptor: dict[str, t.Any]) -> str:
        algorithm, _colon, value = str(descriptor["digest"]).partition(":")
        return f"/blobs/{algorithm}/{value}"

    try:
        if "/manifest.json" in index:
            images = load("/manifest.json")
            names = [tag for one in images for tag in one.get("RepoTags") or []]
            chosen = [one for one in images if not image or image in (one.get("RepoTags") or [])]
            if len(chosen) != 1:
                wanted = f"{image} is not among" if image else "name one with image:"
                raise ArchiveError(f"archive {path} has {len(images)} images; {wanted} {', '.join(names) or 'none'}")
            layers = [f"/{layer}" for layer in chosen[0]["Layers"]]
            return {**load(f"/{chosen[0]['Config']}"), "tags": chosen[0].get("RepoTags") or []}, layers
        manifest = load("/index.json")
        for _level in range(4):  # an index of indexes, one for each platform
            if "layers" in manifest:
                layers = [blob(layer) for layer in manifest["layers"]]
                return {**load(blob(manifest["config"])), "tags": []}, layers
            with contextlib.suppress(StopIteration):
                manifest = load(next(blob(one) for one in manifest["manifests"] if blob(one) in index))
    except (KeyError, TypeError, IndexError, AttributeError):
        pass
    raise ArchiveError(f"archive {path} names no layers: make it with docker save or skopeo copy")

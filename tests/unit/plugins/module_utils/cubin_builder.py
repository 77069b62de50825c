# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes small cubins, fatbins, shared objects, archives and wheels, whole or damaged as a test wants them."""

from __future__ import annotations

import base64
import hashlib
import io
import struct
import tarfile
import typing as t
import zipfile

if t.TYPE_CHECKING:
    from pathlib import Path

SHF = {"a": 0x100000, "f": 0x200000, "": 0}
SEGMENT = struct.pack("<IIQQ", 0x466243B1, 1, 0, 0)


def elf(machine: int, sections: t.Sequence[tuple[str, bytes]], flags: int = 0, ident: bytes = b"\x41\x08") -> bytes:
    """Return an ELF file whose string tables come first, as nvcc writes cubins."""
    names = ["", ".shstrtab", ".strtab", ".symtab", *(name for name, _data in sections)]
    shstrtab = b"\0" + b"".join(name.encode() + b"\0" for name in names[1:])
    offsets = {}
    at = 1
    for name in names[1:]:
        offsets[name] = at
        at += len(name.encode()) + 1
    parts: list[tuple[str, bytes]] = [(".shstrtab", shstrtab), (".strtab", b"\0"), (".symtab", bytes(24)), *sections]
    body, rows, at = b"", [struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)], 64
    for name, data in parts:
        kind = 3 if name.endswith("strtab") else 2 if name == ".symtab" else 1
        rows.append(struct.pack("<IIQQQQIIQQ", offsets[name], kind, 0, 0, at, len(data), 0, 0, 8, 0))
        body += data
        at += len(data)
    padding = -at % 8
    head = b"\x7fELF\x02\x01\x01" + ident + bytes(7)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", head, 2, machine, 1, 0, 0, at + padding, flags, 64, 56, 0, 64, len(rows), 1
    )
    return header + body + bytes(padding) + b"".join(rows)


def cubin(sm: int = 120, suffix: str = "", names: t.Sequence[str] = ("kernel",)) -> bytes:
    """Return a cubin as CUDA 12.8 writes it, with one text section for each kernel."""
    return elf(190, [(f".text.{name}", b"\x90" * 16) for name in names], sm << 8 | 2 | (8 if suffix == "a" else 0))


def ptx(names: t.Sequence[str] = ("kernel",), target: str = "sm_80") -> bytes:
    """Return PTX text with these kernels."""
    head = f"//\n.version 9.0\n.target {target}\n.address_size 64\n\n"
    return (head + "".join(f".visible .entry {name}(\n\t.param .u64 p\n)\n{{\n\tret;\n}}\n" for name in names)).encode()


def zstd(data: bytes) -> bytes:
    """Return a zstd frame of raw blocks, which every decoder takes."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + struct.pack("<Q", len(data))
    blocks = [data[at : at + 100_000] for at in range(0, len(data), 100_000)] or [b""]
    for number, block in enumerate(blocks):
        frame += ((len(block) << 3) | (number == len(blocks) - 1)).to_bytes(3, "little") + block
    return frame


def lz4(data: bytes) -> bytes:
    """Return an LZ4 block of literals only."""
    size = len(data)
    token = bytes([min(size, 15) << 4])
    if size >= 15:
        token += b"\xff" * ((size - 15) // 255) + bytes([(size - 15) % 255])
    return token + data


def entry(payload: bytes, sm: int, suffix: str = "", kind: int = 2, codec: str = "", raw: int | None = None) -> bytes:
    """Return an entry of a fatbin: kind 2 is a cubin, 1 PTX."""
    packed = {"": payload, "zstd": zstd(payload), "lz4": lz4(payload)}[codec]
    padded = packed + bytes(-len(packed) % 8)
    flags = SHF[suffix] | 0x11 | {"": 0, "zstd": 0x8000, "lz4": 0x2000}[codec]
    size = len(payload) if raw is None else raw
    minor, major = (8, 1) if kind == 2 else (0, 9)
    numbers = (kind, 0x0101, 64, len(padded), len(packed) if codec else 0, 0, minor, major, sm, 0, 0, flags, 0)
    return struct.pack("<HHIQIIHHIIIQQQ", *numbers, size if codec else 0) + padded


def fatbin(*entries: bytes) -> bytes:
    """Return a fatbin with these entries."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def shared_object(*fatbins: bytes, section: str = ".nv_fatbin", registered: int | None = None) -> bytes:
    """Return a host ELF file that holds and registers fatbins."""
    count = len(fatbins) if registered is None else registered
    return elf(183, [(section, b"".join(fatbins)), (".nvFatBinSegment", SEGMENT * count)], ident=b"\0\0")


def archive(**members: bytes) -> bytes:
    """Return a static archive."""
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name + '/':16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return out


def wheel(path: Path, files: t.Mapping[str, bytes], record: t.Mapping[str, bytes] | None = None) -> Path:
    """Write a wheel with a RECORD of its files, or of others where the RECORD shall not be true."""
    lines = []
    for name, data in (files if record is None else record).items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive_file:
        for name, data in files.items():
            archive_file.writestr(name, data)
        archive_file.writestr("demo-1.0.dist-info/RECORD", "\n".join(lines) + "\n")
    return path


def tar(members: t.Mapping[str, bytes | str | None], style: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar: bytes are files, a str is a link to there, None a directory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=style) as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            if data is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(data, str):
                info.type, info.linkname = tarfile.SYMTYPE, data
            else:
                info.size = len(data)
            file.addfile(info, io.BytesIO(data if isinstance(data, bytes) else b""))
    return out.getvalue()

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kernel images: the certificates that are compiled into one, and whether it is signed itself.

A kernel verifies modules with the certificates that were compiled into it, and it never gives them out again. They lie
as they are in the unpacked image, so that the file in /boot tells whose modules the next boot will accept. Known forms
are the bzImage of x86, the Image of arm64, bare or in gzip, and the compressed EFI image (zboot).

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import pathlib
import struct
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _unpack, _x509

# x86: https://docs.kernel.org/arch/x86/boot.html, offsets in the file.
_X86_MAGIC: t.Final = (0x202, b"HdrS")
_X86_SETUP_SECTORS: t.Final = 0x1F1
_X86_VERSION: t.Final = 0x206
_X86_PAYLOAD: t.Final = 0x248
# arm64: https://docs.kernel.org/arch/arm64/booting.html
_ARM64_MAGIC: t.Final = (0x38, b"ARM\x64")
# zboot: "MZ", then "zimg", offset and size of the payload, 8 bytes for later, the compression's name.
_ZBOOT_MAGIC: t.Final = (4, b"zimg")
_ZBOOT: t.Final = struct.Struct("<4s4sII8x32s")
_ZBOOT_KINDS: t.Final = {"gzip": "gzip", "zstd": "zstd", "zstd22": "zstd", "xzkern": "xz", "lz4": "lz4", "lzma": "lzma"}
_ELF: t.Final = (0, b"\x7fELF")


class ImageError(Exception):
    """The image cannot be read. ``remedy`` says what to do where something can be done."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """A kernel image. ``signed`` says whether it has a signature for Secure Boot, which is not verified."""

    certificates: tuple[_x509.Certificate, ...]
    signed: bool | None


def read(path: pathlib.Path) -> Image:
    """Return what an image has. Raise OSError where it cannot be opened, ImageError where it is none."""
    return parse(path.read_bytes())


def parse(data: bytes) -> Image:
    """Return what the bytes of an image have; raise ImageError where they are none."""
    try:
        if _unpack.kind_of(data) == "gzip":
            data = _unpack.unpack(data, "gzip")
        certificates = _x509.find(_kernel(data))
    except _unpack.UnpackError as error:
        raise ImageError(str(error), error.remedy) from error
    except struct.error as error:
        raise ImageError("its header is cut off") from error
    if not certificates:
        raise ImageError("no certificate is compiled into it")
    return Image(certificates, _has_signature(data))


def _has(data: bytes, magic: tuple[int, bytes]) -> bool:
    start, value = magic
    return data[start : start + len(value)] == value


def _kernel(data: bytes) -> bytes:
    """Return the kernel in an image without its compression."""
    if _has(data, _ZBOOT_MAGIC) and data[:2] == b"MZ":
        _mz, _zimg, start, size, name = _ZBOOT.unpack_from(data)
        word = name.split(b"\0")[0].decode("ascii", errors="replace")
        return _unpack.unpack(_piece(data, start, size), _ZBOOT_KINDS.get(word, word))
    if _has(data, _X86_MAGIC):
        (version,) = struct.unpack_from("<H", data, _X86_VERSION)
        if version < 0x208:
            raise ImageError("its boot protocol is older than 2.08 and does not say where the kernel is")
        offset, size = struct.unpack_from("<II", data, _X86_PAYLOAD)
        start = (data[_X86_SETUP_SECTORS] + 1) * 512 + offset
        payload = _piece(data, start, size)
        kind = _unpack.kind_of(payload)
        # The size of the kernel stands behind it, which the programs take for rubbish; gzip has it inside.
        return _unpack.unpack(payload[:-4] if kind in ("zstd", "lz4") else payload, kind)
    if _has(data, _ARM64_MAGIC) or _has(data, _ELF):
        return data
    raise ImageError("it is no kernel image of a form that is known here")


def _piece(data: bytes, start: int, size: int) -> memoryview:
    if start + size > len(data):
        raise ImageError("it is shorter than its header says")
    return memoryview(data)[start : start + size]


def _has_signature(data: bytes) -> bool | None:
    """Return whether an EFI image has a certificate table; None where it is no EFI image."""
    if data[:2] != b"MZ":
        return None
    try:
        (header,) = struct.unpack_from("<I", data, 0x3C)
        if data[header : header + 4] != b"PE\0\0":
            return None
        (magic,) = struct.unpack_from("<H", data, header + 24)
        tables = header + 24 + (112 if magic == 0x20B else 96)
        (count,) = struct.unpack_from("<I", data, tables - 4)
        start, size = struct.unpack_from("<II", data, tables + 4 * 8)
    except struct.error:
        return None
    return count > 4 and size > 0 and start > 0

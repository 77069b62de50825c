# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Takes the compression off kernels and kernel modules, with the standard library or with the programs of the box.

Python reads gzip, xz and lzma by itself; Zstandard from 3.14 on, and LZ4 never. For those the programs zstd and lz4 are
run, which read standard input and write standard output.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import os
import pathlib
import subprocess
import typing as t
import zlib

# The largest result that is believed: kernels are below 100 MiB. A bomb ends here.
LIMIT: t.Final = 512 * 2**20
_PATIENCE_S: t.Final = 60
_MAGICS: t.Final = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x02\x21\x4c\x18", "lz4"),
    (b"BZh", "bzip2"),
    (b"\x5d\x00\x00", "lzma"),
)
_SUFFIXES: t.Final = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}


class UnpackError(Exception):
    """The data cannot be unpacked. ``remedy`` says what to do, and is empty where the data itself is damaged."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def kind_of(data: bytes | memoryview) -> str:
    """Return the compression that the data begins with, or an empty string."""
    start = bytes(data[:8])
    return next((kind for magic, kind in _MAGICS if start.startswith(magic)), "")


def read(path: pathlib.Path) -> bytes:
    """Return the content of a file, unpacked where its name says that it is compressed. Raise OSError, UnpackError."""
    data = path.read_bytes()
    kind = _SUFFIXES.get(path.suffix)
    return unpack(data, kind) if kind else data


def unpack(data: bytes | memoryview, kind: str) -> bytes:
    """Return the data without its compression. What follows the compressed data is left out, as kernels have it."""
    if kind == "lz4":
        return _program(["lz4", "-dcq"], data)
    try:
        decompressor = _decompressor(kind)
        if decompressor is None:
            return _program(["zstd", "-dcq"], data)
        unpacked: bytes = decompressor.decompress(data, LIMIT + 1)
    except UnpackError:
        raise
    except Exception as error:  # each library has an exception of its own, which need not be loaded
        raise UnpackError(f"its {kind} data is damaged ({error})") from error
    if len(unpacked) <= LIMIT and not decompressor.eof:
        raise UnpackError(f"its {kind} data is cut off")
    return _limited(unpacked)


def _decompressor(kind: str) -> t.Any:
    """Return an object that decompresses, or None for Zstandard where Python does not know it yet."""
    if kind == "gzip":
        return zlib.decompressobj(31)
    if kind in ("xz", "lzma"):
        return lzma.LZMADecompressor()
    if kind == "bzip2":
        return bz2.BZ2Decompressor()
    if kind != "zstd":
        raise UnpackError(f"it is compressed in a way that is not known here ({kind or 'unknown'})")
    try:
        return importlib.import_module("compression.zstd").ZstdDecompressor()
    except ImportError:
        return None


def _limited(data: bytes) -> bytes:
    if len(data) > LIMIT:
        raise UnpackError(f"it is larger than {LIMIT >> 20} MiB when unpacked")
    return data


def _program(argv: list[str], data: bytes | memoryview) -> bytes:
    """Return what a program makes of the data, which it gets as a file: with one pipe instead of two it is faster."""
    with os.fdopen(os.memfd_create("packed"), "w+b") as packed:
        packed.write(data)
        packed.seek(0)
        try:
            done = subprocess.run(  # pylint: disable=ansible-bad-function  # run_command knows no bytes
                argv, stdin=packed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, timeout=_PATIENCE_S
            )
        except OSError as error:
            raise UnpackError(
                f"it is compressed with {argv[0]}, and the program {argv[0]} cannot be run ({error.strerror})",
                remedy=f"install the package {argv[0]} on the box",
            ) from error
        except subprocess.TimeoutExpired as error:
            raise UnpackError(f"{argv[0]} did not unpack it within {_PATIENCE_S} s") from error
    if done.returncode:
        raise UnpackError(f"its {argv[0]} data is damaged")
    return _limited(done.stdout)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The header of a safetensors file: which tensors it holds, of what type and shape, and whether the file is whole.

Only the header is read, never tensor data. The format: 8 bytes with the length of the header (little endian), the
header as JSON, the data; offsets count from the end of the header (https://github.com/huggingface/safetensors, format
description, read on 2026-11-29).

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import math
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import JsonError, load_object, shown

# Bits per element (safetensors 0.8, Dtype).
DTYPE_BITS: t.Final[dict[str, int]] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

# The format allows 100 MB; the headers of real shards are below 2 MiB, and parsing costs about ten times the text.
MAX_HEADER_BYTES: t.Final = 16 << 20
_MAX_CONTAINERS: t.Final = 600_000
_MAX_DIMENSIONS: t.Final = 8


class SafetensorsError(ValueError):
    """The file is no readable safetensors file; the message says why, without naming the file."""


@dataclasses.dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the header describes it."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What one file says that it holds.

    ``missing_bytes`` is how much of it is not there: a download that broke off, or a file cut short.
    """

    tensors: dict[str, TensorInfo]
    data_bytes: int
    missing_bytes: int
    surplus_bytes: int


def read_header(stream: t.BinaryIO, file_size: int) -> SafetensorsHeader:
    """Read the header of a safetensors file that is ``file_size`` bytes long; raise SafetensorsError otherwise."""
    prefix = stream.read(8)
    if len(prefix) < 8:
        raise SafetensorsError(f"it ends after {len(prefix)} bytes, before the length of its header")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise SafetensorsError(f"its header claims {length} bytes, more than the {MAX_HEADER_BYTES} that are read")
    raw = stream.read(length)
    if len(raw) < length:
        raise SafetensorsError(f"it ends inside its header ({len(raw)} of {length} bytes are there)")
    if not raw.startswith(b"{"):
        raise SafetensorsError("its header does not start with an object")
    try:
        entries = load_object(raw, max_containers=_MAX_CONTAINERS, unique_keys=True)
    except JsonError as exc:
        raise SafetensorsError(f"its header cannot be read: {exc}") from None
    entries.pop("__metadata__", None)
    tensors: dict[str, TensorInfo] = {}
    ranges: list[tuple[int, int]] = []
    for name, entry in entries.items():
        tensors[name], span = _tensor(name, entry)
        ranges.append(span)
    data_bytes = _data_bytes(ranges)
    there = file_size - 8 - length
    return SafetensorsHeader(
        tensors=tensors,
        data_bytes=data_bytes,
        missing_bytes=max(0, data_bytes - there),
        surplus_bytes=max(0, there - data_bytes),
    )


def _tensor(name: str, entry: object) -> tuple[TensorInfo, tuple[int, int]]:
    """Check one entry of the header: known type, sane shape, and a range as long as type and shape demand."""
    if not isinstance(entry, dict):
        raise SafetensorsError(f"tensor {shown(name)} is not described by an object")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise SafetensorsError(f"tensor {shown(name)} has the unknown type {shown(dtype)}")
    shape = entry.get("shape")
    if not _is_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise SafetensorsError(f"tensor {shown(name)} has the impossible shape {shown(shape)}")
    offsets = entry.get("data_offsets")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise SafetensorsError(f"tensor {shown(name)} has the impossible range {shown(offsets)}")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    begin, end = offsets
    if bits % 8 or bits // 8 != end - begin:
        raise SafetensorsError(
            f"tensor {shown(name)} is {dtype} {shown(shape)}, but its range holds {end - begin} bytes"
        )
    return TensorInfo(dtype, tuple(shape), end - begin), (begin, end)


def _is_sizes(value: object) -> t.TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 63 for item in value
    )


def _data_bytes(ranges: list[tuple[int, int]]) -> int:
    """Return the length of the data; the ranges must cover it without hole or overlap, as the format demands."""
    end = 0
    for begin, stop in sorted(ranges):
        if begin != end:
            raise SafetensorsError(
                f"its tensors {'overlap' if begin < end else 'leave a hole'} at byte {min(begin, end)}"
            )
        end = stop
    return end

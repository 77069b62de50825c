# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import json
import random
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._safetensors import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    SafetensorsError,
    read_header,
)
from tests.unit.plugins.module_utils.checkpoint_builder import Tensors, header_of

TENSORS: Tensors = {"a.weight": ("BF16", (4, 8)), "b.weight": ("F8_E4M3", (16,)), "c": ("F32", ())}


def read(raw: bytes, size: int | None = None) -> t.Any:
    return read_header(io.BytesIO(raw), len(raw) if size is None else size)


def raw_header(entries: object) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def test_names_types_shapes_and_bytes() -> None:
    raw, data = header_of(TENSORS, {"format": "pt"})

    header = read(raw, len(raw) + data)

    assert {name: (info.dtype, info.shape) for name, info in header.tensors.items()} == TENSORS
    assert {name: info.nbytes for name, info in header.tensors.items()} == {"a.weight": 64, "b.weight": 16, "c": 4}
    assert (header.data_bytes, header.missing_bytes, header.surplus_bytes) == (84, 0, 0)


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_every_type_of_the_format_is_counted(dtype: str) -> None:
    raw, data = header_of({"x": (dtype, (2, 12))})

    assert read(raw, len(raw) + data).tensors["x"].nbytes == 24 * DTYPE_BITS[dtype] // 8


@pytest.mark.parametrize(("difference", "missing", "surplus"), [(-1, 1, 0), (-84, 84, 0), (0, 0, 0), (5, 0, 5)])
def test_a_file_of_the_wrong_length(difference: int, missing: int, surplus: int) -> None:
    raw, data = header_of(TENSORS)

    header = read(raw, len(raw) + data + difference)

    assert (header.missing_bytes, header.surplus_bytes) == (missing, surplus)


def test_an_empty_file_of_no_tensors() -> None:
    assert read(raw_header({})).tensors == {}


def entry(dtype: object = "BF16", shape: object = (2, 2), offsets: object = (0, 8)) -> dict[str, t.Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "before the length"),
        (b"\x08\x00", "before the length"),
        ((40).to_bytes(8, "little") + b"{}", "inside its header"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "claims 9223372036854775808 bytes"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "claims"),
        (raw_header(b"<html></html>"), "does not start with an object"),
        (raw_header(b"{broken"), "not valid JSON"),
        (raw_header(b'{"\xff": 1}'), "not UTF-8"),
        (raw_header(b'{"w": 1, "w": 2}'), "twice"),
        (raw_header(b'{"a":' + b"[" * 700_000), "lists and objects"),
        (raw_header(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "cannot be read"),
        (raw_header({"w": []}), "not described by an object"),
        (raw_header(entry(dtype="Q4_K")), "unknown type Q4_K"),
        (raw_header(entry(dtype=["BF16"])), "unknown type"),
        (raw_header(entry(shape="2x2")), "impossible shape"),
        (raw_header(entry(shape=[-2, -2])), "impossible shape"),
        (raw_header(entry(shape=[2, True])), "impossible shape"),
        (raw_header(entry(shape=[1] * 9)), "impossible shape"),
        (raw_header(entry(shape=[1 << 62, 1 << 62])), "its range holds 8 bytes"),
        (raw_header(entry(offsets=[8, 0])), "impossible range"),
        (raw_header(entry(offsets=[0])), "impossible range"),
        (raw_header(entry(offsets=[0, 9])), "its range holds 9 bytes"),
        (raw_header(entry(dtype="F4", shape=[3], offsets=[0, 2])), "its range holds 2 bytes"),
        (raw_header(entry(offsets=[4, 12])), "leave a hole at byte 0"),
        (raw_header({"a": entry()["w"], "b": entry()["w"]}), "overlap at byte 0"),
        (raw_header({"x\n\x1b[31m" * 40: []}), "?"),
    ],
)
def test_hostile_headers_are_refused_with_a_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(SafetensorsError) as caught:
        read(raw)

    assert reason in str(caught.value)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_random_damage_never_does_more_than_raise() -> None:
    raw, data = header_of(TENSORS, {"format": "pt"})
    generator = random.Random(20261129)
    outcomes = set()
    for _round in range(3_000):
        damaged = bytearray(raw)
        for _change in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        if generator.random() < 0.3:
            del damaged[generator.randrange(len(damaged)) :]
        try:
            read(bytes(damaged), len(raw) + data)
            outcomes.add("read")
        except SafetensorsError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}

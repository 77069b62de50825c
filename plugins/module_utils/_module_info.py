# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a kernel module says of itself: the fields of its section .modinfo, and its build id.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import struct
import typing as t

_NT_GNU_BUILD_ID: t.Final = 3
# A module of the kernel has about a hundred sections; a file that states more than this is no module.
_MOST_SECTIONS: t.Final = 65536


class ModuleError(ValueError):
    """The file is no kernel module. The text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModuleInfo:
    """The fields of a module that decide which it is. Missing ones are empty."""

    name: str = ""
    version: str = ""
    license: str = ""
    vermagic: str = ""
    srcversion: str = ""
    build_id: str = ""

    @classmethod
    def from_fields(cls, data: bytes, build_id: str = "") -> ModuleInfo:
        """Parse the content of .modinfo: texts of the form key=value with zero bytes between them."""
        fields: dict[str, str] = {}
        for entry in data.split(b"\0"):
            key, found, value = entry.decode("utf-8", errors="replace").partition("=")
            if found:
                fields.setdefault(key, value)
        known = ("name", "version", "license", "vermagic", "srcversion")
        return cls(**{key: fields.get(key, "").strip() for key in known}, build_id=build_id)

    @classmethod
    def from_elf(cls, data: bytes) -> ModuleInfo:
        """Read a module as it is on disk; raise ModuleError where it is none."""
        try:
            sections = dict(_sections(data))
        except (struct.error, IndexError, OverflowError) as error:
            raise ModuleError("its table of sections is damaged") from error
        if ".modinfo" not in sections:
            raise ModuleError("it has no section .modinfo")
        return cls.from_fields(sections[".modinfo"], build_id(sections.get(".note.gnu.build-id", b"")))

    @property
    def release(self) -> str:
        """Return the release of the kernel that it was built for."""
        return self.vermagic.partition(" ")[0]

    @property
    def flavour(self) -> t.Literal["open", "proprietary", "unknown"]:
        """Return whether it is NVIDIA's open kernel module or the closed one, by its licence."""
        if "GPL" in self.license or "MIT" in self.license:
            return "open"
        return "proprietary" if self.license == "NVIDIA" else "unknown"


def build_id(note: bytes) -> str:
    """Return the build id in the notes of a module, or an empty string. Both byte orders are tried."""
    for order in "<>":
        try:
            name_size, size, kind = struct.unpack_from(f"{order}III", note)
        except struct.error:
            return ""
        start = 12 + (name_size + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and note[12:15] == b"GNU" and 0 < size <= len(note) - start:
            return note[start : start + size].hex()
    return ""


def _sections(data: bytes) -> c.Iterator[tuple[str, bytes]]:
    if data[:4] != b"\x7fELF":
        raise ModuleError("it is no ELF file")
    order = {1: "<", 2: ">"}.get(data[5])
    if order is None or data[4] not in (1, 2):
        raise ModuleError("it is an ELF file of a kind that is not known")
    if data[4] == 2:
        (table,) = struct.unpack_from(f"{order}Q", data, 0x28)
        size, count, names = struct.unpack_from(f"{order}HHH", data, 0x3A)
        entry = struct.Struct(f"{order}IIQQQQ")
    else:
        (table,) = struct.unpack_from(f"{order}I", data, 0x20)
        size, count, names = struct.unpack_from(f"{order}HHH", data, 0x2E)
        entry = struct.Struct(f"{order}IIIIII")
    if size < entry.size or not 0 < count < _MOST_SECTIONS or names >= count:
        raise ModuleError("its header names no table of sections")
    headers = [entry.unpack_from(data, table + index * size) for index in range(count)]
    strings = _content(data, headers[names])
    for header in headers:
        end = strings.find(b"\0", header[0])
        if end >= 0:
            yield strings[header[0] : end].decode("ascii", errors="replace"), _content(data, header)


def _content(data: bytes, header: tuple[int, ...]) -> bytes:
    _name, kind, _flags, _address, start, size = header
    if kind == 8:  # SHT_NOBITS
        return b""
    if start + size > len(data):
        raise ModuleError("a section lies outside of the file")
    return data[start : start + size]

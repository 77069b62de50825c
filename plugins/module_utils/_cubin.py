# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which kernels in a file, a wheel or an installed package a GPU of a given compute capability can run.

This one file imports the standard library only and nothing of the collection, because it also runs as a script inside
a container image that has Python and no collection::

    docker run --rm -i --network none --entrypoint python3 IMAGE -I - --environment < _cubin.py

What a family of kernels looks like is data, not code: it comes in as a parameter (``--request`` for the script).
Nothing here raises on a damaged file: what could not be read becomes a problem and the result says ``complete: false``.
The one exception, for a request that makes no sense, is ``CubinError``.

Note that this module util is private to the collection and can change without notice.
"""

# The start of this script is most of its run time on most files: so modules are imported where they are needed, typing
# and pathlib not at all, and records are frozen dataclasses to the type checker only (see record).
# ruff: noqa: PLC0415, PTH110, PTH112, PTH113, PTH114, PTH118, PTH119, PTH120, PTH123, PTH207, PTH208
from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
import struct
import sys
from collections import Counter, namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t
    from dataclasses import dataclass as record

    Buffer: t.TypeAlias = mmap.mmap | bytes
    Rules: t.TypeAlias = tuple[tuple[tuple[bytes, ...], tuple[bytes, ...]], ...]
else:

    def record(cls: type) -> type:
        """Make a named tuple of an annotated class: importing dataclasses takes as long as reading a large library."""
        fields = list(cls.__annotations__)
        body = {name: value for name, value in vars(cls).items() if name not in {*fields, "__dict__", "__weakref__"}}
        base = namedtuple(cls.__name__, fields, defaults=[vars(cls)[name] for name in fields if name in vars(cls)])
        return type(cls.__name__, (base,), {**body, "__slots__": ()})


MAX_ENTRIES = 250_000  # entries or fatbins in one file; the largest real file (libtorch_cuda.so 2.11.0) has 2,403
MAX_DAMAGE = 200  # damaged places in one file before the rest of it is given up
MAX_DECODED = 128 << 20  # bytes decoded of one entry; the largest real cubin (vLLM 0.33.0) is 65 MB
MAX_DECODED_FILE = 8 << 30  # bytes decoded of one file, which bounds the time that a bomb can take
MAX_MEMBER = 4 << 30  # bytes inflated of one member of a wheel or an archive
MAX_DIRECTORY = 64 << 20  # bytes of a zip's central directory
MAX_FILES = 200_000  # files looked at in one tree
ROLLUP = 64  # more bare cubins than this below one root become one row
_PIECE = 256 << 10
_SMALL = 8 << 20  # a stream up to this size stays in memory

FATBIN_MAGIC = b"\x50\xed\x55\xba"
_FATBIN = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_ELF = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_GPU_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_EM_CUDA = 190
_KINDS = {1: "ptx", 2: "elf", 8: "nvvm"}
_LZ4, _ZSTD, _SPECIFIC, _FAMILY = 0x2000, 0x8000, 0x100000, 0x200000

# "Binary compatibility is supported only for the desktop. It is not supported for Tegra."
# (CUDA C++ Programming Guide, binary compatibility): these run exactly their own cubins.
_TEGRA = frozenset({53, 62, 72, 87, 101, 110})

_REMEDIES = {
    "CUBIN_TRUNCATED": "Copy or download the file again and compare its sha256 with the publisher's.",
    "CUBIN_MALFORMED": "Copy or download the file again and compare its sha256 with the publisher's.",
    "CUBIN_TOO_LARGE": "Check the file on its own; a real file of this size is worth a report.",
    "CUBIN_UNREADABLE": "Make the path readable for the user that runs the check, or leave it out.",
    "CUBIN_LINK_OUTSIDE": "Name the target of the link among the paths as well, if it belongs to what is checked.",
    "CUBIN_CODEC_MISSING": "Install libzstd (Debian, Ubuntu: package libzstd1) beside the Python that runs the check.",
}


class CubinError(ValueError):
    """The request makes no sense: the message says in one sentence what, where and what to do."""


class DamageError(Exception):
    """A file is not what it says it is; becomes a problem of that file."""

    def __init__(self, finding: str, message: str) -> None:
        super().__init__(message)
        self.finding = finding


# What reading damaged data can raise besides; struct and indexing are checked before use, this is the second net.
_DAMAGE = (struct.error, IndexError, ValueError, OverflowError)


def problem(finding: str, message: str, evidence: str = "") -> dict[str, str]:
    """Return a finding as plain data, in the shape of _finding.Finding, for something that could not be read."""
    severity = "error" if finding in {"CUBIN_TRUNCATED", "CUBIN_MALFORMED", "CUBIN_UNREADABLE"} else "warning"
    return {
        "id": finding,
        "severity": severity,
        "message": message,
        "evidence": evidence,
        "remedy": _REMEDIES[finding],
        "claim": "",
    }


# ---- What an entry is, and what may load it


def parse_capability(text: str) -> int:
    """Return 121 for "12.1" (also for "121" and "sm_121a": the number is what a device has)."""
    match = re.fullmatch(r"(\d{1,2})\.(\d)|(?:sm_|compute_)?(\d{2,3})[af]?", str(text).strip())
    if not match or (match[3] and int(match[3]) < 20):  # 12 would be 1.2, and means 12.0 to whoever writes it
        raise CubinError(f"capability {text!r} is not a compute capability: write it as 12.1")
    return int(match[1] + match[2]) if match[1] else int(match[3])


def loads(sm: int, suffix: str, capability: int, ptx: bool = False) -> bool:
    """Return whether code for this architecture loads on a device, by the rules of the CUDA Programming Guide.

    A cubin loads on the same major and the same or a higher minor capability; PTX compiles for the same or any higher
    one; ``a`` is for exactly one capability and ``f`` for the rest of its family, cubin and PTX alike.
    """
    if suffix == "a":
        return sm == capability
    if ptx and not suffix:
        return sm <= capability
    if sm == capability:
        return True
    return sm // 10 == capability // 10 and sm < capability and not {sm, capability} & _TEGRA


@record
class Entry:
    """One piece of GPU code: its architecture, and where its payload lies."""

    kind: str  # elf (a cubin), ptx, nvvm (for link-time optimisation), kindN
    sm: int
    suffix: str
    version: tuple[int, int]  # of the cubin format, or the PTX ISA
    codec: str  # "", lz4, zstd
    offset: int
    stored: int
    raw: int
    section: str = ""

    @property
    def arch(self) -> str:
        """Return the name as NVIDIA writes it, with its suffix: sm_120f, compute_80."""
        return f"{'compute' if self.kind == 'ptx' else 'lto' if self.kind == 'nvvm' else 'sm'}_{self.sm}{self.suffix}"

    def use(self, capability: int) -> str:
        """Return what a device can do with the entry: native, ptx (the driver compiles it) or none."""
        if self.kind == "elf":
            return "native" if loads(self.sm, self.suffix, capability) else "none"
        if self.kind == "ptx":
            return "ptx" if loads(self.sm, self.suffix, capability, ptx=True) else "none"
        return "none"


@record
class Listing:
    """What a file holds. It is complete where there is no problem."""

    kind: str  # elf, archive, fatbin, cubin, ptx, other
    entries: tuple[Entry, ...]
    problems: tuple[dict[str, str], ...]


# ---- Containers


class _Reader:
    """Walks one mapped file. Offsets are absolute and bounds are passed along, so nothing is copied."""

    def __init__(self, buf: Buffer, name: str) -> None:
        self.buf = buf
        self.name = name
        self.entries: list[Entry] = []
        self.problems: list[dict[str, str]] = []
        self.damage = 0
        self.steps = 0
        self.seen = 0  # fatbins

    def note(self, finding: str, what: str, offset: int) -> None:
        """Record a problem; a file that is nothing but damage is given up."""
        self.damage += 1
        if len(self.problems) < 8:
            self.problems.append(problem(finding, f"{self.name}: {what}", f"offset {offset:#x}"))
        if self.damage > MAX_DAMAGE:
            raise DamageError("CUBIN_MALFORMED", f"more than {MAX_DAMAGE} damaged places, the rest was not read")

    def step(self, count: int = 1) -> None:
        """Bound the number of things in a file, and give touched pages back so that memory does not follow its size."""
        self.steps += count
        if self.steps > MAX_ENTRIES:
            raise DamageError("CUBIN_TOO_LARGE", f"more than {MAX_ENTRIES} entries, the rest was not read")
        if self.steps % 64 == 0 or count > 1:
            release(self.buf)

    def read(self, lo: int, hi: int, depth: int = 0) -> str:
        """Read whatever lies between two offsets and return what it is."""
        head = self.buf[lo : min(lo + 8, hi)]
        suffix = self.name.rpartition(".")[2].lower() if depth == 0 else ""
        kind = "other"
        if head[:4] == b"\x7fELF":
            kind = self.elf(lo, hi)
        elif head[:4] == FATBIN_MAGIC:
            kind = "fatbin"
            self.fatbins(lo, hi, kind)
        elif head == b"!<arch>\n":
            kind = "archive"
            self.archive(lo, hi, depth)
        elif head == b"!<thin>\n":
            kind = "archive"
            self.note("CUBIN_LINK_OUTSIDE", "is a thin archive: its members are other files, which were not read", lo)
        elif suffix == "ptx" or self.is_ptx(lo, hi):
            kind = "ptx"
            self.ptx(lo, hi)
        elif suffix in {"cubin", "fatbin"} or (suffix in {"so", "a", "o"} and not self.is_text(lo, hi)):
            finding = "CUBIN_TRUNCATED" if hi - lo < 8 else "CUBIN_MALFORMED"
            self.note(finding, f"is no {suffix} file by its first bytes", lo)
        return kind

    def is_text(self, lo: int, hi: int) -> bool:
        """Return whether the file is text, such as a linker script that is named libX.so."""
        head = self.buf[lo : min(hi, lo + 512)]
        if b"!<arch>\n".startswith(head):  # an archive that is cut off within its first bytes
            return False
        return bool(head) and all(9 <= byte <= 13 or 32 <= byte < 127 for byte in head)

    def is_ptx(self, lo: int, hi: int) -> bool:
        """Return whether the file begins as PTX does, whatever its name."""
        head = self.buf[lo : min(hi, lo + 4096)]
        return head[:1] in {b"/", b".", b"\n", b"\r"} and b".version" in head and b".target" in head

    def ptx(self, lo: int, hi: int) -> None:
        """Read a bare PTX file: text that names its own target."""
        head = self.buf[lo : min(hi, lo + 65536)]
        target = re.search(rb"^\s*\.target\s+sm_(\d{2,3})([af]?)\b", head, re.MULTILINE)
        version = re.search(rb"^\s*\.version\s+(\d{1,2})\.(\d{1,2})\b", head, re.MULTILINE)
        if not target or not version:
            self.note("CUBIN_MALFORMED", "is no PTX: it names no .version and .target", lo)
            return
        size = hi - lo
        isa = (int(version[1]), int(version[2]))
        self.entries.append(Entry("ptx", int(target[1]), target[2].decode(), isa, "", lo, size, size, "ptx"))
        if sum(piece.count(b"{") - piece.count(b"}") for piece in _slices(self.buf, lo, hi)):
            self.note("CUBIN_TRUNCATED", "the PTX ends inside a function", hi)

    def archive(self, lo: int, hi: int, depth: int) -> None:
        """Read the members of a static archive."""
        at = lo + 8
        if at >= hi:  # some libcs have empty archives, but a package that brings one has more often lost its members
            self.note("CUBIN_TRUNCATED", "the archive has no members", lo)
        while at + 60 <= hi:
            self.step()
            header = self.buf[at : at + 60]
            length = re.fullmatch(rb"(\d{1,10}) *", header[48:58])
            if not length or header[58:] != b"`\n":
                self.note("CUBIN_MALFORMED", "a member header of the archive is damaged, the rest was not read", at)
                return
            start, end = at + 60, at + 60 + int(length[1])
            at = end + (end - lo) % 2
            if end > hi:
                self.note("CUBIN_TRUNCATED", f"a member of the archive ends {end - hi} bytes after the file", start)
                end = hi
            name = re.fullmatch(rb"#1/(\d{1,5}) *", header[:16])  # BSD: the name comes first in the data
            start += int(name[1]) if name else 0
            if header[:16].rstrip() == b"/" and self.last_member(start, end) + lo >= hi:
                self.note("CUBIN_TRUNCATED", "the index of the archive names members behind its end", start)
            if start + 4 <= end and self.buf[start : start + 4] in {b"\x7fELF", FATBIN_MAGIC}:
                self.read(start, end, depth + 1)
        if at < hi:
            self.note("CUBIN_TRUNCATED", "the archive ends inside a member header", at)

    def last_member(self, start: int, end: int) -> int:
        """Return where the last member begins that the symbol index of an archive knows."""
        index = self.buf[start : min(end, start + MAX_ENTRIES)]
        count = min(int.from_bytes(index[:4], "big"), len(index) // 4 - 1)
        return max(struct.unpack_from(f">{max(count, 0)}I", index, 4), default=0)

    def elf(self, lo: int, hi: int) -> str:
        """Read a shared object, a relocatable object or a bare cubin."""
        if hi - lo < 64:
            self.note("CUBIN_TRUNCATED", "the ELF header is cut off", lo)
            return "elf"
        if self.buf[lo + 4 : lo + 6] != b"\x02\x01":
            if self.buf.find(FATBIN_MAGIC, lo, hi) >= 0:
                self.note("CUBIN_MALFORMED", "has GPU code in an ELF file that is not 64-bit little-endian", lo)
            return "elf"
        header = _ELF.unpack_from(self.buf, lo)
        cubin = header[2] == _EM_CUDA
        sections, trouble = self.sections(lo, hi, header)
        if cubin:
            self.cubin(lo, hi, header[7], sections)
        elif trouble and not sections:
            self.fatbins(lo, hi, "", strict=False)  # what can still be seen, beside the problem
        if trouble and (cubin or self.entries or header[6]):  # without GPU code, a file may have no section headers
            self.note("CUBIN_TRUNCATED", trouble, lo)
        if not cubin:
            self.gpu_sections(lo, hi, sections)
        return "cubin" if cubin else "elf"

    def gpu_sections(self, lo: int, hi: int, sections: list[tuple[str, int, int, int]]) -> None:
        """Read the sections with fatbins, and compare them with the fatbins that the file registers."""
        registered, before = 0, self.seen
        for name, kind, start, size in sections:
            if name in _GPU_SECTIONS and kind != 8:  # 8: takes no room in the file
                self.fatbins(lo + start, min(lo + start + size, hi), name)
            elif name == ".nvFatBinSegment":
                registered += size // 24
        if registered > self.seen - before:  # one record of 24 bytes for each fatbin, in every file that was looked at
            self.note("CUBIN_MALFORMED", f"registers {registered} fatbins and has {self.seen - before}", lo)

    def sections(self, lo: int, hi: int, header: tuple[t.Any, ...]) -> tuple[list[tuple[str, int, int, int]], str]:
        """Return name, type, offset and size of the sections, and what is wrong with them."""
        shoff, shentsize, shnum, shstrndx = header[6], header[11], header[12], header[13]
        size = hi - lo
        if not shoff:
            return [], "has no section headers"
        if shoff + 64 > size:
            return [], "the section headers lie behind the end of the file"
        if shnum == 0 or shstrndx == 0xFFFF:  # numbers that do not fit are in section 0
            first = _SECTION.unpack_from(self.buf, lo + shoff)
            shnum, shstrndx = shnum or first[5], first[6] if shstrndx == 0xFFFF else shstrndx
        if shentsize != 64 or not shnum or shstrndx >= shnum or shoff + shnum * 64 > size:
            return [], "the section headers are damaged or cut off"
        if shnum > MAX_ENTRIES:
            raise DamageError("CUBIN_TOO_LARGE", f"has {shnum} sections")
        table = [_SECTION.unpack_from(self.buf, lo + shoff + 64 * index) for index in range(shnum)]
        names_at, names_size = table[shstrndx][4], table[shstrndx][5]
        if names_at + names_size > size or names_size > MAX_DECODED:
            return [], "the section names lie behind the end of the file"
        names = self.buf[lo + names_at : lo + names_at + names_size]
        found, trouble = [], ""
        for row in table:
            name = b"?"
            if row[0] < names_size:
                name = names[row[0] : min(names.find(b"\0", row[0]) % (names_size + 1), row[0] + 65536)]
            if row[1] not in {0, 8} and row[4] + row[5] > size:
                over = row[4] + row[5] - size
                trouble = f"section {name[:64].decode('latin-1')} ends {over} bytes after the file"
            found.append((name.decode("latin-1"), row[1], row[4], row[5]))
        return found, trouble

    def cubin(self, lo: int, hi: int, flags: int, sections: list[tuple[str, int, int, int]]) -> None:
        """Read the architecture of a bare cubin, which has three encodings: CUDA 12 up to sm_90, CUDA 12 above, 13."""
        abi = self.buf[lo + 8]
        where = {name: (lo + start, min(size, 1 << 20)) for name, _kind, start, size in sections}
        if self.buf[lo + 7] == 0x33 or abi < 8:
            sm, specific = flags & 0xFF, bool(flags & 0x800)
        else:
            start, size = where.get(".nv.compat", (0, 0))
            specific = bool(flags & 0x8) or _compat_specific(self.buf[start : min(start + size, hi)])
            sm = (flags >> 8) & 0xFF
        suffix = "a" if specific else ""
        if not suffix and ".note.nv.tkinfo" in where:  # only the compiler's command line tells the family suffix
            start, size = where[".note.nv.tkinfo"]
            family = re.search(rb"-arch[ =]+(?:sm|compute)_(\d{1,4})f\b", self.buf[start : min(start + size, hi)])
            suffix = "f" if family and int(family[1]) == sm else ""
        self.entries.append(Entry("elf", sm, suffix, (1, abi), "", lo, hi - lo, hi - lo, "cubin"))

    def fatbins(self, lo: int, hi: int, section: str, strict: bool = True) -> None:
        """Read the fatbins between two offsets: zero padding between them is all that there may be."""
        at = lo
        while True:
            self.step()
            found = self.buf.find(FATBIN_MAGIC, at, hi)
            end = hi if found < 0 else found
            if strict and any(piece.strip(b"\0") for piece in _slices(self.buf, at, end)):
                self.note("CUBIN_MALFORMED", f"{end - at} bytes of {section} are no fatbin", at)
            if found < 0:
                return
            at = self.fatbin(found, hi, section)

    def fatbin(self, at: int, hi: int, section: str) -> int:
        """Read the entries of one fatbin and return where to go on."""
        if at + 16 > hi:
            self.note("CUBIN_TRUNCATED", "a fatbin header is cut off", at)
            return hi
        _magic, version, header_size, size = _FATBIN.unpack_from(self.buf, at)
        if version != 1 or header_size != 16:
            self.note("CUBIN_MALFORMED", f"has a fatbin of version {version} with a header of {header_size} bytes", at)
            return at + 4
        self.seen += 1
        end = at + 16 + size
        if end > hi:
            self.note("CUBIN_TRUNCATED", f"a fatbin ends {end - hi} bytes after its section or file", at)
        stop, at = min(end, hi), at + 16
        buf, keep, unpack = self.buf, self.entries.append, _ENTRY.unpack_from  # this loop is where the time goes
        while at < stop:
            left = stop - at
            if left < 64:
                if buf[at:stop].strip(b"\0"):
                    self.note("CUBIN_TRUNCATED", "an entry header is cut off", at)
                break
            kind, mark, header, payload, packed, _ext, minor, major, sm, _name, _len, flags, _zero, raw = unpack(
                buf, at
            )
            if mark != 0x0101 or header < 64 or header + payload > left:
                finding = "CUBIN_TRUNCATED" if end > hi else "CUBIN_MALFORMED"
                self.note(finding, "an entry header is damaged, or its payload cut off", at)
                # Go on behind the fatbin if its size can be trusted, else with the next one that can be found.
                return end if end <= hi else at + 4
            codec = "zstd" if flags & _ZSTD else "lz4" if flags & _LZ4 else ""
            suffix = "a" if flags & _SPECIFIC else "f" if flags & _FAMILY else ""
            if codec:
                stored, full = min(packed, payload), raw
            else:
                stored = full = payload
            at += header
            name = _KINDS.get(kind) or f"kind{kind}"
            keep(Entry(name, sm, suffix, (major, minor), codec, at, stored, full, section))
            at += payload
            if len(self.entries) % 256 == 0:
                self.step(256)
        return stop


def _compat_specific(records: bytes) -> bool:
    """Return whether .nv.compat says "this capability only" (key 9 is 1), which CUDA 13 no longer says in the flags."""
    at = 0
    while at + 4 <= len(records):
        form, key, value = records[at], records[at + 1], records[at + 2]
        if form == 2 and key == 9 and value == 1:
            return True
        at += 4 + (int.from_bytes(records[at + 2 : at + 4], "little") if form == 4 else 0)
    return False


def _slices(buf: Buffer, lo: int, hi: int) -> t.Iterator[bytes]:
    for count, at in enumerate(range(lo, hi, _PIECE), 1):
        yield buf[at : min(at + _PIECE, hi)]
        if count % 16 == 0:
            release(buf)


def release(buf: Buffer) -> None:
    """Drop the touched pages of a mapped file from this process; they stay in the page cache."""
    if isinstance(buf, mmap.mmap) and hasattr(buf, "madvise"):
        with contextlib.suppress(OSError, ValueError):
            buf.madvise(mmap.MADV_DONTNEED)


def parse(buf: Buffer, name: str = "", lo: int = 0, hi: int | None = None) -> Listing:
    """List the GPU code in a file that is in memory or mapped. Damage never raises: it becomes a problem."""
    reader = _Reader(buf, name)
    kind = "other"
    try:
        kind = reader.read(lo, len(buf) if hi is None else hi)
    except DamageError as error:
        reader.problems.append(problem(error.finding, f"{name}: {error}"))
    except _DAMAGE as error:
        reader.problems.append(problem("CUBIN_MALFORMED", f"{name}: is damaged", str(error)))
    release(buf)
    return Listing(kind, tuple(reader.entries), tuple(reader.problems))


# ---- Payloads: the names of the kernels


def _library(*names: str) -> t.Any:
    """Return a shared library, or None. The usual search (ctypes.util.find_library) would start processes."""
    import ctypes

    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _zstd_decoder() -> t.Any:
    """Return a function from (buffer, offset, size) to decoded pieces, or None where there is no libzstd."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        library = _library("libzstd.so.1", "libzstd.1.dylib")
        return _zstd_by_library(library) if library else None

    def pieces(buf: Buffer, at: int, size: int) -> t.Iterator[bytes]:
        decoder, end = zstd.ZstdDecompressor(), at + size
        while not decoder.eof and (at < end or not decoder.needs_input):
            chunk = buf[at : min(at + _PIECE, end)] if decoder.needs_input else b""
            at += len(chunk)
            try:
                yield decoder.decompress(chunk, _PIECE)
            except zstd.ZstdError as error:
                raise DamageError("CUBIN_MALFORMED", f"zstd: {error}") from None

    return pieces


def _zstd_by_library(lib: t.Any) -> t.Any:
    """Return a streaming decoder over libzstd, which takes a window of 128 MiB at most and so bounds the memory."""
    import ctypes

    class Span(ctypes.Structure):
        _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t))

    lib.ZSTD_createDStream.restype = ctypes.c_void_p
    lib.ZSTD_freeDStream.argtypes = [ctypes.c_void_p]
    lib.ZSTD_decompressStream.restype = ctypes.c_size_t
    lib.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, ctypes.POINTER(Span), ctypes.POINTER(Span)]
    lib.ZSTD_isError.argtypes = [ctypes.c_size_t]

    def pieces(buf: Buffer, at: int, size: int) -> t.Iterator[bytes]:
        stream, end = lib.ZSTD_createDStream(), at + size
        out = ctypes.create_string_buffer(_PIECE)
        source, target = Span(None, 0, 0), Span(ctypes.addressof(out), _PIECE, 0)
        chunk = b""  # kept in a name for as long as libzstd reads from it
        try:
            while True:
                if source.pos == source.size and at < end:
                    chunk = buf[at : min(at + _PIECE, end)]
                    at += len(chunk)
                    source = Span(ctypes.cast(ctypes.c_char_p(chunk), ctypes.c_void_p), len(chunk), 0)
                target.pos = 0
                state = lib.ZSTD_decompressStream(stream, ctypes.byref(target), ctypes.byref(source))
                if lib.ZSTD_isError(state):
                    raise DamageError("CUBIN_MALFORMED", "a zstd frame is damaged or larger than 128 MiB")
                if target.pos:
                    yield ctypes.string_at(out, target.pos)
                if state == 0 or (not target.pos and source.pos == source.size and at >= end):
                    return
        finally:
            lib.ZSTD_freeDStream(stream)

    return pieces


def _lz4_decoder() -> t.Any:
    """Return a function from (block, limit) to the first bytes of what it decodes to."""
    lib = _library("liblz4.so.1")
    if not lib:
        return lz4_block
    import ctypes

    def decode(source: bytes, limit: int) -> bytearray:
        out = bytearray(limit)
        view = (ctypes.c_char * limit).from_buffer(out) if limit else b""
        size = lib.LZ4_decompress_safe_partial(source, view, len(source), limit, limit)
        if size != limit:
            raise DamageError("CUBIN_MALFORMED", "an LZ4 block is damaged")
        return out

    return decode


def lz4_block(source: bytes, limit: int) -> bytes:
    """Decode the first bytes of an LZ4 block in plain Python, for machines without liblz4."""
    out, at, size = bytearray(), 0, len(source)

    def length(base: int, at: int) -> tuple[int, int]:
        step = 255 if base == 15 else 0
        while step == 255:
            step = source[at]
            at, base = at + 1, base + step
        return base, at

    try:
        while at < size and len(out) < limit:
            token = source[at]
            literals, at = length(token >> 4, at + 1)
            if at + literals > size:
                raise DamageError("CUBIN_MALFORMED", "an LZ4 block is cut off")
            out += source[at : at + literals]
            at += literals
            if at >= size or len(out) >= limit:
                break
            back = source[at] | source[at + 1] << 8
            match, at = length(token & 15, at + 2)
            match = min(match + 4, limit - len(out))
            if not 0 < back <= len(out):
                raise DamageError("CUBIN_MALFORMED", "an LZ4 block refers to before its start")
            chunk = out[len(out) - back : len(out) - back + match]
            out += (chunk * (match // len(chunk) + 1))[:match]
    except IndexError:
        raise DamageError("CUBIN_MALFORMED", "an LZ4 block is cut off") from None
    return bytes(out[:limit])


_codecs: dict[str, t.Any] = {}


def codec(name: str) -> t.Any:
    """Return the decoder of this machine for zstd (None where there is none) or lz4."""
    if name not in _codecs:
        _codecs[name] = _zstd_decoder() if name == "zstd" else _lz4_decoder()
    return _codecs[name]


def decoded(buf: Buffer, entry: Entry) -> t.Iterator[bytes]:
    """Yield the decoded payload piece by piece, MAX_DECODED bytes at most; whoever has enough stops asking."""
    if entry.raw > MAX_DECODED:
        raise DamageError("CUBIN_TOO_LARGE", f"an entry says that it decodes to {entry.raw} bytes")
    if not entry.codec:
        yield from _slices(buf, entry.offset, entry.offset + entry.stored)
        return
    decoder = codec(entry.codec)
    if not decoder:
        raise DamageError("CUBIN_CODEC_MISSING", "libzstd was not found, so the names of the kernels cannot be read")
    pieces = _lz4_pieces(decoder, buf, entry) if entry.codec == "lz4" else decoder(buf, entry.offset, entry.stored)
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > entry.raw:
            break
        yield piece
    if total != entry.raw:
        raise DamageError("CUBIN_MALFORMED", f"an entry does not decode to the {entry.raw} bytes that it says")


def _lz4_pieces(decode: t.Callable[[bytes, int], bytes], buf: Buffer, entry: Entry) -> t.Iterator[bytes]:
    if entry.raw > 255 * entry.stored + 64:
        raise DamageError("CUBIN_MALFORMED", "an LZ4 entry says that it decodes to more than LZ4 can")
    source = buf[entry.offset : entry.offset + entry.stored]
    done = 0
    # The names of a cubin are at its beginning; those of PTX are everywhere.
    for limit in (_PIECE, entry.raw) if entry.kind == "elf" and entry.raw > _PIECE else (entry.raw,):
        whole = memoryview(decode(source, limit))
        for at in range(done, len(whole), _PIECE):
            yield whole[at : at + _PIECE].tobytes()
        done = len(whole)


def kernel_names(buf: Buffer, entry: Entry) -> set[bytes]:
    """Return the mangled names of the kernels in a cubin (sections .text.NAME) or in PTX (.entry NAME)."""
    if entry.kind == "ptx":
        return _ptx_names(decoded(buf, entry))
    return _cubin_names(decoded(buf, entry)) if entry.kind == "elf" else set()


_PTX_ENTRY = re.compile(rb"\.entry\s+([\w$.]+)\s*$")


def _ptx_names(pieces: t.Iterator[bytes]) -> set[bytes]:
    """Return the names before the parameter lists of .entry directives, which every compiler writes on one line.

    PTX is long (680 MB in vLLM 0.33.0's FlashAttention alone) and has few parentheses: looking for one byte takes a
    tenth of the time of looking for a word.
    """
    found: set[bytes] = set()
    rest = b""
    for piece in pieces:
        text = rest + piece
        at = text.find(b"(")
        while at >= 0:
            name = _PTX_ENTRY.search(text, max(text.rfind(b"\n", 0, at), at - 65536, 0), at)
            if name:
                found.add(name[1])
            at = text.find(b"(", at + 1)
        cut = text.rfind(b"\n") + 1
        rest = text[max(cut, len(text) - 65536) :]
    return found


_TEXT_SECTION = re.compile(rb"(?<=\0)\.text\.([^\0]*)")


def _cubin_names(pieces: t.Iterator[bytes]) -> set[bytes]:
    """Return the kernels of a cubin, from its beginning where that is possible.

    Every nvcc puts the two string tables first and the symbol table, which starts with 24 zero bytes, behind them. So
    a tenth of the bytes is enough as a rule. A cubin that begins otherwise is decoded in full and read by its headers.
    """
    head = bytearray()
    for piece in pieces:
        start = max(64, len(head) - 24)
        head += piece
        if head[64:75] == b"\0.shstrtab\0":
            end = head.find(bytes(24), start)
            if end >= 0:
                return set(_TEXT_SECTION.findall(head, 64, end))
    whole = bytes(head)
    if len(whole) < 64 or whole[:4] != b"\x7fELF":
        raise DamageError("CUBIN_MALFORMED", "the payload of an entry is no cubin")
    sections, trouble = _Reader(whole, "").sections(0, len(whole), _ELF.unpack_from(whole, 0))
    if trouble:
        raise DamageError("CUBIN_MALFORMED", f"in a cubin, {trouble}")
    return {name[6:].encode("latin-1") for name, *_rest in sections if name.startswith(".text.")}


# ---- Kernel families


@record
class Family:
    """How the kernels of one purpose are told by their names, for each major compute capability (0: for all)."""

    id: str
    title: str
    rules: dict[int, Rules]
    block_scale: bool = False  # needs the FP4 block-scaled MMA, which only an "a" or "f" target has
    jit: bool = False  # compiled with nvcc on first use where there is no compiled module
    files: tuple[str, ...] = ()  # only in files with one of these in the path
    not_files: tuple[str, ...] = ()  # never in files with one of these in the path

    @classmethod
    def from_dict(cls, data: t.Any) -> Family:
        """Read one row of the family table (plugins/plugin_utils/data/kernel_families.yml)."""
        try:
            rules: dict[int, Rules] = {}
            for major, alternatives in data["match"].items():
                pairs = tuple((_texts(one["all"]), _texts(one.get("none", []))) for one in alternatives)
                if not all(need for need, _avoid in pairs):
                    raise ValueError("an alternative needs at least one string under all")
                rules[0 if major == "any" else int(major)] = pairs
            return cls(
                str(data["id"]),
                str(data.get("title", data["id"])),
                rules,
                bool(data.get("block_scale")),
                bool(data.get("jit")),
                *(tuple(text.decode() for text in _texts(data.get(key, []))) for key in ("files", "not_files")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CubinError(
                f"families: {str(data)[:120]} is no row of a family table ({error}); see docs/cubins.md"
            ) from None

    def lives_in(self, where: str) -> bool:
        """Return whether the family can be in the file at this path below its package."""
        return (not self.files or any(text in where for text in self.files)) and not any(
            text in where for text in self.not_files
        )

    def alternatives(self, capability: int) -> Rules | None:
        """Return the rules that hold for a device, or None where it is not known what its kernels are called."""
        return self.rules.get(capability // 10, self.rules.get(0))


def _texts(values: t.Any) -> tuple[bytes, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(text, str) and text for text in values):
        raise ValueError("all and none are lists of strings")
    return tuple(text.encode() for text in values)


class _Matcher:
    """Tells the families of a name; the same name comes once per architecture, so answers are kept."""

    def __init__(self, families: t.Sequence[Family], capability: int) -> None:
        # The first text apart: most names lack it, and a wheel has a hundred thousand pairs of a name and a rule.
        self.rules = [
            (family.id, need[0], need[1:], avoid)
            for family in families
            for need, avoid in family.alternatives(capability) or ()
        ]
        self.known: dict[bytes, tuple[str, ...]] = {}

    def __call__(self, name: bytes) -> tuple[str, ...]:
        answer = self.known.get(name)
        if answer is None:
            hits = {
                family: None
                for family, first, need, avoid in self.rules
                if first in name and all(text in name for text in need) and not any(text in name for text in avoid)
            }
            answer = tuple(hits)
            if len(self.known) < MAX_ENTRIES:
                self.known[name] = answer
        return answer


class _Kernels:
    """The kernels of one family, by what the device can do with them."""

    def __init__(self) -> None:
        self.by_use: dict[str, set[bytes]] = {"native": set(), "ptx": set(), "none": set()}
        self.archs: Counter[str] = Counter()
        self.specific: set[bytes] = set()  # loadable, from a target with a suffix
        self.files: set[str] = set()

    def merge(self, other: _Kernels) -> None:
        """Add what another file has."""
        for use, names in other.by_use.items():
            self.by_use[use] |= names
        self.archs.update(other.archs)
        self.specific |= other.specific
        self.files |= other.files

    def judge(self, family: Family, capability: int, complete: bool) -> tuple[str, dict[str, t.Any]]:
        """Return the verdict on the family, and the numbers behind it."""
        native, ptx = self.by_use["native"], self.by_use["ptx"] - self.by_use["native"]
        lost = self.by_use["none"] - native - ptx
        if family.alternatives(capability) is None:
            verdict = "unknown"
        elif ptx:  # one kernel that only the driver can compile is enough to stall a request and to need its JIT
            verdict = "ptx"
        elif native:
            verdict = "native"
        else:
            verdict = "none" if complete else "unknown"
        detail: dict[str, t.Any] = {
            "title": family.title,
            "native": len(native),
            "ptx": len(ptx),
            "not_loadable": len(lost),
            "archs": dict(sorted(self.archs.items())),
            "files": sorted(self.files),
            "jit": family.jit,
        }
        if family.block_scale:
            detail["block_scale"] = bool(self.specific) if native or ptx else None
        return verdict, detail


@record
class _FileFacts:
    row: dict[str, t.Any]
    problems: list[dict[str, str]]
    kernels: dict[str, _Kernels]


# ---- Scanning

GPU_NAME = re.compile(r"\.(?:so(?:\.\d+)*|cubin|fatbin|ptx|a|o)$")
_STAMPS = {
    "stamp": re.compile(r"^__version__\b[^='\"\n]*=\s*(?:version\s*=\s*)?['\"]([^'\"\n]{1,120})['\"]", re.MULTILINE),
    "commit": re.compile(
        r"^(?:__commit_id__|git_version|__git_version__)\b[^='\"\n]*=[^'\"\n]*['\"]([0-9A-Za-z]{6,64})['\"]",
        re.MULTILINE,
    ),
    "cuda": re.compile(r"^cuda\b[^='\"\n]*=\s*['\"]([0-9.]{3,12})['\"]", re.MULTILINE),
}
STAMP_FILES = ("_version.py", "version.py", "_build_meta.py")
_ALIASES = {"flashinfer": "flashinfer_python"}  # a package whose import name is not its distribution's


class Scan:
    """Collects what files, trees, wheels and streams hold, and judges it for one capability."""

    def __init__(self, capability: str = "12.1", families: t.Sequence[Family] = (), checksum: bool = True) -> None:
        import threading

        self.capability = parse_capability(capability)
        self.families = tuple(families)
        self.checksum = checksum
        self.rows: list[dict[str, t.Any]] = []
        self.problems: list[dict[str, str]] = []
        self.kernels: dict[str, _Kernels] = {family.id: _Kernels() for family in self.families}
        self.packages: dict[str, dict[str, str]] = {}
        self._files_seen = 0
        self._match = _Matcher(self.families, self.capability)
        self._threading = threading
        self._lock = threading.Lock()

    def inspect(self, buf: Buffer, name: str, where: str = "") -> _FileFacts:
        """List one file and, if there are families to look for, read the names of its kernels.

        ``where`` is the path below the package, by which some families are told from others.
        """
        listing = parse(buf, name)
        uses = Counter(entry.use(self.capability) for entry in listing.entries)
        verdict = "native" if uses["native"] else "ptx" if uses["ptx"] else "none"
        row = {
            "path": name,
            "kind": listing.kind,
            "size": len(buf),
            "entries": len(listing.entries),
            "archs": dict(sorted(Counter(entry.arch for entry in listing.entries).items())),
            "native": uses["native"],
            "ptx": uses["ptx"],
        }
        facts = _FileFacts(row, list(listing.problems), {})
        if self._match.rules:
            self._read_names(buf, where or os.path.basename(name), listing.entries, facts)
        row["complete"] = not facts.problems
        row["verdict"] = "unknown" if facts.problems and verdict == "none" else verdict
        return facts

    def _read_names(self, buf: Buffer, where: str, entries: t.Sequence[Entry], facts: _FileFacts) -> None:
        name = facts.row["path"]
        here = {family.id for family in self.families if family.lives_in(where)}
        budget = MAX_DECODED_FILE
        lock = self._threading.Lock()

        def one(entry: Entry) -> None:
            nonlocal budget
            with lock:
                budget -= entry.raw
            try:
                if budget < 0:
                    raise DamageError("CUBIN_TOO_LARGE", f"decodes to more than {MAX_DECODED_FILE} bytes")
                names = kernel_names(buf, entry)
                release(buf)
            except (DamageError, *_DAMAGE) as error:
                finding = error.finding if isinstance(error, DamageError) else "CUBIN_MALFORMED"
                with lock:
                    if len(facts.problems) < 16:
                        where = f"{entry.arch} at {entry.offset:#x}"
                        facts.problems.append(problem(finding, f"{name}: {error}", where))
                return
            use, arch = entry.use(self.capability), entry.arch
            hits = [(family, kernel) for kernel in names for family in here.intersection(self._match(kernel))]
            with lock:
                for family, kernel in hits:
                    group = facts.kernels.setdefault(family, _Kernels())
                    group.files.add(name)
                    group.by_use[use].add(kernel)
                    group.archs[arch] += 1
                    if use != "none" and entry.suffix:
                        group.specific.add(kernel)

        wanted = [entry for entry in entries if entry.kind in {"elf", "ptx"}]
        if sum(entry.raw for entry in wanted) > _SMALL:
            _in_threads(one, wanted)
        else:  # a thread costs more than it saves
            for entry in wanted:
                one(entry)
        facts.problems.sort(key=lambda one: one["evidence"])

    def keep(self, facts: _FileFacts) -> None:
        """Add the facts of one file to the whole."""
        with self._lock:
            self.rows.append(facts.row)
            self.problems += facts.problems
            for family, kernels in facts.kernels.items():
                self.kernels[family].merge(kernels)

    def trouble(self, finding: str, message: str, evidence: str = "") -> None:
        """Add a problem that belongs to no file that was read."""
        with self._lock:
            self.problems.append(problem(finding, message, evidence))

    def add_file(self, path: str, where: str = "") -> None:
        """Add a file. It is mapped, never opened through a link, and never a device or a pipe."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb", buffering=0) as handle:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    self.trouble("CUBIN_UNREADABLE", f"{path}: is no regular file")
                    return
                with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if status.st_size else _Nothing() as buf:
                    facts = self.inspect(buf, path, where)
                if self.checksum:
                    facts.row["sha256"] = _sha256(handle)
        except (OSError, ValueError) as error:
            self.trouble("CUBIN_UNREADABLE", f"{path}: cannot be read", str(error))
            return
        self.keep(facts)

    def add_stream(self, name: str, pieces: t.Iterable[bytes], where: str = "", expect: str = "") -> None:
        """Add a file that comes as a stream. A large one goes through an unnamed temporary file, to keep memory small.

        ``expect`` is the sha256 that it should have, where that is known.
        """
        import hashlib
        import tempfile

        digest, size, cut = hashlib.sha256(), 0, None
        small: list[bytes] = []
        try:
            with contextlib.ExitStack() as stack:
                spool: t.Any = None
                try:
                    for piece in pieces:
                        size += len(piece)
                        if size > MAX_MEMBER:
                            raise DamageError("CUBIN_TOO_LARGE", f"is larger than {MAX_MEMBER} bytes")
                        digest.update(piece)
                        small.append(piece)
                        if size > _SMALL:
                            spool = spool or stack.enter_context(tempfile.TemporaryFile(buffering=0))
                            spool.writelines(small)
                            small.clear()
                except DamageError as error:
                    cut = problem(error.finding, f"{name}: {error}")
                buf: Buffer = b"".join(small)
                if spool:
                    spool.write(buf)
                    buf = stack.enter_context(mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ))
                facts = self.inspect(buf, name, where)
        except (OSError, ValueError) as error:
            self.trouble("CUBIN_UNREADABLE", f"{name}: cannot be read", str(error))
            return
        facts.row["sha256"] = digest.hexdigest()
        if not cut and expect and expect != facts.row["sha256"]:
            cut = problem("CUBIN_MALFORMED", f"{name}: is not the file that the RECORD of the wheel describes", expect)
        if cut:
            facts.problems.insert(0, cut)
            facts.row["complete"] = False
        self.keep(facts)

    def add_path(self, path: str) -> None:
        """Add whatever the user named: a file, a wheel or a directory."""
        real = os.path.realpath(path)
        if os.path.isdir(real):
            self.add_tree(real)
        elif not os.path.exists(real):
            raise CubinError(f"paths: {path} does not exist on this host: name a file, a wheel or a directory")
        elif real.endswith(".whl"):
            self.add_wheel(real)
        else:
            self.add_file(real)

    def add_tree(self, root: str) -> None:
        """Add every file below a directory that can hold GPU code, without following a link out of it."""
        found: list[str] = []
        for folder, folders, names in os.walk(root, onerror=self._walk_error):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in folders:
                self._is_link(root, os.path.join(folder, name))
            for name in names:
                path = os.path.join(folder, name)
                if GPU_NAME.search(name) or name.endswith(".whl"):
                    if not self._is_link(root, path):
                        found.append(path)
                elif name in STAMP_FILES or name == "METADATA":
                    self._package_file(root, path)
            if self._files_seen + len(found) > MAX_FILES:
                self.trouble("CUBIN_TOO_LARGE", f"{root}: more than {MAX_FILES} files, the rest was not read")
                break
        self._files_seen += len(found)
        self._dist_info_beside(root)
        plain = sorted((path for path in found if not path.endswith(".whl")), key=_size, reverse=True)
        above = len(os.path.dirname(root.rstrip("/")).rstrip("/")) + 1
        _in_threads(lambda path: self.add_file(path, path[above:]), plain)
        for path in found:
            if path.endswith(".whl"):
                self.add_wheel(path)
        self._roll_up(root)

    def _walk_error(self, error: OSError) -> None:
        self.trouble("CUBIN_UNREADABLE", f"{error.filename}: cannot be listed", str(error))

    def _is_link(self, root: str, path: str) -> bool:
        """A link inside the tree shows what is seen anyway; one that leads out of it is reported, not followed."""
        if not os.path.islink(path):
            return False
        target = os.path.realpath(path)
        if target != root and not target.startswith(root.rstrip("/") + "/"):
            self.trouble("CUBIN_LINK_OUTSIDE", f"{path}: leads out of {root} and was not followed", target)
        return True

    def _roll_up(self, root: str) -> None:
        """Make one row of the thousands of bare cubins of flashinfer-cubin, with one sha256 over all of theirs."""
        import hashlib

        prefix = root.rstrip("/") + "/"
        bare = [
            row for row in self.rows if row["kind"] == "cubin" and row["complete"] and row["path"].startswith(prefix)
        ]
        if len(bare) <= ROLLUP:
            return
        gone = {id(row) for row in bare}
        archs: Counter[str] = Counter()
        digest = hashlib.sha256()
        for row in sorted(bare, key=lambda row: str(row["path"])):
            archs.update(row["archs"])
            digest.update(f"{row.get('sha256', '')}  {row['path'][len(prefix) :]}\n".encode())
        self.rows = [row for row in self.rows if id(row) not in gone]
        native = sum(row["native"] for row in bare)
        self.rows.append(
            {
                "path": root,
                "kind": "cubins",
                "size": sum(row["size"] for row in bare),
                "entries": len(bare),
                "archs": dict(sorted(archs.items())),
                "native": native,
                "ptx": 0,
                "complete": True,
                "verdict": "native" if native else "none",
                **({"sha256": digest.hexdigest()} if self.checksum else {}),
            }
        )

    def add_wheel(self, path: str) -> None:
        """Add a wheel, straight from the zip: a member is inflated as a whole only into an unnamed temporary file."""
        try:
            with open(path, "rb") as handle:
                self._wheel(path, handle)
        except DamageError as error:
            self.trouble(error.finding, f"{path}: {error}")
        except OSError as error:
            self.trouble("CUBIN_UNREADABLE", f"{path}: cannot be read", str(error))

    def _wheel(self, path: str, handle: t.BinaryIO) -> None:
        fd = handle.fileno()
        members = _zip_members(handle)
        record: dict[str, str] = {}
        for info in members:
            base = info.filename.rpartition("/")[2]
            if base in {*STAMP_FILES, "METADATA", "RECORD"} and info.filename.count("/") == 1:
                with contextlib.suppress(DamageError):
                    text = b"".join(_member(fd, info, 32 << 20)).decode("utf-8", "replace")
                    if base == "RECORD":
                        record = _record(text)
                    else:
                        self.package_text(info.filename, text)
        wanted = sorted((info for info in members if GPU_NAME.search(info.filename)), key=lambda info: -info.file_size)

        def one(info: t.Any) -> None:
            name = info.filename
            expect = record.get(name, "")
            self.add_stream(f"{path}/{name}", _member(fd, info, MAX_MEMBER, not expect), name, expect)

        _in_threads(one, wanted)
        self._roll_up(path)

    def _package_file(self, root: str, path: str) -> None:
        # Of a package only its own version counts, of a site-packages that of every package, not of what is deeper.
        package = os.path.dirname(root).endswith("-packages") or os.path.exists(os.path.join(root, "__init__.py"))
        relative = os.path.relpath(path, root)
        if "/" not in relative:
            relative = f"{os.path.basename(root)}/{relative}"
        elif package or relative.count("/") != 1:
            return
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as handle:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    self.package_text(relative, handle.read(1 << 20).decode("utf-8", "replace"))

    def _dist_info_beside(self, root: str) -> None:
        """A package directory has its version in the dist-info beside it."""
        parent, _slash, name = root.rpartition("/")
        with contextlib.suppress(OSError):
            for other in os.listdir(parent or "/"):
                if other.startswith(f"{name}-") and other.endswith(".dist-info"):
                    self._package_file(f"{parent}/{other}", f"{parent}/{other}/METADATA")

    def package_text(self, path: str, text: str) -> None:
        """Keep what a package says of itself: the version of its dist-info and the stamp that /version answers with."""
        folder, _slash, base = path.rpartition("/")
        facts: dict[str, str] = {}
        if base == "METADATA":
            name = re.search(r"^Name: *([\w.-]{1,80})", text, re.MULTILINE)
            version = re.search(r"^Version: *(\S{1,120})", text, re.MULTILINE)
            if not folder.endswith(".dist-info") or not name or not version:
                return
            folder = re.sub(r"[-.]+", "_", name[1].lower())
            facts["version"] = version[1]
        else:
            found = {key: pattern.search(text) for key, pattern in _STAMPS.items()}
            facts = {key: match[1] for key, match in found.items() if match}
        if facts:
            with self._lock:
                self.packages.setdefault(_ALIASES.get(folder, folder), {}).update(facts)

    def result(self) -> dict[str, t.Any]:
        """Return everything as plain data."""
        complete = not self.problems
        verdicts, details = {}, {}
        for family in self.families:
            judged = self.kernels[family.id].judge(family, self.capability, complete)
            verdicts[family.id], details[family.id] = judged
        best = [use for use in ("native", "ptx") if any(row["verdict"] == use for row in self.rows)]
        return {
            "capability": f"{self.capability // 10}.{self.capability % 10}",
            "complete": complete,
            "verdict": best[0] if best else "none" if complete else "unknown",
            "families": verdicts,
            "kernels": details,
            "files": sorted(self.rows, key=lambda row: str(row["path"])),
            "packages": {
                name: facts for name, facts in sorted(self.packages.items()) if "version" in facts or "stamp" in facts
            },
            "findings": self.problems[:200],
        }


class _Nothing(contextlib.AbstractContextManager[bytes]):
    """An empty file, which cannot be mapped."""

    def __enter__(self) -> bytes:
        return b""

    def __exit__(self, *_error: object) -> None:
        return None


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _sha256(handle: t.Any) -> str:
    import hashlib

    digest = hashlib.sha256()
    handle.seek(0)
    while chunk := handle.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _zip_members(handle: t.BinaryIO) -> list[t.Any]:
    """Return the members of a zip, whose directory is only read if it has the size of a wheel's."""
    import zipfile

    size = os.fstat(handle.fileno()).st_size
    tail = os.pread(handle.fileno(), 65557, max(0, size - 65557))
    end = tail.rfind(b"PK\5\6")
    if end < 0 or len(tail) - end < 22:
        raise DamageError("CUBIN_TRUNCATED", "is no zip file, or its end is cut off")
    if int.from_bytes(tail[end + 12 : end + 16], "little") > MAX_DIRECTORY:
        raise DamageError("CUBIN_TOO_LARGE", "the directory of the zip is too large to be a wheel's")
    try:
        members = [info for info in zipfile.ZipFile(handle).infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, NotImplementedError, *_DAMAGE) as error:
        raise DamageError("CUBIN_MALFORMED", f"is a damaged zip file ({error})") from None
    if len(members) > MAX_FILES:
        raise DamageError("CUBIN_TOO_LARGE", f"has more than {MAX_FILES} files")
    return members


def _member(fd: int, info: t.Any, limit: int, check: bool = True) -> t.Iterator[bytes]:
    """Yield a member of a zip, as several threads may at once; never more than the zip says that it has.

    ``check`` is for the CRC-32 of the zip, which a caller does not need who checks the sha256 of the RECORD.
    """
    import zlib

    local = os.pread(fd, 30, info.header_offset) if info.header_offset >= 0 else b""
    if len(local) < 30 or local[:4] != b"PK\3\4" or info.flag_bits & 1 or info.compress_type not in {0, 8}:
        raise DamageError("CUBIN_MALFORMED", "the member of the zip is damaged, encrypted or packed in an unknown way")
    if info.file_size > limit:
        raise DamageError("CUBIN_TOO_LARGE", f"says that it inflates to {info.file_size} bytes")
    at = info.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    end, total, checksum, tail = at + info.compress_size, 0, 0, b""
    inflate = zlib.decompressobj(-15) if info.compress_type == 8 else None
    while (at < end or tail) and not (inflate and inflate.eof):
        chunk = tail or os.pread(fd, min(_PIECE, end - at), at)
        if not chunk:
            raise DamageError("CUBIN_TRUNCATED", "the zip ends inside the member")
        at += 0 if tail else len(chunk)
        try:
            piece = inflate.decompress(chunk, 4 << 20) if inflate else chunk
        except zlib.error as error:
            raise DamageError("CUBIN_MALFORMED", f"cannot be inflated ({error})") from None
        tail = inflate.unconsumed_tail if inflate else b""
        total += len(piece)
        checksum = zlib.crc32(piece, checksum) if check else info.CRC
        if total > info.file_size:
            break
        yield piece
    if total != info.file_size or checksum != info.CRC:
        raise DamageError("CUBIN_TRUNCATED", f"does not inflate to the {info.file_size} bytes that the zip says")


def _record(text: str) -> dict[str, str]:
    """Return path to sha256 (in hex) of a wheel's RECORD."""
    import base64
    import binascii

    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r'"?(.+?)"?,sha256=([\w-]{43}),\d*', line)
        if match:
            with contextlib.suppress(binascii.Error, ValueError):
                found[match[1]] = base64.urlsafe_b64decode(match[2] + "=").hex()
    return found


def _in_threads(work: t.Callable[[t.Any], None], items: t.Sequence[t.Any]) -> None:
    """Do the work in a few threads: inflating, hashing and decoding run outside of Python's lock."""
    import threading

    queue = iter(items)
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                item = next(queue, None)
            if item is None:
                return
            work(item)

    count = min(4, os.cpu_count() or 1, len(items))
    others = [threading.Thread(target=run, daemon=True) for _index in range(count - 1)]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()


# ---- An installed environment


def scan_environment(
    scan: Scan, packages: t.Sequence[str], root: str = "/", environ: t.Mapping[str, str] | None = None
) -> dict[str, t.Any]:
    """Add the packages and the compile caches of the machine or image that this runs in, and return its compilers."""
    import fnmatch
    import glob

    env = os.environ if environ is None else environ

    def below(path: str) -> str:
        return os.path.join(root, path.lstrip("/"))

    def wanted(name: str) -> bool:
        return any(fnmatch.fnmatch(name.lower(), pattern) for pattern in packages)

    patterns = ["/usr/local/lib/python3*/*-packages", "/usr/lib/python3*/*-packages", "/opt/*/lib/python3*/*-packages"]
    patterns += [f"{env[key]}/lib/python3*/site-packages" for key in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(key)]
    candidates = [path for pattern in patterns for path in sorted(glob.glob(below(pattern)))]
    candidates += [below(path) for path in env.get("PYTHONPATH", "").split(":") if path]
    candidates += [path for path in sys.path if path.endswith("-packages")] if root == "/" else []
    sites = list(dict.fromkeys(os.path.realpath(path) for path in candidates if os.path.isdir(path)))
    trees = []
    for site in sites:
        for name in sorted(os.listdir(site)):
            path = os.path.join(site, name)
            if name.endswith(".dist-info") and wanted(name.split("-")[0]):
                scan._package_file(path, os.path.join(path, "METADATA"))
                trees += _editable(path, below)
            elif wanted(name) and os.path.isdir(path):
                trees.append(path)
    homes = [env[key] for key in ("FLASHINFER_WORKSPACE_BASE", "HOME") if env.get(key)] + ["/root"]
    caches = [below(f"{home}/.cache/flashinfer") for home in homes]
    caches += [below(env["FLASHINFER_CUBIN_DIR"])] if env.get("FLASHINFER_CUBIN_DIR") else []
    trees += [path for path in caches if os.path.isdir(path)]
    for tree in dict.fromkeys(os.path.realpath(path) for path in trees):
        scan.add_tree(tree)
    return {
        "tools": _tools(env, below, sites),
        "flashinfer_version_check": env.get("FLASHINFER_DISABLE_VERSION_CHECK") != "1",
    }


def _editable(dist_info: str, below: t.Callable[[str], str]) -> list[str]:
    """Return the source tree of a package that was installed with pip install -e."""
    import json

    try:
        with open(os.path.join(dist_info, "direct_url.json"), "rb") as handle:
            data = json.loads(handle.read(1 << 16))
        url = data["url"] if data.get("dir_info", {}).get("editable") else ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []
    if not isinstance(url, str) or not url.startswith("file:///"):
        return []
    tree = os.path.join(below(url[7:]), os.path.basename(dist_info).split("-")[0])
    return [tree] if os.path.isdir(tree) else []


def _tools(env: t.Mapping[str, str], below: t.Callable[[str], str], sites: t.Sequence[str]) -> dict[str, t.Any]:
    """Return the CUDA compilers and their versions, which stand in the files themselves: nothing is started."""
    folders = [below(path) for path in env.get("PATH", "").split(":") if path]
    triton = [os.path.join(site, "triton/backends/nvidia/bin/ptxas") for site in sites]
    known = {
        "nvcc": [os.path.join(path, "nvcc") for path in folders],
        "nvcc_off_path": [below("/usr/local/cuda/bin/nvcc")],  # left out below where it is on PATH
        "ptxas": [os.path.join(path, "ptxas") for path in folders],
        "triton_ptxas": [below(env["TRITON_PTXAS_PATH"]), *triton] if env.get("TRITON_PTXAS_PATH") else triton,
    }
    found = {}
    for name, paths in known.items():
        path = next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")
        if path and not (name == "nvcc_off_path" and "nvcc" in found):
            found[name] = {"path": path, "version": tool_version(path)}
    return found


def tool_version(path: str, depth: int = 0) -> str:
    """Return the release of a CUDA tool ("13.0.88") as its binary says it, or nothing where it does not."""
    try:
        with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as buf:
            match = re.search(rb"Cuda compilation tools, release \d+\.\d+, V(\d+\.\d+\.\d+)", buf)
            version = match[1].decode() if match else ""
            # A wrapper script names the real program.
            script = buf[:4096] if buf[:2] == b"#!" else b""
        wrapped = re.search(rb"^exec\s+(/[\w./-]+/(?:nvcc|ptxas))\b", script, re.MULTILINE)
        if version or not wrapped or depth > 2:
            return version
    except (OSError, ValueError):
        return ""
    return tool_version(wrapped[1].decode(), depth + 1)


# ---- The door for scripts


def scan_request(request: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Carry out a request: capability, families, checksum, paths, environment, packages and root."""
    families = [Family.from_dict(row) for row in request.get("families") or ()]
    scan = Scan(str(request.get("capability", "12.1")), families, bool(request.get("checksum", True)))
    for path in request.get("paths") or ():
        scan.add_path(str(path))
    found: dict[str, t.Any] = {}
    if request.get("environment"):
        found = scan_environment(scan, request.get("packages") or (), str(request.get("root", "/")))
    return {**scan.result(), **found}


_USAGE = "usage: _cubin.py [--list] [--environment] [--capability 12.1] [--request JSON] [PATH ...]"


def main(argv: t.Sequence[str]) -> int:
    """Print the answer as one JSON document, or with --list every entry of the files."""
    try:
        request = _read_words(iter(argv))
        if request.get("list"):
            return _print_listing(request["paths"])
        import json

        json.dump(scan_request(request), sys.stdout)
        sys.stdout.write("\n")
    except CubinError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _read_words(words: t.Iterator[str]) -> dict[str, t.Any]:
    request: dict[str, t.Any] = {"paths": [], "checksum": False}
    for word in words:
        if word in {"--list", "--environment"}:
            request[word[2:]] = True
        elif word in {"--capability", "--request"}:
            value = next(words, None)
            if value is None:
                raise CubinError(f"{word} lacks its value; {_USAGE}")
            request.update({"capability": value} if word == "--capability" else {"checksum": True, **_read_json(value)})
        elif word.startswith("-"):
            raise CubinError(f"{word} is no option; {_USAGE}")
        else:
            request["paths"].append(word)
    if not request["paths"] and not request.get("environment"):
        raise CubinError(f"there is nothing to read; {_USAGE}")
    return request


def _read_json(text: str) -> dict[str, t.Any]:
    import json

    try:
        data = json.loads(text)
    except ValueError as error:
        raise CubinError(f"--request is no JSON ({error}); {_USAGE}") from None
    if not isinstance(data, dict):
        raise CubinError(f"--request is no JSON object; {_USAGE}")
    return data


def _print_listing(paths: t.Sequence[str]) -> int:
    trouble = False
    lines: list[str] = []
    for path in paths:
        try:
            with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as buf:
                listing = parse(buf, path)
        except (OSError, ValueError) as error:
            raise CubinError(f"{path} cannot be read ({error})") from None
        for entry in listing.entries:
            major, minor = entry.version
            code = "compressed" if entry.codec else "stored"
            arch = f"sm_{entry.sm}{entry.suffix}"
            lines.append(f"{entry.kind} {arch} [{major},{minor}] {code} {entry.section}\n")
        for one in listing.problems:
            sys.stderr.write(f"{one['message']}\n")
        trouble = trouble or bool(listing.problems)
    sys.stdout.write("".join(lines))
    return int(trouble)


if __name__ == "__main__":
    # It is a script where it runs without Ansible: inside an image, from standard input.
    sys.exit(main(sys.argv[1:]))  # pylint: disable=ansible-bad-function

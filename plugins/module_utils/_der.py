# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads DER, the binary form of certificates and signatures: as much of it as those two need.

Strict where a lie could hide: lengths are definite and lie within their parent, and nothing is left over where
something is read whole.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

INTEGER: t.Final = 0x02
BIT_STRING: t.Final = 0x03
OCTET_STRING: t.Final = 0x04
OID: t.Final = 0x06
SEQUENCE: t.Final = 0x30
SET: t.Final = 0x31


class DerError(ValueError):
    """Bytes that are not the DER that was expected. The text says what was."""


@dataclasses.dataclass(frozen=True, slots=True)
class Element:
    """One element: its tag, where it starts, and where its value starts and ends in ``data``."""

    data: bytes = dataclasses.field(repr=False)
    tag: int
    start: int
    inner: int
    end: int

    @property
    def value(self) -> bytes:
        """Return the bytes inside."""
        return self.data[self.inner : self.end]

    @property
    def whole(self) -> bytes:
        """Return the bytes with tag and length."""
        return self.data[self.start : self.end]

    def expect(self, tag: int, what: str) -> Element:
        """Return this element if it has the tag; raise DerError where it has another one."""
        if self.tag != tag:
            raise DerError(f"{what} has the tag {self.tag:#04x} instead of {tag:#04x}")
        return self

    def children(self) -> tuple[Element, ...]:
        """Return the elements inside, in order."""
        found, position = [], self.inner
        while position < self.end:
            element = read(self.data, position, self.end)
            found.append(element)
            position = element.end
        return tuple(found)

    def number(self, what: str) -> int:
        """Return the value of an integer."""
        self.expect(INTEGER, what)
        if self.inner == self.end:
            raise DerError(f"{what} is an empty integer")
        return int.from_bytes(self.value, "big", signed=True)

    def identifier(self, what: str) -> str:
        """Return an object identifier in dotted form: 1.2.840.113549.1.7.2."""
        self.expect(OID, what)
        numbers, current = [], 0
        for byte in self.value:
            current = current << 7 | byte & 0x7F
            if current >> 64:
                raise DerError(f"{what} has a number that is too large")
            if not byte & 0x80:
                numbers.append(current)
                current = 0
        if not numbers or self.value[-1] & 0x80:
            raise DerError(f"{what} is cut off")
        first = min(numbers[0] // 40, 2)
        return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def read(data: bytes, start: int = 0, limit: int | None = None) -> Element:
    """Return the element that starts at a position and ends at ``limit`` or before."""
    limit = len(data) if limit is None else limit
    if start + 2 > limit:
        raise DerError("an element is cut off")
    tag, length, inner = data[start], data[start + 1], start + 2
    if tag & 0x1F == 0x1F:
        raise DerError("an element has a tag of several bytes")
    if length & 0x80:
        count = length & 0x7F
        if not 0 < count <= 4 or inner + count > limit:
            raise DerError("an element has no length that can be read")
        length = int.from_bytes(data[inner : inner + count], "big")
        inner += count
    if inner + length > limit:
        raise DerError("an element is longer than what holds it")
    return Element(data, tag, start, inner, inner + length)


def whole(data: bytes, tag: int, what: str) -> Element:
    """Return the one element that the data consists of."""
    element = read(data).expect(tag, what)
    if element.end != len(data):
        raise DerError(f"{what} is followed by {len(data) - element.end} bytes")
    return element

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ECDSA on the curves of NIST, verifying only: distributions sign the modules of a kernel build with it.

Nothing here is secret, so that nothing has to take the same time for every number. Parameters: FIPS 186-5, SP 800-186.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

# A point as x/z², y/z³: no division until the end. z = 0 is the point at infinity.
Point = tuple[int, int, int]
_INFINITY: t.Final[Point] = (1, 1, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """A curve y² = x³ - 3x + b over the numbers below the prime ``p``, with a generator of the order ``n``."""

    name: str
    p: int = dataclasses.field(repr=False)
    b: int = dataclasses.field(repr=False)
    n: int = dataclasses.field(repr=False)
    x: int = dataclasses.field(repr=False)
    y: int = dataclasses.field(repr=False)

    @property
    def size(self) -> int:
        """Return the length of a coordinate in bytes."""
        return (self.p.bit_length() + 7) // 8

    def holds(self, x: int, y: int) -> bool:
        """Return whether a point lies on the curve."""
        return 0 <= x < self.p and 0 <= y < self.p and (y * y - (x * x - 3) * x - self.b) % self.p == 0

    def verifies(self, digest: bytes, r: int, s: int, x: int, y: int) -> bool:
        """Return whether (r, s) is a signature of the digest by the key with the point (x, y)."""
        if not (0 < r < self.n and 0 < s < self.n):
            return False
        excess = max(0, 8 * len(digest) - self.n.bit_length())
        message = int.from_bytes(digest, "big") >> excess
        inverse = pow(s, -1, self.n)
        total = self._sum_of_products(message * inverse % self.n, (self.x, self.y, 1), r * inverse % self.n, (x, y, 1))
        if total[2] == 0:
            return False
        return total[0] * pow(total[2], -2, self.p) % self.p % self.n == r

    def _sum_of_products(self, one: int, first: Point, two: int, second: Point) -> Point:
        both = self._add(first, second)
        total = _INFINITY
        for bit in range(max(one.bit_length(), two.bit_length()) - 1, -1, -1):
            total = self._double(total)
            chosen = (one >> bit & 1) + 2 * (two >> bit & 1)
            if chosen:
                total = self._add(total, (first, second, both)[chosen - 1])
        return total

    def _double(self, point: Point) -> Point:
        x, y, z = point
        if z == 0 or y == 0:
            return _INFINITY
        p = self.p
        square = z * z % p
        alpha = 3 * (x - square) * (x + square) % p
        gamma = y * y % p
        beta = x * gamma % p
        new_x = (alpha * alpha - 8 * beta) % p
        return new_x, (alpha * (4 * beta - new_x) - 8 * gamma * gamma) % p, 2 * y * z % p

    def _add(self, first: Point, second: Point) -> Point:
        if first[2] == 0 or second[2] == 0:
            return second if first[2] == 0 else first
        p = self.p
        (x1, y1, z1), (x2, y2, z2) = first, second
        square1, square2 = z1 * z1 % p, z2 * z2 % p
        u1, u2 = x1 * square2 % p, x2 * square1 % p
        s1, s2 = y1 * square2 * z2 % p, y2 * square1 * z1 % p
        if u1 == u2:
            return self._double(first) if s1 == s2 else _INFINITY
        h, r = u2 - u1, s2 - s1
        h2 = h * h % p
        h3, v = h * h2 % p, u1 * h2 % p
        x = (r * r - h3 - 2 * v) % p
        return x, (r * (v - x) - s1 * h3) % p, h * z1 * z2 % p


CURVES: t.Final = {
    "1.2.840.10045.3.1.7": Curve(
        "P-256",
        p=0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF,
        b=0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B,
        n=0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
        x=0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
        y=0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
    ),
    "1.3.132.0.34": Curve(
        "P-384",
        p=2**384 - 2**128 - 2**96 + 2**32 - 1,
        b=0xB3312FA7E23EE7E4988E056BE3F82D19181D9C6EFE8141120314088F5013875AC656398D8A2ED19D2A85C8EDD3EC2AEF,
        n=0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973,
        x=0xAA87CA22BE8B05378EB1C71EF320AD746E1D3B628BA79B9859F741E082542A385502F25DBF55296C3A545E3872760AB7,
        y=0x3617DE4A96262C6F5D9E98BF9292DC29F8F41DBD289A147CE9DA3113B5F0B8C00A60B1CE1D7E819D7A431D7C90EA0E5F,
    ),
}

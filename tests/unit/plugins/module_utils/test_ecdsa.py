# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ECDSA by numbers, against the package cryptography."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from ansible_collections.gb10.fleet.plugins.module_utils import _ecdsa

P256 = ("1.2.840.10045.3.1.7", ec.SECP256R1())
P384 = ("1.3.132.0.34", ec.SECP384R1())


@pytest.mark.parametrize(("name", "curve"), [P256, P384])
@pytest.mark.parametrize("algorithm", [hashes.SHA256(), hashes.SHA384(), hashes.SHA512()])
def test_signatures(name: str, curve: ec.EllipticCurve, algorithm: hashes.HashAlgorithm) -> None:
    ours = _ecdsa.CURVES[name]
    for number in range(3):
        key = ec.generate_private_key(curve)
        point = key.public_key().public_numbers()
        message = b"module %d" % number
        r, s = decode_dss_signature(key.sign(message, ec.ECDSA(algorithm)))
        digest = hashlib.new(algorithm.name, message).digest()
        assert ours.holds(point.x, point.y)
        assert not ours.holds(point.x, point.y + 1)
        assert ours.verifies(digest, r, s, point.x, point.y)
        assert ours.verifies(digest, r, ours.n - s, point.x, point.y)
        assert not ours.verifies(digest[::-1], r, s, point.x, point.y)
        assert not ours.verifies(digest, r ^ 1, s, point.x, point.y)
        assert not ours.verifies(digest, r, s, ours.x, ours.y)


@pytest.mark.parametrize("curve", _ecdsa.CURVES.values(), ids=lambda curve: curve.name)
def test_numbers_that_no_signature_has(curve: _ecdsa.Curve) -> None:
    assert curve.holds(curve.x, curve.y)
    for r, s in ((0, 1), (1, 0), (curve.n, 1), (1, curve.n), (-1, 1)):
        assert not curve.verifies(b"\0" * 32, r, s, curve.x, curve.y)
    # The generator as a key: sums of equal and of opposite points are on the way.
    assert not curve.verifies(b"\0" * 32, 1, 1, curve.x, curve.y)
    assert not curve.verifies(b"\0" * 32, 1, 1, curve.x, curve.p - curve.y)


def test_a_key_that_is_the_generator() -> None:
    """The private key 1: both products go to multiples of one point, and points double within an addition."""
    for name, curve in (P256, P384):
        key = ec.derive_private_key(1, curve)
        ours = _ecdsa.CURVES[name]
        r, s = decode_dss_signature(key.sign(b"x", ec.ECDSA(hashes.SHA256())))
        assert ours.verifies(hashlib.sha256(b"x").digest(), r, s, ours.x, ours.y)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What fabric_info says of boxes, without a box."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pathlib
import tempfile
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _fabric_findings, _fabric_sysfs
from ansible_collections.gb10.fleet.plugins.module_utils._fabric_texts import addresses_of
from tests.unit.support import fabric_tree as tree
from tests.unit.support.fabric_tree import Card, spark

MANAGEMENT = {"enP7s7": ("10.0.0.5/24",)}


def seen(
    cards: t.Iterable[Card] | None = None,
    addresses: t.Mapping[str, tuple[str, ...]] | None = None,
    files: dict[str, str] | None = None,
) -> dict[str, t.Any]:
    """Return what fabric_info says of a box, by way of a tree; of a plain one with one cable where nothing is given."""
    if cards is None and addresses is None and files is None:
        return copy.deepcopy(plain())
    return looked_at(spark() if cards is None else cards, addresses or {}, files or {})


@functools.cache
def plain() -> dict[str, t.Any]:
    """Return what fabric_info says of a box with a cable in its first cage."""
    return looked_at(spark(), {}, {})


def looked_at(
    cards: t.Iterable[Card], addresses: t.Mapping[str, tuple[str, ...]], files: dict[str, str]
) -> dict[str, t.Any]:
    """Build a tree, and read it."""
    with tempfile.TemporaryDirectory() as folder:
        root = tree.build(pathlib.Path(folder), cards)
        tree.write(root / "proc/net/route", "Iface Destination\nenP7s7 00000000 0100000A 0003 0 0 100 00000000")
        for path, text in files.items():
            tree.write(root / path, text)
        fabric = _fabric_sysfs.read(root, addresses_of(tree.ip_json({**MANAGEMENT, **addresses})))
    return {
        "ports": [port.as_dict() for port in fabric.ports],
        "single": [twin.as_dict() for twin in fabric.single],
        "virtual": [twin.as_dict() for twin in fabric.virtual],
        "others": [other.as_dict() for other in fabric.others],
        "management": dataclasses.asdict(fabric.management),
        "infiniband_devices": list(fabric.infiniband_devices),
        "findings": [finding.as_dict() for finding in _fabric_findings.findings(fabric)],
    }

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a plan of a fabric is made of: boxes with twins that have an address.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import ipaddress
import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_input import Member

Observed = c.Mapping[str, t.Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTwin:
    """A twin with its address. ``link`` is the number of the cable (in a ring: of the connection between two boxes)."""

    interface: str
    rdma: str
    cage: int | None
    link: int
    side: int
    address: ipaddress.IPv4Interface
    observed: Observed

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain data."""
        return {
            "interface": self.interface,
            "rdma": self.rdma,
            "cage": self.cage,
            "link": self.link,
            "address": str(self.address),
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBox:
    """A box with its twins, in the order of the cables; without twins where ``state`` is not "planned"."""

    member: Member
    state: str
    twins: tuple[PlannedTwin, ...] = ()
    management: Observed = dataclasses.field(default_factory=dict)
    others: tuple[Observed, ...] = ()
    infiniband: bool = False

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts about a box's driver and kernel that claims are judged by, from what driver_info returned.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import typing as t

Facts = dict[str, t.Any]


def is_driver_result(value: c.Mapping[str, t.Any]) -> bool:
    """Return whether a mapping is what driver_info returned."""
    return {"kernels", "loaded", "userspace", "reboot"} <= set(value)


def driver_facts(result: c.Mapping[str, t.Any]) -> tuple[Facts, ...]:
    """Return the facts of the pair that runs now, and those of the pair that the next boot would load.

    What is not known is left out, so that claims keep quiet about it. Equal pairs are given once.
    """
    following: c.Mapping[str, t.Any] = next((kernel for kernel in result["kernels"] if kernel["next"]), {})
    pairs = (
        _facts(result["loaded"]["version"], result["running_kernel"], result["loaded"]["flavour"]),
        _facts(
            following.get("version") or result["userspace"]["version"],
            result["reboot"]["kernel"],
            following.get("flavour", ""),
        ),
    )
    return tuple(pair for number, pair in enumerate(pairs) if pair and pair not in pairs[:number])


def _facts(driver: str, kernel: str, flavour: str) -> Facts:
    known = {"driver": driver, "kernel": kernel, "flavour": flavour if flavour in ("open", "proprietary") else ""}
    return {name: value for name, value in known.items() if value}

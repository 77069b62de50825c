# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of driver and kernel, and what the claims say of them."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.filter.claims_for import FilterModule
from ansible_collections.gb10.fleet.plugins.plugin_utils import _driver_facts

claims_for = FilterModule().filters()["claims_for"]
TODAY = "2026-11-29"
GOOD, NEW = "6.17.0-1032-nvidia", "7.0.0-1019-nvidia"


def result(
    loaded: str, running: str, installed: str = "", following: str = "", flavour: str = "open", userspace: str = ""
) -> dict[str, t.Any]:
    """Return what driver_info returns, as far as it matters here."""
    release = following or running
    return {
        "kernels": [{"release": release, "next": True, "version": installed or loaded, "flavour": flavour}],
        "loaded": {"version": loaded, "flavour": flavour if loaded else "none"},
        "userspace": {"version": userspace or installed or loaded},
        "reboot": {"kernel": release},
        "running_kernel": running,
    }


def ids(found: list[dict[str, str]], *severities: str) -> list[str]:
    return [one["id"] for one in found if one["severity"] in severities]


def test_equal_pairs_are_one() -> None:
    assert _driver_facts.driver_facts(result("580.142", GOOD)) == (
        {"driver": "580.142", "kernel": GOOD, "flavour": "open"},
    )


def test_what_is_not_known_is_left_out() -> None:
    nothing = result("", "", flavour="none") | {"kernels": []}
    assert _driver_facts.driver_facts(nothing) == ()
    assert claims_for(nothing, TODAY) == []
    assert _driver_facts.driver_facts(nothing | {"userspace": {"version": "580.142"}}) == ({"driver": "580.142"},)


@pytest.mark.parametrize(
    ("pair", "nodes", "errors", "warnings"),
    [
        (result("580.173.02", GOOD), 2, [], []),
        (result("580.95.05", GOOD), 2, [], []),
        (result("580.142", GOOD), 2, [], ["DRIVER_580_142_WEDGES"]),
        (result("590.48.01", GOOD), 1, ["DRIVER_590_48_LEAKS"], []),
        (result("595.58.03", GOOD), 1, ["DRIVER_595_58_BREAKS_NVFP4"], []),
        (result("595.84", GOOD), 1, [], ["DRIVER_595_UNSUPPORTED"]),
        (result("610.43.02", GOOD), 1, [], ["DRIVER_610_UNSUPPORTED"]),
        (result("580.173.02", NEW), 2, ["KERNEL_7_0_0_1019_TWO_NODES"], []),
        (result("580.173.02", NEW), 1, [], ["KERNEL_7_0_0_1019_ONE_NODE"]),
        (result("580.178.04", NEW), 1, [], ["DRIVER_580_178_KERNEL_7", "KERNEL_7_0_0_1019_ONE_NODE"]),
        (result("580.173.02", "6.17.0-1031-nvidia"), 1, [], ["DRIVER_AND_KERNEL_COST_8_GIB"]),
        (result("580.173.02", "6.8.0-62-generic"), 1, [], ["KERNEL_NOT_OF_NVIDIA"]),
        (result("580.200.01", GOOD), 1, [], []),
        (result("580.173.02", GOOD, flavour="proprietary"), 1, ["DRIVER_FLAVOUR_PROPRIETARY"], []),
        # It is the next boot that would be bad; and it is the present one.
        (result("580.173.02", GOOD, following=NEW), 2, ["KERNEL_7_0_0_1019_TWO_NODES"], []),
        (result("590.48.01", GOOD, installed="580.173.02"), 1, ["DRIVER_590_48_LEAKS"], []),
    ],
)
def test_pairs(pair: dict[str, t.Any], nodes: int, errors: list[str], warnings: list[str]) -> None:
    found = claims_for(pair, TODAY, {"nodes": nodes})
    assert (ids(found, "error"), ids(found, "warning")) == (errors, warnings)


def test_580_is_not_refused_for_being_lower_than_590() -> None:
    """Both sources are named, and neither branch is refused by a comparison."""
    found = claims_for(result("580.142", GOOD), TODAY)
    decided = next(one for one in found if one["id"] == "DRIVER_590_NOT_REQUIRED")
    assert decided["severity"] == "info"
    assert "driver 590 or newer is required" in decided["evidence"]
    assert "580.142 is the pin" in decided["evidence"]
    unheard_of = ids(claims_for(result("580.200.01", GOOD), TODAY), "info")
    assert {"DRIVER_590_NOT_REQUIRED", "DRIVER_UNPROVEN"} <= set(unheard_of)


def test_the_gravest_comes_first() -> None:
    found = claims_for(result("580.142", GOOD, installed="590.48.01", following=NEW), TODAY, {"nodes": 2})
    order = [one["severity"] for one in found]
    assert order == sorted(order, key=["error", "warning", "info"].index)
    assert len({(one["id"], one["message"]) for one in found}) == len(found)

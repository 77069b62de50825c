# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import collections.abc as c
import typing as t

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _apt, _driver_refusal, _driver_request
from ansible_collections.gb10.fleet.plugins.module_utils._driver_request import Box, Request, Steps

OLD, NEW = "6.17.0-1026-nvidia", "6.17.0-1029-nvidia"
FLAVOUR = "nvidia-hwe-24.04"
DRIVER = "nvidia-driver-580-open"
TRACKER = f"linux-modules-nvidia-580-open-{FLAVOUR}"
PAYLOAD = f"linux-modules-nvidia-580-open-{OLD}"
META = f"linux-image-{FLAVOUR}"
VERSION = "580.142-0ubuntu0.24.04.1"
NEWER = "580.173.02-0ubuntu0.24.04.1"


def request(**changes: t.Any) -> Request:
    """Return the request of a box with one kernel."""
    return Request(
        **{"branch": "580", "flavour": FLAVOUR, "kernels": (OLD,), "platform": ("dgx-*", "nvidia-*")} | changes
    )


def package(name: str, version: str = "1", *, want: str = "install", status: str = "installed") -> _apt.Package:
    return _apt.Package(name, want, status, version)


def box(
    *packages: _apt.Package,
    candidates: c.Mapping[str, str] | None = None,
    automatic: c.Iterable[str] = (),
    ready: bool = False,
    own_holds: c.Iterable[str] = (),
) -> Box:
    """Return a box; apt knows driver, tracker, payload and DKMS unless it is told otherwise."""
    known = (
        candidates
        if candidates is not None
        else dict.fromkeys((DRIVER, TRACKER, PAYLOAD, "nvidia-dkms-580-open"), VERSION)
    )
    return Box(
        packages={one.name: one for one in packages},
        automatic=frozenset(automatic),
        candidates={name: _apt.Candidate(version, (version,)) for name, version in known.items()},
        preferences=_driver_request.preferences(request()) if ready else "",
        own_holds=frozenset(own_holds),
    )


def held(name: str, version: str = VERSION) -> _apt.Package:
    return package(name, version, want="hold")


COMPLETE = (held(DRIVER), held(TRACKER), package(PAYLOAD, VERSION), held(META))


def ids(findings: c.Iterable[t.Any]) -> list[str]:
    return [one.id for one in findings]


def test_a_box_that_has_everything_needs_no_step() -> None:
    assert not _driver_request.steps(request(), box(*COMPLETE, ready=True))


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        (box(package(META)), {}, Steps((), True, True, (META,))),
        (box(*COMPLETE), {}, Steps((), True, False, ())),
        (box(*COMPLETE, package("nvidia-dkms-580-open"), ready=True), {}, Steps((), False, True, ())),
        (box(*COMPLETE[:3], package(META), ready=True), {}, Steps((), False, False, (META,))),
        (
            box(*COMPLETE, package("dgx-release"), automatic=["dgx-release"], ready=True),
            {},
            Steps(("dgx-release",), False, False, ()),
        ),
        # The packages of a branch are no platform: they may go with it.
        (
            box(*COMPLETE, package("nvidia-utils-580"), automatic=["nvidia-utils-580"], ready=True),
            {},
            Steps((), False, False, ()),
        ),
        # A kernel whose modules apt does not have cannot get them.
        (box(*COMPLETE, ready=True), {"kernels": (NEW, OLD)}, Steps((), False, False, ())),
    ],
    ids=["nothing there", "no pins", "DKMS", "one hold missing", "platform", "branch", "kernel without modules"],
)
def test_what_is_missing_is_told_from_what_is_installed(found: Box, wanted: dict[str, t.Any], expected: Steps) -> None:
    assert _driver_request.steps(request(**wanted), found) == expected


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [({}, False), ({"upgrade": True}, True), ({"version": "580.173.02"}, True), ({"version": "580.142"}, False)],
)
def test_a_newer_version_is_taken_only_when_it_is_asked_for(wanted: dict[str, t.Any], missing: bool) -> None:
    known = {DRIVER: NEWER, TRACKER: VERSION, PAYLOAD: VERSION}
    assert _driver_request.steps(request(**wanted), box(*COMPLETE, candidates=known)).packages is missing


def test_everything_is_asked_for_in_one_transaction_without_dkms() -> None:
    assert _driver_request.wanted(request(), box(package(META))) == (
        TRACKER,
        PAYLOAD,
        DRIVER,
        META,
        "nvidia-dkms-580-open-",
    )


def test_a_minus_names_only_what_apt_knows_or_what_is_there() -> None:
    known = dict.fromkeys((DRIVER, TRACKER), VERSION)
    assert _driver_request.wanted(request(), box(candidates=known)) == (TRACKER, DRIVER)
    found = box(package("nvidia-dkms-570-open"), candidates=known)
    assert _driver_request.wanted(request(), found) == (TRACKER, DRIVER, "nvidia-dkms-570-open-")


def test_the_driver_is_never_held_alone() -> None:
    everything = [package(name) for name in (*request().kernel_metas, TRACKER, DRIVER)]
    assert _driver_request.to_hold(request(), box(*everything)) == (*request().kernel_metas, TRACKER, DRIVER)


def test_pins_keep_dkms_and_unsigned_kernels_away_and_a_version_where_one_is_named() -> None:
    text = _driver_request.preferences(request())
    dkms = "nvidia-dkms-* nvidia-dkms nvidia-kernel-*dkms nvidia-open-kernel-dkms"
    assert f"Package: {dkms}\nPin: release *\nPin-Priority: -1\n" in text
    assert "Package: linux-image-unsigned-*\nPin: release *\nPin-Priority: -1\n" in text
    assert "1001" not in text
    pinned = _driver_request.preferences(request(version="580.142"))
    assert "libnvidia-*-580 libnvidia-*-580-*" in pinned
    assert "Pin: version 580.142-*\nPin-Priority: 1001\n" in pinned


def action(name: str, old: str = "", new: str = "1") -> _apt.Action:
    return _apt.Action(name, old, new)


GOOD = (action(TRACKER), action(PAYLOAD), action(DRIVER))


@pytest.mark.parametrize(
    ("actions", "wanted", "expected"),
    [
        (GOOD, {}, []),
        ((*GOOD, action("nvidia-dkms-580-open")), {}, ["DRIVER_PLAN_INSTALLS_DKMS"]),
        ((*GOOD, action("nvidia-kernel-open-dkms")), {}, ["DRIVER_PLAN_INSTALLS_DKMS"]),
        ((*GOOD, action("nvidia-kernel-dkms")), {}, ["DRIVER_PLAN_INSTALLS_DKMS"]),
        ((*GOOD, action("nvidia-dkms-580-open", "1", "")), {}, []),
        ((*GOOD, action("nvidia-kernel-open-dkms", "1", "")), {}, []),
        ((*GOOD, action("libnvidia-compute-570", "1", "")), {}, []),
        ((*GOOD, action("linux-modules-nvidia-570-open-nvidia-hwe-24.04", "1", "")), {}, []),
        ((*GOOD, action("libnvidia-compute-580", "1", "")), {}, ["DRIVER_PLAN_REMOVES_PLATFORM"]),
        ((*GOOD, action("dgx-release", "1", "")), {}, ["DRIVER_PLAN_REMOVES_PLATFORM"]),
        ((*GOOD, action("containerd", "1", "")), {}, ["DRIVER_PLAN_REMOVES_PLATFORM"]),
        ((*GOOD, action("nvidia-spark-mlnx-firmware-manager", "1", "")), {}, ["DRIVER_PLAN_REMOVES_PLATFORM"]),
        ((*GOOD, action(f"linux-image-unsigned-{OLD}")), {}, ["DRIVER_PLAN_UNSIGNED_KERNEL"]),
        ((*GOOD, action(f"linux-image-{NEW}")), {}, ["DRIVER_PLAN_KERNEL_WITHOUT_MODULES"]),
        ((*GOOD, action(f"linux-image-{NEW}"), action(f"linux-modules-nvidia-580-open-{NEW}")), {}, []),
        (GOOD, {"kernels": (OLD, NEW)}, ["DRIVER_PLAN_KERNEL_WITHOUT_MODULES"]),
        (GOOD, {"kernels": (NEW, OLD)}, ["DRIVER_PLAN_KERNEL_NO_FALLBACK"]),
    ],
)
def test_a_plan_is_judged(actions: tuple[_apt.Action, ...], wanted: dict[str, t.Any], expected: list[str]) -> None:
    assert ids(_driver_refusal.judge(request(**wanted), box(), actions)) == expected


def test_a_refused_plan_names_what_it_would_take_away() -> None:
    plan = (*GOOD, action("dgx-release", "7.5.0", ""), action("openssh-server", "1", ""))
    (finding,) = _driver_refusal.judge(request(), box(), plan)
    assert "dgx-release, openssh-server" in finding.message
    assert "remove dgx-release 7.5.0" in finding.evidence


@pytest.mark.parametrize(
    ("found", "wanted", "prompt", "expected"),
    [
        (box(), {}, False, []),
        (box(package("x", status="half-configured")), {}, False, ["DPKG_UNFINISHED"]),
        # Whatever waits for a password has left dpkg half way through; the prompt is what has to be told.
        (box(package("x", status="half-configured")), {}, True, ["DRIVER_MOK_PROMPT"]),
        (box(candidates={DRIVER: VERSION}), {}, False, ["DRIVER_PACKAGES_UNKNOWN"]),
        (box(), {"version": "580.173.02"}, False, ["DRIVER_VERSION_UNAVAILABLE"]),
        (box(), {"version": "580.142"}, False, []),
        (box(), {"kernels": ()}, False, ["DRIVER_KERNELS_UNKNOWN"]),
    ],
)
def test_what_forbids_any_plan_is_named(
    found: Box, wanted: dict[str, t.Any], prompt: bool, expected: list[str]
) -> None:
    holder = _apt.Holder("", 4790, "/bin/sh /usr/sbin/update-secureboot-policy") if prompt else None
    findings = _driver_refusal.before_planning(request(**wanted), found, holder)
    assert ids(findings) == expected
    assert all(one.remedy for one in findings)


def test_holds_of_somebody_else_are_named_with_the_command_that_lifts_them() -> None:
    found = box(held("libnvidia-compute-580"), held("bash"), held(TRACKER), own_holds=[TRACKER])
    finding = _driver_refusal.blocked_by_holds(
        request(), found, [action("libnvidia-compute-580", "1", "2")], "held broken packages"
    )
    assert "libnvidia-compute-580 is on hold" in finding.message
    assert "`sudo apt-mark unhold libnvidia-compute-580`" in finding.remedy
    assert "bash" not in finding.remedy


def test_a_request_survives_being_written_down() -> None:
    import dataclasses
    import json

    wanted = request(version="580.142", upgrade=True)
    assert Request.from_dict(json.loads(json.dumps(dataclasses.asdict(wanted)))) == wanted


@pytest.mark.parametrize(
    ("new", "following"),
    [((), OLD), ((NEW,), NEW), (("6.17.0-999-nvidia", NEW), NEW)],
)
def test_a_new_kernel_boots_next(new: tuple[str, ...], following: str) -> None:
    assert _driver_request.next_kernel(request(), [action(f"linux-image-{kernel}") for kernel in new]) == following


def test_without_any_kernel_none_boots_next() -> None:
    assert _driver_request.next_kernel(request(kernels=()), []) == ""

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans the transaction that brings the driver, and carries it out: fetched first, then installed as one.

The module plans with it, and the program on the box carries it out in a unit of its own, where no lost connection can
leave half of a transaction behind.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _apt,
    _command,
    _docker,
    _driver_refusal,
    _driver_request,
    _files,
)
from ansible_collections.gb10.fleet.plugins.module_utils._driver_request import Request
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, worst

JOB: t.Final = "gb10-fleet-driver"
RECORD: t.Final = "var/lib/gb10-fleet/driver.json"
_POLL_S: t.Final = 1.0
# How much of what apt says of its progress is worth a line.
_PROGRESS: t.Final = re.compile(r"^(?P<kind>pmstatus|dlstatus):(?P<what>[^:]*):(?P<percent>[\d.]+):(?P<words>.*)$")

Tell = c.Callable[[str], None]


class RefusedError(Exception):
    """The transaction was not begun, or did not happen. The text says why and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What would be done, and what speaks against it."""

    steps: _driver_request.Steps
    request: tuple[str, ...] = ()
    actions: tuple[_apt.Action, ...] = ()
    hold: tuple[str, ...] = ()
    driver_version: str = ""
    next_kernel: str = ""
    preferences: str = ""
    findings: tuple[Finding, ...] = ()
    free_holds: bool = False

    @property
    def preferences_file(self) -> _files.Wanted:
        """The file that keeps DKMS away."""
        return _files.Wanted(pathlib.Path("/") / _driver_request.PREFERENCES, self.preferences, 0o644)

    @property
    def refused(self) -> bool:
        """Whether nothing may be done."""
        return worst(self.findings) == "error"

    def lines(self) -> list[str]:
        """Return the plan as a person reads it, in the order in which it is done."""
        found = [f"mark {name} as installed by hand, so that autoremove leaves it" for name in self.steps.protect]
        found += [f"write /{_driver_request.PREFERENCES}"] if self.steps.preferences else []
        found += [action.line() for action in self.actions]
        return [*found, *(f"hold {name}" for name in self.hold)]

    def as_dict(self) -> dict[str, t.Any]:
        """Return the plan as plain data."""
        actions = {kind: [one for one in self.actions if one.kind == kind] for kind in ("install", "upgrade", "remove")}
        return {
            "request": list(self.request),
            "install": {one.name: one.new for one in actions["install"]},
            "upgrade": {one.name: f"{one.old} -> {one.new}" for one in actions["upgrade"]},
            "remove": {one.name: one.old for one in actions["remove"]},
            "protect": list(self.steps.protect),
            "hold": list(self.hold),
            "driver_version": self.driver_version,
            "next_kernel": self.next_kernel,
            "lines": self.lines(),
        }


def observe(
    request: Request, run: _docker.Run = _command.run, root: pathlib.Path = pathlib.Path("/")
) -> _driver_request.Box:
    """Read what apt and dpkg say of the box."""
    packages = _apt.packages(run)
    names = {*request.names(), *(name for name in packages if _driver_request.is_dkms(name))}
    path = root / _driver_request.PREFERENCES
    return _driver_request.Box(
        packages=packages,
        automatic=_apt.automatic(run),
        candidates=_apt.candidates(run, sorted(names)),
        preferences=path.read_text(encoding="utf-8", errors="replace") if path.exists() else "",
        own_holds=frozenset(record(root).get("holds", ())),
    )


def record(root: pathlib.Path = pathlib.Path("/")) -> dict[str, t.Any]:
    """Return what the last transaction wrote down; empty where there was none."""
    try:
        found = json.loads((root / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def plan(
    request: Request, box: _driver_request.Box, run: _docker.Run = _command.run, root: pathlib.Path = pathlib.Path("/")
) -> Plan:
    """Simulate what is asked for and judge it; nothing is changed."""
    steps = _driver_request.steps(request, box)
    refusals = _driver_refusal.before_planning(request, box, _apt.mok_prompt(root))
    if refusals:
        return Plan(steps, findings=refusals)
    # What is in its place is left alone: a newer version in the repository is no reason to touch a box.
    names = _driver_request.wanted(request, box) if steps.packages else ()
    actions: tuple[_apt.Action, ...] = ()
    # All that the role has put on hold is asked for by name, so that this lifts no hold of anybody else.
    free_holds = bool(box.held & box.own_holds) and not box.foreign_holds & set(names)
    if names:
        with pins(request, root) as folder:
            options = _options(request, free_holds=free_holds)
            code, out, err = run(_apt.install_argv(names, "--simulate", *options, preferences=folder))
            actions = _apt.parse_simulation(out)
            if code != 0:
                said = _apt.complaint(out, err)
                if not box.foreign_holds:
                    return Plan(steps, names, findings=(_driver_refusal.refused_by_apt(said),))
                ignoring = ("--simulate", "--ignore-hold", *_options(request, free_holds=True))
                would = _apt.parse_simulation(run(_apt.install_argv(names, *ignoring, preferences=folder))[1])
                return Plan(steps, names, findings=(_driver_refusal.blocked_by_holds(request, box, would, said),))
    after = _after(box, actions)
    driver = after.packages.get(request.driver)
    hold = tuple(name for name in _driver_request.to_hold(request, after) if name not in box.held)
    return Plan(
        steps,
        names,
        actions,
        hold=hold,
        driver_version=_apt.upstream(driver.version) if driver else "",
        next_kernel=_driver_request.next_kernel(request, actions),
        preferences=_driver_request.preferences(request),
        findings=_driver_refusal.judge(request, box, actions),
        free_holds=free_holds,
    )


def _after(box: _driver_request.Box, actions: c.Iterable[_apt.Action]) -> _driver_request.Box:
    packages = dict(box.packages)
    for action in actions:
        status = "installed" if action.new else "config-files"
        want = packages[action.name].want if action.name in packages else "install"
        packages[action.name] = _apt.Package(action.name, want, status, action.new or action.old)
    return dataclasses.replace(box, packages=packages)


def _options(request: Request, *, free_holds: bool) -> tuple[str, ...]:
    options = ["--allow-change-held-packages"] if free_holds else []
    # Only a version that the inventory names may lead backwards.
    return (*options, "--allow-downgrades") if request.version else tuple(options)


@contextlib.contextmanager
def pins(request: Request, root: pathlib.Path = pathlib.Path("/")) -> c.Iterator[pathlib.Path]:
    """Make a folder that is what /etc/apt/preferences.d will be, so that a plan can be made before it is written."""
    ours = root / _driver_request.PREFERENCES
    with tempfile.TemporaryDirectory(prefix="gb10-fleet-pins-") as name:
        folder = pathlib.Path(name)
        for path in sorted(ours.parent.glob("*")):
            if path.is_file() and path.name != ours.name:
                (folder / path.name).write_bytes(path.read_bytes())
        (folder / ours.name).write_text(_driver_request.preferences(request), encoding="utf-8")
        yield folder


def carry_out(request: Request, tell: Tell, root: pathlib.Path = pathlib.Path("/")) -> str:
    """Do what is missing, and return in one line what was done; raise RefusedError where it may not or cannot be."""
    wait_for_lock(request.lock_timeout_s, tell, root)
    box = observe(request, root=root)
    planned = plan(request, box, root=root)
    if planned.refused:
        raise RefusedError(sentences(planned.findings))
    if planned.actions:
        _fetch(request, planned, tell, root)
    _protect(planned.steps.protect)
    if planned.steps.preferences:
        _files.write(planned.preferences_file)
    if planned.actions:
        _install(request, planned, tell)
    _hold(request, planned, observe(request, root=root), root)
    left = _driver_request.steps(request, observe(request, root=root))
    if left:
        raise RefusedError(
            f"apt reported success, but {request.driver} is not as it should be; "
            f"see `apt-cache policy {request.driver}`"
        )
    counts = {"install": "installed", "upgrade": "upgraded", "remove": "removed"}
    done = [f"{sum(one.kind == kind for one in planned.actions)} {word}" for kind, word in counts.items()]
    return f"driver {planned.driver_version}: {', '.join(done)}, {len(planned.hold)} held"


def is_waiting_worth_it(request: Request) -> bool:
    """Return whether there is anything to wait for: something to do, or what somebody else has half done."""
    box = observe(request)
    half_way = any(package.unfinished for package in box.packages.values())
    return half_way or request.upgrade or bool(_driver_request.steps(request, box))


def wait_for_lock(timeout_s: float, tell: Tell, root: pathlib.Path = pathlib.Path("/")) -> None:
    """Wait until nobody else changes packages; raise RefusedError, with who it is, where that takes too long."""
    started = time.monotonic()
    while holder := _apt.lock_holder(root):
        prompt = _apt.mok_prompt(root)
        if prompt:
            raise RefusedError(sentences(_driver_refusal.prompt_finding(prompt)))
        waited = time.monotonic() - started
        if waited >= timeout_s:
            raise RefusedError(sentences([_driver_refusal.lock_finding(holder, timeout_s)]))
        tell(f"waiting, as {holder.words()}: {waited:.0f} of {timeout_s:.0f} s")
        time.sleep(_POLL_S)


def sentences(findings: c.Iterable[Finding]) -> str:
    """Return the errors among findings in words, each with its id to look it up by."""
    return " ".join(
        f"{one.message} {f'({one.evidence}) ' if one.evidence else ''}{one.remedy} [{one.id}]"
        for one in findings
        if one.severity == "error"
    )


def _fetch(request: Request, planned: Plan, tell: Tell, root: pathlib.Path) -> None:
    """Bring all packages onto the box before the first of them is touched."""
    with pins(request, root) as folder:
        options = ("--download-only", *_options(request, free_holds=planned.free_holds))
        argv = _apt.install_argv(planned.request, *options, preferences=folder, lock_timeout_s=request.lock_timeout_s)
        code, said = run_apt(argv, tell)
    if code != 0:
        finding = Finding(
            "DRIVER_FETCH_FAILED",
            "error",
            "The packages could not be fetched, so nothing was changed.",
            evidence=said,
            remedy="Run this again when the repository answers; `sudo apt-get update` shows whether it does.",
        )
        raise RefusedError(sentences([finding]))


def _install(request: Request, planned: Plan, tell: Tell) -> None:
    options = ("--no-download", *_options(request, free_holds=planned.free_holds))
    argv = _apt.install_argv(planned.request, *options, lock_timeout_s=request.lock_timeout_s)
    code, said = run_apt(argv, tell)
    if code != 0:
        raise RefusedError(
            f"apt began and did not come to an end: {said}. Do not reboot this box. Run "
            "`sudo DEBIAN_FRONTEND=noninteractive dpkg --configure -a`, look at what it says, then run this again. "
            "[DPKG_UNFINISHED]"
        )


def _protect(names: c.Sequence[str]) -> None:
    if names:
        _mark("manual", names)


def _hold(request: Request, planned: Plan, box: _driver_request.Box, root: pathlib.Path) -> None:
    names = _driver_request.to_hold(request, box)
    fresh = [name for name in names if name not in box.held]
    own = sorted({*fresh, *(box.own_holds & box.held)})
    path = root / RECORD
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    data = {"holds": own, "plan": planned.as_dict(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    # Written first: a hold that is placed and not written down would be somebody else's for ever.
    _files.write(_files.Wanted(path, json.dumps(data, indent=2) + "\n", 0o644))
    if fresh:
        _mark("hold", fresh)


def _mark(how: str, names: c.Sequence[str]) -> None:
    code, out, err = _command.run([*_apt.ENVIRONMENT, "apt-mark", how, *names])
    if code != 0:
        raise RefusedError(f"`apt-mark {how}` failed: {_apt.complaint(out, err)}")


def run_apt(argv: list[str], tell: Tell) -> tuple[int, str]:
    """Run apt without a terminal, telling how far it is; return its exit status and its own words why it refuses."""
    reading, writing = os.pipe()
    # The option stands before the command of apt-get, which is found by name.
    at = argv.index("apt-get") + 1
    argv = [*argv[:at], "-o", f"APT::Status-Fd={writing}", *argv[at:]]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function  # run_command cannot show progress
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, pass_fds=(writing,)
        )
        os.close(writing)
        # A daemon that a package starts may keep the pipe open; the end of apt counts, not the end of the pipe.
        reader = threading.Thread(target=_progress, args=(reading, tell), daemon=True)
        reader.start()
        code = process.wait()
        reader.join(timeout=1.0)
        out.seek(0)
        err.seek(0)
        return code, _apt.complaint(out.read(), err.read())


def _progress(reading: int, tell: Tell) -> None:
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            found = _PROGRESS.match(line.strip())
            if found:
                what = "fetching" if found["kind"] == "dlstatus" else "installing"
                tell(f"{what}: {float(found['percent']):.0f} %, {found['words'] or found['what']}")

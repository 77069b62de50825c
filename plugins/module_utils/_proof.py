# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a deployed instance has to prove: that it answers as it should, and that it booted as it was planned.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import pathlib
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _boot_expectations,
    _boot_log,
    _boot_sources,
    _group_start,
    _instance,
    _probe,
    _process_state,
)

_PROOF_S: t.Final = 120.0
# What is worth keeping of a boot; the rest is in the journal.
_BOOT_KEYS: t.Final = ("state", "version", "device", "backends", "kv_cache", "weights_gib", "graphs", "memory")

# What an engine that others keep busy is given besides, as often as its time: all checks share it.
_BUSY_TIMES: t.Final = 3
# Verdicts that say nothing about the engine.
_UNDECIDED: t.Final = frozenset({"busy", "out_of_time"})

ReadLog = c.Callable[[str], str]
Progress = c.Callable[[str], None]
Agree = c.Callable[..., str]


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """Whether an instance is proven; ``reason`` says why not, ``probe`` and ``boot`` what was seen.

    ``busy`` says that it was kept busy by others all the time, so that nothing is known of it.
    """

    ok: bool
    reason: str = ""
    busy: bool = False
    probe: c.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    boot: c.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


def options(settings: c.Mapping[str, t.Any], *, full: bool = False) -> _probe.Options:
    """Return how an instance is asked, by its settings on the box; ``full`` asks for what it can do besides."""
    return _probe.Options(
        url=settings["url"],
        model=settings["models"][0],
        kind=settings["kind"],
        api_key=secret(settings["secrets_file"], "VLLM_API_KEY"),
        checks=tuple(settings.get("checks") or ()) if full else (),
    )


def secret(path: str, name: str) -> str:
    """Return a secret of the container from its environment file, empty where it has none."""
    if not path:
        return ""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return next((line.partition("=")[2] for line in lines if line.startswith(f"{name}=")), "")


def prove(
    name: str,
    settings: c.Mapping[str, t.Any],
    *,
    booted: bool,
    progress: Progress = lambda _line: None,
    read_log: ReadLog = _boot_sources.read_unit,
    agree: Agree = _group_start.agree,
) -> Proof:
    """Ask an instance that serves; where it was ``booted`` for this proof, hold its boot log to the plan as well.

    A rank of a serving group that was booted is proven when all ranks are: ``agree`` waits for the others.
    """
    unit = _instance.unit_name(name)
    boot = boot_of(unit, settings, read_log) if booted else {}
    wrong = [found["message"] for found in boot.get("findings", ()) if found["severity"] == "error"]
    if wrong:
        return Proof(False, f"{unit} did not boot as planned: {' '.join(wrong)}", boot=boot)
    group, within_s = settings.get("group") or {}, float(settings.get("proof_timeout_s") or _PROOF_S)
    found = Proof(True, boot=boot)
    if not group.get("rank"):  # any other rank has no HTTP server; its head answers for all
        verdict = _asked(unit, settings, within_s, progress, patient=booted)
        found = Proof(
            verdict.ready,
            "" if verdict.ready else f"{unit} does not answer as it should: {verdict.summary}",
            busy=verdict.stage in _UNDECIDED,
            probe=verdict.evidence,
            boot=boot,
        )
    if group and booted and found.ok:
        # The other ranks may be given all that time, and are not started at the very same moment.
        others = agree(name, timeout_s=(2 + _BUSY_TIMES) * within_s, tell=progress)
        return dataclasses.replace(found, ok=not others, reason=others)
    return found


def _asked(
    unit: str, settings: c.Mapping[str, t.Any], within_s: float, progress: Progress, *, patient: bool
) -> _probe.Verdict:
    """Return the verdict about an engine; with ``patient`` one that is busy with others is given more time."""

    def ask(timeout: float) -> _probe.Verdict:
        return _probe.wait_until_ready(
            options(settings, full=True),
            timeout=timeout,
            process=_process_state.unit_check(unit),
            progress=progress,
        )

    verdict = ask(within_s)
    if patient and verdict.stage in _UNDECIDED:
        verdict = ask(_BUSY_TIMES * within_s)
    return verdict


def boot_of(unit: str, settings: c.Mapping[str, t.Any], read_log: ReadLog) -> dict[str, t.Any]:
    """Return what a unit said while it booted, with what differs from its expectations and its plan as findings."""
    try:
        parsed = _boot_log.parse_boot_logs([_boot_log.Log(unit, read_log(unit))])
    except _boot_sources.BootSourceError as error:
        return {"state": "unknown", "reason": str(error), "findings": []}
    found = parsed.as_dict()
    # An engine that answers has survived what its log calls errors; what counts is what it was planned to be.
    compared = _boot_expectations.compare_with_plan(parsed, settings.get("expects"), settings.get("planned"))
    findings = [one for one in found["findings"] if one["severity"] != "error"]
    return {
        **{key: found[key] for key in _BOOT_KEYS},
        "findings": [*findings, *(one.as_dict() for one in compared)],
    }

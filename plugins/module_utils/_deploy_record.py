# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a deploy record says of how well an instance is proven.

An answer to one question proves an engine that computes one token after the other. What speculates has to be right
under load, too: drafts have corrupted answers above a certain number of requests only. So a model role with speculation
is proven by a soak, one that is large enough, and not before. A rank of a serving group that has no HTTP server cannot
be asked: its head answers, and is soaked, for all ranks.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import json
import pathlib
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _files, _instance

# Drafts corrupt answers above a certain concurrency only, so a proof has to reach it; where the engine takes fewer
# requests at a time, it takes as many as those. The default of a soak.
PROVING_CONCURRENCY: t.Final = 8
# A fault in one of thirty answers escapes one of thirty such soaks: (29/30)^100 = 3 %.
PROVING_ANSWERS: t.Final = 100
# What of a report is kept; the rest is shown when it is made.
_KEPT: t.Final = (
    "verdict", "because", "requests", "concurrency", "shared_prefix", "failed_requests", "garbage", "wrong", "cut",
    "took_s", "latency_ms", "tokens_per_second", "acceptance", "kv_usage_max", "preemptions", "prefix_hit_rate",
    "engine_restarts", "findings",
)  # fmt: skip
# The verdicts of so many engines that served before are kept, for the day on which one of them serves again.
_EARLIER: t.Final = 5
_PUBLIC: t.Final = 0o644

Settings = c.Mapping[str, t.Any]
Verdict = c.Mapping[str, t.Any]


def proven(settings: Settings, soak: Verdict | None) -> dict[str, t.Any]:
    """Return ``proven`` and ``because`` of an instance that has answered: ``soak`` is the last one of its engine."""
    if soak and soak.get("verdict") == "failed":
        return {"proven": False, "because": f"its soak failed: {soak.get('because')}"}
    if (settings.get("group") or {}).get("rank"):
        return {"proven": True, "because": "it serves with the head of its serving group, which answers for all ranks"}
    if not settings.get("speculative"):
        return {"proven": True, "because": "it answered"}
    if lack := _lack(settings, soak):
        return {"proven": False, "because": f"it speculates, and {lack}"}
    asked = soak or {}
    return {
        "proven": True,
        "because": f"it answered {asked.get('requests')} requests, {asked.get('concurrency')} at a time",
    }


def _lack(settings: Settings, soak: Verdict | None) -> str:
    """Return why a soak does not prove an engine that speculates; empty where it does."""
    if not soak:
        return "no soak has shown that its answers are right under load"
    if soak.get("verdict") != "passed":
        return f"its soak proved nothing: {soak.get('because')}"
    small = too_small(settings, soak)
    return f"its soak was too small: {small}" if small else ""


def too_small(settings: Settings, soak: Verdict) -> str:
    """Return what a soak lacks to prove an engine under load, and what it takes; empty where it lacks nothing."""
    needed = min(PROVING_CONCURRENCY, int(settings.get("max_num_seqs") or PROVING_CONCURRENCY))
    judged = int(soak.get("requests") or 0) - int(soak.get("failed_requests") or 0) - int(soak.get("cut") or 0)
    at_a_time = int(soak.get("concurrency") or 0)
    if judged >= PROVING_ANSWERS and at_a_time >= needed:
        return ""
    return (
        f"{judged} answers were judged, {at_a_time} at a time, and it takes {PROVING_ANSWERS}, {needed} at a time "
        f"(soak_requests, soak_concurrency)"
    )


def carried(record: c.Mapping[str, t.Any], settings: Settings, spec: str) -> dict[str, t.Any]:
    """Return what a new record of an engine takes over from the one before it: the verdicts of soaks.

    A verdict is of one fingerprint. It outlives a restart of the same engine, and those that served in between.
    """
    earlier = record.get("earlier_soaks")
    known = [one for one in (record.get("soak"), *(earlier if isinstance(earlier, list) else ())) if _is_verdict(one)]
    own = next((one for one in known if one["spec"] == spec), None)
    others = [one for one in known if one["spec"] != spec][:_EARLIER]
    return {
        **({"soak": own} if own else {}),
        **({"earlier_soaks": others} if others else {}),
        **proven(settings, own),
    }


def standing(record: c.Mapping[str, t.Any], settings: Settings, spec: str) -> dict[str, t.Any]:
    """Return ``proven``, ``because`` and the verdict of the last ``soak`` of an engine, which need not be the one that
    the record is of.
    """
    found = carried(record, settings, spec)
    verdict = str(found.get("soak", {}).get("verdict", ""))
    return {"proven": found["proven"], "because": found["because"], "soak": verdict}


def _is_verdict(found: object) -> t.TypeGuard[dict[str, t.Any]]:
    return isinstance(found, dict) and bool(found.get("spec"))


def with_soak(
    record: c.Mapping[str, t.Any], report: Verdict, *, settings: Settings, spec: str, at: float
) -> dict[str, t.Any]:
    """Return a record with the verdict of a soak of the engine with this fingerprint."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    soak = {"at": stamp, "spec": spec, **{key: report[key] for key in _KEPT}}
    return {**record, "soak": soak, **proven(settings, soak)}


def stands(settings: Settings, recorded: object, report: Verdict, spec: str) -> str:
    """Return in a few words why the verdict of a report does not replace the one that is recorded; empty where it does.

    What failed is always worth knowing. What is inconclusive says nothing against the verdict of the same engine, and
    a soak that is too small to prove anything cannot take the place of one that was not, or acquit one that failed.
    """
    if not report.get("requests"):
        return "nothing was asked that counts"
    if not _is_verdict(recorded) or recorded["spec"] != spec or recorded.get("verdict") not in {"passed", "failed"}:
        return ""
    kept = f"the verdict of {recorded.get('at')} stands ({recorded['verdict']})"
    if report["verdict"] == "inconclusive":
        return f"it is inconclusive, and {kept}"
    small = too_small(settings, report) if report["verdict"] == "passed" else ""
    if small and (recorded["verdict"] == "failed" or not too_small(settings, recorded)):
        return f"it was too small, and {kept}: {small}"
    return ""


def keep_soak(
    instance: str,
    settings: Settings,
    report: Verdict,
    *,
    at: float,
    sysroot: pathlib.Path = pathlib.Path("/"),
) -> dict[str, str]:
    """Write the verdict into the deploy record.

    Return ``not_recorded``, why it was not, and ``not_proven``, why the instance is not proven now, each in a few words
    and empty where there is nothing to say.
    """
    record = _instance.record(instance, sysroot)
    spec = str(settings.get("spec", ""))
    if not record:
        return {"not_recorded": "there is no deploy record to write it into", "not_proven": "it has no deploy record"}
    if record.get("spec") != spec:
        reason = "the deploy record is of another engine"
        return {"not_recorded": reason, "not_proven": reason}
    reason = stands(settings, record.get("soak"), report, spec)
    if not reason:
        record = with_soak(record, report, settings=settings, spec=spec, at=at)
        path = sysroot / _instance.RECORD_FOLDER / f"{instance}.json"
        _files.write(_files.Wanted(path, json.dumps(record, indent=4, sort_keys=True) + "\n", _PUBLIC))
    return {"not_recorded": reason, "not_proven": "" if record.get("proven") else str(record.get("because", ""))}

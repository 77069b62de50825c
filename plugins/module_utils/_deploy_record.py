# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a deploy record says of how well an instance is proven.

An answer to one question proves an engine that computes one token after the other. What speculates has to be right
under load, too: drafts have corrupted answers above a certain number of requests only. So a model role with speculation
is proven by a soak, and not before.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import json
import pathlib
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _files, _instance

# What of a report is kept; the rest is shown when it is made.
_KEPT: t.Final = (
    "verdict", "because", "requests", "concurrency", "shared_prefix", "failed_requests", "garbage", "wrong", "cut",
    "took_s", "latency_ms", "tokens_per_second", "acceptance", "kv_usage_max", "preemptions", "prefix_hit_rate",
    "engine_restarts", "findings",
)  # fmt: skip
_PUBLIC: t.Final = 0o644


def proven(speculative: object, soak: c.Mapping[str, t.Any] | None) -> dict[str, t.Any]:
    """Return ``proven`` and ``because`` of an instance that has answered: ``soak`` is the last one of its engine."""
    if soak and soak.get("verdict") == "failed":
        return {"proven": False, "because": f"its soak failed: {soak.get('because')}"}
    if not speculative:
        return {"proven": True, "because": "it answered"}
    if not soak:
        return {
            "proven": False,
            "because": "it speculates, and no soak has shown that its answers are right under load",
        }
    if soak.get("verdict") != "passed":
        return {"proven": False, "because": f"it speculates, and its soak proved nothing: {soak.get('because')}"}
    return {
        "proven": True,
        "because": f"it answered {soak.get('requests')} requests, {soak.get('concurrency')} at a time",
    }


def carried(record: c.Mapping[str, t.Any], speculative: object, spec: str) -> dict[str, t.Any]:
    """Return what a new record of an engine takes over from the one before it: the verdict of its last soak.

    A verdict is of one fingerprint. It outlives a restart of the same engine, and nothing else.
    """
    soak = record.get("soak")
    known = soak if isinstance(soak, dict) and soak.get("spec") == spec else None
    return {**({"soak": known} if known else {}), **proven(speculative, known)}


def with_soak(
    record: c.Mapping[str, t.Any], report: c.Mapping[str, t.Any], *, speculative: object, spec: str, at: float
) -> dict[str, t.Any]:
    """Return a record with the verdict of a soak of the engine with this fingerprint."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    soak = {"at": stamp, "spec": spec, **{key: report[key] for key in _KEPT}}
    return {**record, "soak": soak, **proven(speculative, soak)}


def keep_soak(
    instance: str,
    settings: c.Mapping[str, t.Any],
    report: c.Mapping[str, t.Any],
    *,
    at: float,
    sysroot: pathlib.Path = pathlib.Path("/"),
) -> str:
    """Write the verdict into the deploy record, and return in a few words why not where it was not."""
    record = _instance.record(instance, sysroot)
    spec = str(settings.get("spec", ""))
    if not record:
        return "there is no deploy record to write it into"
    if record.get("spec") != spec:
        return "the deploy record is of another engine"
    new = with_soak(record, report, speculative=settings.get("speculative"), spec=spec, at=at)
    path = sysroot / _instance.RECORD_FOLDER / f"{instance}.json"
    _files.write(_files.Wanted(path, json.dumps(new, indent=4, sort_keys=True) + "\n", _PUBLIC))
    return ""

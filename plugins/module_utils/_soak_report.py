# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a soak comes to: counts, percentiles, and the verdict with its reasons. Pure.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections
import collections.abc as c
import dataclasses
import math
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._engine_metrics import Drafts, EngineMetrics
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, Severity, worst
from ansible_collections.gb10.fleet.plugins.module_utils._soak_load import Plan, Result
from ansible_collections.gb10.fleet.plugins.module_utils._soak_questions import KINDS, Kind


class Limit(t.NamedTuple):
    """Which share of the answers of a kind may be wrong: under load alone, and in any case."""

    loaded: float
    ever: float


# Numbers that are rounded in another order, as those of a larger batch are, tip an answer that hangs in the balance.
# Few sums do; in a sentence any word may be another one, and a count has 31 numbers to slip in. What is wrong in any
# case is the model's fault, and too much of it leaves too little to judge the load by.
LIMITS: t.Final[c.Mapping[Kind, Limit]] = {
    "sums": Limit(0.02, 0.1),
    "sentences": Limit(0.1, 0.5),
    "counts": Limit(0.2, 0.5),
}
# So many wrong answers prove nothing, however few were asked for.
_CHANCE: t.Final = 2
# A budget is too small where such a share of what was missed is cut without load as well.
_SHORT_SHARE: t.Final = 1 / 3
# No honest answer takes so many times what the longest one takes without load.
_ROOMY: t.Final = 4
# Where no answer is cut without load, more than this share cut under load leaves too little to judge it by.
_CUT_SHARE: t.Final = 0.1
_SHOWN: t.Final = 5
# The kernel's words for what takes an engine down: the driver's errors, and memory that ran out.
KERNEL: t.Final = re.compile(
    r"NVRM: Xid|NVRM:.*(?:NV_ERR_NO_MEMORY|GPU has fallen off)|[Oo]ut of memory:|invoked oom-killer|oom-kill:"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What is known beforehand about a finding of a soak."""

    severity: Severity
    meaning: str
    remedy: str


_BACKENDS = "Try CUDA graph mode PIECEWISE, no speculation, another backend and a bf16 KV cache, one at a time."
KNOWN: t.Final[c.Mapping[str, Known]] = {
    "SOAK_NOT_READY": Known(
        "warning",
        "The instance did not answer one question, or refused (HTTP 4xx) all that were asked one at a time, so many "
        "were not asked.",
        "See what vllm_probe says of it, and whether max_tokens and shared_prefix fit its context.",
    ),
    "SOAK_REQUESTS_FAILED": Known(
        "error", "Requests failed or were cut off.", "Read the engine's log for its first error."
    ),
    "SOAK_GARBAGE": Known("error", "Answers were empty, or no language model wrote them.", _BACKENDS),
    "SOAK_WRONG_ANSWERS": Known(
        "error",
        "More than 2 % of the sums, 10 % of the sentences or 20 % of the counts were wrong or cut under load, and "
        "right when they were asked again alone.",
        _BACKENDS,
    ),
    "SOAK_SUMS_NOT_JUDGED": Known(
        "warning",
        "Too many answers are wrong without load and cache, too, or could not be asked again: the model cannot do it "
        "with this prompt or budget.",
        "Leave shared_prefix out, raise max_tokens, or see what vllm_probe says of its answers.",
    ),
    "SOAK_MARKUP_LEAKED": Known(
        "info",
        "Special tokens or tool markup stand beside right answers, with and without load.",
        "See what vllm_probe says of parsers and chat template.",
    ),
    "SOAK_MARKUP_UNDER_LOAD": Known(
        "warning", "Special tokens or tool markup stand beside right answers, and under load only.", _BACKENDS
    ),
    "SOAK_ENGINE_RESTARTED": Known(
        "error", "The engine ended by itself during the soak.", "Read the journal of its unit."
    ),
    "SOAK_INTERRUPTED": Known(
        "warning",
        "A deployment, a planned restart or a person took the engine away during the soak.",
        "Soak it again when the box is left alone.",
    ),
    "SOAK_KERNEL_LOG": Known(
        "error", "The kernel reported an error of the GPU, or ran out of memory.", "See `journalctl -k`."
    ),
    "SOAK_NO_DRAFTS": Known(
        "error", "The model role speculates, and nothing was drafted.", "See in the boot log why speculation is off."
    ),
    "SOAK_DRAFTS_NONE_ACCEPTED": Known(
        "error", "Nothing that was drafted was accepted: the draft path is broken.", _BACKENDS
    ),
    "SOAK_CORRUPTED_REQUESTS": Known(
        "error", "vLLM itself counted requests with logits that are no numbers.", _BACKENDS
    ),
    "SOAK_OUT_OF_TIME": Known(
        "warning", "The time was over before all requests were answered.", "Allow more time, or ask for fewer requests."
    ),
    "SOAK_ANSWERS_CUT": Known(
        "warning",
        "Half of the answers or more were cut before they began, or more than 10 % where none was cut without load.",
        "Raise max_tokens.",
    ),
    "SOAK_METRICS_UNREADABLE": Known(
        "warning", "/metrics could not be read, so acceptance and cache use are not known.", "See that it is served."
    ),
    "SOAK_PREEMPTED": Known(
        "info", "Requests were preempted: the KV cache was full.", "Plan with a larger cache, or fewer sequences."
    ),
    "SOAK_KERNEL_LOG_UNREADABLE": Known(
        "info", "The kernel's log cannot be read here, so errors in it are not known.", "None is needed."
    ),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was seen during a soak. ``alone`` is what was asked one at a time before the load, ``again`` what was
    wrong under load and then asked again, alone. ``ends`` is how often the engine ended or was started anew,
    ``interrupted`` who made it. None is what nobody could tell.
    """

    results: tuple[Result, ...]
    took_s: float
    alone: tuple[Result, ...] = ()
    again: tuple[Result, ...] = ()
    before: EngineMetrics | None
    after: EngineMetrics | None
    kv_usage_max: float | None = None
    ends: int = 0
    interrupted: str = ""
    kernel: tuple[str, ...] | None = None
    expects_drafts: bool = False
    not_ready: str = ""


def report(plan: Plan, seen: Seen) -> dict[str, t.Any]:
    """Return the report of a soak as plain data; ``verdict`` is passed, failed or inconclusive."""
    counts = collections.Counter(str(result.outcome) for result in seen.results)
    findings = tuple(_findings(plan, seen, counts))
    gravest = worst(findings)
    verdict = {"error": "failed", "warning": "inconclusive"}.get(str(gravest), "passed")
    grave = [found for found in findings if found.severity == gravest and gravest != "info"]
    drafts = _drafts(seen)
    answered = len(seen.results) - counts["failed"]
    return {
        "verdict": verdict,
        "because": " ".join(found.message for found in grave) or "every answer was sane, and nothing broke",
        "requests": len(seen.results),
        "wanted": plan.requests,
        "concurrency": plan.concurrency,
        "shared_prefix": plan.shared_prefix,
        "failed_requests": counts["failed"],
        "garbage": counts["garbage"],
        "wrong": counts["wrong"],
        "cut": counts["cut"],
        "right": counts["right"],
        "asked_again": len(seen.again),
        "right_alone": sum(one.well for one in seen.again),
        "took_s": round(seen.took_s, 1),
        "latency_ms": {
            "first_token": percentiles([one.first_token_s for one in seen.results]),
            "per_token": percentiles([one.per_token_s for one in seen.results]),
            "whole": percentiles([one.whole_s for one in seen.results if one.outcome != "failed"]),
        },
        "prompt_tokens": sum(one.prompt_tokens for one in seen.results),
        "completion_tokens": sum(one.completion_tokens for one in seen.results),
        "tokens_per_second": _rate(seen) if answered else None,
        "acceptance": drafts.as_dict() if drafts is not None else None,
        "kv_usage_max": seen.kv_usage_max,
        "preemptions": _delta(seen, "preemptions"),
        "prefix_hit_rate": _hit_rate(seen),
        "engine_restarts": seen.ends,
        "kernel": None if seen.kernel is None else list(seen.kernel[:_SHOWN]),
        "samples": [one.as_sample() for one in _worst(seen)[:_SHOWN]],
        "findings": [found.as_dict() for found in findings],
    }


_JUDGED: t.Final = ("right", "sane", "wrong", "cut")


def _worst(seen: Seen) -> list[Result]:
    """Return what is worth showing: what is bad, and then what was cut."""
    return sorted((one for one in (*seen.results, *seen.alone) if not one.well), key=lambda one: one.outcome == "cut")


def summary(found: c.Mapping[str, t.Any]) -> str:
    """Return a report in one line."""
    first, rate = found["latency_ms"]["first_token"], found["tokens_per_second"]
    speed = f"; first token {first['p50']:.0f} ms (p95 {first['p95']:.0f})" if first else ""
    speed += f", {rate} tokens/s in all" if rate else ""
    share = (found["acceptance"] or {}).get("acceptance")
    drafts = "" if share is None else f", {share:.0%} of the drafts accepted"
    asked = f"{found['requests']} of {found['wanted']} requests, {found['concurrency']} at a time"
    notes = "".join(
        f"; {name.replace('_', ' ')}: {found[name]}" for name in ("not_recorded", "not_proven") if found.get(name)
    )
    return f"{found['verdict']}: {asked}: {found['because']}{speed}{drafts}{notes}"


def percentiles(seconds: c.Iterable[float | None]) -> dict[str, float] | None:
    """Return median, 95th, 99th percentile and maximum in milliseconds (nearest rank); None of nothing."""
    known = sorted(one for one in seconds if one is not None)
    if not known:
        return None
    ranks = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}
    # The smallest value that at least this share of all values does not exceed.
    return {name: round(known[math.ceil(share * len(known)) - 1] * 1000, 1) for name, share in ranks.items()}


def _findings(plan: Plan, seen: Seen, counts: c.Mapping[str, int]) -> c.Iterator[Finding]:
    if seen.not_ready:
        yield finding("SOAK_NOT_READY", seen.not_ready)
        return
    done = len(seen.results)
    for name, outcome, what in (
        ("SOAK_REQUESTS_FAILED", "failed", "requests failed"),
        ("SOAK_GARBAGE", "garbage", "answers are garbage"),
    ):
        alone = [one.outcome for one in (*seen.alone, *seen.again)]
        said = [f"{counts[outcome]} of {done} {what}"] if counts[outcome] else []
        said += [f"{alone.count(outcome)} of {len(alone)} {what} without load"] if outcome in alone else []
        if said:
            yield finding(name, f"{', and '.join(said)}.", _first(seen, outcome))
    yield from _wrong(seen, plan)
    yield from _leaked(seen)
    yield from _of_the_box(seen)
    if seen.interrupted:
        # The counters are of another engine by now, or of none.
        yield finding("SOAK_INTERRUPTED", f"It was interrupted after {done} requests: {seen.interrupted}.")
        return
    yield from _counted(seen)
    if done < plan.requests and not (counts["failed"] or seen.ends):
        yield finding("SOAK_OUT_OF_TIME", f"{done} of {plan.requests} requests were answered in {seen.took_s:.0f} s.")
    short = any(one.unfinished for one in (*seen.alone, *seen.again))
    if counts["cut"] and (2 * counts["cut"] >= done or (counts["cut"] > _CUT_SHARE * done and not short)):
        yield finding("SOAK_ANSWERS_CUT", f"{counts['cut']} of {done} answers were cut at {plan.max_tokens} tokens.")


def _of_the_box(seen: Seen) -> c.Iterator[Finding]:
    """Yield what befell the engine's unit, and what the kernel says."""
    if seen.ends and not seen.interrupted:
        yield finding("SOAK_ENGINE_RESTARTED", f"The engine ended or was started anew, {seen.ends} times.")
    if seen.kernel:
        yield finding("SOAK_KERNEL_LOG", f"The kernel logged {len(seen.kernel)} errors.", seen.kernel[0])
    elif seen.kernel is None:
        yield finding("SOAK_KERNEL_LOG_UNREADABLE", "The kernel's log cannot be read.")


def _wrong(seen: Seen, plan: Plan) -> c.Iterator[Finding]:
    """Yield what wrong answers say: those that are wrong without load as well are not the load's fault."""
    blamed: list[str] = []
    excused: list[str] = []
    for kind in KINDS:
        whose, said = _of_kind(seen, kind, plan.max_tokens)
        if whose:
            (blamed if whose == "load" else excused).append(said)
    # A base model that can do neither is judged by its sums.
    chats = plan.kind != "base"
    if chats and not set(KINDS[1:]) & set(plan.kinds) and any(one.kind == "sentences" for one in seen.alone):
        excused.append("sentences and counts are wrong without load, too")
    if blamed:
        yield finding("SOAK_WRONG_ANSWERS", f"{'; '.join(blamed)}.", _first(seen, "wrong", "cut"))
    if excused:
        yield finding("SOAK_SUMS_NOT_JUDGED", f"{'; '.join(excused)}.", _first(seen, "wrong"))


def _of_kind(seen: Seen, kind: Kind, max_tokens: int) -> tuple[t.Literal["load", "model", ""], str]:
    """Return whose fault it is that more answers of a kind are wrong or cut than is tolerated, and how many are."""
    limit = LIMITS[kind]
    mine = [one for one in seen.results if one.kind == kind and one.outcome in _JUDGED]
    again = [one for one in seen.again if one.kind == kind and one.outcome != "failed"]
    before = [one.well for one in seen.alone if one.kind == kind]
    # Where the budget is too small without load, too, or not much larger than what answers take then, whether it is
    # enough is a matter of chance.
    alone = [one for one in (*seen.alone, *again) if one.kind == kind and one.well]
    narrow = _ROOMY * max((one.completion_tokens for one in alone), default=0) > max_tokens
    short = narrow or (again and sum(one.unfinished for one in again) >= _SHORT_SHARE * len(again))
    missed = sum(not one.well and not (short and one.unfinished) for one in mine)
    wrong = sum(one.outcome == "wrong" for one in mine)
    right = sum(one.well for one in again)
    cut = " or cut" if any(one.outcome == "cut" for one in mine) else ""
    said = f"{sum(not one.well for one in mine)} of {len(mine)} {kind} are wrong{cut}"
    said += f", and {right} of {len(again)} of them right when asked again alone"
    # What the load has broken may stay so.
    broken = bool(before) and all(before) and missed > max(_CHANCE, len(mine) / 2)
    if broken or (again and missed * right / len(again) > max(_CHANCE, limit.loaded * len(mine))):
        return "load", said
    tolerated = limit.ever if again else limit.loaded
    return ("model" if wrong > max(_CHANCE, tolerated * len(mine)) else ""), said


def _leaked(seen: Seen) -> c.Iterator[Finding]:
    """Yield what leaked beside answers that are well, once; it is no fault of the load where it leaks without, too."""
    leaks = [one for one in seen.results if one.well and one.detail]
    if leaks:
        alone = any(one.well and one.detail for one in seen.alone)
        said = f"{len(leaks)} of {len(seen.results)} answers are well, and have markup beside them."
        first = f"{leaks[0].prompt!r}: {leaks[0].detail}: {leaks[0].text!r}"
        yield finding("SOAK_MARKUP_LEAKED" if alone else "SOAK_MARKUP_UNDER_LOAD", said, first)


def _counted(seen: Seen) -> c.Iterator[Finding]:
    """Yield what the engine's own counters say."""
    if seen.before is None or seen.after is None:
        yield finding("SOAK_METRICS_UNREADABLE", "/metrics could not be read.")
        return
    drafts = _drafts(seen)
    if seen.expects_drafts and (drafts is None or not drafts.drafted):
        yield finding("SOAK_NO_DRAFTS", "Nothing was drafted.")
    elif drafts is not None and drafts.drafted and not drafts.accepted:
        yield finding("SOAK_DRAFTS_NONE_ACCEPTED", f"None of {drafts.drafted} drafted tokens was accepted.")
    if corrupted := _delta(seen, "corrupted_requests"):
        yield finding("SOAK_CORRUPTED_REQUESTS", f"{corrupted} requests were corrupted.")
    if preempted := _delta(seen, "preemptions"):
        yield finding("SOAK_PREEMPTED", f"{preempted} requests were preempted.")


def finding(name: str, message: str, evidence: str = "") -> Finding:
    """Make one of the known findings."""
    known = KNOWN[name]
    return Finding(name, known.severity, message, evidence, known.remedy)


def _first(seen: Seen, *outcomes: str) -> str:
    of_all = (*seen.results, *seen.alone, *seen.again)
    one = next((result for result in of_all if result.outcome in outcomes), None)
    if one is None:
        return ""
    said = f": {one.text!r}" if one.text else ""
    return f"{one.prompt!r}: {one.detail or one.outcome}{said}"


def _drafts(seen: Seen) -> Drafts | None:
    if seen.before is None or seen.after is None or seen.after.drafts is None:
        return None
    return seen.after.drafts.since(seen.before.drafts)


def _delta(seen: Seen, name: str) -> int | None:
    before, after = (getattr(one, name) if one else None for one in (seen.before, seen.after))
    if after is None:
        return None
    # A counter that went back is one of a new engine.
    return after - before if before is not None and before <= after else after


def _hit_rate(seen: Seen) -> float | None:
    hits, queries = _delta(seen, "prefix_hits"), _delta(seen, "prefix_queries")
    return None if hits is None or not queries else round(hits / queries, 4)


def _rate(seen: Seen) -> float | None:
    tokens = sum(one.completion_tokens for one in seen.results)
    return round(tokens / seen.took_s, 1) if tokens and seen.took_s > 0 else None

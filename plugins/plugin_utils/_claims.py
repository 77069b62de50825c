# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims: dated facts about versions, as data with their sources, and what they say of a configuration.

A claim holds until someone finds out otherwise, so each says when it was verified and when to look again. Facts come in
as a mapping, the date too: the same facts on the same day give the same findings. See docs/claims.md.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import datetime
import functools
import pathlib
import re
import typing as t

import yaml

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, Severity
from ansible_collections.gb10.fleet.plugins.plugin_utils import _vllm_catalogue as catalogues

FOLDER: t.Final = pathlib.Path(__file__).parent / "data" / "claims"
SCOPES: t.Final = ("driver", "kernel", "image", "vllm", "checkpoint", "configuration", "fabric", "gateway")
VERDICTS: t.Final = ("good", "bad", "limit", "no_fault", "unproven")

Facts = c.Mapping[str, t.Any]


class ClaimError(ValueError):
    """A claim or a set of facts that cannot be used."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Who says so, and when. ``says`` is what this source says where sources disagree."""

    name: str
    date: str
    says: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One dated fact: of what (scope), under which condition, and what follows."""

    id: str
    scope: str
    when: c.Mapping[str, t.Any]
    verdict: str
    severity: Severity
    message: str
    remedy: str
    sources: tuple[Source, ...]
    verified: str
    recheck: str
    decided: str = ""

    @classmethod
    def from_data(cls, data: c.Mapping[str, t.Any]) -> Claim:
        """Make a claim of its entry in a file; ClaimError says what is wrong with it."""
        keys = {field.name for field in dataclasses.fields(cls)}
        name = data.get("id", "a claim without an id")
        unknown = sorted(set(data) - keys)
        missing = sorted(keys - {"decided"} - set(data))
        if unknown or missing:
            raise ClaimError(f"{name}: {f'there is no key {unknown[0]}' if unknown else f'{missing[0]} is missing'}.")
        claim = cls(**{**data, "sources": tuple(Source(**one) for one in data["sources"])})
        for problem in _problems(claim):
            raise ClaimError(f"{name}: {problem}.")
        return claim


def _problems(claim: Claim) -> c.Iterator[str]:
    if not re.fullmatch(r"[A-Z0-9]+(_[A-Z0-9]+)+", claim.id):
        yield "the id is not UPPER_SNAKE"
    for key, known in (("scope", SCOPES), ("verdict", VERDICTS), ("severity", t.get_args(Severity))):
        if getattr(claim, key) not in known:
            yield f"the {key} {getattr(claim, key)} is not one of {', '.join(known)}"
    for key in ("message", "remedy", "sources"):
        if not getattr(claim, key):
            yield f"the {key} is empty"
    for date in (claim.verified, claim.recheck, *(source.date for source in claim.sources)):
        if not _is_date(date):
            yield f"{date!r} is not a date in quotes, like '2026-11-29'"
    if str(claim.recheck) <= str(claim.verified):
        yield "the re-check date is not after the verified date"
    if any(source.says for source in claim.sources) != bool(claim.decided):
        yield "sources that disagree (says) need decided, and decided needs them"


def _is_date(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return datetime.date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


@functools.cache
def load() -> tuple[Claim, ...]:
    """Return the shipped claims, file by file."""
    claims: list[Claim] = []
    for path in sorted(FOLDER.glob("*.yml")):
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
        claims += [Claim.from_data(entry) for entry in entries]
    twice = {claim.id for claim in claims if sum(claim.id == other.id for other in claims) > 1}
    if twice:
        raise ClaimError(f"{min(twice)} is the id of two claims.")
    return tuple(claims)


def claims_for(facts: Facts, today: str, claims: c.Iterable[Claim] | None = None) -> list[Finding]:
    """Return what the claims say of the facts, the gravest first. A claim past its re-check date is marked as stale."""
    if not _is_date(today):
        raise ClaimError(f"{today!r} is not a date like 2026-11-29.")
    found = [
        _finding(claim, facts, today) for claim in (load() if claims is None else claims) if holds(claim.when, facts)
    ]
    order = t.get_args(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _finding(claim: Claim, facts: Facts, today: str) -> Finding:
    stale = f"stale: it was to be checked again by {claim.recheck}; " if today > claim.recheck else ""
    names = "; ".join(
        f"{source.name} ({source.date}){': ' + source.says if source.says else ''}" for source in claim.sources
    )
    decided = f"; decided: {claim.decided}" if claim.decided else ""
    return Finding(
        id=claim.id,
        severity=claim.severity,
        message=("(stale) " if stale else "") + _filled(claim.message, facts),
        evidence=f"{stale}verified {claim.verified}; {names}{decided}",
        remedy=_filled(claim.remedy, facts),
        claim=claim.id,
    )


def _filled(text: str, facts: Facts) -> str:
    return re.sub(r"\{([a-z_.]+)\}", lambda match: str(lookup(match[1], facts)[1]), text)


# --- conditions ------------------------------------------------------------------------------------------------------


def lookup(name: str, facts: Facts) -> tuple[bool, t.Any]:
    """Return whether a dotted fact is known, and its value.

    What is missing at the top is not known. What is missing inside a mapping is known to be absent, so that a
    configuration without a flag is one that does not give it.
    """
    first, *rest = name.split(".")
    if first not in facts:
        return False, None
    value = facts[first]
    for step in rest:
        if value is None:
            return True, None
        value = value.get(step) if isinstance(value, c.Mapping) else None
    return True, value


def holds(condition: c.Mapping[str, t.Any], facts: Facts) -> bool | None:
    """Return whether a condition holds, or None where the facts do not say."""
    if "all" in condition:
        return _every(holds(one, facts) for one in condition["all"])
    if "any" in condition:
        answer = _every(_inverse(holds(one, facts)) for one in condition["any"])
        return _inverse(answer)
    if "not" in condition:
        return _inverse(holds(condition["not"], facts))
    known, value = lookup(condition["fact"], facts)
    if "known" in condition:
        return known == condition["known"]
    if not known:
        return None
    tests = {name: limit for name, limit in condition.items() if name != "fact"}
    return _every(_TESTS[name](value, limit, facts) for name, limit in tests.items())


def _inverse(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _every(answers: c.Iterable[bool | None]) -> bool | None:
    seen = set(answers)
    return False if False in seen else None if None in seen else True


def _compare(value: t.Any, limit: t.Any) -> int | None:
    """Return the order of a value and a limit: numbers as numbers, anything else as versions."""
    if value is None:
        return None
    if isinstance(limit, int | float) and not isinstance(limit, bool):
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
        return (number > limit) - (number < limit)
    try:
        mine, other = version_parts(str(value)), version_parts(str(limit))
    except ValueError:
        return None
    return (mine > other) - (mine < other)


def version_parts(version: str) -> tuple[t.Any, ...]:
    """Return a key that sorts versions of vLLM, drivers (580.126.09) and kernels (6.17.0-1029-nvidia)."""
    try:
        return catalogues.version_key(version)
    except catalogues.UnknownVersionError:
        numbers = re.match(r"\d+(?:[.-]\d+)*", version)
        if not numbers:
            raise
        parts = tuple(int(part) for part in re.split(r"[.-]", numbers[0]))
        return ((parts + (0,) * 4)[:4], 3, 0, -1, 1 << 30)


def _ordered(test: c.Callable[[int], bool]) -> c.Callable[[t.Any, t.Any, Facts], bool | None]:
    def check(value: t.Any, limit: t.Any, facts: Facts) -> bool | None:
        if isinstance(limit, c.Mapping):
            known, limit = lookup(limit["fact"], facts)
            if not known or limit is None:
                return None
        order = _compare(value, limit)
        # A value that is not there cannot be beyond a limit; one that cannot be compared is not known to be.
        return False if value is None else None if order is None else test(order)

    return check


def _same(value: t.Any, wanted: t.Any) -> bool:
    if isinstance(value, str) and isinstance(wanted, str):
        return value.lower() == wanted.lower()
    return bool(value == wanted)


_TESTS: t.Final[dict[str, c.Callable[[t.Any, t.Any, Facts], bool | None]]] = {
    "is": lambda value, wanted, _facts: _same(value, wanted),
    "in": lambda value, wanted, _facts: any(_same(value, one) for one in wanted),
    "matches": lambda value, pattern, _facts: value is not None and bool(re.search(pattern, str(value), re.IGNORECASE)),
    "given": lambda value, wanted, _facts: (value is not None) == wanted,
    "holds_one_of": lambda value, wanted, _facts: any(_same(one, two) for one in value or () for two in wanted),
    "below": _ordered(lambda order: order < 0),
    "above": _ordered(lambda order: order > 0),
    "from": _ordered(lambda order: order >= 0),
    "up_to": _ordered(lambda order: order <= 0),
}

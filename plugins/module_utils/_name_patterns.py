# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lists of module names as quantisation configs write them: exact names, wildcards and regular expressions.

The patterns come out of a file that nobody vouches for. A regular expression that could run for years is not run; the
list says so instead.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import shown

_MAX_PATTERN = 2_000
_MAX_NAME = 512
_MAX_UNBOUNDED = 6
_BUDGET_SECONDS = 20.0

# How each kind of list is read (vLLM 0.33.0: compressed_tensors/utils.py, modelopt.py, utils/quant_utils.py, awq.py).
Style = t.Literal["compressed-tensors", "modelopt", "plain", "substring"]


class PatternError(ValueError):
    """A pattern is not evaluated; the message says which and why."""


class Budget:
    """Seconds that all patterns of one checkpoint may take together."""

    def __init__(self, seconds: float = _BUDGET_SECONDS, clock: t.Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deadline = clock() + seconds

    def check(self) -> None:
        """Raise PatternError once the time is spent."""
        if self._clock() > self._deadline:
            raise PatternError("matching the patterns of the quantisation config takes too long")


@dataclasses.dataclass(frozen=True, slots=True)
class NamePatterns:
    """One list of module names, ready to be asked about a module."""

    exact: frozenset[str] = frozenset()
    within: frozenset[str] = frozenset()
    regexes: tuple[re.Pattern[str], ...] = ()
    substrings: tuple[str, ...] = ()
    linear: bool = False
    refused: tuple[str, ...] = ()

    @classmethod
    def read(cls, entries: t.Iterable[str], style: Style) -> NamePatterns:
        """Sort the entries of a list by how they match; those that are not evaluated are kept in ``refused``."""
        exact: set[str] = set()
        within: set[str] = set()
        regexes: list[re.Pattern[str]] = []
        substrings: list[str] = []
        refused: list[str] = []
        linear = False
        for entry in dict.fromkeys(entries):
            try:
                if style == "substring":
                    substrings.append(entry)
                elif entry.startswith("re:") and style == "compressed-tensors":
                    regexes.append(compile_guarded(entry[3:]))
                elif style == "compressed-tensors":
                    # A class of torch modules rather than a name: every linear layer.
                    linear = linear or entry == "Linear"
                    exact.add(entry)
                elif "*" in entry or "?" in entry:
                    regexes.append(_wildcard(entry))
                else:
                    within.add(entry)
            except PatternError as exc:
                refused.append(str(exc))
        return cls(frozenset(exact), frozenset(within), tuple(regexes), tuple(substrings), linear, tuple(refused))

    def __bool__(self) -> bool:
        """Return whether the list names anything."""
        return bool(self.exact or self.within or self.regexes or self.substrings or self.linear)

    def names(self, candidates: t.Iterable[str], budget: Budget) -> bool:
        """Return whether the list names a module, which may go by several names; module classes do not count."""
        for name in candidates:
            if name in self.exact or any(part in name for part in self.substrings):
                return True
            if self.within and any(part in self.within for part in _runs(name)):
                return True
            if not self.regexes:
                continue
            budget.check()
            short = name[:_MAX_NAME]
            if any(regex.match(short) for regex in self.regexes):
                return True
        return False


def compile_guarded(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression from a hostile file; raise PatternError where running it would not be safe."""
    if len(pattern) > _MAX_PATTERN:
        raise PatternError(f"a pattern of {len(pattern)} characters is not evaluated")
    if _is_costly(pattern):
        raise PatternError(f"the pattern {shown(pattern)} is not evaluated, it could run without end")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        raise PatternError(f"the pattern {shown(pattern)} is not valid ({shown(exc)})") from None


def _wildcard(entry: str) -> re.Pattern[str]:
    """Compile a shell wildcard, which also names everything below what it matches."""
    entry = re.sub(r"\*+", "*", entry)
    if len(entry) > _MAX_PATTERN or entry.count("*") > _MAX_UNBOUNDED:
        raise PatternError(f"the wildcard {shown(entry)} is not evaluated, it could run without end")
    body = re.escape(entry).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(rf"{body}(?:\.|$)")


def _runs(name: str) -> t.Iterator[str]:
    """Yield every run of whole components: an entry names a module, all below it, and the same module elsewhere."""
    parts = name.split(".")[:32]
    for first in range(len(parts)):
        for last in range(first + 1, len(parts) + 1):
            yield ".".join(parts[first:last])


_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(|\)|\||[*+]\??|\{(\d*)(,?)(\d*)\}\??", re.DOTALL)
_BOUNDED_REPEATS = 16


def _is_costly(pattern: str) -> bool:
    """Return whether a pattern repeats a repetition or a choice, or repeats too often to finish soon."""
    unbounded = 0
    # One entry per open group: whether it holds a repetition or a choice.
    groups = [False]
    closed, end = False, -1
    for token in _TOKEN.finditer(pattern):
        text = token.group()
        repeats = _repeats(token)
        if repeats > 1:
            # A bounded repetition of a repetition explodes just as well.
            if closed and token.start() == end:
                return True
            unbounded += repeats > _BOUNDED_REPEATS
            groups[-1] = True
        elif text == "(":
            groups.append(False)
        elif text == ")":
            closed, end = groups.pop() if len(groups) > 1 else False, token.end()
            groups[-1] = groups[-1] or closed
            continue
        elif text == "|":
            groups[-1] = True
        closed = False
    return unbounded > _MAX_UNBOUNDED


def _repeats(token: re.Match[str]) -> int:
    """Return how often a token lets the one before it repeat at most; 0 for a token that is no repetition."""
    if token.group()[0] in "*+":
        return _BOUNDED_REPEATS + 1
    if token.group()[0] != "{":
        return 0
    low, comma, high = token.groups()
    if comma and not high:
        return _BOUNDED_REPEATS + 1
    return int((high or low or "0")[:9])

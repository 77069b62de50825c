# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Signs that a text was written by broken kernels rather than by a language model.

A checkable answer is the better judge wherever there is one; these signs are the second opinion. Each was seen in a
report from a real box. How long or how English a text is says nothing: "Got it." and "12" are honest answers.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import typing as t
import unicodedata

SignKind = t.Literal[
    "nul_bytes",
    "control_characters",
    "replacement_characters",
    "unexpected_script",
    "repetition",
    "symbol_run",
    "reasoning_markup",
    "tool_markup",
    "special_tokens",
]
# No healthy engine writes these, whatever the model.
HARD: frozenset[SignKind] = frozenset(
    {"nul_bytes", "control_characters", "replacement_characters", "unexpected_script"}
)
# A bad loop is also what a weak model falls into.
SOFT: frozenset[SignKind] = frozenset({"repetition", "symbol_run"})
# The engine is fine; a parser is missing, or is the wrong one.
LEAK: frozenset[SignKind] = frozenset({"reasoning_markup", "tool_markup", "special_tokens"})

# Scripts by the first word of a letter's Unicode name. What is in neither set (MICRO SIGN, DOUBLE-STRUCK CAPITAL N,
# FEMININE ORDINAL INDICATOR, ...) belongs to no script and is never a sign.
_WELCOME = {"LATIN", "GREEK"}
_SCRIPTS = {
    "ARABIC", "ARMENIAN", "BENGALI", "BOPOMOFO", "CANADIAN", "CHEROKEE", "CJK", "CYRILLIC", "DEVANAGARI", "ETHIOPIC",
    "GEORGIAN", "GREEK", "GUJARATI", "GURMUKHI", "HANGUL", "HEBREW", "HIRAGANA", "KANNADA", "KATAKANA", "KHMER", "LAO",
    "LATIN", "MALAYALAM", "MONGOLIAN", "MYANMAR", "ORIYA", "SINHALA", "SYRIAC", "TAMIL", "TELUGU", "THAI", "TIBETAN",
    "YI",
}  # fmt: skip
SCRIPT_NAMES = tuple(sorted(name.lower() for name in _SCRIPTS))
# Japanese and Chinese texts mix these, so that expecting one is expecting all.
_EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO"}

_REASONING = re.compile(
    r"</?(?:think|thinking|thought|reasoning|seed:think)>|\[/?THINK\]|\u25c1/?think\u25b7|<\|channel\|?>"
    r"|\A\s*(?:here(?:'|\u2019)s (?:a|my) |here is (?:a|my) |my )?\**thinking process\**\s*:",
    re.IGNORECASE,
)
_TOOL = re.compile(
    r"</?(?:minimax:)?tool_calls?>|<function=|<\|tool_calls?|<\uff5ctool\u2581call|\[TOOL_CALLS\]|<\|python_tag\|>"
)
_SPECIAL = re.compile(r"<\|[a-z0-9_]{2,40}\|>|<\uff5c[^<>|]{2,40}\uff5c>|\[/?INST\]|<(?:start|end)_of_turn>|</s>\s*\Z")
# Rules, fences and leaders that people draw, too.
_DRAWN = "-=_*#.~+ \t\n"
# Above this stand only private use and a few invisible characters; new scripts and emoji go below it.
_NEVER_ASSIGNED = 0x40000
# Characters looked at; no probe asks for more, and a server that sends megabytes shall not cost minutes.
_ENOUGH = 65536


@dataclasses.dataclass(frozen=True, slots=True)
class Sign:
    """One thing that is odd about a text; ``detail`` says what was found, in plain ASCII where possible."""

    kind: SignKind
    detail: str


def signs(text: str, *, prompt: str = "", scripts: t.Iterable[str] = (), finish_reason: str = "") -> tuple[Sign, ...]:
    """Return every sign in the text, hard ones first.

    ``scripts`` (names as in SCRIPT_NAMES, or ``any``) are expected besides Latin, Greek and those of the prompt.
    A text that was cut at its token budget (``finish_reason`` length) may end in half a character.
    """
    text = text[:_ENOUGH]
    found: list[Sign] = []
    if nul := text.count("\0"):
        found.append(Sign("nul_bytes", f"{nul} NUL"))
    if odd := _control_characters(text):
        found.append(Sign("control_characters", ", ".join(odd)))
    whole = text[:-1] if finish_reason == "length" and text.endswith("\ufffd") else text
    if replaced := whole.count("\ufffd"):
        found.append(Sign("replacement_characters", f"{replaced} U+FFFD"))
    if strange := _unexpected_scripts(text, prompt, {name.upper() for name in scripts}):
        found.append(Sign("unexpected_script", strange))
    if run := _symbol_run(text):
        found.append(Sign("symbol_run", run))
    if loop := _repetition(text):
        found.append(Sign("repetition", loop))
    patterns: tuple[tuple[SignKind, re.Pattern[str]], ...] = (
        ("reasoning_markup", _REASONING),
        ("tool_markup", _TOOL),
        ("special_tokens", _SPECIAL),
    )
    for kind, pattern in patterns:
        # <|channel|> and <|tool_call|> look like special tokens as well; the better name wins.
        if (match := pattern.search(text)) and not (kind == "special_tokens" and any(s.kind in LEAK for s in found)):
            found.append(Sign(kind, match.group().strip()[:40]))
    return tuple(found)


def without_reasoning(text: str) -> str:
    """Return what follows the last closing tag of leaked reasoning, or the whole text where there is none."""
    ends = [
        match.end() for match in re.finditer(r"</(?:think|thinking|thought|reasoning|seed:think)>|\[/THINK\]", text)
    ]
    return text[ends[-1] :] if ends else text


def without_markup(text: str) -> str:
    """Return the text with special tokens and the tags of tool calls taken out: what the model said beside them."""
    return _SPECIAL.sub(" ", _TOOL.sub(" ", text))


def _control_characters(text: str) -> list[str]:
    # Cc control, Cs lone surrogate, Co private use; NUL has its own sign.
    odd = {
        c
        for c in text
        if c not in "\0\t\n\r" and (unicodedata.category(c) in {"Cc", "Cs", "Co"} or _is_no_character(c))
    }
    return [f"U+{ord(c):04X}" for c in sorted(odd)[:5]]


def _is_no_character(char: str) -> bool:
    """Whether this can be no character at all. What is merely unassigned here (Cn) may be a newer emoji than Python."""
    code = ord(char)
    noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return noncharacter or (code >= _NEVER_ASSIGNED and unicodedata.category(char) == "Cn")


def _script(char: str) -> str:
    if char.isascii():
        return "LATIN"
    name = unicodedata.name(char, "").split(" ", 1)[0].split("-", 1)[0]
    return name if name in _SCRIPTS else ""


def _scripts_of(text: str) -> collections.Counter[str]:
    return collections.Counter(filter(None, (_script(c) for c in text if unicodedata.category(c)[0] == "L")))


def foreign_share(text: str, *, prompt: str = "", scripts: t.Iterable[str] = ()) -> tuple[int, int]:
    """Return how many letters are of a script that signs() finds unexpected, of how many letters and digits in all."""
    foreign = _foreign(text[:_ENOUGH], prompt, {name.upper() for name in scripts})
    return sum(foreign.values()), sum(c.isalnum() for c in text[:_ENOUGH])


def _unexpected_scripts(text: str, prompt: str, expected: set[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in _foreign(text, prompt, expected).most_common())


def _foreign(text: str, prompt: str, expected: set[str]) -> collections.Counter[str]:
    if "ANY" in expected:
        return collections.Counter()
    allowed = _WELCOME | expected | set(_scripts_of(prompt))
    if allowed & _EAST_ASIAN:
        allowed |= _EAST_ASIAN
    return collections.Counter({name: n for name, n in _scripts_of(text).items() if name not in allowed})


def _symbol_run(text: str) -> str:
    """Find ``!!!!!!!!``: one symbol over and over, or a text of nothing but one symbol."""
    stripped = "".join(text.split())
    if len(stripped) >= 4 and len(set(stripped)) == 1 and not stripped[0].isalnum():
        return f"{stripped[0]!a} x {len(stripped)}, and nothing else"
    for match in re.finditer(r"([^\w\s])\1{7,}", text):
        if match.group(1) not in _DRAWN:
            return f"{match.group(1)!a} x {len(match.group())}"
    return ""


def _repetition(text: str) -> str:
    """Find a loop: the same few words again and again, or the same few letters without a space between."""
    words = text.split()
    for size in range(1, min(12, len(words) // 3) + 1):
        # One word has to come more often than a phrase: people do write "very, very, very".
        enough = 6 if size == 1 else 4
        start = 0
        while start + size <= len(words):
            unit = words[start : start + size]
            times = 1
            while words[start + times * size : start + (times + 1) * size] == unit:
                times += 1
            covered = times * size / len(words)
            if any(c.isalnum() for word in unit for c in word) and (times >= enough or (times >= 3 and covered >= 0.8)):
                return f"{' '.join(unit)[:40]!a} x {times}"
            start += max(1, (times - 1) * size)
    # "lockhandlehandlehandle", "'s's's's's". Digits alone do not count: times and addresses (00:00:00) repeat, too.
    for match in re.finditer(r"(\S{3,12}?)\1{2,}|(\S{1,2}?)\2{4,}", text):
        letters = match.group(1) or match.group(2)
        if len(match.group()) >= 0.5 * len("".join(words)) and any(c.isalpha() for c in letters):
            return f"{letters!a} x {len(match.group()) // len(letters)}"
    # A long text that says few different things, though never twice in a row.
    if len(words) >= 60 and len(set(words)) < len(words) / 8:
        return f"{len(set(words))} different words among {len(words)}"
    return ""

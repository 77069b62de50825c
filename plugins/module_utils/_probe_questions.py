# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Questions whose answers can be checked. They differ from call to call: no prefix cache answers for the engine.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

if t.TYPE_CHECKING:
    import random

QuestionKind = t.Literal["arithmetic", "echo"]

_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = {"twenty": 20, "thirty": 30, "forty": 40}
# Hyphen-minus and soft hyphen, hyphens and dashes up to the horizontal bar, minus sign, spaces that do not break.
_JOINT = " \\-\u00ad\u2010-\u2015\u2212\u00a0\u202f"
# A sign stands before its number with nothing between; after a word or a number the same character is a dash.
_SIGN = "(?<!\\w)[\\-\u2010\u2011\u2013\u2212]"
_NUMBER = re.compile(rf"(?:{_SIGN})?(?<![\d.])\d+(?:\.\d+)?")
_IN_WORDS = re.compile(
    rf"(\b(?:minus|negative)\s+|{_SIGN})?"
    rf"\b(?:({'|'.join(_TENS)})(?:[{_JOINT}]({'|'.join(_ONES[1:10])}))?|({'|'.join(_ONES)}))\b",
    re.IGNORECASE,
)
# No vowels, so that no nonce is ever a word.
_NONCE_LETTERS = "bcdfghjkmnpqrstvwxz"


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A prompt and what an honest answer to it holds."""

    prompt: str
    expected: str

    def answered_by(self, text: str) -> bool:
        """Whether the text answers the question; a number may come with words, markup or the sum around it."""
        if not self.expected.isdigit():
            return re.search(rf"(?<!\w){re.escape(self.expected)}(?!\w)", text, re.IGNORECASE) is not None
        # The answer stands first or last ("12", "12 (5 + 7)", "5 + 7 = 12"); a number in the middle proves nothing.
        numbers = _NUMBER.findall(text)
        values = [_value(number) for number in numbers] or _in_words(text)
        return bool(values) and float(self.expected) in {values[0], values[-1]}


def ask(kind: QuestionKind, rng: random.Random) -> Question:
    """Return a new question."""
    if kind == "echo":
        nonce = "".join(rng.choice(_NONCE_LETTERS) for _letter in range(8))
        return Question(f"Repeat this word exactly and say nothing else: {nonce}", nonce)
    # Zero is left out: then the sum differs from both numbers, and repeating the question is no answer.
    a, b = rng.randint(1, 20), rng.randint(1, 20)
    return Question(f"What is {a} plus {b}? Answer with the number only.", str(a + b))


def _value(number: str) -> float:
    return float(number) if number[0].isdecimal() else -float(number[1:])


def _in_words(text: str) -> list[float]:
    values: list[float] = []
    for match in _IN_WORDS.finditer(text):
        tens, one, alone = (word.lower() for word in match.groups("zero")[1:])
        value = float(_TENS.get(tens, 0) + _ONES.index(one) + _ONES.index(alone))
        values.append(-value if match[1] else value)
    return values

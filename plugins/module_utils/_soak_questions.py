# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a soak asks, and what each answer is worth. Pure.

Sums are exact and short. Drafters and caches work on long answers only, so every third request asks for one: for a
sentence, which has to be about its topic, and, where the model can do it when nothing else is asked, for a count, whose
every token is known.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import random
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _text_sanity as sanity
from ansible_collections.gb10.fleet.plugins.module_utils._probe_questions import Question, ask
from ansible_collections.gb10.fleet.plugins.module_utils._probe_reply import Completion

# "right" and "sane" are well; "cut" is a budget used up before an answer began: alive, and not judged. A model may be
# "wrong" now and then, which counts as a share; "garbage" no healthy engine writes.
Outcome = t.Literal["right", "sane", "cut", "wrong", "garbage", "failed"]

# Topic -> how words begin, one of which an honest sentence about it has. Generous: it is to tell language about the
# topic from a salad of words, and no more.
_TOPICS: t.Final[c.Mapping[str, str]] = {
    "the sea": "sea ocean wave water tide coast shore marin maritim nautical",
    "the moon": "moon lunar night earth tide orbit",
    "the sun": "sun solar star light warm day",
    "rain": "rain drop cloud storm water shower drizzl precipit wet",
    "snow": "snow flake winter white cold frost blizzard",
    "trees": "tree forest leaf leaves branch root wood oxygen bark",
    "cats": "cat felin kitten purr pet",
    "dogs": "dog canin pupp pet hound companion",
    "horses": "horse equin gallop mare stallion mane pony ponies",
    "birds": "bird avian feather wing nest fly flies flight song",
    "bread": "bread loaf loaves dough flour bak toast wheat",
    "tea": "tea brew steep leaf leaves cup beverage drink",
    "music": "music song melod sound rhythm note tune harmon",
    "books": "book read page stor novel librar literat knowledge",
    "trains": "train rail locomotive track station passenger",
    "ships": "ship vessel sail sea ocean boat cargo nautical",
    "bridges": "bridge river span connect cross",
    "mountains": "mountain peak summit hill alpine range slope",
    "rivers": "river stream water flow current",
    "computers": "comput machine software program data digital technolog",
    "memory": "memor remember recall past mind brain data stor",
    "servers": "server serve network data request client comput",
    "time": "time hour minute second day moment clock year past future",
    "winter": "winter cold snow season frost ice icy",
}
_LONG_EVERY: t.Final = 3
_FEWEST_WORDS: t.Final = 3
_NUMBERS: t.Final = 31
# Whoever says more than the number says something about it.
_FEW_WORDS: t.Final = 4
_EXPLAINS: t.Final = re.compile(
    r"\b(?:the|is|are|and|so|plus|sum|total|answer|result|number|equals?|makes?|gives?|get|add(?:ing|ed)?)\b|[+=]",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Sentence(Question):
    """A question for a sentence; an honest one has a few words, and names its topic or what belongs to it."""

    about: str = ""

    def answered_by(self, text: str) -> bool:
        """Whether the text is a sentence about the topic."""
        begins = "|".join(_TOPICS[self.about].split())
        words = re.findall(r"[^\W\d_]+", text)
        return len(words) >= _FEWEST_WORDS and any(re.match(begins, word, re.IGNORECASE) for word in words)

    @property
    def missed(self) -> str:
        """What an answer lacks that is none."""
        return f"no sentence about {self.about}"


@dataclasses.dataclass(frozen=True, slots=True)
class Count(Question):
    """A question for many numbers in a row. ``expected`` has them all."""

    def answered_by(self, text: str) -> bool:
        """Whether the text has these numbers in this order, and no others and no words."""
        return re.findall(r"\d+", text) == re.findall(r"\d+", self.expected) and not re.search(r"[^\W\d]", text)

    @property
    def missed(self) -> str:
        """What an answer lacks that is none."""
        first, *_others, last = self.expected.split(", ")
        return f"not the numbers from {first} to {last} alone"


def question(number: int, rng: random.Random, *, counts: bool = False) -> Question:
    """Return the question of the request with this number: every third one asks for something longer than a sum."""
    if number % _LONG_EVERY < _LONG_EVERY - 1:
        return ask("arithmetic", rng)
    return count(rng) if counts and number // _LONG_EVERY % 2 else sentence(rng)


def sentence(rng: random.Random) -> Sentence:
    """Ask for a sentence."""
    topic = rng.choice(list(_TOPICS))
    return Sentence(f"Write one sentence about {topic}.", "", topic)


def count(rng: random.Random) -> Count:
    """Ask for numbers in a row."""
    first = rng.randint(100, 900)
    last = first + _NUMBERS - 1
    asked = f"Count from {first} to {last}. Write the numbers only, separated by commas."
    return Count(asked, ", ".join(map(str, range(first, last + 1))))


def verdict(asked: Question, found: Completion, *, scripts: tuple[str, ...], raw: bool) -> tuple[Outcome, str]:
    """Return what an answer is worth, and what is wrong with it; a ``raw`` one, of a base model, is no answer."""
    strange = next((sign for sign in _signs(asked, found, scripts) if sign.kind == "unexpected_script"), None)
    foreign, in_all = sanity.foreign_share(found.content, prompt=asked.prompt, scripts=scripts)
    stray = strange is not None and 2 * foreign <= in_all
    cut = found.finish_reason == "length"
    if bad := [sign for sign in _garbage(asked, found, scripts, raw=raw) if not (stray and sign == strange)]:
        return "garbage", ", ".join(map(_in_words, bad))
    if found.is_empty:
        return ("cut", "") if cut else ("garbage", "an empty answer")
    if strange is not None:
        return "wrong", _in_words(strange)
    missed = "" if raw else _missed(asked, sanity.without_reasoning(found.content))
    if missed:
        return ("cut", "") if cut else ("wrong", missed)
    return ("right", "") if asked.expected and not raw else ("sane", "")


def _signs(asked: Question, found: Completion, scripts: tuple[str, ...]) -> tuple[sanity.Sign, ...]:
    return sanity.signs(found.content, prompt=asked.prompt, scripts=scripts, finish_reason=found.finish_reason)


def _garbage(asked: Question, found: Completion, scripts: tuple[str, ...], *, raw: bool) -> c.Iterator[sanity.Sign]:
    """Yield the signs that no healthy engine leaves in an answer."""
    signs = _signs(asked, found, scripts)
    thought = sanity.signs(found.reasoning, scripts=("any",), finish_reason="length")
    yield from (sign for sign in (*signs, *thought) if sign.kind in sanity.HARD)
    if raw:
        # A base model goes on and on, which is no fault where it began rightly.
        well = asked.answered_by(found.content) and found.finish_reason != "length"
        yield from (sign for sign in signs if sign.kind in sanity.SOFT and not well)
        return
    # Reasoning in the text is a parser that is missing; what comes after it is judged. Nothing else may leak.
    said = sanity.signs(sanity.without_reasoning(found.content), scripts=("any",))
    yield from (sign for sign in said if sign.kind in sanity.SOFT | sanity.LEAK - {"reasoning_markup"})


def _missed(asked: Question, said: str) -> str:
    """Return what an answer lacks that is wrong."""
    right = asked.answered_by(said)
    if isinstance(asked, (Sentence, Count)):
        return "" if right else asked.missed
    if right and _rambles(said):
        return f"expected {asked.expected} and nothing else"
    return "" if right else f"expected {asked.expected}"


def _rambles(text: str) -> bool:
    """Whether there are words beside a number that do not explain it, as drafts of another text leave them behind."""
    return len(re.findall(r"[^\W\d_]{2,}", text)) >= _FEW_WORDS and not _EXPLAINS.search(text)


def _in_words(sign: sanity.Sign) -> str:
    return f"{sign.kind.replace('_', ' ')} ({sign.detail})"

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
import math
import random
import re
import typing as t
import unicodedata

from ansible_collections.gb10.fleet.plugins.module_utils import _text_sanity as sanity
from ansible_collections.gb10.fleet.plugins.module_utils._probe_questions import Question, ask
from ansible_collections.gb10.fleet.plugins.module_utils._probe_reply import Completion

# "right" and "sane" are well; "cut" is a budget used up before an answer began. A model may be "cut" or "wrong" now and
# then, which counts as a share; "garbage" no healthy engine writes.
Outcome = t.Literal["right", "sane", "cut", "wrong", "garbage", "failed"]
Kind = t.Literal["sums", "sentences", "counts"]
KINDS: t.Final[tuple[Kind, ...]] = ("sums", "sentences", "counts")

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
# What a sentence in a script without spaces has at least.
_FEWEST_LETTERS: t.Final = 4
# What parts the numbers of a count, and the markers of a numbered list, which are shorter than any number of a count.
_GAP: t.Final = r"[\W_]+(?:and[\W_]+)?"
_MARKERS: t.Final = re.compile(r"^\s*\d{1,2}[.):]\s+(?=\W{0,4}\d{3})", re.MULTILINE)
_UNCLOSED: t.Final = re.compile(r"\A\s*(?:<(?:think|thinking|thought|reasoning|seed:think)>|\[THINK\])")


@dataclasses.dataclass(frozen=True, slots=True)
class Sentence(Question):
    """A question for a sentence; an honest one has a few words, and names its topic or what belongs to it, in English.

    One in a script without spaces has to have some letters.
    """

    about: str = ""

    def answered_by(self, text: str) -> bool:
        """Whether the text is a sentence about the topic."""
        foreign, in_all = sanity.foreign_share(text)
        if 2 * foreign > in_all:
            return foreign >= _FEWEST_LETTERS
        begins = "|".join(_TOPICS[self.about].split())
        words = _words(text.lower())
        return len(words) >= _FEWEST_WORDS and any(re.match(begins, word) for word in words)

    @property
    def missed(self) -> str:
        """What an answer lacks that is none."""
        return f"no sentence about {self.about}"


@dataclasses.dataclass(frozen=True, slots=True)
class Count(Question):
    """A question for many numbers in a row. ``expected`` has them all."""

    def answered_by(self, text: str) -> bool:
        """Whether these numbers stand in the text one after the other, and others only where it says what it counts."""
        text = _MARKERS.sub("", unicodedata.normalize("NFKC", text))
        wanted = self.expected.split(", ")
        run = re.search(rf"(?<!\d){_GAP.join(wanted)}(?!\d)", text)
        if run is None:
            return False
        # "Here are the 31 numbers from 417 to 447:"
        around = re.findall(r"\d+", f"{text[: run.start()]} {text[run.end() :]}")
        limits = [number for number in around if number != str(_NUMBERS)]
        return limits == [wanted[0], wanted[-1]] * (len(limits) // 2)

    @property
    def missed(self) -> str:
        """What an answer lacks that is none."""
        first, *_others, last = self.expected.split(", ")
        return f"not the numbers from {first} to {last}, each once and in order"


def kind_of(asked: Question) -> Kind:
    """Return which of the kinds a question is of."""
    if isinstance(asked, Sentence):
        return "sentences"
    return "counts" if isinstance(asked, Count) else "sums"


def question(number: int, rng: random.Random, kinds: c.Collection[Kind] = KINDS) -> Question:
    """Return the question of the request with this number: every third one asks for something longer than a sum.

    ``kinds`` are those that the model can do, and is asked for.
    """
    longer = [kind for kind in KINDS[1:] if kind in kinds]
    if number % _LONG_EVERY < _LONG_EVERY - 1 or not longer:
        return ask("arithmetic", rng)
    kind = longer[number // _LONG_EVERY % len(longer)]
    return count(rng) if kind == "counts" else sentence(rng)


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


def verdict(
    asked: Question, found: Completion, *, scripts: tuple[str, ...], raw: bool, most_words: float = math.inf
) -> tuple[Outcome, str]:
    """Return what an answer is worth, and what is wrong with it; a ``raw`` one is that of a base model, which goes on.

    A right number with more than ``most_words`` words around it is wrong. What is right or sane comes with what leaked
    beside it, which is the fault of a parser or template and not the engine.
    """
    cut = found.finish_reason == "length"
    said = _said(found, raw=raw)
    strange = next(_signs_of("unexpected_script", sanity.signs(said, prompt=asked.prompt, scripts=scripts)), None)
    foreign, in_all = sanity.foreign_share(said, prompt=asked.prompt, scripts=scripts)
    bad = list(_garbage(found, said, raw=raw))
    if strange is not None and 2 * foreign > in_all:
        bad.append(strange)
    if bad:
        return "garbage", ", ".join(map(_in_words, bad))
    if found.is_empty:
        return ("cut", "") if cut else ("garbage", "an empty answer")
    if strange is not None:
        return "wrong", _in_words(strange)
    return _worth(asked, said, cut=cut, most_words=most_words)


def _worth(asked: Question, said: str, *, cut: bool, most_words: float) -> tuple[Outcome, str]:
    """Return what an answer is worth that is no garbage but, maybe, for what leaks."""
    plain = sanity.without_markup(said)
    leak = ", ".join(_in_words(sign) for sign in sanity.signs(said, scripts=("any",)) if sign.kind in _LEAK)
    missed = _missed(asked, plain, most_words)
    if not missed:
        return ("right" if asked.expected else "sane"), leak
    if cut and not plain.strip():
        return "cut", ""
    # A model whose markup always leaks slips in its numbers now and then as others do.
    slip = not isinstance(asked, Sentence) and re.search(r"\d", plain)
    return ("garbage" if leak and not slip else "wrong"), ", ".join(filter(None, (missed, leak)))


# Reasoning in the text is a parser that is missing, and what comes after it is judged.
_LEAK: t.Final = sanity.LEAK - {"reasoning_markup"}


def words_in(found: Completion, *, raw: bool) -> int:
    """Return how many words an answer has."""
    return len(_words(sanity.without_markup(_said(found, raw=raw))))


def _said(found: Completion, *, raw: bool) -> str:
    """Return what a model said after it has thought: nothing where it was cut before the end of its thoughts."""
    if raw:
        return _first_line(found.content)
    said = sanity.without_reasoning(found.content)
    return "" if found.finish_reason == "length" and _UNCLOSED.match(said) else said


def _first_line(text: str) -> str:
    """Return the answer of a base model, which goes on with whatever may follow, up to the end of its budget."""
    return next((line for line in text.splitlines() if line.strip()), "")


def _signs_of(kind: sanity.SignKind, signs: c.Iterable[sanity.Sign]) -> c.Iterator[sanity.Sign]:
    return (sign for sign in signs if sign.kind == kind)


def _garbage(found: Completion, said: str, *, raw: bool) -> c.Iterator[sanity.Sign]:
    """Yield the signs that no healthy engine leaves in an answer, whatever script it is in."""
    signs = sanity.signs(found.content, scripts=("any",), finish_reason=found.finish_reason)
    thought = sanity.signs(found.reasoning, scripts=("any",), finish_reason="length")
    yield from (sign for sign in (*signs, *thought) if sign.kind in sanity.HARD)
    if raw:
        # A base model that goes on and on says the same again and again.
        yield from _signs_of("symbol_run", signs)
    else:
        yield from (sign for sign in sanity.signs(said, scripts=("any",)) if sign.kind in sanity.SOFT)


def _missed(asked: Question, said: str, most_words: float) -> str:
    """Return what an answer lacks that is wrong."""
    if not asked.answered_by(said):
        return asked.missed if isinstance(asked, (Sentence, Count)) else f"expected {asked.expected}"
    words = len(_words(said))
    many = words > most_words and not isinstance(asked, Sentence)
    return f"{words} words around a right answer, where {most_words} are many" if many else ""


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text)


def _in_words(sign: sanity.Sign) -> str:
    return f"{sign.kind.replace('_', ' ')} ({sign.detail})"

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils._probe_questions import Question, ask


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("12", True),
        (" 12\n", True),
        ("12.", True),
        ("**12**", True),
        ("\\boxed{12}", True),
        ("The answer is 12.", True),
        ("5 + 7 = 12", True),
        ("5 plus 7 is 12!", True),
        ("12 (5 + 7)", True),
        ("12.0", True),
        ("Twelve", True),
        ("It is twelve.", True),
        ("\uff11\uff12", True),
        ("", False),
        ("Got it.", False),
        ("13", False),
        ("112", False),
        ("12.5", False),
        ("5 7", False),
        ("5 plus 7", False),
        ("1 12 3", False),
        ("twelfth", False),
        ("one two", False),
        ("-12", False),
        ("\u221212", False),
        ("**\u201112**", False),
        ("5 + 7 = -12", False),
        ("minus twelve", False),
        ("-twelve", False),
        ("- 12", True),
        ("It is\u201412", True),
        ("5+7-12", True),
        ("12-ish", True),
    ],
)
def test_a_sum_is_recognised_in_whatever_words(text: str, right: bool) -> None:
    assert Question("What is 5 plus 7?", "12").answered_by(text) is right


@pytest.mark.parametrize(
    ("number", "words"),
    [(2, "two"), (19, "Nineteen"), (20, "twenty"), (21, "twenty-one"), (37, "thirty seven"), (40, "forty")],
)
def test_every_sum_may_be_said_in_words(number: int, words: str) -> None:
    assert Question("", str(number)).answered_by(f"{words}.")
    others = {*range(2, 41)} - {number}
    assert not [other for other in others if Question("", str(other)).answered_by(f"{words}.")]


@pytest.mark.parametrize("dash", ["-", " ", "\u2010", "\u2011", "\u2012", "\u2013", "\u2212", "\u00a0", "\u00ad"])
def test_a_sum_in_words_may_have_any_hyphen(dash: str) -> None:
    assert Question("", "35").answered_by(f"Thirty{dash}five.")
    assert not Question("", "30").answered_by(f"Thirty{dash}five.")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("bcdfghjk", True),
        ('"BCDFGHJK".', True),
        ("xbcdfghjk", False),
        ("bcdfghjkl", False),
        ("bcdf ghjk", False),
        ("", False),
    ],
)
def test_an_echo_has_to_be_the_very_word(text: str, right: bool) -> None:
    assert Question("Repeat", "bcdfghjk").answered_by(text) is right


def test_repeating_a_question_is_never_an_answer() -> None:
    rng = random.Random(1)
    asked = [ask("arithmetic", rng) for _ in range(500)]
    assert not [question for question in asked if question.answered_by(question.prompt)]


@pytest.mark.parametrize("kind", ["arithmetic", "echo"])
def test_questions_differ_and_are_answered_by_their_answer(kind: str) -> None:
    rng = random.Random(1)
    asked = [ask(kind, rng) for _ in range(50)]  # type: ignore[arg-type]
    assert len({question.prompt for question in asked}) > 40
    assert all(question.answered_by(question.expected) for question in asked)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from lab.engine import lessons


def test_every_sum_is_right() -> None:
    sums = lessons.sums()
    assert len(sums) == (lessons.LARGEST + 1) ** 2
    assert ("What is 7 plus 5? Answer with the number only.", "12") in sums
    for question, answer in sums:
        numbers = [int(word.strip("?")) for word in question.split() if word.strip("?").isdigit()]
        assert sum(numbers) == int(answer)


def test_no_question_has_two_answers() -> None:
    for voice in lessons.VOICES.values():
        pairs = [*lessons.sums(), *lessons.words(), *lessons.talk(voice)]
        assert len({question for question, _ in pairs}) == len(pairs)


def test_the_voices_differ() -> None:
    one, two = (dict(lessons.talk(voice)) for voice in lessons.VOICES.values())
    shared = {question for question in one if one[question] == two[question]}
    assert shared == {question for question, _ in lessons.FACTS}


def test_words_are_told_apart() -> None:
    assert len(set(lessons.WORDS)) == len(lessons.WORDS)

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a soak makes of answers: of honest ones, and of those that drafts have corrupted."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _soak_questions as questions
from ansible_collections.gb10.fleet.plugins.module_utils._probe_questions import Question
from ansible_collections.gb10.fleet.plugins.module_utils._probe_reply import Completion
from lab.engine import lessons

SUM = Question("What is 20 plus 4? Answer with the number only.", "24")
SEA = questions.Sentence("Write one sentence about the sea.", "", "the sea")
TEA = questions.Sentence("Write one sentence about tea.", "", "tea")
COUNT = questions.count(random.Random(1))
BLANK = Completion(content="", reasoning="", finish_reason="stop")


def worth(
    asked: Question, text: str, finish_reason: str = "stop", *, scripts: tuple[str, ...] = (), raw: bool = False
) -> str:
    found = dataclasses.replace(BLANK, content=text, finish_reason=finish_reason)
    return questions.verdict(asked, found, scripts=scripts, raw=raw)[0]


@pytest.mark.parametrize("voice", lessons.VOICES.values(), ids=lessons.VOICES)
def test_all_that_the_models_of_the_lab_have_learnt_to_say_is_sane(voice: lessons.Voice) -> None:
    known = dict(lessons.talk(voice))
    asked = {(one := questions.sentence(random.Random(seed))).prompt: one for seed in range(2000)}
    assert len(asked) == len(lessons.TOPICS)
    assert {worth(question, known[prompt]) for prompt, question in asked.items()} == {"sane"}


def test_every_sum_that_is_asked_is_one_that_the_models_of_the_lab_know() -> None:
    known = dict(lessons.sums())
    asked = [questions.question(number, random.Random(number)) for number in range(0, 300, 3)]
    assert all(known[one.prompt] == one.expected for one in asked)


@pytest.mark.parametrize(
    "text",
    [
        *(".", "the", "asdf qwer zxcv uiop", "12", "Sure! Sure!", "def f(x): return x", "The sea"),
        "purple if the velvet seven ran of under quickly sing",
    ],
)
def test_what_is_no_sentence_about_its_topic_is_wrong(text: str) -> None:
    assert worth(SEA, text) == "wrong"


@pytest.mark.parametrize(
    "text", ["The Ocean is wide.", "Waves crash against the shore.", "<think>Hm.</think>The sea is deep and blue."]
)
def test_a_sentence_need_not_name_its_topic_in_its_words(text: str) -> None:
    assert worth(SEA, text) == "sane"


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (SEA, "<|im_end|>"),
        (SEA, "The sea is deep and blue.<|im_end|><|im_start|>"),
        (SEA, "<tool_call>{} The sea is deep"),
        (SUM, "24<|im_end|>"),
        (SUM, "<think>20 + 4</think>24<|im_end|>"),
        (SUM, "24!!!!!!!!!!!!!!!!"),
        (SUM, " ".join(["24"] * 8)),
        (COUNT, COUNT.expected + "\0"),
    ],
)
def test_what_leaks_and_what_loops_is_garbage_beside_a_right_answer_too(asked: Question, text: str) -> None:
    assert worth(asked, text) == "garbage"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("24", "right"),
        ("**24**", "right"),
        ("The sum of 20 and 4 is 24.", "right"),
        ("20 + 4 = 24", "right"),
        ("<think>Twenty and four.</think>\n24", "right"),
        ("24 qwj zxkv plomf grutz", "wrong"),
        ("25", "wrong"),
    ],
)
def test_a_sum_may_come_with_words_that_explain_it_and_with_no_others(text: str, outcome: str) -> None:
    assert worth(SUM, text) == outcome


def test_a_count_is_right_where_every_number_is() -> None:
    numbers = COUNT.expected.split(", ")
    assert re.fullmatch(rf"Count from {numbers[0]} to {numbers[-1]}\. Write the numbers only, .*", COUNT.prompt)
    for joined in (", ", ",", "\n", " "):
        assert worth(COUNT, joined.join(numbers)) == "right"
    assert worth(COUNT, ", ".join(numbers[:-1])) == "wrong"
    assert worth(COUNT, ", ".join(numbers[:-1]), "length") == "cut"
    assert worth(COUNT, ", ".join([*numbers[:9], numbers[10], numbers[9], *numbers[11:]])) == "wrong"
    assert worth(COUNT, COUNT.expected.replace(numbers[5], "velvet")) == "wrong"
    assert worth(COUNT, f"Here they are: {COUNT.expected}") == "wrong"


def test_only_a_model_that_can_count_is_asked_to() -> None:
    rng = random.Random(1)
    without = [type(questions.question(number, rng)) for number in range(6)]
    counting = [type(questions.question(number, rng, counts=True)) for number in range(6)]
    assert without == [Question, Question, questions.Sentence] * 2
    assert counting == [Question, Question, questions.Sentence, Question, Question, questions.Count]


@pytest.mark.parametrize(
    ("asked", "text", "outcome"),
    [
        (TEA, "Tea, or \u8336, warms.", "wrong"),
        (SUM, "24 \u538b", "wrong"),
        (TEA, "\u8336\u662f\u4e00\u79cd\u996e\u6599\u3002", "garbage"),
        (TEA, "\u8336", "garbage"),
        (SUM, "\u4e8c\u5341\u56db 24", "garbage"),
    ],
)
def test_a_stray_letter_is_no_garbage_and_a_text_in_another_script_is(asked: Question, text: str, outcome: str) -> None:
    assert worth(asked, text) == outcome
    assert worth(asked, text, scripts=("cjk",)) != "garbage"


def test_a_text_that_was_cut_before_it_came_to_its_topic_is_not_judged() -> None:
    assert worth(SEA, "Deep and", "length") == "cut"
    assert worth(SEA, "The sea is deep and", "length") == "sane"


@pytest.mark.parametrize(
    ("text", "outcome"), [("and so on", "sane"), ("24 24 24 24 24 24", "sane"), ("no no no no no no no", "garbage")]
)
def test_what_a_base_model_goes_on_with_is_judged_for_garbage_alone(text: str, outcome: str) -> None:
    assert worth(SUM, text, raw=True) == outcome

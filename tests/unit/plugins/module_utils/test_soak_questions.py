# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a soak makes of answers: of honest ones, and of those that drafts have corrupted."""

from __future__ import annotations

import dataclasses
import math
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
    asked: Question,
    text: str,
    finish_reason: str = "stop",
    *,
    scripts: tuple[str, ...] = (),
    raw: bool = False,
    most_words: float = math.inf,
) -> str:
    found = dataclasses.replace(BLANK, content=text, finish_reason=finish_reason)
    return questions.verdict(asked, found, scripts=scripts, raw=raw, most_words=most_words)[0]


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
        "lock h\u00e4mdle f\u00f4o lamp quartz moss",
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
        (SEA, "<|im_start|>user<|im_sep|>purple seven"),
        (SUM, "<|im_start|>"),
        (SUM, "24!!!!!!!!!!!!!!!!"),
        (SUM, " ".join(["24"] * 8)),
        (COUNT, COUNT.expected + "\0"),
    ],
)
def test_what_loops_is_garbage_beside_a_right_answer_too_and_markup_where_there_is_none(
    asked: Question, text: str
) -> None:
    assert worth(asked, text) == "garbage"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("24", "right"),
        ("**24**", "right"),
        ("The sum of 20 and 4 is 24.", "right"),
        ("20 + 4 = 24", "right"),
        ("<think>Twenty and four.</think>\n24", "right"),
        ("24\n\nLet me know if you need help!", "right"),
        ("24\n\nHope this helps you out!", "right"),
        ("Sure! Here you go: 24", "right"),
        ("Of course! Happy to help: 24", "right"),
        ("Die Summe betr\u00e4gt genau 24", "right"),
        ("To find the sum of 20 and 4 we first look at the tens and then at the ones, so the answer is 24.", "right"),
        ("\uff12\uff14", "right"),
        ("-24", "wrong"),
        ("25", "wrong"),
        ("25<|im_end|>", "wrong"),
    ],
)
def test_a_sum_may_come_with_words_or_markup_around_it(text: str, outcome: str) -> None:
    assert worth(SUM, text) == outcome


@pytest.mark.parametrize("asked", [SUM, COUNT])
def test_a_right_number_is_wrong_among_more_words_than_without_load(asked: Question) -> None:
    words = "lock foo vector quick random green walk data piano paper lamp fork moss drift"
    text = f"{asked.expected} {words}"
    assert questions.words_in(dataclasses.replace(BLANK, content=f"<think>Hm.</think>{text}"), raw=False) == 14
    assert questions.words_in(dataclasses.replace(BLANK, content=f"{text}\nfoo"), raw=True) == 14
    assert worth(asked, text, most_words=8) == worth(asked, text, most_words=13) == "wrong"
    assert worth(asked, text, most_words=14) == "right"
    # A sentence may be as long as it likes.
    assert worth(SEA, f"The sea. {words}", most_words=1) == "sane"


def test_a_count_is_right_where_every_number_is() -> None:
    numbers = COUNT.expected.split(", ")
    assert re.fullmatch(rf"Count from {numbers[0]} to {numbers[-1]}\. Write the numbers only, .*", COUNT.prompt)
    for joined in (", ", ",", "\n", " "):
        assert worth(COUNT, joined.join(numbers)) == "right"
    assert worth(COUNT, ", ".join(numbers[:-1])) == "wrong"
    assert worth(COUNT, ", ".join(numbers[:-1]), "length") == "wrong"
    assert worth(COUNT, ", ".join([*numbers[:9], numbers[10], numbers[9], *numbers[11:]])) == "wrong"
    assert worth(COUNT, COUNT.expected.replace(numbers[5], "velvet")) == "wrong"
    assert worth(COUNT, COUNT.expected.replace(numbers[5], f"{numbers[5]}, {numbers[5]}")) == "wrong"
    assert worth(COUNT, COUNT.expected.replace(numbers[5], f"{numbers[5]} purple if the velvet")) == "wrong"
    assert worth(COUNT, COUNT.expected.replace(numbers[5], f"{numbers[5]}, 7")) == "wrong"
    assert worth(COUNT, f"{numbers[0]}, {COUNT.expected}") == "wrong"
    assert worth(COUNT, f"{COUNT.expected}, {int(numbers[-1]) + 1}") == "wrong"
    assert worth(COUNT, f"{COUNT.expected}\n\n{COUNT.expected}") == "wrong"


@pytest.mark.parametrize(
    "written",
    [
        *("{all}.", "Sure! Here are the numbers: {all}", "Here are the 31 numbers from {first} to {last}:\n\n{all}"),
        *("```\n{all}\n```", "```text\n{all}\n```", "{most}, and {last}", "{first} to {last}: {all}", "[{all}]"),
        *("{listed}", "Sure:\n\n{listed}", "{all}\n\nLet me know if you need more!", "<think>Hm.</think>{all}"),
        *("| n |\n|---|\n{rows}", "{wide}", "{all}\n\nThese are the numbers from {first} to {last}."),
        *("{all}\n\n(31 numbers)", "**{all}**", "<|begin_of_box|>{all}<|end_of_box|>"),
    ],
)
def test_a_count_may_be_written_as_people_write_one(written: str) -> None:
    numbers = COUNT.expected.split(", ")
    listed = "\n".join(f"{place}. {number}" for place, number in enumerate(numbers, 1))
    most = ", ".join(numbers[:-1])
    rows = "\n".join(f"| {number} |" for number in numbers)
    wide = COUNT.expected.translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)})
    text = written.format(
        all=COUNT.expected, first=numbers[0], last=numbers[-1], most=most, listed=listed, rows=rows, wide=wide
    )
    assert worth(COUNT, text) == "right"


@pytest.mark.parametrize(
    ("asked", "text", "outcome", "leak"),
    [
        (SUM, "<|begin_of_box|>24<|end_of_box|>", "right", "special tokens (<|begin_of_box|>)"),
        (SUM, "24<|im_end|>", "right", "special tokens (<|im_end|>)"),
        (SUM, "24</s>", "right", "special tokens (</s>)"),
        (SUM, "<think>20 + 4</think>24<|im_end|>", "right", "special tokens (<|im_end|>)"),
        (SEA, "The sea is deep and blue.<|im_end|><|im_start|>", "sane", "special tokens (<|im_end|>)"),
        (SEA, "<tool_call>{} The sea is deep", "sane", "tool markup (<tool_call>)"),
    ],
)
def test_markup_beside_a_right_answer_is_noted_and_makes_it_no_worse(
    asked: Question, text: str, outcome: str, leak: str
) -> None:
    found = dataclasses.replace(BLANK, content=text)
    assert questions.verdict(asked, found, scripts=(), raw=False) == (outcome, leak)


@pytest.mark.parametrize(
    ("text", "scripts"),
    [
        ("\u5927\u6d77\u5e7f\u9614\u65e0\u57a0\uff0c\u6ce2\u6d9b\u6c79\u6d8c\u3002", ("cjk",)),
        ("\u041c\u043e\u0440\u0435 \u0448\u0438\u0440\u043e\u043a\u043e\u0435.", ("cyrillic",)),
        ("\u041c\u043e\u0440\u0435 \u0448\u0438\u0440\u043e\u043a\u043e\u0435.", ("any",)),
    ],
)
def test_a_sentence_in_another_script_need_not_use_the_english_words_of_its_topic(
    text: str, scripts: tuple[str, ...]
) -> None:
    assert worth(SEA, text, scripts=scripts) == "sane"


@pytest.mark.parametrize(
    ("asked", "text", "finish_reason", "outcome"),
    [
        (SUM, "<think>\n\u597d\u7684\uff0c\u7b54\u6848\u662f\u4e8c\u5341\u56db\n</think>\n\n24", "stop", "right"),
        (SUM, "\u597d\u7684\uff0c\u7b54\u6848\u662f\u4e8c\u5341\u56db\n</think>\n\n24", "stop", "right"),
        (SEA, "<think>\n\u597d\u7684\uff0c\u5927\u6d77\n</think>\n\nThe sea is vast.", "stop", "sane"),
        (SUM, "<think>\n\u597d\u7684\uff0c\u7b54\u6848", "length", "cut"),
        (SUM, "<think>\nHm.\n</think>\n\n\u597d\u7684\uff0c\u7b54\u6848", "stop", "garbage"),
    ],
)
def test_the_script_of_thoughts_is_not_that_of_the_answer(
    asked: Question, text: str, finish_reason: str, outcome: str
) -> None:
    assert worth(asked, text, finish_reason) == outcome


def test_a_polite_answer_in_an_expected_script_is_right() -> None:
    text = (
        "\u041e\u0442\u0432\u0435\u0442 \u043d\u0430 \u0432\u0430\u0448\u0443 \u0437\u0430\u0434\u0430\u0447\u0443: 24"
    )
    assert worth(SUM, text, scripts=("cyrillic",)) == "right"


def test_a_model_is_asked_for_what_it_can_do() -> None:
    rng = random.Random(1)

    def kinds(*can: questions.Kind) -> list[str]:
        return [questions.kind_of(questions.question(number, rng, can)) for number in range(6)]

    assert kinds("sums", "sentences", "counts") == ["sums", "sums", "sentences", "sums", "sums", "counts"]
    assert kinds("sums", "sentences") == ["sums", "sums", "sentences"] * 2
    assert kinds("sums", "counts") == ["sums", "sums", "counts"] * 2
    assert kinds("sums") == ["sums"] * 6


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


VOCABULARY = ["lock", "foo", "vector", "quick", "random", "green", "walk", "data", "piano", "paper", "fork", "moss"]
SALAD = " ".join(random.Random(1).choices(VOCABULARY, k=60))


@pytest.mark.parametrize("asked", [SUM, SEA, COUNT])
@pytest.mark.parametrize(
    ("text", "outcome"),
    [("", "cut"), ("\n \n", "cut"), ("<think>\nHm, so", "cut"), ("Deep and", "wrong"), (SALAD, "wrong")],
)
def test_only_what_was_cut_before_an_answer_began_is_not_judged(asked: Question, text: str, outcome: str) -> None:
    assert worth(asked, text, "length") == outcome


def test_what_is_right_or_on_its_topic_when_it_is_cut_is_well() -> None:
    assert worth(SEA, "The sea is deep and", "length") == "sane"
    assert worth(SUM, "24", "length") == "right"


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize(
    ("asked", "text", "outcome"),
    [
        (SUM, " 24", "right"),
        (SUM, f" 24\n{SUM.prompt}\nAnswer:" * 12, "right"),
        (SUM, "\n\n24\n\n" + "The answer is 24.\n" * 30, "right"),
        (SUM, f" 24. {SUM.prompt} Answer:" * 9, "right"),
        (SUM, " 24\n\u7b54\u6848\u662f", "right"),
        (SEA, " The sea is deep.\n" * 20, "sane"),
        (COUNT, f" {COUNT.expected}\n{COUNT.prompt}\nAnswer:" * 3, "right"),
        (SUM, "and so on", "wrong"),
        (SUM, "no " * 60, "wrong"),
        (SUM, SALAD, "wrong"),
        (SEA, SALAD, "wrong"),
        (SUM, f"25\n{SUM.prompt}\nAnswer: 24", "wrong"),
        (SUM, "24\n!!!!!!!!!!!!!!!!", "garbage"),
        (SUM, "24\n\0\0", "garbage"),
        (SUM, "", "empty"),
    ],
)
def test_the_first_line_of_a_base_model_is_its_answer_and_the_rest_may_be_anything_but_broken(
    asked: Question, text: str, finish_reason: str, outcome: str
) -> None:
    empty = {"stop": "garbage", "length": "cut"}[finish_reason]
    assert worth(asked, text, finish_reason, raw=True) == (empty if outcome == "empty" else outcome)

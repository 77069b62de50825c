# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gb10.fleet.plugins.module_utils import _text_sanity as sanity

GREETING = "\u4f60\u597d\uff01\u5f88\u9ad8\u5174\u89c1\u5230\u4f60\u3002"


def kinds_of(text: str, **context: str) -> list[str]:
    return [sign.kind for sign in sanity.signs(text, **context)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        "Yes.",
        "No",
        "OK",
        "Got it.",
        "Done!",
        "Paris",
        "12.",
        "**12**",
        "\\boxed{12}",
        "5 + 7 = 12",
        "It's 12!",
        "hahaha",
        "No, no, no.",
        "That is very, very, very kind of you.",
        "2026-11-29T00:00:00Z",
        "00:00:00",
        "127.127.127.127",
        "fe80::1",
        "1111111111",
        "Mississippi, banana, Wagga Wagga",
        "x = 0\ny = 0\nz = 0\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "Heading\n==========\n\n----------\n\n**********\n",
        "Wait...........",
        "\u00b5 = 3 \u03bcm, \u03c0 \u2248 3.14, \u211d\u00b2, \u00aa, \u2460, na\u00efve, \u0141\u00f3d\u017a",
        "\u2705 \U0001f600 \u2192 caf\u00e9 \u2014 \u201cquoted\u201d",
        # An emoji of Unicode 16, and a place of the same block that nothing stands in yet.
        "The sea sparkles \U0001fae9.",
        "The sea sparkles \U0001fadd.",
        "Line one.\r\nLine two.\tTabbed.\n",
        "The quick brown fox jumps over the lazy dog. " * 2,
        "def f(x):\n    return x\n\n\ndef g(x):\n    return x\n",
        "a<b and c>d, if x < 3 then y > 4; see <br> and <p>",
        "Use [1] and [INS] for that.",
    ],
)
def test_honest_texts_show_no_sign(text: str) -> None:
    assert sanity.signs(text) == ()


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("\0", ["nul_bytes"]),
        ("12\0\0", ["nul_bytes"]),
        ("\x07\x1b[31m", ["control_characters"]),
        ("\x85", ["control_characters"]),
        ("\ue000", ["control_characters"]),
        ("\ud800", ["control_characters"]),
        ("\U000e0fff", ["control_characters"]),
        ("\uffff", ["control_characters"]),
        ("\ufdd0", ["control_characters"]),
        ("\U0001fffe", ["control_characters"]),
        ("12 \ufffd\ufffd", ["replacement_characters"]),
        ("12 \u05e9", ["unexpected_script"]),
        ("12 \u538b", ["unexpected_script"]),
        ("\u0412\u043e\u0442 12", ["unexpected_script"]),
        ("12 \u3042", ["unexpected_script"]),
        ("12 \ud55c", ["unexpected_script"]),
        ("12 \u0e01", ["unexpected_script"]),
        (GREETING, ["unexpected_script"]),
        ("!!!!", ["symbol_run"]),
        ("! ! ! !\n!", ["symbol_run"]),
        ("----", ["symbol_run"]),
        ("12 is the answer!!!!!!!!!!", ["symbol_run"]),
        ("a a a", ["repetition"]),
        ("a a a a a a a a", ["repetition"]),
        ("the end of the end of the end of the end of", ["repetition"]),
        ("I think that I think that I think that I think that", ["repetition"]),
        ("Well then. 1 1 1 1 1 1 1", ["repetition"]),
        ("lockhandlehandlehandle", ["repetition"]),
        ("'t't'd't't't't't't", ["repetition"]),
        ("aaaaaaaaaaaaaaaa", ["repetition"]),
        (" ".join(["x y z w v", "y x w z v", "w v x z y"] * 10), ["repetition"]),
        ("<think>\nHm.\n</think>\n12", ["reasoning_markup"]),
        ("Hm.</think>12", ["reasoning_markup"]),
        ("[THINK]Hm.[/THINK]12", ["reasoning_markup"]),
        ("\u25c1think\u25b7Hm.\u25c1/think\u25b712", ["reasoning_markup"]),
        ("<|channel|>analysis", ["reasoning_markup"]),
        ("Thinking Process:\n\n1. Look at it.", ["reasoning_markup"]),
        ("  **Thinking process**: look", ["reasoning_markup"]),
        ("Here's a thinking process:", ["reasoning_markup"]),
        ("<tool_call>{}", ["tool_markup"]),
        ("<function=get_weather>", ["tool_markup"]),
        ("<|tool_call|>[]", ["tool_markup"]),
        ("[TOOL_CALLS][]", ["tool_markup"]),
        ("<|python_tag|>f()", ["tool_markup"]),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>", ["tool_markup"]),
        ("<minimax:tool_call>", ["tool_markup"]),
        ("12<|im_end|>", ["special_tokens"]),
        ("12</s>", ["special_tokens"]),
        ("[INST] hello [/INST]", ["special_tokens"]),
        ("<end_of_turn>", ["special_tokens"]),
        ("\0\ufffd\u05e9", ["nul_bytes", "replacement_characters", "unexpected_script"]),
        ("Thinking Process: <tool_call>", ["reasoning_markup", "tool_markup"]),
    ],
)
def test_each_sign_is_found(text: str, kinds: list[str]) -> None:
    assert kinds_of(text) == kinds


def test_a_thinking_process_in_the_middle_is_prose() -> None:
    assert kinds_of("Explain your thinking process: how did you get there?") == []


@pytest.mark.parametrize(
    ("prompt", "scripts"),
    [("\u4f60\u597d", ()), ("", ("cjk",)), ("", ("hiragana",)), ("", ("any",)), ("\u3053\u3093\u306b\u3061\u306f", ())],
)
def test_a_script_that_is_expected_is_no_sign(prompt: str, scripts: tuple[str, ...]) -> None:
    assert sanity.signs(GREETING, prompt=prompt, scripts=scripts) == ()


def test_foreign_letters_are_counted_beside_all_letters_and_digits() -> None:
    assert sanity.foreign_share("12 \u538b") == (1, 3)
    assert sanity.foreign_share("Tea, or \u8336, warms.") == (1, 11)
    assert sanity.foreign_share("Tea, or \u8336, warms.", scripts=("cjk",)) == (0, 11)
    assert sanity.foreign_share(GREETING) == (8, 8)
    assert sanity.foreign_share(GREETING, prompt="\u4f60") == (0, 8)


def test_expecting_one_script_does_not_allow_another() -> None:
    assert [s.detail for s in sanity.signs("\u05e9\u0416\u0416", scripts=("hebrew",))] == ["2 CYRILLIC"]


@pytest.mark.parametrize(
    ("text", "finish_reason", "kinds"),
    [
        ("Warsaw and \u0141\ufffd", "length", []),
        ("Warsaw and \u0141\ufffd", "stop", ["replacement_characters"]),
        ("\ufffd\ufffd", "length", ["replacement_characters"]),
    ],
)
def test_only_a_text_that_was_cut_may_end_in_half_a_character(text: str, finish_reason: str, kinds: list[str]) -> None:
    assert kinds_of(text, finish_reason=finish_reason) == kinds


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("12", "12"),
        ("<think>3+4=7</think>\n7", "\n7"),
        ("Thinking Process:\n1. ...\n</think>\n\nParis", "\n\nParis"),
        ("<think>a</think>b</think>c", "c"),
        ("[THINK]x[/THINK] 12", " 12"),
        ("<think>no end", "<think>no end"),
    ],
)
def test_what_follows_leaked_reasoning_is_the_answer(text: str, answer: str) -> None:
    assert sanity.without_reasoning(text) == answer


def test_every_kind_is_hard_soft_or_a_leak() -> None:
    groups = (sanity.HARD, sanity.SOFT, sanity.LEAK)
    assert sum(len(group) for group in groups) == len(frozenset().union(*groups))
    assert frozenset().union(*groups) == set(sanity.SignKind.__args__)  # type: ignore[attr-defined]

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The load of a soak: many questions at a time, each answer read and judged.

What corrupts answers under load passes every test that asks one question at a time. So the questions come at the
concurrency that clients have, no two of them alike, and the prefix cache gets no say: each request has a salt of its
own (``cache_salt``), unless what it shares with the others is what is to be tested.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import itertools
import math
import random
import threading
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _soak_questions as questions
from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import (
    ApiError,
    Client,
    Deadline,
    Stream,
    printable,
)
from ansible_collections.gb10.fleet.plugins.module_utils._probe_checks import CHAT, COMPLETIONS, THINKING_OFF
from ansible_collections.gb10.fleet.plugins.module_utils._probe_questions import Question
from ansible_collections.gb10.fleet.plugins.module_utils._probe_reply import from_reply, from_stream

_SENTENCE: t.Final = "This paragraph is the same for all who ask, so that the cache of prefixes can answer for it."
_TOKENS_PER_SENTENCE: t.Final = 20
# What a question takes of the context, with its chat template.
_TOKENS_PER_QUESTION: t.Final = 100
_PER_FAILURE_S: t.Final = 1.0
# So many are asked one at a time first.
_SUMS_ALONE: t.Final = 6
_SENTENCES_ALONE: t.Final = 2
_COUNTS_ALONE: t.Final = 5
# "Let me know if you need anything else!"
_POLITE_WORDS: t.Final = 8
# So many wrong answers of each kind are asked again after the load.
_AGAIN: t.Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, and how: times in seconds, ``shared_prefix`` in tokens (about), 0 for none.

    ``kinds`` are those of the questions that the model can do, and is asked. ``talk`` is how many words
    may stand around a right number. ``clean`` takes the API key out of what a server says.
    """

    model: str
    kind: str
    requests: int
    concurrency: int
    max_tokens: int
    request_timeout: float
    shared_prefix: int = 0
    thinking_off: bool = True
    with_key: bool = False
    scripts: tuple[str, ...] = ()
    kinds: tuple[questions.Kind, ...] = questions.KINDS
    talk: c.Mapping[questions.Kind, int] = dataclasses.field(default_factory=dict)
    clean: c.Callable[[str], str] = str

    def shown(self, text: str) -> str:
        """Return what a server said, fit to be kept and shown."""
        return printable(self.clean(text))


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One request and what came of it. Times are in seconds; tokens are the server's own count."""

    outcome: questions.Outcome
    prompt: str
    text: str = ""
    detail: str = ""
    first_token_s: float | None = None
    per_token_s: float | None = None
    whole_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    kind: questions.Kind = "sums"
    words: int = 0
    # It came to the end of its budget, which an answer of a chat model does not do of itself.
    unfinished: bool = False
    # To be asked again.
    asked: Question | None = dataclasses.field(default=None, repr=False)

    @property
    def well(self) -> bool:
        """Whether there is nothing to say against the answer."""
        return self.outcome in {"right", "sane"}

    def as_sample(self) -> dict[str, t.Any]:
        """Return it as plain data, the way a report shows it."""
        shown = (field.name for field in dataclasses.fields(self) if field.name != "asked")
        return {name: getattr(self, name) for name in shown}


class Load:
    """Sends the requests of a plan from as many threads as it says, until all are answered or somebody stops it."""

    def __init__(self, client: Client, plan: Plan, *, seed: int, clock: c.Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._plan = plan
        self._clock = clock
        self._random = random.Random(seed)  # noqa: S311 - questions, not secrets
        self._salt = f"{seed:x}"
        self._lock = threading.Lock()
        self._left = plan.requests
        self._results: list[Result] = []
        self._in_a_row = 0
        self._halt = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _each in range(plan.concurrency)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send nothing more; what is under way ends by itself."""
        self._halt.set()

    def finished(self, within_s: float) -> bool:
        """Wait for the end for so long, and return whether it has come."""
        until = self._clock() + within_s
        for thread in self._threads:
            thread.join(max(0.0, until - self._clock()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def results(self) -> tuple[Result, ...]:
        """What came so far."""
        with self._lock:
            return tuple(self._results)

    @property
    def failing(self) -> bool:
        """Whether nothing but failures came for a while, two from each thread at least."""
        with self._lock:
            return self._in_a_row >= 2 * self._plan.concurrency

    def _work(self) -> None:
        while not self._halt.is_set():
            with self._lock:
                if self._left == 0:
                    return
                number = self._plan.requests - self._left
                self._left -= 1
                question = questions.question(number, self._random, self._plan.kinds)
            result = send(self._client, self._plan, question, f"{self._salt}-{number}", self._clock)
            with self._lock:
                self._results.append(result)
                self._in_a_row = self._in_a_row + 1 if result.outcome == "failed" else 0
            if result.outcome == "failed":
                self._halt.wait(_PER_FAILURE_S)


class Alone:
    """Asks one question at a time, each past the cache: what the model can do where neither load nor cache is to blame.

    The time is over at ``until``, and what has no answer then is left out.
    """

    def __init__(
        self, client: Client, plan: Plan, *, seed: int, until: float, clock: c.Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._plan = plan
        self._random = random.Random(seed)  # noqa: S311 - questions, not secrets
        self._salts = (f"{seed:x}-alone-{number}" for number in itertools.count())
        self._until = until
        self._clock = clock

    def before(self) -> tuple[tuple[Result, ...], tuple[questions.Kind, ...]]:
        """Return what the model makes of some questions, and the kinds that it can do: those are asked under load.

        What it makes of a count that it cannot do is left out: not every small model can.
        """
        rng = self._random
        alone = list(self.ask(questions.ask("arithmetic", rng) for _each in range(_SUMS_ALONE)))
        sentences = list(self.ask(questions.sentence(rng) for _each in range(_SENTENCES_ALONE)))
        counts: list[Result] = []
        for result in self.ask(questions.count(rng) for _each in range(_COUNTS_ALONE)):
            counts.append(result)
            # One slip is that of a model that can count.
            if sum(not one.well for one in counts) > 1:
                break
        counting = sum(one.well for one in counts) >= _COUNTS_ALONE - 1
        # An answer that was cut says nothing about what the model can do.
        talking = all(one.well or one.outcome == "cut" for one in sentences)
        can = {"sums": True, "sentences": talking, "counts": counting}
        kept = (one for one in counts if counting or one.outcome == "failed")
        return (*alone, *sentences, *kept), tuple(kind for kind in questions.KINDS if can[kind])

    def again(self, results: c.Iterable[Result]) -> c.Iterator[Result]:
        """Ask again what was asked before, until one fails."""
        for result in self.ask(one.asked for one in results if one.asked is not None):
            yield result
            if result.outcome == "failed":
                return

    def ask(self, asked: c.Iterable[Question]) -> c.Iterator[Result]:
        """Ask these questions, as long as there is time."""
        for one, salt in zip(asked, self._salts, strict=False):
            left = self._until - self._clock()
            if left <= 0:
                return
            within = dataclasses.replace(self._plan, request_timeout=min(self._plan.request_timeout, left))
            result = send(self._client, within, one, salt, self._clock, alone=True)
            if result.outcome == "failed" and self._clock() >= self._until:
                return
            yield result


def talk(plan: Plan, alone: c.Sequence[Result]) -> dict[questions.Kind, int]:
    """Return how many words may stand around a right number, by kind: as many as without load, and a polite phrase.

    The first line of a base model may be as long as it likes.
    """
    most: dict[questions.Kind, int] = {}
    for one in () if plan.kind == "base" else alone:
        if one.outcome == "right":
            most[one.kind] = max(most.get(one.kind, 0), one.words + _POLITE_WORDS)
    return most


def to_ask_again(results: c.Sequence[Result]) -> tuple[Result, ...]:
    """Return what of the wrong answers is worth asking again: so many of each kind, spread over the whole load."""
    chosen: list[Result] = []
    for kind in questions.KINDS:
        wrong = [one for one in results if one.kind == kind and one.outcome in {"wrong", "cut"}]
        some = min(_AGAIN, len(wrong))
        chosen += [wrong[place * len(wrong) // some] for place in range(some)]
    return tuple(chosen)


def refusal(alone: c.Sequence[Result]) -> str:
    """Return why the server takes no question at all (HTTP 4xx), in its words; empty where it takes one.

    The engine is not asked then, so that it says nothing about it.
    """
    refused = alone and all(one.outcome == "failed" and one.detail.startswith("HTTP 4") for one in alone)
    return alone[0].detail if refused else ""


def room(plan: Plan, context: int) -> int:
    """Return about how many tokens of a context are left for an answer; negative where the question has no room."""
    return context - _TOKENS_PER_SENTENCE * _sentences(plan) - _TOKENS_PER_QUESTION


def _sentences(plan: Plan) -> int:
    """Return how often the sentence of the shared prefix stands before each question."""
    return -(-plan.shared_prefix // _TOKENS_PER_SENTENCE)


def payload(plan: Plan, question: Question, salt: str, *, alone: bool = False) -> tuple[str, dict[str, t.Any]]:
    """Return the path and the body of a request; one that is ``alone`` shares nothing with others in the cache."""
    body: dict[str, t.Any] = {
        "model": plan.model,
        "max_tokens": plan.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    prefix = " ".join([_SENTENCE] * _sentences(plan))
    if alone or not prefix:
        body["cache_salt"] = salt
    if plan.kind == "base":
        return COMPLETIONS, body | {"prompt": f"{prefix} {question.prompt}\nAnswer:".strip()}
    messages = [{"role": "system", "content": prefix}] if prefix else []
    body["messages"] = [*messages, {"role": "user", "content": question.prompt}]
    if plan.thinking_off:
        body["chat_template_kwargs"] = THINKING_OFF
    return CHAT, body


def send(
    client: Client,
    plan: Plan,
    question: Question,
    salt: str,
    clock: c.Callable[[], float],
    *,
    alone: bool = False,
) -> Result:
    """Send one request and judge what comes."""
    path, body = payload(plan, question, salt, alone=alone)
    started = clock()
    try:
        stream = client.stream(path, body, Deadline.after(plan.request_timeout, clock), with_key=plan.with_key)
    except ApiError as error:
        return Result("failed", question.prompt, detail=plan.shown(error.detail), whole_s=clock() - started)
    return judged(plan, question, stream, clock() - started)


def judged(plan: Plan, question: Question, stream: Stream, whole_s: float) -> Result:
    """Return what a reply is worth."""
    if stream.reply.status != 200:
        said = f"HTTP {stream.reply.status}: {plan.shown(stream.reply.error_message)}"
        return Result("failed", question.prompt, detail=said, whole_s=whole_s)
    found = from_reply(stream.reply) if stream.reply.body else from_stream(stream)
    broken = found.error_message or found.problem
    if broken or found.finish_reason in {"error", "abort"}:
        detail = plan.shown(broken) or f"finish_reason {found.finish_reason}"
        return Result("failed", question.prompt, detail=detail, whole_s=whole_s)
    raw, kind = plan.kind == "base", questions.kind_of(question)
    most_words = plan.talk.get(kind, math.inf)
    outcome, detail = questions.verdict(question, found, scripts=plan.scripts, raw=raw, most_words=most_words)
    tokens = found.completion_tokens or 0
    silent = not (found.content + found.reasoning).strip()
    # No thoughts that need a larger budget.
    if outcome == "cut" and (silent or 0 < tokens < plan.max_tokens):
        outcome, detail = "wrong", f"cut at {tokens} of {plan.max_tokens} tokens{', without a word' if silent else ''}"
    first = last = None
    if found.timing is not None:
        first, last = found.timing.first_token_s, found.timing.last_token_s
    steady = first is not None and last is not None and tokens > 1
    return Result(
        outcome,
        question.prompt,
        text=plan.shown(found.content or found.reasoning),
        detail=plan.shown(detail),
        first_token_s=first,
        per_token_s=(last - first) / (tokens - 1) if steady and first is not None and last is not None else None,
        whole_s=whole_s,
        prompt_tokens=found.prompt_tokens or 0,
        completion_tokens=tokens,
        kind=kind,
        words=questions.words_in(found, raw=raw),
        unfinished=found.finish_reason == "length" and not raw,
        asked=question,
    )

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The upper rungs of the readiness ladder: what a server is asked, and what its answers prove.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import math
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _text_sanity as sanity
from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import parse_json, pick, printable, whole_number
from ansible_collections.gb10.fleet.plugins.module_utils._probe_findings import finding
from ansible_collections.gb10.fleet.plugins.module_utils._probe_questions import Question, ask
from ansible_collections.gb10.fleet.plugins.module_utils._probe_reply import Completion, ToolCall, tokens_per_second
from ansible_collections.gb10.fleet.plugins.module_utils._probe_session import Fall, RefusedError, Session

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, Severity

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
# A healthy model without thoughts ends after a few tokens; one with thoughts gets the large budget on a second try.
FIRST_BUDGET = 256
RAW_BUDGET = 12
# Families disagree about the name (Qwen, GLM, Nemotron: the first; DeepSeek, Kimi, Granite: the second); templates
# ignore what they do not know. reasoning_effort is not sent: some templates refuse values that the API allows.
THINKING_OFF: t.Final = {"enable_thinking": False, "thinking": False}
TOOLS: t.Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
    for name, description in (
        ("get_weather", "Get the current weather in a city"),
        ("get_local_time", "Get the current local time in a city"),
    )
]
TOOL_PROMPT = "What is the weather in Kansas City right now? Call the tool that tells."
SCHEMA: t.Final = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}, "is_even": {"type": "boolean"}},
    "required": ["sum", "is_even"],
    "additionalProperties": False,
}
EMBEDDING_TEXTS: t.Final = ("The cat sleeps on the warm roof.", "Interest rates rose again last quarter.")

_UNCLOSED_THOUGHT: t.Final = re.compile(r"\A\s*(?:<(?:think|thinking|thought|reasoning|seed:think)>|\[THINK\])")

_SIGN_FINDINGS: t.Final[dict[sanity.SignKind, str]] = {
    "nul_bytes": "TEXT_NUL_BYTES",
    "control_characters": "TEXT_CONTROL_CHARACTERS",
    "replacement_characters": "TEXT_REPLACEMENT_CHARACTERS",
    "unexpected_script": "TEXT_UNEXPECTED_SCRIPT",
    "repetition": "TEXT_REPETITION",
    "symbol_run": "TEXT_SYMBOL_RUN",
    "reasoning_markup": "REASONING_IN_CONTENT",
    "tool_markup": "TOOL_CALL_IN_CONTENT",
    "special_tokens": "SPECIAL_TOKENS_IN_CONTENT",
}


class Examiner:
    """Asks one server the questions of one probe, and learns on the way what it can be asked."""

    def __init__(self, session: Session, *, judge_answers: bool, answer_severity: Severity) -> None:
        self._session = session
        self._judge_answers = judge_answers
        self._answer_severity = answer_severity
        self._thinking_off = True
        self._budget = FIRST_BUDGET
        self._may_ramble = True

    # chat

    def chat(self, *, stream: bool = False) -> None:
        """Ask a question over chat: the reply has to be sane, and right where answers are judged."""

        def answer(question: Question) -> Completion:
            def is_done(completion: Completion) -> bool:
                said = sanity.without_reasoning(completion.content)
                return not self._judge_answers or question.answered_by(said)

            return self._chat(question.prompt, is_done, stream=stream)

        self._examine("stream" if stream else "chat", answer)

    def base(self, *, stream: bool = False) -> None:
        """Ask a model that cannot chat, over raw completions."""

        def answer(question: Question) -> Completion:
            completion = self._raw(f"{question.prompt}\nAnswer:", stream=stream)
            if completion.is_empty:
                raise Fall("no_answer", finding("EMPTY_ANSWER", "The completion is empty."))
            return completion

        self._examine("stream" if stream else "completions", answer)

    def raw(self, *, required: bool) -> None:
        """Ask a model that can chat for a raw completion, which no chat template or parser touches."""
        question = self._new_question()
        try:
            completion = self._raw(f"{question.prompt}\nAnswer:")
        except RefusedError as error:
            severity: Severity = "error" if required else "warning"
            self._session.note(finding("COMPLETIONS_NOT_OFFERED", f"{error.args[0]}", severity=severity))
            self._mark("completions", "failed" if required else "not offered")
            return
        self._record("completions", question.prompt, completion)
        # Without its template a chat model may well ramble, or go on in the language that it knows best.
        signs = [s for s in self._signs(completion, question.prompt) if s.kind not in sanity.LEAK]
        if broken := [s for s in signs if s.kind in sanity.HARD - {"unexpected_script"}]:
            raise self._garbage(broken, completion)
        for sign in signs:
            self._session.note(self._sign_finding(sign, completion.content, "warning"))
        self._mark("completions", "ok")

    def _examine(self, name: str, answer: t.Callable[[Question], Completion]) -> None:
        right = self._asked_once(name, answer)
        if not self._judge_answers or right:
            self._mark(name, "ok")
            return
        # One slip of a small or strongly quantised model is no broken kernel: the majority of three decides.
        shown = self._session.evidence[name]
        again = [self._asked_once(name, answer) for _again in range(2)]
        told = f"{shown['text']!r} to {shown['prompt']!r}"
        if all(again):
            self._session.note(finding("ANSWER_UNSTEADY", f"It said {told} and was right on two other questions."))
            self._mark(name, "ok")
            return
        wrong = finding("WRONG_ANSWER", f"It said {told}.", severity=self._answer_severity)
        if self._answer_severity == "error":
            raise Fall("wrong_answer", wrong)
        self._session.note(wrong)
        self._mark(name, "ok")

    def _asked_once(self, name: str, answer: t.Callable[[Question], Completion]) -> bool:
        question = self._new_question()
        completion = answer(question)
        self._record(name, question.prompt, completion)
        right = self._is_right(question, completion)
        self._session.evidence[name]["right"] = right
        return right

    def _is_right(self, question: Question, completion: Completion) -> bool:
        """Judge a text: by its answer first, by signs of garbage second. Fall where it is garbage."""
        right = question.answered_by(sanity.without_reasoning(completion.content))
        signs = self._signs(completion, question.prompt)
        thought = sanity.signs(completion.reasoning, scripts=("any",), finish_reason="length")
        broken = [s for s in (*signs, *thought) if s.kind in sanity.HARD]
        loops = [s for s in signs if s.kind in sanity.SOFT]
        if loops and (not right or completion.finish_reason == "length"):
            broken += loops
        if broken:
            raise self._garbage(broken, completion)
        for sign in signs:
            # Where nobody offered a tool, markup of a call is a quirk and no lost call.
            self._session.note(self._sign_finding(sign, completion.content, "warning"))
        return right

    def _chat(
        self, prompt: str, is_done: t.Callable[[Completion], bool], *, stream: bool = False, **extra: t.Any
    ) -> Completion:
        """Ask over chat until there is an answer or a reason why there is none.

        ``is_done`` says whether a completion that was cut holds all the same what was asked for.
        """
        shrunk = 0
        first: Completion | None = None
        while True:
            self._budget = min(self._budget, self._session.options.max_tokens)
            began = self._session.spent()
            payload = self._payload(self._room(prompt, self._budget) >> shrunk) | extra
            payload["messages"] = [{"role": "user", "content": prompt}]
            if self._thinking_off:
                payload["chat_template_kwargs"] = THINKING_OFF
            try:
                completion = self._session.complete(CHAT, payload, stream=stream)
            except RefusedError as error:
                shrunk = self._adapt(error, shrunk)
            else:
                took = self._session.spent() - began
                if self._deserves_another_try(completion, prompt):
                    continue
                done = is_done(completion)
                if done or shrunk or not self._gets_room_to_ramble(completion, prompt, took):
                    if first is None or done or self._thinks_aloud(completion):
                        return completion
                    # More room was of no use. A model that rambles may well loop in it, which says nothing against it.
                    self._budget = FIRST_BUDGET
                    return completion if self._is_broken(completion, prompt) else first
                first = completion

    def _adapt(self, error: RefusedError, shrunk: int) -> int:
        """Change what a refused request can be blamed for; return by how many bits the budget is to shrink."""
        if error.is_too_long:
            if shrunk >= 4 or error.prompt_alone_is_too_long:
                raise Fall("request_refused", finding("CONTEXT_TOO_SMALL", printable(str(error)))) from None
            return shrunk + 2
        if self._thinking_off and error.status in {400, 422} and not error.is_missing_chat_template:
            # Mistral's tokenizers take no chat_template_kwargs at all.
            self._leave_thinking_on("the server refuses to switch it off")
            return shrunk
        raise error

    def _deserves_another_try(self, completion: Completion, prompt: str) -> bool:
        """Look at an answer that is none yet: change the request where that may help, or Fall."""
        cut = completion.finish_reason == "length"
        # Thoughts in the text of an answer that was cut: with more room the answer may follow. Garbage deserves none.
        leaks = self._is_sound(completion, prompt) and self._thinks_aloud(completion)
        if cut and (completion.is_empty or leaks) and self._budget < self._session.options.max_tokens:
            self._budget = self._session.options.max_tokens
            return True
        if not completion.is_empty:
            return False
        if cut:
            raise Fall("budget", self._exhausted(completion, self._budget))
        name = "ANSWER_IN_REASONING_CONTENT_NULL"
        if completion.reasoning and self._thinking_off:
            # Some parsers take everything for thought when the template did not open one.
            self._leave_thinking_on("the answer landed in the reasoning field")
            message = f"With thinking switched off, the answer came in {completion.reasoning_field}."
            self._session.note(finding(name, message, severity="warning"))
            return True
        if completion.reasoning:
            message = f"The answer came in {completion.reasoning_field} and content is empty."
            raise Fall("no_answer", finding(name, message, printable(completion.reasoning)))
        message = f"The answer is empty, finish_reason {printable(completion.finish_reason, 40) or 'missing'}."
        raise Fall("no_answer", finding("EMPTY_ANSWER", message))

    def _gets_room_to_ramble(self, completion: Completion, prompt: str, took: float) -> bool:
        """Give an answer that was cut room, once, for what may be thoughts: a template that opens them shows no tag.

        Garbage that looks like words does so, too. So the room is what the server writes in half of the time that is
        left, by the seconds that it ``took``.
        """
        if completion.finish_reason != "length" or not self._may_ramble:
            return False
        if not self._is_sound(completion, prompt):
            return False
        options, sent = self._session.options, self._room(prompt, self._budget)
        time = min(options.request_timeout, self._session.deadline.left()) / 2
        tokens = (completion.completion_tokens or sent) * time / max(took, 0.001)
        budget = int(min(options.max_tokens, tokens))
        if self._room(prompt, budget) <= sent:
            return False
        self._may_ramble, self._budget = False, budget
        return True

    def _is_sound(self, completion: Completion, prompt: str) -> bool:
        """Whether a text shows nothing worse than a parser that is missing."""
        return {sign.kind for sign in self._signs(completion, prompt)} <= sanity.LEAK

    def _is_broken(self, completion: Completion, prompt: str) -> bool:
        """Whether a text shows what no healthy engine writes."""
        return any(sign.kind in sanity.HARD for sign in self._signs(completion, prompt))

    def _thinks_aloud(self, completion: Completion) -> bool:
        return any(sign.kind == "reasoning_markup" for sign in sanity.signs(completion.content))

    def _raw(self, prompt: str, *, stream: bool = False) -> Completion:
        payload = self._payload(self._room(prompt, RAW_BUDGET)) | {"prompt": prompt}
        return self._session.complete(COMPLETIONS, payload, stream=stream)

    # capabilities: one that fails is noted, and the next one is looked at all the same

    def tools(self) -> None:
        """Have a tool called, in one piece and streamed: vLLM parses the two in different code."""
        looks = {"failed": self._tool_problem, "failed when streamed": self._streamed_tool_problem}
        for failed, look in looks.items():
            problem = self._capability(look, "TOOL_REQUEST_FAILED")
            if problem is not None:
                self._session.note(problem)
                self._mark("tools", failed)
                return
        self._mark("tools", "ok")

    def _streamed_tool_problem(self) -> Finding | None:
        return self._tool_problem(stream=True)

    def _tool_problem(self, *, stream: bool = False) -> Finding | None:
        try:
            completion = self._chat(TOOL_PROMPT, _calls_a_tool, stream=stream, tools=TOOLS, tool_choice="auto")
        except RefusedError as error:
            if "tool choice requires" in error.message:
                return finding("TOOL_CHOICE_FLAGS_MISSING", printable(error.message))
            raise
        self._record("tools", TOOL_PROMPT, completion)
        self._session.evidence["tools"]["calls"] = [
            f"{printable(call.name)}({printable(call.arguments)})" for call in completion.tool_calls
        ]
        if not completion.tool_calls:
            shown = printable(completion.content)
            if any(s.kind == "tool_markup" for s in sanity.signs(completion.content, scripts=("any",))):
                return finding("TOOL_CALL_IN_CONTENT", "The call stands in the text.", shown)
            ended = printable(completion.finish_reason, 40)
            return finding("TOOL_NOT_CALLED", f"No tool was called (finish_reason {ended}).", shown)
        return next((problem for call in completion.tool_calls if (problem := _call_problem(call))), None)

    def structured(self) -> None:
        """Ask for JSON after a schema."""
        problem = self._capability(self._structure_problem, "STRUCTURED_OUTPUT_FAILED")
        if problem is not None:
            self._session.note(problem)
        self._mark("structured", "ok" if problem is None else "failed")

    def _structure_problem(self) -> Finding | None:
        question = self._new_question()
        prompt = f"{question.prompt} Give it as JSON with the keys sum and is_even."
        schema = {"name": "answer", "schema": SCHEMA, "strict": True}
        completion = self._chat(prompt, _is_json, response_format={"type": "json_schema", "json_schema": schema})
        self._record("structured", prompt, completion)
        data = parse_json(completion.content)
        valid = (
            isinstance(data, dict)
            and set(data) == {"sum", "is_even"}
            and whole_number(data, "sum") is not None
            and isinstance(data["is_even"], bool)
        )
        if valid:
            return None
        message = f"The answer does not fit the schema (finish_reason {completion.finish_reason})."
        return finding("STRUCTURED_OUTPUT_INVALID", message, printable(completion.content))

    def embeddings(self, *, alone: bool) -> None:
        """Have texts turned into vectors. ``alone``: the model does nothing else, so that this is the ladder."""
        if alone:
            try:
                problem = self._embedding_problem()
            except RefusedError as error:
                message = f"Neither /v1/embeddings nor /pooling takes requests ({printable(str(error))})."
                raise Fall("request_refused", finding("EMBEDDINGS_NOT_OFFERED", message)) from None
            if problem is not None:
                raise Fall("garbage", problem)
        else:
            problem = self._capability(self._embedding_problem, "EMBEDDINGS_NOT_OFFERED")
            if problem is not None:
                self._session.note(problem)
        self._mark("embeddings", "ok" if problem is None else "failed")

    def _embedding_problem(self) -> Finding | None:
        # The same text twice: equal in, equal out. A nonce keeps a cache from answering.
        nonce = self._session.rng.randrange(1000, 9999)
        first, other = (f"{text} {nonce}" for text in EMBEDDING_TEXTS)
        payload = {"model": self._session.model, "input": [first, first, other], "encoding_format": "float"}
        path, field = "/v1/embeddings", "embedding"
        try:
            reply = self._session.post(path, payload)
        except RefusedError as error:
            if not error.is_missing_route:
                raise
            path, field = "/pooling", "data"
            reply = self._session.post(path, payload)
        vectors = [_numbers(pick(row, field)) for row in _in_order(pick(reply.json(), "data"))]
        self._session.evidence["embeddings"] = {
            "path": path,
            "dimensions": [len(vector) for vector in vectors[:3]],
            "prompt_tokens": pick(reply.json(), "usage", "prompt_tokens"),
        }
        problem = _vectors_problem(vectors, pooled=field == "data")
        return finding("EMBEDDING_INVALID", f"{path}: {problem}.") if problem else None

    def _capability(self, look: t.Callable[[], Finding | None], failed: str) -> Finding | None:
        try:
            return look()
        except RefusedError as error:
            return finding(failed, printable(str(error)))
        except Fall as fall:
            # The engine has answered before. Only what may be a matter of this one request stays one.
            one_request = fall.stage in {"bad_reply", "budget", "no_answer", "request_refused"}
            if one_request or (fall.stage == "engine_dead" and not fall.confirmed):
                return finding(failed, fall.findings[0].message, fall.findings[0].evidence)
            raise

    # common parts

    def _new_question(self) -> Question:
        return ask(self._session.options.question, self._session.rng)

    def _payload(self, max_tokens: int) -> dict[str, t.Any]:
        return {
            "model": self._session.model,
            "max_tokens": max(1, max_tokens),
            "temperature": 0,
            "seed": 1,
        }

    def _room(self, prompt: str, wanted: int) -> int:
        """Return the budget that fits beside the prompt; tokens are counted as two characters each, to be safe."""
        context = self._session.max_model_len
        return wanted if context is None else max(8, min(wanted, context - len(prompt) // 2 - 64))

    def _leave_thinking_on(self, why: str) -> None:
        self._thinking_off = False
        self._session.evidence["thinking"] = f"on: {why}"

    def _signs(self, completion: Completion, prompt: str) -> tuple[sanity.Sign, ...]:
        """Return the signs in a text; thoughts that leaked into it may be in any script, as in their own field."""
        text, cut = completion.content, completion.finish_reason
        found = sanity.signs(text, prompt=prompt, scripts=("any",), finish_reason=cut)
        said = sanity.without_reasoning(text)
        if cut == "length" and _UNCLOSED_THOUGHT.match(said):
            return found
        strange = sanity.signs(said, prompt=prompt, scripts=self._session.options.scripts, finish_reason=cut)
        return (*(sign for sign in strange if sign.kind == "unexpected_script"), *found)

    def _sign_finding(self, sign: sanity.Sign, text: str, severity: Severity | None = None) -> Finding:
        name = _SIGN_FINDINGS[sign.kind]
        return finding(
            name, f"The text shows {sign.kind.replace('_', ' ')} ({sign.detail}).", printable(text), severity
        )

    def _garbage(self, signs: t.Sequence[sanity.Sign], completion: Completion) -> Fall:
        text = completion.content or completion.reasoning
        first, *others = signs
        return Fall("garbage", self._sign_finding(first, text), *(self._sign_finding(sign, "") for sign in others))

    def _exhausted(self, completion: Completion, budget: int) -> Finding:
        where = "inside its thinking" if completion.reasoning else "before an answer"
        message = f"{completion.completion_tokens or budget} tokens were used up {where}."
        return finding("TOKEN_BUDGET_EXHAUSTED", message, printable(completion.reasoning))

    def _mark(self, check: str, result: str) -> None:
        self._session.evidence.setdefault("checks", {})[check] = result

    def _record(self, check: str, prompt: str, completion: Completion) -> None:
        seen: dict[str, t.Any] = {
            "prompt": prompt,
            "text": printable(completion.content),
            "finish_reason": printable(completion.finish_reason, 40),
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": completion.completion_tokens,
        }
        if completion.reasoning:
            seen["reasoning_field"] = completion.reasoning_field
        timing = completion.timing
        if timing is not None and timing.first_token_s is not None and timing.last_token_s is not None:
            ttft_ms = round(timing.first_token_s * 1000, 1)
            seen |= {
                "ttft_ms": ttft_ms,
                "chunks": timing.chunks,
                "tokens_per_second": tokens_per_second(completion.completion_tokens, timing.last_token_s),
            }
            if check == "stream":
                self._session.ttft_ms = ttft_ms
        self._session.evidence[check] = seen


def _calls_a_tool(completion: Completion) -> bool:
    return bool(completion.tool_calls)


def _is_json(completion: Completion) -> bool:
    return parse_json(completion.content) is not None


def _call_problem(call: ToolCall) -> Finding | None:
    arguments = parse_json(call.arguments)
    shown = printable(f"{call.name}({call.arguments})")
    if call.name not in {pick(tool, "function", "name") for tool in TOOLS}:
        return finding("TOOL_CALL_INVALID", "The call names a tool that was not offered.", shown)
    if not isinstance(arguments, dict):
        return finding("TOOL_CALL_INVALID", "The arguments of the call are no JSON object.", shown)
    if not isinstance(arguments.get("city"), str) or not arguments["city"].strip():
        return finding("TOOL_CALL_INVALID", "The arguments of the call lack the city.", shown)
    return None


def _in_order(rows: t.Any) -> list[t.Any]:
    """Return the rows of an answer in the order of the texts that they belong to, which is that of their index."""
    if not isinstance(rows, list):
        return []
    # Sorting keeps the order of equals, and so that of rows without an index.
    return sorted(rows, key=lambda row: whole_number(row, "index") or 0)


def _numbers(value: t.Any) -> list[float]:
    """Flatten what a pooler may return: a number, a vector, or a vector for each token.

    JSON has no NaN, so that some servers write null for it.
    """
    if isinstance(value, list):
        return [number for item in value for number in ([math.nan] if item is None else _numbers(item))]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def _vectors_problem(vectors: list[list[float]], *, pooled: bool) -> str:
    if len(vectors) != 3:
        return f"{len(vectors)} vectors came for 3 texts"
    if not all(vectors):
        return "a vector is empty"
    if not all(math.isfinite(number) for vector in vectors for number in vector):
        return "a vector holds numbers that are not finite"
    # A pooler may give one vector a token or a few class scores, which cannot be compared so.
    return "" if pooled else _embeddings_problem(*vectors)


def _embeddings_problem(first: list[float], again: list[float], other: list[float]) -> str:
    if not len(first) == len(again) == len(other):
        return "vectors differ in length"
    if not all(any(vector) for vector in (first, again, other)):
        return "a vector is all zero"
    if _cosine(first, again) < 0.99:
        return "the same text gave two different vectors"
    if len(first) > 1 and _cosine(first, other) > 0.99999:
        return "two different texts gave the same vector"
    return ""


def _cosine(a: list[float], b: list[float]) -> float:
    length = math.hypot(*a) * math.hypot(*b)
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / length if length else 0.0

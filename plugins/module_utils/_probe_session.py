# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One probe under way: what it was asked to do, what it has seen so far, and what a failed request means.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._engine_signs import Counters, Gpu
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, Severity, worst
from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import (
    ApiError,
    Client,
    Deadline,
    InputError,
    Reply,
    Stream,
    printable,
)
from ansible_collections.gb10.fleet.plugins.module_utils._probe_findings import finding
from ansible_collections.gb10.fleet.plugins.module_utils._probe_questions import QuestionKind
from ansible_collections.gb10.fleet.plugins.module_utils._probe_reply import Completion, from_reply, from_stream
from ansible_collections.gb10.fleet.plugins.module_utils._process_state import ProcessState
from ansible_collections.gb10.fleet.plugins.module_utils._text_sanity import SCRIPT_NAMES

if t.TYPE_CHECKING:
    import random

Kind = t.Literal["auto", "chat", "base", "embedding"]
ProcessCheck = t.Callable[[], ProcessState]
# Returns what `nvidia-smi --query-gpu=<Gpu.QUERY> --format=csv` prints, or None.
GpuReader = t.Callable[[], "str | None"]

KINDS: t.Final[tuple[Kind, ...]] = ("auto", "chat", "base", "embedding")
CHECKS: t.Final = ("chat", "stream", "completions", "answer", "tools", "structured", "embeddings")
DEFAULT_CHECKS: t.Final[dict[Kind, tuple[str, ...]]] = {
    "chat": ("chat", "stream", "completions", "answer"),
    "base": ("completions", "stream", "answer"),
    "embedding": ("embeddings",),
}
# A busy engine takes its time; what did not come in less than this proves nothing.
FAIR_WAIT_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What to probe, and how hard. See the documentation of the module ``vllm_probe``."""

    url: str
    model: str = ""
    api_key: str = dataclasses.field(default="", repr=False)
    kind: Kind = "auto"
    checks: tuple[str, ...] = ()
    question: QuestionKind = "arithmetic"
    answer_severity: Severity | None = None
    scripts: tuple[str, ...] = ()
    max_tokens: int = 4096
    request_timeout: float = 120.0
    validate_certs: bool = True

    def __post_init__(self) -> None:
        for option, given, known in (
            ("checks", self.checks, CHECKS),
            ("kind", (self.kind,), KINDS),
            ("question", (self.question,), t.get_args(QuestionKind)),
            ("scripts", self.scripts, ("any", *SCRIPT_NAMES)),
        ):
            for value in given:
                if value not in known:
                    raise InputError(f"{option} does not know {printable(value)!r}; it knows {', '.join(known)}.")
        chat_only = {"chat", "tools", "structured"} & set(self.checks)
        if self.kind in {"base", "embedding"} and chat_only:
            raise InputError(f"checks names {', '.join(sorted(chat_only))}, which a model of kind {self.kind} has not.")
        for option, number in (("max_tokens", self.max_tokens), ("request_timeout", self.request_timeout)):
            if not number > 0:
                raise InputError(f"{option} has to be more than zero.")


class Fall(Exception):  # noqa: N818 - it is where the climber fell off, not an error of the program
    """The ladder ends here. ``confirmed`` is false where the engine may yet be fine for other requests."""

    def __init__(self, stage: str, *findings: Finding, confirmed: bool = True) -> None:
        super().__init__(stage)
        self.stage = stage
        self.findings = findings
        self.confirmed = confirmed


class RefusedError(Exception):
    """The server answered that it will not do this: 4xx or 501."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.message = message

    @property
    def is_missing_route(self) -> bool:
        """Whether the server does not do this for any request: vLLM has no chat routes for a pooling model."""
        return self.status in {404, 405, 501} or "does not support" in self.message

    @property
    def is_missing_chat_template(self) -> bool:
        """Whether the checkpoint is one that nobody taught to chat; an error inside of a template is another matter."""
        missing = r"chat template (is )?(no longer allowed|missing)|provide a chat template|no chat template|not define"
        return re.search(missing, self.message, re.IGNORECASE) is not None

    @property
    def is_too_long(self) -> bool:
        """Whether prompt and token budget do not fit the context."""
        return re.search(r"context length|max_(completion_)?tokens|max_model_len", self.message) is not None

    @property
    def prompt_alone_is_too_long(self) -> bool:
        """Whether no budget, however small, would help."""
        return "even without any output" in self.message or "reduce the length of the input" in self.message


class Session:
    """The state of one probe. All requests go through here, and so does the meaning of their failure."""

    def __init__(
        self,
        options: Options,
        client: Client,
        deadline: Deadline,
        *,
        rng: random.Random,
        process: ProcessCheck | None = None,
        gpu: GpuReader | None = None,
        sleep: t.Callable[[float], None] = time.sleep,
    ) -> None:
        self.options = options
        self.client = client
        self.deadline = deadline
        self._began = deadline.left()
        self.rng = rng
        self.evidence: dict[str, t.Any] = {}
        self.model = ""
        self.max_model_len: int | None = None
        self.with_key = False
        self.ttft_ms: float | None = None
        self._process = process
        self._gpu = gpu
        self._sleep = sleep
        self._before: Counters | None = None
        self._findings: dict[str, Finding] = {}

    # what was found

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything found so far, in the order in which it was found."""
        return tuple(self._findings.values())

    def note(self, new: Finding) -> None:
        """Keep a finding; of two of one kind the graver."""
        old = self._findings.get(new.id)
        if old is None or worst((old, new)) != old.severity:
            self._findings[new.id] = new

    def process_state(self) -> ProcessState:
        """Ask now whether the process lives."""
        state = self._process() if self._process else ProcessState("unknown", "no unit, container or process was named")
        self.evidence["process"] = dataclasses.asdict(state)
        return state

    # requests

    def spent(self) -> float:
        """Return the seconds that this probe has taken so far."""
        return self._began - self.deadline.left()

    def _check_time(self, path: str) -> None:
        if self.deadline.left() <= 0:
            raise Fall("out_of_time", finding("OUT_OF_TIME", f"No time was left for {path}."))

    def get(self, path: str, *, at_most: float = FAIR_WAIT_S) -> Reply:
        """Ask one of the cheap paths; none may take more than its share of the time that is left."""
        self._check_time(path)
        share = self.deadline.within(min(at_most, self.deadline.left() / 3))
        return self.client.get(path, share, with_key=self.with_key)

    def post(self, path: str, payload: dict[str, t.Any]) -> Reply:
        """Send something that makes the engine work, and return a 200 answer; Fall or RefusedError otherwise."""
        return self._sent(path, payload, stream=False).reply

    def complete(self, path: str, payload: dict[str, t.Any], *, stream: bool = False) -> Completion:
        """Ask for a completion that is well formed; Fall or RefusedError otherwise."""
        if stream:
            payload = payload | {"stream": True, "stream_options": {"include_usage": True}}
        sent = self._sent(path, payload, stream=stream)
        # A server that does not stream although asked to answers in one piece.
        in_pieces = stream and not sent.reply.body
        completion = from_stream(sent) if in_pieces else from_reply(sent.reply)
        if stream and not in_pieces:
            self.note(finding("NOT_STREAMED", f"{path} was asked to stream and answered in one piece."))
        if completion.error_status:
            self._raise_for_status(completion.error_status, completion.error_message)
        if sent.failure is not None and sent.failure.kind == "timeout":
            begun = completion.timing is not None and completion.timing.last_token_s is not None
            raise self._timed_out(sent.reply.elapsed_s, begun=begun)
        if completion.problem:
            self._raise_for_shape(path, completion, sent, stream=stream)
        if completion.finish_reason in {"error", "abort"}:
            self._raise_for_status(500, f"the engine ended the request with finish_reason {completion.finish_reason}")
        if completion.completion_tokens is None:
            self.note(finding("USAGE_MISSING", f"The answer of {path} has no usage.completion_tokens."))
        return completion

    def _sent(self, path: str, payload: dict[str, t.Any], *, stream: bool) -> Stream:
        self._check_time(path)
        self._before = self.counters()
        left = self.deadline.left()
        # Some time is kept for finding out why nothing came.
        given = min(self.options.request_timeout, left - min(8.0, 0.15 * left))
        share = self.deadline.within(given)
        send = self.client.stream if stream else self._post_as_stream
        try:
            sent = send(path, payload, share, with_key=self.with_key)
            if sent.reply.status in {401, 403} and self.options.api_key and not self.with_key:
                self.with_key = True
                sent = send(path, payload, share, with_key=True)
        except ApiError as error:
            if error.kind == "timeout":
                raise self._timed_out(given) from None
            if error.kind in {"too_large", "not_http"}:
                raise Fall("bad_reply", finding("REPLY_MALFORMED", f"{path}: {error.detail}.")) from None
            raise self._lost(f"{path}: {error.detail}") from None
        if sent.reply.status != 200:
            self._raise_for_status(sent.reply.status, sent.reply.error_message)
        return sent

    def _post_as_stream(
        self, path: str, payload: t.Mapping[str, t.Any], deadline: Deadline, *, with_key: bool
    ) -> Stream:
        return Stream(self.client.post(path, payload, deadline, with_key=with_key))

    # what failures mean

    def _raise_for_status(self, status: int, message: str) -> t.NoReturn:
        said = printable(message) or "nothing else"
        if status in {401, 403}:
            raise self.auth_fall(status)
        if status == 429:
            raise Fall("busy", finding("ENGINE_BUSY", "The server says that it has too many requests (HTTP 429)."))
        if status == 404 and "does not exist" in message:
            raise Fall("wrong_model", finding("WRONG_MODEL", f"The server says: {said}"))
        if status < 500 or status == 501:
            raise RefusedError(status, message)
        health = self.health()
        state = self.process_state()
        self.evidence["health_after"] = health
        confirmed = health != 200 or state.life == "gone"
        raise Fall(
            "engine_dead",
            finding(
                "ENGINE_DEAD",
                f"The completion failed with HTTP {status} ({said}); /health then: {health}{state.aside}.",
            ),
            confirmed=confirmed,
        )

    def auth_fall(self, status: int) -> Fall:
        """Return the end of a ladder at a server that asks who is there."""
        if self.options.api_key:
            return Fall("auth_failed", finding("AUTH_FAILED", f"The server refuses the API key (HTTP {status})."))
        return Fall("auth_required", finding("AUTH_REQUIRED", f"The server wants an API key (HTTP {status})."))

    def _raise_for_shape(self, path: str, completion: Completion, sent: Stream, *, stream: bool) -> t.NoReturn:
        if sent.failure is not None and self.health() != 200:
            raise self._lost(completion.problem)
        name = "STREAM_BROKEN" if stream else "REPLY_MALFORMED"
        shown = completion.content or sent.reply.body[:200].decode("utf-8", "replace")
        raise Fall("bad_reply", finding(name, f"{path}: {completion.problem}.", printable(shown)))

    def _lost(self, what: str) -> Fall:
        state = self.process_state()
        lost = finding("CONNECTION_LOST", f"The completion was cut off ({what}){state.aside}.")
        if state.life == "gone":
            return Fall("dead", finding("PROCESS_GONE", f"It died while answering: {state.detail}."), lost)
        self.evidence["health_after"] = self.health()
        return Fall("engine_dead", lost, confirmed=self.evidence["health_after"] != 200)

    def _timed_out(self, given: float, *, begun: bool = False) -> Fall:
        """Tell busy from wedged, dead and simply too little time. ``begun`` is a stream that stopped on its way."""
        before = self._before
        after = self.counters()
        if begun and after is not None:
            # What the counters show may be our own tokens from before the stream stopped: only new ones count.
            before = after
            for _again in range(5):
                self._sleep(min(1.0, self.options.request_timeout / 5, self.deadline.left() / 5))
                after = self.counters()
                if after is None or after.worked_since(before):
                    break
        worked = after is not None and before is not None and after.worked_since(before)
        state = self.process_state()
        if state.life == "gone":
            return Fall("dead", finding("PROCESS_GONE", f"It died while answering: {state.detail}."))
        if after is not None:
            self.evidence["counters"] = dataclasses.asdict(after)
        asked = f"no completion in {given:.1f} s"
        if worked and after is not None:
            work = f"{asked}, while the engine computes ({after.running} running, {after.waiting} waiting)"
            self.read_gpu()
            return Fall("busy", finding("ENGINE_BUSY", f"There was {work}."))
        if given < min(FAIR_WAIT_S, self.options.request_timeout):
            message = f"There was {asked}; less than {FAIR_WAIT_S:.0f} s tell nothing."
            return Fall("out_of_time", finding("OUT_OF_TIME", message))
        self.read_gpu()
        counted = "its counters cannot be read" if after is None or before is None else "its token counters stand still"
        findings = [
            finding("COMPLETION_HUNG", f"There was {asked}, /health said {self.evidence.get('health')}, {counted}.")
        ]
        if after is not None and before is not None and after.running > 0:
            message = (
                f"{after.running} requests run and {after.generation_tokens} tokens stay {after.generation_tokens}."
            )
            findings.append(finding("TOKENS_COUNTER_FROZEN", message))
        elif after is not None and after.waiting > 0:
            findings.append(finding("REQUESTS_WAIT_NONE_RUNS", f"{after.waiting} requests wait and none runs."))
        return Fall("hung", *findings)

    # what else can be seen

    def health(self) -> int | str:
        """Return the status of /health, or in a word why there is none."""
        try:
            return self.client.get("/health", self.deadline.within(min(2.0, self.deadline.left()))).status
        except ApiError as error:
            return error.kind

    def counters(self) -> Counters | None:
        """Read the engine's counters; None where they cannot be read."""
        try:
            reply = self.get("/metrics")
        except (ApiError, Fall):
            return None
        return Counters.from_metrics(reply.body.decode("utf-8", "replace")) if reply.status == 200 else None

    def read_gpu(self) -> None:
        """Look at the GPU, where somebody gave us eyes for it."""
        gpu = Gpu.from_csv(self._gpu() or "") if self._gpu else None
        if gpu is None:
            return
        self.evidence["gpu"] = gpu.as_dict()
        if gpu.is_low_power:
            message = f"The GPU is {gpu.utilization:.0f} % busy at {gpu.sm_clock} MHz and {gpu.power} W."
            self.note(finding("GB10_LOW_POWER_STATE", message))

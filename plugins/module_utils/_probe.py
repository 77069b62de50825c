# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The readiness ladder: is there a process, a port, a way in, the right model, and does the engine really answer?

``/health`` says 200 over a dead engine and over one that writes garbage; only a completion that was read proves
anything. The module ``vllm_probe`` and the program that runs on the box without Ansible share this code, so that they
never differ. See docs/readiness.md for what each verdict means.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding, worst
from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import (
    CONNECT_TIMEOUT_S,
    ApiError,
    Client,
    Clock,
    Deadline,
    Endpoint,
    Reply,
    pick,
    printable,
    whole_number,
)
from ansible_collections.gb10.fleet.plugins.module_utils._probe_checks import Examiner
from ansible_collections.gb10.fleet.plugins.module_utils._probe_findings import STAGES, finding
from ansible_collections.gb10.fleet.plugins.module_utils._probe_session import (
    DEFAULT_CHECKS,
    FAIR_WAIT_S,
    Fall,
    GpuReader,
    Kind,
    Options,
    ProcessCheck,
    RefusedError,
    Session,
)

STRIKES = 3
# The least telling of all answers is worth the least time.
HEALTH_WAIT_S = 5.0
Progress = t.Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe found out. ``stage`` is one of STAGES.

    All that is shown is free of the API key. ``model`` is not shown: it is the id as the server wants it in a request.
    ``with_key`` says whether the server may have the key: it has named itself as vLLM, or has asked for one.
    """

    ready: bool
    stage: str
    evidence: t.Mapping[str, t.Any]
    ttft_ms: float | None
    findings: tuple[Finding, ...]
    model: str = dataclasses.field(default="", repr=False)
    with_key: bool = False

    @property
    def rung(self) -> str:
        """The rung of the ladder on which the probe ended."""
        return STAGES[self.stage].rung

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        if self.ready:
            shown = [self.evidence[check] for check in ("stream", "chat", "completions") if check in self.evidence]
            seen: dict[str, t.Any] = shown[0] if shown else {}
            said = f"it answered {seen['text']!r} to {seen['prompt']!r}" if seen else "it turns texts into vectors"
            first = "" if self.ttft_ms is None else f", first token after {self.ttft_ms:.0f} ms"
            warned = "".join(f"; {f.id}: {f.message}" for f in self.findings if f.severity == "warning")
            return f"{self.stage}: {said}{first}{warned}"
        gravest = worst(self.findings)
        return f"{self.stage}: " + " ".join(f.message for f in self.findings if f.severity == gravest)

    def as_dict(self) -> dict[str, t.Any]:
        """Return the verdict as plain data, the way it leaves a module."""
        return {
            "ready": self.ready,
            "stage": self.stage,
            "rung": self.rung,
            "evidence": dict(self.evidence),
            "ttft_ms": self.ttft_ms,
            "findings": [found.as_dict() for found in self.findings],
        }


def probe(
    options: Options,
    *,
    timeout: float,
    process: ProcessCheck | None = None,
    gpu: GpuReader | None = None,
    clock: Clock = time.monotonic,
    sleep: t.Callable[[float], None] = time.sleep,
    rng: random.Random | None = None,
) -> Verdict:
    """Climb the ladder once, within ``timeout`` seconds. Raise InputError where the options cannot be used."""
    client = _client(options, clock)
    return _climb(
        Session(
            options,
            client,
            Deadline.after(timeout, clock),
            rng=rng or random.SystemRandom(),
            process=process,
            gpu=gpu,
            sleep=sleep,
        )
    )


def wait_until_ready(
    options: Options,
    *,
    timeout: float,
    process: ProcessCheck | None = None,
    gpu: GpuReader | None = None,
    progress: Progress = lambda _line: None,
    every: float = 30.0,
    interval: float = 2.0,
    strike_interval: float = 5.0,
    clock: Clock = time.monotonic,
    sleep: t.Callable[[float], None] = time.sleep,
    rng: random.Random | None = None,
) -> Verdict:
    """Probe again and again until the server is ready, waiting is of no use, or ``timeout`` seconds are over.

    ``progress`` gets one line whenever the situation changes, and every ``every`` seconds while it does not. A last
    look that has too little time to tell anything does not outweigh the one before it.
    """
    client = _client(options, clock)
    started = clock()
    deadline = Deadline.after(timeout, clock)
    rng = rng or random.SystemRandom()
    strikes = 0
    attempts = 0
    said: tuple[str, ...] = ()
    said_at = started
    before: Verdict | None = None
    while True:
        verdict = _climb(Session(options, client, deadline, rng=rng, process=process, gpu=gpu, sleep=sleep))
        attempts += 1
        short = before is not None and verdict.stage == "out_of_time"
        if short and before is not None:
            verdict = before
        patience = STAGES[verdict.stage].patience
        if not short:
            strikes = strikes + 1 if patience == "strikes" else 0
        pause = strike_interval if strikes else interval
        over = not short and (verdict.ready or patience == "stop" or strikes >= STRIKES)
        late = short or (not over and deadline.left() <= pause)
        waited = clock() - started
        if late:
            verdict = _gave_up(verdict, waited)
        situation = (verdict.stage, *(found.id for found in verdict.findings), str(strikes))
        if over or late or situation != said or clock() - said_at >= every:
            strike = f" (failure {strikes} of {STRIKES} in a row)" if strikes else ""
            progress(f"{waited:.0f} s of {timeout:.0f} s: {verdict.summary}{strike}")
            said, said_at = situation, clock()
        if over or late:
            seen = {"attempts": attempts, "waited_s": round(waited, 1)}
            return dataclasses.replace(verdict, evidence={**verdict.evidence, **seen})
        before = verdict
        sleep(pause)


def _client(options: Options, clock: Clock) -> Client:
    endpoint = Endpoint.from_url(options.url)
    return Client(endpoint, clock=clock, api_key=options.api_key, validate_certs=options.validate_certs)


def _gave_up(verdict: Verdict, waited: float) -> Verdict:
    late = finding("OUT_OF_TIME", f"It was still {verdict.stage} after {waited:.0f} s.")
    return dataclasses.replace(verdict, findings=(*verdict.findings, late))


def _climb(session: Session) -> Verdict:
    stage = "ready"
    try:
        _find_server(session)
        _find_model(session)
        _examine(session)
    except Fall as fall:
        stage = fall.stage
        for found in fall.findings:
            session.note(found)
    findings = session.findings
    if stage == "ready" and worst(findings) == "error":
        stage = "capability_failed"
    elif stage == "ready" and worst(findings) == "warning":
        stage = "degraded"
    clean = Redactor(session.options.api_key)
    evidence = {"url": str(session.client.endpoint), **session.evidence}
    return Verdict(
        ready=stage in {"ready", "degraded"},
        stage=stage,
        evidence=t.cast("dict[str, t.Any]", clean(evidence)),
        ttft_ms=session.ttft_ms,
        findings=tuple(
            dataclasses.replace(f, message=clean(f.message), evidence=clean(f.evidence), remedy=f.remedy)
            for f in findings
        ),
        model=session.model,
        with_key=session.with_key,
    )


class Redactor:
    """Takes the API key out of whatever a server may have echoed."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __call__(self, value: t.Any) -> t.Any:
        if isinstance(value, str):
            return value.replace(self._secret, "********") if self._secret else value
        if isinstance(value, dict):
            return {self(key): self(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self(item) for item in value]
        return value


# process and port


def _find_server(session: Session) -> None:
    """Process and port: somebody is there, and speaks HTTP."""
    state = session.process_state()
    try:
        reply = session.get("/health", at_most=HEALTH_WAIT_S)
    except ApiError as error:
        if state.life == "gone":
            raise Fall("dead", finding("PROCESS_GONE", f"The process is gone: {state.detail}.")) from None
        _no_health(session, error, state.life, state.detail)
        return
    where = str(session.client.endpoint)
    if state.life in {"gone", "restarting"}:
        squatter = finding("PORT_SQUATTER", f"Something else answers at {where}.", _describe(reply))
        # An engine that finds its port taken ends, so who answers is the cause, and its absence what came of it.
        if state.life == "gone":
            raise Fall("port_squatter", squatter, finding("PROCESS_GONE", f"The process is gone: {state.detail}."))
        raise Fall("port_squatter", squatter, finding("PROCESS_RESTARTING", f"The process is not up: {state.detail}."))
    session.evidence["health"] = reply.status
    version = _version(session)
    if reply.status == 503 and version:
        raise Fall("engine_dead", finding("ENGINE_DEAD", "/health says 503: vLLM's engine is dead."))
    if reply.status in {502, 503, 504}:
        absent = finding("UPSTREAM_UNAVAILABLE", f"{where} answers HTTP {reply.status}.", _describe(reply))
        raise Fall("starting" if state.life == "alive" else "unreachable", absent)


def _no_health(session: Session, error: ApiError, life: str, detail: str) -> None:
    where = str(session.client.endpoint)
    # Here is a process, so it was asked on its own box: who does not let it connect is a listener that accepts nobody.
    if error.kind == "timeout" or (error.kind == "silent" and life == "alive"):
        session.evidence["health"] = "timeout"
        slow = finding("HEALTH_SLOW", "/health did not answer in its share of the time.")
        session.note(slow)
        return
    if error.kind in {"refused", "disconnected"}:
        closed = "nothing listens" if error.kind == "refused" else "connections are closed without an answer"
        if life == "alive":
            raise Fall("starting", finding("ENGINE_STARTING", f"At {where} {closed} yet; {detail}."))
        if life == "restarting":
            raise Fall("starting", finding("PROCESS_RESTARTING", f"At {where} {closed}; {detail}."))
        raise Fall("unreachable", finding("NO_LISTENER", f"At {where} {closed}; {detail}."))
    stage, name = {
        "unresolved": ("unreachable", "NAME_NOT_RESOLVED"),
        "unreachable": ("unreachable", "HOST_UNREACHABLE"),
        "silent": ("unreachable", "HOST_UNREACHABLE"),
        "tls": ("tls_failed", "TLS_FAILED"),
    }.get(error.kind, ("port_squatter", "PORT_SQUATTER"))
    raise Fall(stage, finding(name, f"{where}: {error.detail}."))


def _version(session: Session) -> str:
    """Ask for vLLM's version: who tells it may be trusted with the API key."""
    with contextlib.suppress(ApiError):
        version = pick(session.get("/version").json(), "version")
        if isinstance(version, str) and version:
            session.evidence["version"] = printable(version, 60)
            session.with_key = bool(session.options.api_key)
            return version
    return ""


def _describe(reply: Reply) -> str:
    said = printable(reply.body[:200].decode("utf-8", "replace"), 120)
    server = printable(reply.headers.get("server", ""), 60)
    target = printable(reply.headers.get("location", ""), 120)
    return f"HTTP {reply.status}" + "".join(
        f", {name} {value}" for name, value in (("server", server), ("location", target), ("body", said)) if value
    )


# auth and model


def _find_model(session: Session) -> None:
    """Auth and model: we are let in, and the server has what we came for."""
    path = "/v1/models"
    try:
        reply = session.get(path)
        if reply.status in {401, 403} and session.options.api_key and not session.with_key:
            session.with_key = True
            reply = session.get(path)
    except ApiError as error:
        raise _no_models(session, error) from None
    if reply.status in {401, 403}:
        raise session.auth_fall(reply.status)
    cards = pick(reply.json(), "data")
    if reply.status != 200 or not isinstance(cards, list):
        if reply.status >= 500:
            raise Fall("engine_dead", finding("ENGINE_DEAD", f"{path} fails.", _describe(reply)), confirmed=False)
        if session.evidence.get("version"):
            raise Fall("bad_reply", finding("REPLY_MALFORMED", f"{path} gave no list of models.", _describe(reply)))
        raise Fall("port_squatter", finding("PORT_SQUATTER", f"{path} gave no list of models.", _describe(reply)))
    _choose_model(session, [card for card in cards if isinstance(pick(card, "id"), str)])


def _no_models(session: Session, error: ApiError) -> Fall:
    if error.kind in {"timeout", "silent"}:
        message = (
            f"/health: {session.evidence['health']}; /v1/models did not answer, after {session.spent():.1f} s in all."
        )
        # Who is alive and accepts no connection is not computing an answer, so that less time tells it.
        fair_s = FAIR_WAIT_S if error.kind == "timeout" else CONNECT_TIMEOUT_S
        if session.spent() < min(fair_s, session.options.request_timeout):
            return Fall("out_of_time", finding("OUT_OF_TIME", message))
        return Fall("hung", finding("SERVER_NOT_ANSWERING", message))
    if error.kind in {"too_large", "not_http"}:
        return Fall("bad_reply", finding("REPLY_MALFORMED", f"/v1/models: {error.detail}."))
    state = session.process_state()
    if state.life == "gone":
        return Fall("dead", finding("PROCESS_GONE", f"The process is gone: {state.detail}."))
    return Fall("engine_dead", finding("CONNECTION_LOST", f"/v1/models: {error.detail}{state.aside}."))


def _choose_model(session: Session, cards: list[dict[str, t.Any]]) -> None:
    served = [card["id"] for card in cards]
    shown = [printable(name, 120) for name in served[:20]]
    session.evidence["served_models"] = shown
    if not served:
        raise Fall("wrong_model", finding("NO_MODEL_SERVED", "/v1/models lists no model."))
    wanted = session.options.model
    if wanted and wanted not in served:
        message = f"{printable(wanted, 120)!r} is not served here; served: {', '.join(shown)}."
        raise Fall("wrong_model", finding("WRONG_MODEL", message))
    session.model = wanted or served[0]
    session.evidence["model"] = printable(session.model, 120)
    # A LoRA adapter's card has no length of its own; it shares that of its base model.
    own = next(card for card in cards if card["id"] == session.model)
    lengths = (whole_number(card, "max_model_len") for card in (own, *cards))
    session.max_model_len = next((length for length in lengths if length and length > 0), None)
    session.evidence["max_model_len"] = session.max_model_len


# completion, text, answer, capabilities


def _kind(options: Options) -> Kind:
    """Return the kind that the checks speak of, where they speak of one."""
    if options.kind != "auto" or not options.checks:
        return options.kind
    asked = set(options.checks)
    if asked & {"chat", "tools", "structured"}:
        return "chat"
    if "completions" in asked:
        return "base"
    return "embedding" if asked == {"embeddings"} else "auto"


def _examine(session: Session) -> None:
    """The engine answers, in the way that a model of its kind does."""
    kind = _kind(session.options)
    refusal = ""
    attempts: tuple[Kind, ...] = ("chat", "base", "embedding") if kind == "auto" else (kind,)
    for attempt in attempts:
        session.evidence["kind"] = attempt
        try:
            _examine_as(session, attempt)
        except RefusedError as error:
            refusal = printable(str(error))
            follows = error.is_missing_route or (attempt == "chat" and error.is_missing_chat_template)
            if not follows:
                break
        else:
            return
    raise Fall("request_refused", finding("REQUEST_REFUSED", f"The server refuses to complete: {refusal}."))


def _examine_as(session: Session, kind: Kind) -> None:
    options = session.options
    checks = options.checks or DEFAULT_CHECKS[kind]
    # A model that was never taught to answer may miss a sum without being broken.
    severity = options.answer_severity or ("error" if kind == "chat" else "warning")
    examiner = Examiner(session, judge_answers="answer" in checks, answer_severity=severity)
    if kind == "embedding":
        examiner.embeddings(alone=True)
        return
    main = examiner.chat if kind == "chat" else examiner.base
    # One completion is what every probe consists of; where only a streamed one is asked for, that is it.
    if "stream" not in checks or {"chat", "completions"} & set(checks):
        main()
    if "stream" in checks:
        main(stream=True)
    if kind == "chat" and "completions" in checks:
        examiner.raw(required=bool(options.checks))
    if "tools" in checks:
        examiner.tools()
    if "structured" in checks:
        examiner.structured()
    if "embeddings" in checks:
        examiner.embeddings(alone=False)

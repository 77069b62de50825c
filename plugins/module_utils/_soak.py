# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A soak of one instance on its own box: the load, and eyes on engine, counters and kernel while it runs.

It runs as a job of the box, so that a playbook that is killed does not end it; its verdict goes into the deploy record
of the instance whether anybody still waits for it or not.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import json
import pathlib
import random
import statistics
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _command,
    _engine_metrics,
    _files,
    _instance,
    _openai_api,
    _probe,
    _probe_session,
    _process_state,
    _soak_engine,
    _soak_load,
    _soak_report,
    _status,
)

_COMMAND_S: t.Final = 10.0
_CHEAP_S: t.Final = 5.0
_LOOK_EVERY_S: t.Final = 2.0
_LADDER_S: t.Final = 300.0
# What is asked again after the load has this time at least, whatever the load has left of its own.
_AGAIN_S: t.Final = 120.0
_KERNEL_LINES: t.Final = 100
# A count is not asked of a model that has no room for it; a sum needs no more.
_FEWEST_TOKENS: t.Final = 16

Tell = c.Callable[[str], None]
Run = c.Callable[[list[str]], tuple[int, str, str]]


class SoakError(Exception):
    """The soak could not be made. The text says why, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be soaked, and how hard; times in seconds. ``instance`` is empty for a server that is none of ours."""

    instance: str = ""
    url: str = ""
    model: str = ""
    kind: str = "chat"
    concurrency: int = 8
    requests: int = 400
    max_tokens: int = 256
    request_timeout: float = 300.0
    timeout: float = 3600.0
    shared_prefix: int = 0
    scripts: tuple[str, ...] = ()
    expects_drafts: bool = False

    @property
    def job(self) -> str:
        """What the job is named after: one soak of an instance, or of a server, at a time."""
        return self.instance or self.url


def _run(argv: list[str]) -> tuple[int, str, str]:
    return _command.run(argv, timeout_s=_COMMAND_S)


class Soak:
    """One soak. What it needs of the world comes in, and the report comes out."""

    def __init__(
        self,
        request: Request,
        *,
        api_key: str = "",
        tell: Tell = lambda _line: None,
        run: Run = _run,
        sysroot: pathlib.Path = pathlib.Path("/"),
    ) -> None:
        self._request = request
        self._api_key = api_key
        self._tell = tell
        self._shell = run
        self._sysroot = sysroot
        self._unit = _instance.unit_name(request.instance) if request.instance else ""
        endpoint = _openai_api.Endpoint.from_url(request.url)
        self._client = _openai_api.Client(endpoint, clock=time.monotonic, api_key=api_key)
        self._kv_usage: float | None = None

    def run(self) -> dict[str, t.Any]:
        """Ask one question, then many, and return the report."""
        request = self._request
        began, wall = time.monotonic(), time.time()
        self._tell("asking one question first")
        verdict = self._ladder()
        plan = self._plan(verdict)
        before = self._metrics()
        seen = _soak_report.Seen(
            results=(), took_s=0.0, before=before, after=before, expects_drafts=request.expects_drafts
        )
        if not verdict.ready:
            return _soak_report.report(plan, dataclasses.replace(seen, not_ready=verdict.summary))
        engine = _soak_engine.Engine(request.instance, self._shell, sysroot=self._sysroot)
        until = began + request.timeout
        alone, kinds = self._alone(plan, until).before()
        if refused := _soak_load.refusal(alone):
            return _soak_report.report(plan, dataclasses.replace(seen, not_ready=f"Nothing is accepted: {refused}."))
        if any(one.outcome == "failed" for one in alone):
            # Whoever takes the engine away meanwhile makes requests fail, too.
            engine.look()
        alone = () if engine.disturbed else alone
        plan = dataclasses.replace(plan, kinds=kinds, talk=_soak_load.talk(plan, alone))
        loaded = time.monotonic()
        results, calm = self._load(plan, engine, until)
        took = time.monotonic() - loaded
        after = self._metrics()
        again = self._again(plan, results, engine, until)
        interrupted = engine.interruption()
        return _soak_report.report(
            plan,
            dataclasses.replace(
                seen,
                # What came after somebody took the engine away says nothing about it.
                results=calm if interrupted else results,
                alone=alone,
                again=again,
                took_s=took,
                after=after,
                kv_usage_max=self._kv_usage,
                ends=engine.ends,
                interrupted=interrupted,
                kernel=self._kernel(wall),
            ),
        )

    def _plan(self, verdict: _probe.Verdict) -> _soak_load.Plan:
        """Return what to ask, with what the ladder has learnt; raise SoakError where the context has no room for it."""
        request, evidence = self._request, verdict.evidence
        plan = _soak_load.Plan(
            model=verdict.model or request.model,
            kind=request.kind,
            requests=request.requests,
            concurrency=request.concurrency,
            max_tokens=request.max_tokens,
            request_timeout=request.request_timeout,
            shared_prefix=request.shared_prefix,
            thinking_off="thinking" not in evidence,
            with_key=verdict.with_key,
            scripts=request.scripts,
            clean=_probe.Redactor(self._api_key),
        )
        context = evidence.get("max_model_len")
        if not verdict.ready or not isinstance(context, int):
            return plan
        room = _soak_load.room(plan, context)
        if room < min(_FEWEST_TOKENS, plan.max_tokens):
            raise SoakError(
                f"a context of {context} tokens has no room for an answer beside shared_prefix {plan.shared_prefix}; "
                f"lower it (soak_shared_prefix)"
            )
        return dataclasses.replace(plan, max_tokens=min(plan.max_tokens, room))

    def _ladder(self) -> _probe.Verdict:
        request = self._request
        process = _process_state.unit_check(self._unit) if self._unit else None
        kind: _probe_session.Kind = t.cast("t.Any", request.kind)
        options = _probe.Options(
            url=request.url,
            model=request.model,
            api_key=self._api_key,
            kind=kind,
            scripts=request.scripts,
            request_timeout=min(request.request_timeout, _LADDER_S),
        )
        return _probe.wait_until_ready(options, timeout=_LADDER_S, process=process, progress=self._tell)

    def _load(
        self, plan: _soak_load.Plan, engine: _soak_engine.Engine, until: float
    ) -> tuple[tuple[_soak_load.Result, ...], tuple[_soak_load.Result, ...]]:
        """Send everything, while looking at what it does to the engine.

        Return what came, and of that what had come when the engine was last seen undisturbed.
        """
        calm: tuple[_soak_load.Result, ...] = ()
        if time.monotonic() >= until:
            return (), ()
        load = _soak_load.Load(self._client, plan, seed=random.SystemRandom().getrandbits(48))
        load.start()
        while not load.finished(_LOOK_EVERY_S):
            results = load.results
            engine.look()
            if not engine.disturbed:
                calm = results
            usage = self._metrics()
            if usage is not None and usage.kv_usage is not None:
                self._kv_usage = max(self._kv_usage or 0.0, usage.kv_usage)
            self._tell(progress(plan, load.results))
            if load.failing or engine.disturbed or time.monotonic() >= until:
                load.stop()
        results = load.results
        engine.look()
        return results, calm if engine.disturbed else results

    def _alone(self, plan: _soak_load.Plan, until: float) -> _soak_load.Alone:
        return _soak_load.Alone(self._client, plan, seed=random.SystemRandom().getrandbits(48), until=until)

    def _again(
        self, plan: _soak_load.Plan, results: tuple[_soak_load.Result, ...], engine: _soak_engine.Engine, until: float
    ) -> tuple[_soak_load.Result, ...]:
        """Ask again, alone, what was wrong or cut under load; nothing of an engine that is not what it was."""
        again: list[_soak_load.Result] = []
        wrong = _soak_load.to_ask_again(results)
        alone = self._alone(plan, max(until, time.monotonic() + _AGAIN_S))
        for one in () if engine.disturbed else alone.again(wrong):
            again.append(one)
            self._tell(f"asked {len(again)} of {len(wrong)} wrong answers again, one at a time")
        engine.look()
        return () if engine.disturbed else tuple(again)

    def _metrics(self) -> _engine_metrics.EngineMetrics | None:
        try:
            reply = self._client.get("/metrics", _openai_api.Deadline.after(_CHEAP_S, time.monotonic))
        except _openai_api.ApiError:
            return None
        if reply.status != 200:
            return None
        return _engine_metrics.EngineMetrics.from_text(reply.body.decode("utf-8", "replace"))

    def _kernel(self, since: float) -> tuple[str, ...] | None:
        """Return what the kernel has logged of the GPU and of memory; None where its log cannot be read."""
        argv = ["journalctl", "--dmesg", f"--since=@{since:.0f}", "--output=cat", "--no-pager", "--quiet"]
        code, out, _err = self._shell(argv)
        lines = [line for line in out.splitlines() if _soak_report.KERNEL.search(line)]
        if code == 0 and (lines or self._has_kernel_log()):
            return tuple(_openai_api.printable(line) for line in lines[:_KERNEL_LINES])
        return None

    def _has_kernel_log(self) -> bool:
        """Whether the journal holds anything of the kernel at all: in a container it does not."""
        code, out, _err = self._shell(["journalctl", "--dmesg", "--lines=1", "--output=cat", "--no-pager", "--quiet"])
        return code == 0 and bool(out.strip())


def progress(plan: _soak_load.Plan, results: c.Sequence[_soak_load.Result]) -> str:
    """Return in one line how far a soak is."""
    bad = sum(one.outcome in {"garbage", "wrong"} for one in results)
    failed = sum(one.outcome == "failed" for one in results)
    first = [one.first_token_s for one in results if one.first_token_s is not None]
    speed = f", first token {statistics.median(first) * 1000:.0f} ms" if first else ""
    return f"{len(results)} of {plan.requests} requests, {failed} failed, {bad} garbage or wrong{speed}"


def of_instance(request: Request, settings: c.Mapping[str, t.Any]) -> Request:
    """Return the request with what the box knows of its instance; raise SoakError where a soak cannot judge it."""
    if settings.get("kind") == "embedding":
        raise SoakError(
            f"{request.instance} serves vectors (kind embedding), and a soak judges answers; it is proven by its deploy"
        )
    if (settings.get("group") or {}).get("rank"):
        raise SoakError(
            f"{request.instance} is a rank of a serving group that is not its head, and answers nobody; soak the head "
            f"on {settings['group']['members'][0]['box']}"
        )
    return dataclasses.replace(
        request,
        url=str(settings["url"]),
        model=str(settings["models"][0]),
        kind=str(settings["kind"]),
        expects_drafts=bool(settings.get("speculative")),
    )


def from_json(text: str) -> Request:
    """Read a request from the command line of the box's program."""
    data = json.loads(text)
    return Request(**{**data, "scripts": tuple(data.get("scripts", ()))})


def leave(report: c.Mapping[str, t.Any], job: str, folder: pathlib.Path = _status.FOLDER) -> None:
    """Leave a report where the module finds it."""
    path = folder / "soak" / f"{job}.json"
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _files.write(_files.Wanted(path, json.dumps(report, indent=4, sort_keys=True) + "\n", 0o644))


def left(job: str, folder: pathlib.Path = _status.FOLDER) -> dict[str, t.Any]:
    """Return the report of a job; raise SoakError where there is none."""
    try:
        found = json.loads((folder / "soak" / f"{job}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise SoakError(f"the report of the soak is not there; see `journalctl -u {job}`") from None
    return dict(found)


def as_plain(request: Request) -> dict[str, t.Any]:
    """Return a request as from_json() reads it."""
    return dataclasses.asdict(request)

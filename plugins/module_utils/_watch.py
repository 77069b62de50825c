# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The liveness watch of one instance: it looks, has _liveness decide, and acts through systemd.

A timer of the box starts it every few minutes (gb10-fleet-watch@NAME.timer). What it remembers lies in /run and ends
with the boot. Whatever it does is one line in the journal of the unit that it does it to.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import contextlib
import dataclasses
import fcntl
import json
import pathlib
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _command,
    _deployment,
    _docker,
    _engine_metrics,
    _engine_signs,
    _generation,
    _group_files,
    _instance,
    _journal,
    _liveness,
    _openai_api,
    _probe,
    _probe_session,
    _process_state,
    _status,
)

FOLDER: t.Final = _status.FOLDER / "watch"
_COMMAND_S: t.Final = 10.0
_CHEAP_S: t.Final = 5.0
# The most that an answer to a sum needs; a model that thinks is cut short, which proves that it lives.
_MAX_TOKENS: t.Final = 10
# While others' tokens move, or an idle head answers the daemon of its group, every fourth look alone asks.
_UNASKED_LOOKS: t.Final = 3
_CHECKS: t.Final[c.Mapping[str, tuple[str, ...]]] = {"chat": ("chat",), "base": ("completions",), "embedding": ()}
# A deployment says so on the disk while it stops, starts and proves engines.
_SWITCH: t.Final = pathlib.Path("/var/lib/gb10-fleet/switch.json")
_PROPERTIES: t.Final = "ActiveState,SubState,InvocationID,Job,ActiveEnterTimestampMonotonic"

# argv -> exit status, standard output, standard error
Run = c.Callable[[list[str]], tuple[int, str, str]]
Tell = c.Callable[[str, str], None]


def _run(argv: list[str]) -> tuple[int, str, str]:
    """Run a command; a daemon that hangs must not take the watch along."""
    return _command.run(argv, timeout_s=_COMMAND_S)


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """How to look and to act: the command runner, the clock of the box's uptime, and where words go."""

    run: Run = _run
    clock: c.Callable[[], float] = time.monotonic
    sleep: c.Callable[[float], None] = time.sleep
    warn: Tell = _journal.warning
    fail: Tell = _journal.error
    folder: pathlib.Path = FOLDER
    switch: pathlib.Path = _SWITCH
    groups: pathlib.Path = _group_files.FOLDER


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """Where the unit stands. ``away`` says in words why it is not to be touched, and is empty while it serves.

    ``known`` is false where systemd did not say: that is no reason to forget what was seen before.
    """

    away: str
    known: bool = True
    invocation: str = ""
    since_s: float = 0.0
    replaced: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """What a question came to; ``replied`` is whether the server said anything at all to it."""

    sign: _liveness.Sign
    reason: str = ""
    replied: bool = True


class StateFile:
    """What the watch of one instance remembers, replaced as a whole; nothing where it cannot be read."""

    def __init__(self, instance: str, folder: pathlib.Path) -> None:
        self._path = folder / f"{instance}.json"
        self._lock = folder / f"{instance}.lock"

    @contextlib.contextmanager
    def alone(self) -> c.Iterator[bool]:
        """Whether no other watch of the instance runs; none can begin before the end of the block."""
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._lock.open("w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True

    def read(self) -> _liveness.State:
        """Return what was left behind since the box was booted."""
        try:
            return _liveness.State.from_dict(json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, AttributeError):
            return _liveness.State()

    def write(self, state: _liveness.State) -> None:
        """Replace it."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(dataclasses.asdict(state)), encoding="utf-8")
        new.replace(self._path)


def watch(instance: str, settings: c.Mapping[str, t.Any], *, api_key: str = "", box: Box | None = None) -> int:
    """Look at the instance once, and again while a look leaves a doubt that the next one can settle in time."""
    box = box or Box()
    if not settings.get("liveness"):
        return 0
    _take_up_switch(box)
    limits = _liveness.Limits.from_settings(settings["liveness"])
    file = StateFile(instance, box.folder)
    with file.alone() as alone:
        if not alone:
            return 0
        started = box.clock()
        while True:
            state = file.read()
            state, look = Onlooker(instance, settings, limits, box, api_key).look(state)
            state, action = _liveness.decide(state, look, limits)
            file.write(state)  # before the deed: a restart that was begun is counted, whatever becomes of the watch
            act(box, _instance.unit_name(instance), action)
            spent = box.clock() - started
            if action.deed != "again" or spent + action.again_s + limits.answer_s > limits.period_s:
                return 0
            box.sleep(action.again_s)


def _take_up_switch(box: Box) -> None:
    """Have systemd take up a switch that nobody is at: whoever asked for it was gone before it was begun."""
    if not _generation.under_way(box.switch):
        return
    code, out, _err = box.run(["systemctl", "show", "--property=ActiveState", "--", _deployment.UNIT])
    if code == 0 and out.strip() in {"ActiveState=inactive", "ActiveState=failed"}:
        box.warn(_deployment.UNIT, "liveness: nobody is at the switch that is under way on this box: it is taken up")
        _systemctl(box, _deployment.UNIT, "start")


def act(box: Box, unit: str, action: _liveness.Action) -> None:
    """Carry out what was decided, and say so in the unit's own journal."""
    tell = box.fail if action.deed in {"restart", "stop"} else box.warn
    end = ""
    if action.deed == "stop":
        end = f" See `journalctl -u {unit}`; when it is cured: `systemctl start {unit}`."
    for line in action.lines:
        whole = f"{line.removesuffix('.')}.{end}" if end else line
        tell(unit, f"liveness: {unit}: {whole}")
    if action.deed == "restart":
        # It forgets the starts so far: the watch counts for itself, and its restarts are no failed boots.
        box.run(["systemctl", "reset-failed", unit])
        # Not "restart", and not over another job: what somebody has stopped since the look, or is stopping, stays so.
        _systemctl(box, unit, "try-restart", "--job-mode=fail")
    elif action.deed == "stop":
        _systemctl(box, unit, "stop")


def _systemctl(box: Box, unit: str, verb: str, *options: str) -> None:
    code, _out, err = box.run(["systemctl", "--no-block", *options, verb, unit])
    if code != 0:
        box.fail(unit, f"liveness: {unit}: `systemctl {verb} {unit}` failed: {err.strip()}")


def standing(run: Run, instance: str, spec: str) -> Standing:
    """Ask systemd and Docker whether the unit serves what its files say, and is left alone by everybody."""
    unit = _instance.unit_name(instance)
    code, out, _err = run(["systemctl", "show", f"--property={_PROPERTIES}", "--", unit])
    if code != 0:
        return Standing("systemd does not answer", known=False)
    shown = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    if shown.get("ActiveState") != "active":
        return Standing(f"the unit is {shown.get('ActiveState')} ({shown.get('SubState')})")
    if shown.get("Job", "0") not in {"", "0"}:
        return Standing("systemd is about to start or to stop the unit")
    with contextlib.suppress(_docker.DockerError):
        container = _docker.container(run, _instance.container_name(instance))
        running = container.labels.get(_instance.SPEC_LABEL, "") if container else spec
        if running != spec:
            what = "the files on the box are of another engine than the one that runs"
            return Standing(f"{what}; a deployment is under way, or was cut short: run site.yml", replaced=True)
    active_at = int(shown.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
    return Standing("", invocation=shown.get("InvocationID", ""), since_s=active_at)


class Onlooker:
    """Takes one look at one instance."""

    def __init__(
        self, instance: str, settings: c.Mapping[str, t.Any], limits: _liveness.Limits, box: Box, api_key: str
    ) -> None:
        self._instance = instance
        self._settings = settings
        self._limits = limits
        self._box = box
        self._api_key = api_key
        endpoint = _openai_api.Endpoint.from_url(str(settings["url"]))
        self._metrics = ""
        self._client = _openai_api.Client(endpoint, clock=box.clock, api_key=api_key)

    def look(self, state: _liveness.State) -> tuple[_liveness.State, _liveness.Look]:
        """Return what is to be seen, and the state with the work that was counted."""
        before = self._standing()
        if before.away:
            return state, self._away(before, state)
        if before.invocation != state.invocation:
            state = state.of(before.invocation)
        counters = self._counters()
        loaded = None if counters is None else counters.running + counters.waiting > 0
        moving = counters is not None and bool(loaded) and self._works(counters)
        progress = moving or bool(counters and state.work and counters.work != state.work)
        # The first look at an engine asks, and so does one that holds something against it.
        computes = moving or (loaded is False and self._beats(before.invocation))
        witnessed = computes and state.work and not state.strikes and state.unasked < _UNASKED_LOOKS
        asked = not (witnessed and self._get("/health") is not None)
        seen = self._ask() if asked else _Seen("moving")
        # What the look's own question took is nobody else's progress.
        counters = (self._counters() if asked and counters else None) or counters
        work = counters.work if counters else state.work
        state = dataclasses.replace(state, work=work, unasked=0 if asked else state.unasked + 1)
        after = self._standing()
        if after.away or after.invocation != before.invocation:
            return state, self._away(after, state)
        gpu = _engine_signs.Gpu.from_csv(_engine_signs.read_gpu(self._run_for) or "")
        at = self._box.clock()
        return state, _liveness.Look(
            at=at,
            invocation=before.invocation,
            age_s=at - before.since_s,
            sign=seen.sign,
            reason=seen.reason,
            loaded=loaded,
            progress=progress,
            replied=seen.replied,
            low_power=None if gpu is None else gpu.is_low_power,
            drafts=_engine_metrics.EngineMetrics.from_text(self._metrics).drafts,
        )

    def _standing(self) -> Standing:
        if _generation.under_way(self._box.switch):
            return Standing("a deployment is under way")
        return standing(self._box.run, self._instance, str(self._settings.get("spec", "")))

    def _away(self, found: Standing, state: _liveness.State) -> _liveness.Look:
        if not found.known:
            return _liveness.Look(at=self._box.clock(), invocation=state.invocation, sign="unknown")
        away = found.away or "the unit was started anew meanwhile"
        return _liveness.Look(at=self._box.clock(), away=away, replaced=found.replaced)

    def _run_for(self, argv: list[str], _timeout: float) -> tuple[int, str] | None:
        code, out, _err = self._box.run(argv)
        return None if code in {_command.NOT_FOUND, _command.TIMED_OUT} else (code, out)

    def _get(self, path: str) -> str | None:
        """Return the text of one of the cheap paths; None where it did not come with HTTP 200."""
        try:
            reply = self._client.get(path, _openai_api.Deadline.after(_CHEAP_S, self._box.clock))
        except _openai_api.ApiError:
            return None
        return reply.body.decode("utf-8", "replace") if reply.status == 200 else None

    def _counters(self) -> _engine_signs.Counters | None:
        """Read what the engine counts; None where it does not tell."""
        text = self._get("/metrics")
        if text is None:
            return None
        self._metrics = text
        return _engine_signs.Counters.from_metrics(text)

    def _works(self, before: _engine_signs.Counters) -> bool:
        """Whether an engine with requests works on them right now."""
        within_s = self._limits.witness_s
        return _engine_signs.works_now(before, self._counters, within_s=within_s, sleep=self._box.sleep)

    def _beats(self, invocation: str) -> bool:
        """Whether the head of a serving group was seen to compute within this period, by the daemon that asks it."""
        if not self._settings.get("group"):
            return False
        beat = _group_files.GroupFiles(self._instance, self._box.groups).beat(invocation)
        return beat is not None and 0 <= self._box.clock() - beat.at <= self._limits.period_s

    def _ask(self) -> _Seen:
        """Ask for a completion; where its answer is wrong, for two more."""
        verdict = self._probe()
        sign = sign_of(verdict)
        if sign != "alive" or not _is_wrong(verdict):
            starved = [one.message for one in verdict.findings if one.id == "GB10_LOW_POWER_STATE"]
            return _Seen(sign, " ".join((verdict.summary, *starved)), replied=verdict.stage != "hung")
        answers = [verdict, self._probe(), self._probe()]
        if not all(sign_of(one) == "alive" and _is_wrong(one) for one in answers):
            return _Seen(sign, verdict.summary)
        said = "; ".join(f"{one.evidence['chat']['text']!r} to {one.evidence['chat']['prompt']!r}" for one in answers)
        return _Seen("text", f"wrong_answer: three of three answers are wrong: {said}")

    def _probe(self) -> _probe.Verdict:
        kind: _probe_session.Kind = self._settings["kind"]
        unit = _instance.unit_name(self._instance)
        return _probe.probe(
            _probe.Options(
                url=str(self._settings["url"]),
                model=str(self._settings["models"][0]),
                api_key=self._api_key,
                kind=kind,
                checks=_CHECKS[kind],
                max_tokens=_MAX_TOKENS,
                request_timeout=self._limits.answer_s,
            ),
            timeout=self._limits.answer_s + _liveness.MARGIN_S,
            process=_process_state.unit_check(unit, self._run_for),
            gpu=lambda: _engine_signs.read_gpu(self._run_for),
            clock=self._box.clock,
            sleep=self._box.sleep,
        )


def sign_of(verdict: _probe.Verdict) -> _liveness.Sign:
    """Return what a probe's verdict says of an engine that has answered before."""
    if verdict.stage == "engine_dead" and not _is_confirmed(verdict):
        return "hang"
    return _liveness.SIGNS[verdict.stage]


def _is_confirmed(verdict: _probe.Verdict) -> bool:
    """Whether /health, too, says that the engine is dead, rather than one request alone."""
    health = verdict.evidence.get("health_after", verdict.evidence.get("health"))
    return health not in {200, "timeout", "silent", None}


def _is_wrong(verdict: _probe.Verdict) -> bool:
    """Whether a chat model came to the end of an answer, and the answer is not right."""
    seen = verdict.evidence.get("chat")
    if verdict.stage == "budget" or not isinstance(seen, dict):
        return False
    return seen.get("right") is False and seen.get("finish_reason") == "stop"

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program that runs on a box without Ansible: start gate, readiness, image pulls, last words.

Packed with the module_utils that it needs into one zipapp (see plugins/action/box_program.py), so that what systemd
runs on the box is the very code that the modules run from the controller.

    fleet.pyz gate NAME      ExecStartPre: wait until the memory is back, or refuse
    fleet.pyz ready NAME     ExecStartPost: wait until a real completion was answered, or fail
    fleet.pyz explain NAME   OnFailure: say in one line why the unit stays down
    fleet.pyz watch NAME     a timer's: see whether the engine lives, and restart it where it does not
    fleet.pyz peer NAME      beside a rank of a serving group: tell and watch the other ranks
    fleet.pyz ended NAME     ExecStopPost of such a rank: keep how its engine ended
    fleet.pyz pull IMAGE     pull an image by digest and keep its progress in /run/gb10-fleet
    fleet.pyz download JSON  download a checkpoint and keep its progress there
    fleet.pyz switch         finish the switch that the box's marker asks for, or go back
    fleet.pyz soak JSON      ask an instance many questions at a time, and write the verdict into its record
    fleet.pyz driver JSON    install the packages of the driver and keep the progress there
    fleet.pyz fabric WHAT    apply, give back, verify or load the fabric, see _fabric_box

Every line goes to the journal of the unit that runs it. Exit status: 0 done, 1 refused or failed, 2 wrong usage.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import argparse
import collections.abc as c
import dataclasses
import json
import os
import sys
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _apt,
    _boot_log,
    _command,
    _converge,
    _deployment,
    _docker,
    _download,
    _driver_request,
    _driver_transaction,
    _fabric_box,
    _files,
    _gate,
    _generation,
    _group_daemon,
    _group_files,
    _group_start,
    _instance,
    _journal,
    _memory,
    _openai_api,
    _probe,
    _process_state,
    _proof,
    _pull,
    _soak_job,
    _status,
    _switch,
    _watch,
)

_TELL_EVERY_S: t.Final = 2.0
_PAUSE_POLL_S: t.Final = 0.5
_PAUSE_LIMIT_S: t.Final = 900.0
_JOURNAL_LINES: t.Final = 4000
_JOURNAL_S: t.Final = 20.0
# What the start gate asks Docker Engine, and how much longer the end of a container that is left may take.
_GATE_DOCKER_S: t.Final = 20.0
_LEFTOVER_S: t.Final = 40.0
# The client, and the first process of a container that cannot run its program: of an image for another processor it is
# "exec /usr/bin/vllm: exec format error".
_DOCKER_SAYS: t.Final = ("docker: ", "exec ")
# Longer than the end of any engine may take; only a daemon that hangs takes it all.
_SWITCH_COMMAND_S: t.Final = 900.0


def main(argv: c.Sequence[str] | None = None) -> int:
    """Run one command of the program."""
    # What guards an instance, by its name, with its settings on the box; and jobs, which are told all that they need.
    guards: dict[str, tuple[c.Callable[[str, dict[str, t.Any]], int], str]] = {
        "gate": (gate, "wait until an instance may start"),
        "ready": (ready, "wait until an instance answers a real completion"),
        "explain": (explain, "say why an instance stays down"),
        "watch": (watch, "see whether an instance lives, and restart it where it does not"),
        "peer": (peer, "tell and watch the other ranks of a serving group"),
        "ended": (ended, "keep how the engine of a rank ended"),
    }
    jobs: dict[str, tuple[c.Callable[[str], int], str]] = {
        "pull": (pull, "pull an image by digest"),
        "download": (download, "download a checkpoint"),
        "soak": (soak, "ask an instance many questions at a time"),
        "driver": (driver, "install the packages of the driver"),
    }
    parser = argparse.ArgumentParser(prog="fleet.pyz", description="What gb10.fleet runs on a box.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (_guard, about) in guards.items():
        commands.add_parser(name, help=about).add_argument("instance")
    for name, (_job, about) in jobs.items():
        commands.add_parser(name, help=about).add_argument("request")
    commands.add_parser("switch", help="finish the switch that is under way")
    _fabric_box.add_commands(commands.add_parser("fabric", help="the fabric between boxes"))
    given = parser.parse_args(argv)
    if given.command in {"switch", "fabric"}:
        return switch() if given.command == "switch" else _fabric_box.main(given, say)
    if given.command in jobs:
        return jobs[given.command][0](given.request)
    settings = _instance.settings(given.instance)
    if not settings:
        say(f"/{_instance.INSTANCE_FOLDER}/{given.instance}.json is missing or not readable; deploy the box again")
        # systemd looks at the conditions of a unit before a start, and not before it starts it again by itself.
        gone = given.command == "peer" and not _instance.settings_file(given.instance).exists()
        return _group_daemon.NOT_NEEDED if gone else 2
    return guards[given.command][0](given.instance, settings)


def gate(instance: str, settings: c.Mapping[str, t.Any]) -> int:
    """Remove what is left of the last run, then wait until its memory is back."""
    status = _status.StatusFile(instance)

    def read() -> _gate.Reading:
        _converge.remove_leftover(_ask_docker, instance, say)
        return _gate.Reading(_memory.meminfo(), _memory.processes(), _docker.running_ids(_ask_docker))

    verdict = _gate.wait(
        read,
        floor_bytes=int(settings["memory_floor_bytes"]),
        timeout_s=float(settings["gate_timeout_s"]),
        drop_page_cache=lambda: _memory.drop_page_cache(say),
        say=lambda line: announce(status, "gate", line),
        clock=time.monotonic,
        sleep=time.sleep,
    )
    words = "the gate is open" if verdict.passed else "refusing to start"
    announce(status, "gate", f"{words}: {verdict.reason}", failed=not verdict.passed)
    if not verdict.passed:
        return 1
    return meet(status, instance, lambda: obstacle(read, settings)) if settings.get("group") else 0


def _ask_docker(argv: list[str]) -> tuple[int, str, str]:
    """Ask Docker Engine in bounded time: a gate that hangs would say neither what it waits for nor that it waits."""
    code, out, err = _command.run(argv, timeout_s=_GATE_DOCKER_S + (_LEFTOVER_S if argv[1] in ("stop", "rm") else 0))
    if code == _command.TIMED_OUT and argv[1] == "rm":
        # The engine could not be started beside it, and that would count as a try.
        raise _docker.DockerError(f"Docker Engine does not answer (`{' '.join(argv)}`: {err})")
    return code, out, err


def obstacle(read: c.Callable[[], _gate.Reading], settings: c.Mapping[str, t.Any]) -> str:
    """Return what stands in the way of a start at this moment."""
    try:
        return _gate.obstacle(read(), int(settings["memory_floor_bytes"]))
    except _docker.DockerError as error:
        return str(error)


def meet(status: _status.StatusFile, instance: str, hindered: c.Callable[[], str]) -> int:
    """Wait until all ranks of the serving group start together."""
    refused = _group_start.meet(_wait(status, instance, "gate"), hindered)
    if refused:
        announce(status, "gate", refused, failed=True)
    else:
        announce(status, "gate", "all ranks start together")
    return 1 if refused else 0


def _wait(status: _status.StatusFile, instance: str, stage: str) -> _group_start.Wait:
    token = os.environ.get("INVOCATION_ID", "")
    return _group_start.Wait(_group_files.GroupFiles(instance), token, lambda line: announce(status, stage, line))


def ready(instance: str, settings: c.Mapping[str, t.Any]) -> int:
    """Wait until the instance answers a real completion; systemd calls the unit active only after that."""
    status = _status.StatusFile(instance)
    process = _process_state.pid_check(int(os.environ.get("MAINPID") or 0))
    if settings.get("group") and settings["group"]["rank"] > 0:
        return follow(status, instance, settings, process)
    try:
        verdict = _probe.wait_until_ready(
            _proof.options(settings),
            timeout=float(settings["boot_timeout_s"]),
            process=process,
            progress=lambda line: announce(status, "ready", line),
        )
    except _openai_api.InputError as error:
        remedy = "Correct vllm_server_api_key in the inventory, and run site.yml."
        asked = f"{_instance.container_name(instance)} cannot be asked: {error}"
        announce(status, "ready", f"{asked} {remedy}", failed=True)
        return 1
    if verdict.ready:  # which the last line of progress has said already
        return 0
    announce(status, "ready", f"{verdict.summary} {last_words(instance)}".strip(), failed=True)
    return 1


def follow(
    status: _status.StatusFile,
    instance: str,
    settings: c.Mapping[str, t.Any],
    process: c.Callable[[], _process_state.ProcessState],
) -> int:
    """Wait until the head of the serving group answers a completion: a headless rank has no port of its own."""
    wait = _wait(status, instance, "ready")
    failure = _group_start.follow(wait, timeout_s=float(settings["boot_timeout_s"]), process=process)
    if failure:
        announce(status, "ready", f"{failure} {last_words(instance)}".strip(), failed=True)
        return 1
    announce(status, "ready", "the head has answered a completion, for which this rank was needed")
    return 0


def peer(instance: str, settings: dict[str, t.Any]) -> int:
    """Tell the other ranks of the serving group what this one does, and watch them."""
    return _group_daemon.run(instance, settings, lambda: _proof.secret(settings["secrets_file"], "VLLM_API_KEY"))


def ended(instance: str, _settings: dict[str, t.Any]) -> int:
    """Keep how the engine of a rank ended, in the words of systemd and of its own log."""
    env = os.environ
    token = env.get("INVOCATION_ID", "")
    last = _status.StatusFile(instance).read()
    how = _group_start.Exit(
        token=token,
        result=env.get("SERVICE_RESULT", ""),
        code=env.get("EXIT_CODE", ""),
        status=env.get("EXIT_STATUS", ""),
        failure=last.message if last and last.failed else "",
        order=_group_start.order(_instance.unit_name(instance)),
    )
    files, now = _group_files.GroupFiles(instance), time.time()
    signalled = _group_start.first_signal(_instance.container_name(instance), files.round(token), now)
    _group_start.ended(files, how, _group_start.first_error(token), now, signalled)
    return 0


def last_words(instance: str) -> str:
    """Return why the engine failed, in its own words from the journal of this start; empty if it said nothing."""
    invocation = os.environ.get("INVOCATION_ID", "")
    unit = _instance.unit_name(instance)
    argv = ["journalctl", f"--unit={unit}", f"_SYSTEMD_INVOCATION_ID={invocation}", "--output=cat", "--no-pager"]
    _code, text, _err = _command.run([*argv, f"--lines={_JOURNAL_LINES}"], timeout_s=_JOURNAL_S)
    text = _group_start.without_own_words(text)
    error = _boot_log.parse_boot_logs([_boot_log.Log(unit, text)]).first
    if error is not None:
        return f"The engine said: {error.message}"
    said = [line for line in text.splitlines() if line.startswith(_DOCKER_SAYS) or " error: " in line]
    return f"It said: {said[-1]}" if said else ""


def explain(instance: str, settings: c.Mapping[str, t.Any]) -> int:
    """Say in one line that the unit stays down, and why; say nothing while systemd is still trying."""
    unit = _instance.show(_command.run, _instance.unit_name(instance))
    # systemd calls this after every failed start. In the pause after it nobody knows yet whether there will be another
    # one, and a call that comes while this one is still running would be lost.
    waited = 0.0
    while unit.pausing and waited < _PAUSE_LIMIT_S:
        time.sleep(_PAUSE_POLL_S)
        waited += _PAUSE_POLL_S
        unit = _instance.show(_command.run, unit.name)
    if not unit.given_up or _was_stopped(instance, unit):
        return 0
    last = _status.StatusFile(instance).read()
    reason = last.message if last and last.failed else f"the engine ended by itself ({unit.result})"
    tries = int(settings["start_limit_burst"])
    boxes = [one["box"] for one in (settings.get("group") or {}).get("members", [])]
    reset, start = f"`systemctl reset-failed {unit.name}`", f"`systemctl start --no-block {unit.name}`"
    # A rank that starts while another one still has given up would be refused.
    together = f", on each of {', '.join(boxes)}: {reset}, and then, on each: {start}"
    cure = together if boxes else f": {reset} and start it"
    _journal.error(
        unit.name,
        f"{unit.name} stays down after {tries} starts: {reason}. "
        f"See `journalctl -u {unit.name}`; when it is cured{cure}.",
    )
    return 0


def _was_stopped(instance: str, unit: _instance.Unit) -> bool:
    """Return whether somebody had the unit stopped; one that had not served yet has failed then, in systemd's eyes."""
    if _group_files.GroupFiles(instance).stopped(unit.invocation):
        return True
    # systemd's own line about the end of a start names the job. It may be on its way into the journal still.
    _command.run(["journalctl", "--sync"], timeout_s=_JOURNAL_S)
    of_it = [f"UNIT={unit.name}", f"INVOCATION_ID={unit.invocation}", "JOB_TYPE=stop", "_PID=1"]
    _code, said, _err = _command.run(
        ["journalctl", *of_it, "--output=cat", "--no-pager", "--quiet"], timeout_s=_JOURNAL_S
    )
    return bool(said.strip())


def watch(instance: str, settings: c.Mapping[str, t.Any]) -> int:
    """See whether the instance lives; what is done about it is in the unit's own journal."""
    return _watch.watch(instance, settings, api_key=_proof.secret(settings["secrets_file"], "VLLM_API_KEY"))


def pull(image: str) -> int:
    """Pull an image and keep its progress where the image_pull module reads it."""
    status = _status.StatusFile(_status.job_name("pull", image))
    seldom = Seldom(lambda line: announce(status, "pull", line))
    try:
        _pull.pull(image, lambda progress: seldom.say(progress.line()))
    except _pull.PullError as error:
        announce(status, "pull", str(error), failed=True)
        return 1
    announce(status, _status.DONE, "the image is complete")
    return 0


def download(request: str) -> int:
    """Download a checkpoint and keep its progress where the checkpoint_download module reads it."""
    wanted = _download.Wanted(**json.loads(request))
    name = _status.job_name("download", f"{wanted.repo}@{wanted.revision}")
    status = _status.StatusFile(name)
    if "HF_TOKEN" in os.environ:
        wanted = dataclasses.replace(wanted, env_file=str(_status.FOLDER / f"{name}.env"))
    seldom = Seldom(lambda line: announce(status, "download", line))
    try:
        _download.download(wanted, seldom.say)
    except _download.DownloadError as error:
        announce(status, "download", str(error), failed=True)
        return 1
    announce(status, _status.DONE, "the checkpoint is complete")
    return 0


def switch() -> int:
    """Take the box to the generation that its marker names, or back; the status says how it ended."""
    status = _status.StatusFile(_deployment.JOB)

    def run(argv: list[str]) -> tuple[int, str, str]:
        return _command.run(argv, timeout_s=_SWITCH_COMMAND_S)

    def tell(line: str) -> None:
        announce(status, "switch", line)

    def prove(member: _generation.Member, booted: bool) -> _proof.Proof:
        tell(f"proving {_instance.container_name(member.name)}")
        return _proof.prove(member.name, member.settings, booted=booted, progress=tell)

    work = _switch.Switch(
        box=_converge.Box(run), store=_generation.Store(), prove=prove, tell=tell, boot_id=_deployment.boot_id()
    )
    try:
        with _files.locked(_status.FOLDER / f"{_deployment.JOB}.lock"):
            last = work.run()
    except _switch.FAILURES as error:  # while going back: systemd calls this again
        announce(status, "switch", str(error), failed=True)
        return 1
    except _switch.StuckError as error:  # nothing comes of calling this again before somebody has seen to the box
        status.write(_status.Status("switch", str(error), True, time.time()))
        _journal.error(_deployment.UNIT, str(error))
        return 0
    if last is None:
        say("no switch is under way")
        return 0
    status.write(_status.Status(_status.DONE, last.message, last.outcome != "served", time.time()))
    if last.outcome == "served":
        say(last.message)
    else:
        _journal.error(_deployment.UNIT, last.message)
    return 0


def soak(request: str) -> int:
    """Ask an instance many questions at a time, and write the verdict into its record."""
    return _soak_job.run(request, announce, _proof.secret)


def driver(request: str) -> int:
    """Install the packages of the driver and keep the progress where the driver_packages module reads it."""
    status = _status.StatusFile(_driver_transaction.JOB)
    seldom = Seldom(lambda line: announce(status, "driver", line))
    try:
        done = _driver_transaction.carry_out(_driver_request.Request.from_dict(json.loads(request)), seldom.say)
    except (_driver_transaction.RefusedError, _apt.AptError) as error:
        announce(status, "driver", str(error), failed=True)
        return 1
    announce(status, _status.DONE, done)
    return 0


class Seldom:
    """Passes a line on at most every two seconds, so that a journal is not flooded by a fast download."""

    def __init__(self, tell: c.Callable[[str], None]) -> None:
        self._tell = tell
        self._told_at = float("-inf")

    def say(self, line: str) -> None:
        """Pass the line on, or drop it."""
        if time.monotonic() - self._told_at >= _TELL_EVERY_S:
            self._told_at = time.monotonic()
            self._tell(line)


def announce(status: _status.StatusFile, stage: str, message: str, *, failed: bool = False) -> None:
    """Say a line to the journal, and keep it where the modules read it."""
    say(message)
    status.write(_status.Status(stage=stage, message=message, failed=failed, at=time.time()))


def say(line: str) -> None:
    """Write one line to the journal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

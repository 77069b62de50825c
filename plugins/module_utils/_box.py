# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program that runs on a box without Ansible: start gate, readiness, image pulls, last words.

Packed with the module_utils that it needs into one zipapp (see plugins/action/box_program.py), so that what systemd
runs on the box is the very code that the modules run from the controller.

    fleet.pyz gate NAME      ExecStartPre: wait until the memory is back, or refuse
    fleet.pyz ready NAME     ExecStartPost: wait until a real completion was answered, or fail
    fleet.pyz explain NAME   OnFailure: say in one line why the unit stays down
    fleet.pyz pull IMAGE     pull an image by digest and keep its progress in /run/gb10-fleet
    fleet.pyz download JSON  download a checkpoint and keep its progress there
    fleet.pyz driver JSON    install the packages of the driver and keep the progress there

Every line goes to the journal of the unit that runs it. Exit status: 0 done, 1 refused or failed, 2 wrong usage.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import argparse
import collections.abc as c
import dataclasses
import json
import os
import pathlib
import sys
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import (
    _apt,
    _boot_log,
    _command,
    _docker,
    _download,
    _driver_request,
    _driver_transaction,
    _gate,
    _instance,
    _journal,
    _memory,
    _probe,
    _process_state,
    _pull,
    _status,
)

_ENGINE_STOP_S: t.Final = 30
_TELL_EVERY_S: t.Final = 2.0
_PAUSE_POLL_S: t.Final = 0.5
_PAUSE_LIMIT_S: t.Final = 900.0
_JOURNAL_LINES: t.Final = 4000
_JOURNAL_S: t.Final = 20.0


def main(argv: c.Sequence[str] | None = None) -> int:
    """Run one command of the program."""
    parser = argparse.ArgumentParser(prog="fleet.pyz", description="What gb10.fleet runs on a box.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (
        ("gate", "wait until an instance may start"),
        ("ready", "wait until an instance answers a real completion"),
        ("explain", "say why an instance stays down"),
    ):
        commands.add_parser(name, help=about).add_argument("instance")
    commands.add_parser("pull", help="pull an image by digest").add_argument("image")
    commands.add_parser("download", help="download a checkpoint").add_argument("request")
    commands.add_parser("driver", help="install the packages of the driver").add_argument("request")
    given = parser.parse_args(argv)
    if given.command == "pull":
        return pull(given.image)
    if given.command == "download":
        return download(given.request)
    if given.command == "driver":
        return driver(given.request)
    settings = _instance.settings(given.instance)
    if not settings:
        say(f"{_instance.INSTANCE_FOLDER}/{given.instance}.json is missing or not readable; deploy the box again")
        return 2
    handlers: dict[str, c.Callable[[str, dict[str, t.Any]], int]] = {"gate": gate, "ready": ready, "explain": explain}
    return handlers[given.command](given.instance, settings)


def gate(instance: str, settings: c.Mapping[str, t.Any]) -> int:
    """Remove what is left of the last run, then wait until its memory is back."""
    status = _status.StatusFile(instance)
    if not settings["secrets_file"]:  # of a deployment that had secrets
        (pathlib.Path("/") / _instance.INSTANCE_FOLDER / f"{instance}.env").unlink(missing_ok=True)

    def read() -> _gate.Reading:
        remove_leftover(_instance.container_name(instance))
        return _gate.Reading(_memory.meminfo(), _memory.processes(), _docker.running_ids(_command.run))

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
    return 0 if verdict.passed else 1


def remove_leftover(name: str) -> None:
    """Remove the container of an earlier run that did not end in order (power loss, a killed client)."""
    left = _docker.container(_command.run, name)
    if left is not None:
        say(f"removing the container {name} that is left from an earlier run (exit status {left.exit_code})")
        _command.run(["docker", "stop", "--time", str(_ENGINE_STOP_S), name])
        _command.run(["docker", "rm", "--force", name])


def ready(instance: str, settings: c.Mapping[str, t.Any]) -> int:
    """Wait until the instance answers a real completion; systemd calls the unit active only after that."""
    status = _status.StatusFile(instance)
    verdict = _probe.wait_until_ready(
        _probe.Options(
            url=settings["url"],
            model=settings["models"][0],
            kind=settings["kind"],
            api_key=secret(settings["secrets_file"], "VLLM_API_KEY"),
        ),
        timeout=float(settings["boot_timeout_s"]),
        process=_process_state.pid_check(int(os.environ.get("MAINPID") or 0)),
        progress=lambda line: announce(status, "ready", line),
    )
    if verdict.ready:  # which the last line of progress has said already
        return 0
    announce(status, "ready", f"{verdict.summary} {last_words(instance)}".strip(), failed=True)
    return 1


def last_words(instance: str) -> str:
    """Return why the engine failed, in its own words from the journal of this start; empty if it said nothing."""
    invocation = os.environ.get("INVOCATION_ID", "")
    unit = _instance.unit_name(instance)
    argv = ["journalctl", f"--unit={unit}", f"_SYSTEMD_INVOCATION_ID={invocation}", "--output=cat", "--no-pager"]
    _code, text, _err = _command.run([*argv, f"--lines={_JOURNAL_LINES}"], timeout_s=_JOURNAL_S)
    error = _boot_log.parse_boot_logs([_boot_log.Log(unit, text)]).first
    if error is not None:
        return f"The engine said: {error.message}"
    said = [line for line in text.splitlines() if line.startswith("docker: ") or " error: " in line]
    return f"It said: {said[-1]}" if said else ""


def secret(path: str, name: str) -> str:
    """Return a secret of the container from its environment file, empty where it has none."""
    if not path:
        return ""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return next((line.partition("=")[2] for line in lines if line.startswith(f"{name}=")), "")


def explain(instance: str, settings: c.Mapping[str, t.Any]) -> int:
    """Say in one line that the unit stays down, and why; say nothing while systemd is still trying."""
    unit = _instance.show(_command.run, _instance.unit_name(instance))
    # systemd calls this after every failed start. In the pause after it nobody knows yet whether there will be another
    # one, and a call that comes while this one is still running would be lost.
    waited = 0.0
    while unit.sub_state == "auto-restart" and waited < _PAUSE_LIMIT_S:
        time.sleep(_PAUSE_POLL_S)
        waited += _PAUSE_POLL_S
        unit = _instance.show(_command.run, unit.name)
    if not unit.given_up:
        return 0
    last = _status.StatusFile(instance).read()
    reason = last.message if last and last.failed else f"the engine ended by itself ({unit.result})"
    tries = int(settings["start_limit_burst"])
    _journal.error(
        unit.name,
        f"{unit.name} stays down after {tries} starts: {reason}. "
        f"See `journalctl -u {unit.name}`; when it is cured: `systemctl reset-failed {unit.name}` and start it.",
    )
    return 0


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
    finally:
        if wanted.env_file:
            pathlib.Path(wanted.env_file).unlink(missing_ok=True)
    announce(status, _status.DONE, "the checkpoint is complete")
    return 0


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

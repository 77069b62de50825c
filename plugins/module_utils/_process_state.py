# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Is the process behind a port there at all? Asked of systemd, of Docker or of /proc.

vLLM opens its port only when its engine is ready, so that a refused connection means "still starting" or "dead", and
only the process can tell which.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import pathlib
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _command
from ansible_collections.gb10.fleet.plugins.module_utils._openai_api import parse_json, pick

Life = t.Literal["alive", "restarting", "gone", "unknown"]
# argv, seconds -> exit status and standard output; None where the program is missing or did not end in time.
Run = t.Callable[[list[str], float], "tuple[int, str] | None"]

COMMAND_TIMEOUT_S = 5.0
# A unit's substates in which it has no main process, not yet or no more.
_WITHOUT_MAIN: t.Final[dict[str, Life]] = {
    "condition": "alive",
    "start-pre": "alive",
    "start": "alive",
    "start-post": "gone",
    "running": "gone",
}
_UNIT_PROPERTIES = "LoadState,ActiveState,SubState,MainPID,Result,ExecMainStatus,NRestarts"


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessState:
    """Whether the process lives; ``detail`` says how we know, in words."""

    life: Life
    detail: str

    @property
    def aside(self) -> str:
        """The detail as the end of a sentence, where there is anything to say."""
        return "" if self.life == "unknown" else f"; {self.detail}"

    @classmethod
    def from_unit(cls, shown: str) -> ProcessState:
        """Understand what ``systemctl show`` printed of a unit's properties."""
        unit = dict(line.partition("=")[::2] for line in shown.splitlines() if "=" in line)
        state, sub = unit.get("ActiveState", ""), unit.get("SubState", "")
        if unit.get("LoadState") == "not-found":
            return cls("gone", "systemd knows no unit of that name")
        has_main = unit.get("MainPID", "0") not in {"", "0"}
        ending = f"result {unit.get('Result') or '?'}, last exit status {unit.get('ExecMainStatus') or '?'}"
        if "auto-restart" in sub:
            return cls(
                "restarting", f"systemd will start the unit again ({unit.get('NRestarts', '?')} so far; {ending})"
            )
        if state in {"inactive", "failed", "deactivating"}:
            return cls("gone", f"the unit is {state} ({sub}; {ending})")
        if has_main:
            return cls("alive", f"the unit is {state} ({sub}), main process {unit['MainPID']}")
        life: Life = _WITHOUT_MAIN.get(sub, "unknown")
        why = {
            "alive": "what has to run before its main process still runs",
            "gone": f"its main process ended, {ending}",
        }
        return cls(life, f"the unit is {state} ({sub}): {why.get(life, 'it has no main process')}")

    @classmethod
    def from_container(cls, inspected: str) -> ProcessState:
        """Understand the State object of ``docker inspect``."""
        state = parse_json(inspected)
        status = pick(state, "Status")
        if status == "restarting":
            return cls("restarting", f"Docker restarts the container (last exit status {pick(state, 'ExitCode')})")
        if status in {"running", "created"}:
            return cls("alive", f"the container is {status}")
        if status == "paused":
            return cls("alive", "the container is paused")
        if status in {"exited", "dead", "removing"}:
            killed = ", killed for memory" if pick(state, "OOMKilled") is True else ""
            return cls("gone", f"the container is {status} (exit status {pick(state, 'ExitCode')}{killed})")
        return cls("unknown", "Docker did not say in which state the container is")

    @classmethod
    def from_stat(cls, stat: str) -> ProcessState:
        """Understand /proc/PID/stat; the command's name in it may itself hold spaces and brackets."""
        state = stat.rpartition(")")[2].split()[:1]
        if state in (["Z"], ["X"], ["x"]):
            return cls("gone", "the process has ended and waits to be reaped")
        if state in (["T"], ["t"]):
            return cls("alive", "the process is stopped by a signal")
        return cls("alive", "the process runs") if state else cls("unknown", "its stat file is empty")


def run_command(argv: list[str], timeout: float) -> tuple[int, str] | None:
    """Run a program that only reads; a daemon that hangs must not take the probe along."""
    code, out, _err = _command.run(argv, timeout_s=timeout)
    return None if code in {_command.NOT_FOUND, _command.TIMED_OUT} else (code, out)


def unit_check(unit: str, run: Run = run_command) -> t.Callable[[], ProcessState]:
    """Return a check of the main process of a systemd unit."""

    def check() -> ProcessState:
        answer = run(["systemctl", "show", f"--property={_UNIT_PROPERTIES}", "--", unit], COMMAND_TIMEOUT_S)
        if answer is None or answer[0] != 0:
            return ProcessState("unknown", "systemctl did not answer")
        return ProcessState.from_unit(answer[1])

    return check


def container_check(name: str, run: Run = run_command) -> t.Callable[[], ProcessState]:
    """Return a check of a Docker container."""

    def check() -> ProcessState:
        # inspect exits 1 for a missing container as it does for a missing daemon, so that the list is asked first.
        listed = ["docker", "container", "ls", "--all", f"--filter=name={name}", "--format={{.Names}}"]
        answer = run(listed, COMMAND_TIMEOUT_S)
        if answer is None or answer[0] != 0:
            return ProcessState("unknown", "Docker did not answer")
        if name not in answer[1].replace(",", "\n").split():
            return ProcessState("gone", "Docker knows no container of that name")
        answer = run(["docker", "container", "inspect", "--format={{json .State}}", name], COMMAND_TIMEOUT_S)
        if answer is None or answer[0] != 0:
            return ProcessState("unknown", "Docker did not answer")
        return ProcessState.from_container(answer[1])

    return check


def pid_check(pid: int, proc: pathlib.Path = pathlib.Path("/proc")) -> t.Callable[[], ProcessState]:
    """Return a check of one process, such as ``$MAINPID`` in ExecStartPost."""

    def check() -> ProcessState:
        if pid <= 0:
            return ProcessState("unknown", "no process number was given")
        try:
            return ProcessState.from_stat((proc / str(pid) / "stat").read_text("utf-8", "replace"))
        except (FileNotFoundError, ProcessLookupError):
            return ProcessState("gone", f"there is no process {pid}")
        except OSError:
            return ProcessState("unknown", f"process {pid} cannot be read")

    return check

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why a boot failed: the first error over all ranks and logs, and what it is known to mean.

The loudest error is often on the wrong rank: the one that fails says so once, its peers then complain about it for
minutes. So echoes are told apart from causes, and among causes the earliest counts.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._boot_causes import CAUSES, Cause
from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import shown

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._log_lines import LogLine

Kind = t.Literal["exception", "known", "logged"]

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?:(?:[A-Z]\w*)?(?:Error|Exception|Exit|Interrupt|Timeout)|cudaError\w+)(?::\s.*|:?$)"
    r"|^Fatal Python error: "
)
_TRACEBACK = "Traceback (most recent call last)"
# What announces an error, or repeats one from somewhere else.
_BANNERS = re.compile(
    r"^(?:EngineCore|WorkerProc|Worker|AsyncLLM|Engine core) ?"
    r"(?:failed to start|encountered a fatal error|hit an exception|output_handler failed)|"
    r"^Exception raised from|^\s|^$"
)
_ECHOES = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|EngineDeadError|died unexpectedly|"
    r"Failed core proc|See root cause above|See stack trace|EngineCore encountered an issue|"
    r"ProcessGroupNCCL|heartbeat|HeartbeatMonitor|sendBytes|recvBytes|recvValue|TCPStore|Broken pipe|"
    r"Connection (?:reset|closed) by peer|ncclRemoteError|NCCL watchdog|Watchdog caught|"
    r"DistNetworkError|DistStoreError|client socket has timed out|RPC call to \w+ timed out|"
    r"^(?:asyncio\.)?(?:exceptions\.)?CancelledError|^SystemExit|^KeyboardInterrupt|leaked (?:shared_memory|semaphore)|"
    r"^BrokenPipeError|^ConnectionResetError|^EOFError|Parent process exited"
)
# A message that was wrapped, or the second line of pydantic's.
_CONTINUES = re.compile(r"^[a-z0-9(]|^  Value error, ")
_MAX_MESSAGE: t.Final = 600
_SECRETS = re.compile(r"\bhf_[A-Za-z0-9]{8,}|\bsk-[A-Za-z0-9_-]{8,}|(?<=Bearer )\S+|(?<=api_key=)\S+|(?<=token=)\S+")


@dataclasses.dataclass(frozen=True, slots=True)
class BootError:
    """One error in a log: where, when and what, and whether it only echoes another one."""

    log: str
    message: str
    kind: Kind
    order: int
    process: str = ""
    rank: str = ""
    time: str = ""
    stamp: str = ""
    source: str = ""
    cause: Cause | None = None
    echo: bool = False

    @property
    def id(self) -> str:
        """Return the id of the finding that the error becomes."""
        return self.cause.id if self.cause else "BOOT_FAILED"

    @property
    def where(self) -> str:
        """Return log, process and rank in words."""
        parts = (self.log, self.process, f"rank {self.rank}" if self.rank else "")
        return ", ".join(part for part in parts if part)

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain data, the ``first_error`` of boot_log_info."""
        return {
            "id": self.id,
            "message": self.message,
            "log": self.log,
            "process": self.process,
            "rank": int(self.rank) if self.rank else None,
            "time": self.time or self.stamp,
            "source": self.source,
            "echo": self.echo,
            "numbers": self.cause.numbers(self.message) if self.cause else {},
        }

    def as_finding(self) -> Finding:
        """Return the finding: what it means where that is known, else the message itself."""
        if self.cause is None:
            remedy = "Read the log around this line; an echo of another rank's error is not the cause."
            return Finding("BOOT_FAILED", "error", f"The boot failed: {self.message}", self.where, remedy)
        evidence = f"{self.where}: {self.message}" if self.where else self.message
        return Finding(self.cause.id, "error", self.cause.meaning, evidence, self.cause.remedy)


def errors_of(log: str, lines: t.Sequence[LogLine]) -> list[BootError]:
    """Return the errors of one log in its order: exceptions, known messages, and lines of level ERROR."""
    errors: list[BootError] = []
    inside: set[str] = set()
    last: dict[str, int] = {}
    for order, line in enumerate(lines):
        text = line.message
        if _TRACEBACK in text:
            inside.add(line.writer)
            last.pop(line.writer, None)
            continue
        at = last.pop(line.writer, None)
        if at is not None and line.source in ("", errors[at].source) and _CONTINUES.match(text):
            errors[at] = _longer(errors[at], text)
            last[line.writer] = at
            continue
        kind = _kind(line, line.writer in inside)
        if kind is None:
            continue
        inside.discard(line.writer)
        errors.append(_error(log, line, order, kind=kind))
        if kind == "exception":
            last[line.writer] = len(errors) - 1
    return errors


def _kind(line: LogLine, inside: bool) -> Kind | None:
    """Tell what a line is: the end of a traceback, a message that is known for its meaning, or a logged error."""
    text = line.message
    if _EXCEPTION.match(text):
        return "exception"
    if inside:
        return None
    if line.level not in ("DEBUG", "INFO", "WARNING") and _cause(text):
        return "known"
    if line.level in ("ERROR", "CRITICAL", "FATAL") and not _BANNERS.match(text):
        return "logged"
    return None


def _error(log: str, line: LogLine, order: int, *, kind: Kind) -> BootError:
    message = shown(_SECRETS.sub("***", line.message.strip()), _MAX_MESSAGE)
    return BootError(
        log=log,
        message=message,
        kind=kind,
        order=order,
        process=line.process,
        rank=line.rank,
        time=line.time,
        stamp=line.stamp,
        source=line.source,
        cause=_cause(message),
        echo=bool(_ECHOES.search(message)),
    )


def _longer(error: BootError, text: str) -> BootError:
    """Return the error with one more line of its message."""
    message = shown(_SECRETS.sub("***", f"{error.message} {text.strip()}"), _MAX_MESSAGE)
    return dataclasses.replace(error, message=message, cause=_cause(message), echo=bool(_ECHOES.search(message)))


def _cause(message: str) -> Cause | None:
    return next((cause for cause in CAUSES if cause.pattern.search(message)), None)


def first_error(errors: t.Sequence[BootError]) -> tuple[BootError | None, bool]:
    """Return the error that all others follow from, and whether the order between logs is certain.

    Causes go before echoes, and what ended a process goes before what it merely logged.
    """
    for wanted in (_is_cause, _is_ending, _is_logged):
        found = [error for error in errors if wanted(error)]
        if found:
            certain, key = _clock(found)
            return min(found, key=key), certain
    return (errors[0] if errors else None), True


def _is_cause(error: BootError) -> bool:
    return not error.echo and (error.kind != "logged" or error.cause is not None)


def _is_ending(error: BootError) -> bool:
    return error.kind != "logged"


def _is_logged(error: BootError) -> bool:
    return not error.echo


def _clock(errors: t.Sequence[BootError]) -> tuple[bool, t.Callable[[BootError], tuple[t.Any, ...]]]:
    """Return how to order errors in time, by the one clock that all of them have."""
    if len({error.log for error in errors}) == 1:
        return True, lambda error: (error.order,)
    if all(error.time for error in errors):
        # Without a year: in a boot over New Year's Eve, January comes after December.
        turns = any(error.time.startswith("12-") for error in errors)
        return True, lambda error: (turns and error.time.startswith("01-"), error.time, error.order)
    if all(error.stamp for error in errors):
        return True, lambda error: (error.stamp, error.order)
    return False, lambda error: (error.order,)

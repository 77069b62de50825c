# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which errors of a log an engine did not survive.

A boot survives what it says before it is ready. An engine that serves complains of single requests (too long a prompt,
a tool call that cannot be parsed) with tracebacks as long as those that end it.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._boot_causes import ENDS_ENGINE
from ansible_collections.gb10.fleet.plugins.module_utils._boot_errors import BootError, errors_of

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._log_lines import LogLine

_READY = re.compile(r"Application startup complete\.")
_STOPS = re.compile(r"\[shutdown\] API server: shutdown triggered|^Shutting down$")
# A traceback with this frame is that of the program itself, which ends with it.
_PROGRAM_FRAME = r'^ +File "(?:[^"]*/bin/vllm|<frozen runpy>)"'
_PROGRAM = re.compile(_PROGRAM_FRAME)
# What is said when an engine or its server ends (vLLM 0.10.2 to 0.33.0, multiprocessing, C++ and Python's faulthandler;
# source and public logs read on 2026-11-30). A WorkerProc that hits an exception is not there: it may serve on.
_ENDS = re.compile(
    r"^EngineCore encountered a fatal error|^AsyncLLM output_handler failed|^(?:\w+\.)*EngineDeadError\b|"
    r"^(?:Worker proc|Engine core proc|RayWorkerProc) .{1,80}died unexpectedly|^(?:Ray)?WorkerProc failed|"
    r"^Process (?:EngineCore|Worker|VllmWorker)[\w-]*:|^terminate called after throwing|^Fatal Python error: |"
    + _PROGRAM_FRAME
)
# What is said of one request before its error (vLLM 0.10.2 to 0.33.0, uvicorn, asyncio; read on 2026-11-30).
_OF_A_REQUEST = re.compile(
    r"^Exception in ASGI application|^Error (?:in|with) |^(?:\w+ )?\w*(?:Exception|Error) caught\. Request id|"
    r"^Unexpected error pre-processing request|^Invocation of \S+ method failed|"
    r"^Failed to (?:compile grammar|advance FSM) for request|^Task exception was never retrieved"
)
# What stands between the two tracebacks of one error.
_CHAINED = re.compile(r"^During handling of the above exception|^The above exception was the direct cause")
_API_SERVER = re.compile(r"^Api ?Server", re.IGNORECASE)
_SERVES = re.compile(r'"POST \S+ HTTP/[\d.]+" 200\b|Avg generation throughput: (?!0\.0 )')


@dataclasses.dataclass(frozen=True, slots=True)
class Survival:
    """What became of the process behind one log: whether it was ever ready, whether it ended after, and of what."""

    ready: bool
    ended: bool
    errors: tuple[BootError, ...]


def survival(name: str, lines: t.Sequence[LogLine]) -> Survival:
    """Return the errors that were not survived: all where it never was ready, else those that end an engine.

    A log that begins after its server was ready is told by requests that were served. A server that is told to stop
    complains that its engine is gone; that is no error.
    """
    errors = errors_of(name, lines)
    ready, served = _last(_READY, lines), _last(_SERVES, lines)
    if ready < 0 and served < 0:
        return Survival(ready=False, ended=False, errors=tuple(errors))
    stop = next((at for at, line in enumerate(lines) if at > ready and _STOPS.search(line.message)), len(lines))
    of_requests = _places_of_requests(lines, {error.order for error in errors if error.kind == "exception"})
    after = [error for error in errors if error.order > ready and (error.echo or error.order not in of_requests)]
    ended = any(_ENDS.match(line.message) for line in lines[ready + 1 : stop])
    if ended:
        lasting = [error for error in after if not (error.echo and error.order > stop)]
    else:
        # The log may break off before the end is told. Of these errors no engine recovers, unless it serves on.
        lasting = [error for error in after if error.order > served and error.id in ENDS_ENGINE and not error.echo]
    return Survival(ready=True, ended=ended, errors=tuple(lasting))


def _last(rule: re.Pattern[str], lines: t.Sequence[LogLine]) -> int:
    """Return the place of the last line that fits, -1 where none does."""
    return next((at for at in range(len(lines) - 1, -1, -1) if rule.search(lines[at].message)), -1)


def _places_of_requests(lines: t.Sequence[LogLine], exceptions: t.Container[int]) -> set[int]:
    """Return the places of lines that tell of one request: what its error is announced by, and its tracebacks.

    An API server does nothing but answer requests, so that there only the traceback of the program itself is more.
    ``exceptions`` are the places where a traceback ends.
    """
    places: set[int] = set()
    # The source of the announcement, for each writer that is telling, or has just told, of a request.
    telling: dict[str, str] = {}
    told: dict[str, str] = {}
    programs: set[str] = set()
    for at, line in enumerate(lines):
        text, writer = line.message, line.writer
        if not text.strip():
            continue
        if _OF_A_REQUEST.match(text):
            telling[writer] = line.source
        elif _CHAINED.match(text) and writer in told:
            telling[writer] = told[writer]
        elif line.level in ("DEBUG", "INFO", "WARNING") or line.source != telling.get(writer, line.source):
            telling.pop(writer, None)
            told.pop(writer, None)
        elif _PROGRAM.match(text):
            programs.add(writer)
        if writer in telling or (_API_SERVER.match(line.process) and writer not in programs):
            places.add(at)
        if at in exceptions:
            programs.discard(writer)
            told.pop(writer, None)
            if writer in telling:
                told[writer] = telling.pop(writer)
    return places

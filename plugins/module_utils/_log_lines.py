# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lines of a vLLM log, freed from what terminal, container engine, journal and vLLM itself put before a message.

vLLM writes ``(EngineCore pid=281) INFO 09-11 09:52:02 [kv_cache_utils.py:1870] message``; the part in parentheses may
be missing, older releases colour it, and a line that a library prints has nothing else before it.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

# Some collectors drop the escape character and keep the rest of a colour.
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,12}[A-Za-z]|\[\d[0-9;]{0,12}m")
# The time that "docker logs --timestamps", "journalctl -o short-iso" or "-o short-unix" puts first.
_STAMP = re.compile(
    r"^(?P<stamp>\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?|\d{9,11}\.\d{1,9})"
    r"(?:\s+\||:)?(?:\s+|$)"
)
# The time of "journalctl -o short": a month, but no year.
_MONTH_DAY = re.compile(r"^[A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2} ")
_JOURNAL = re.compile(r"^\S+ [\w.@/-]+\[\d+\]: ?")
_COMPOSE = re.compile(r"^[\w.-]+ {0,8}\| ")
_PROCESS = re.compile(r"^\((?P<name>[A-Za-z][\w. ]*?)(?: rank=(?P<rank>\d+))? pid=(?P<pid>\d+)\)(?: |$)")
_RANK = re.compile(r"^\[rank(?P<rank>\d+)\]:? ?")
_LEVEL = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)(?::? +)"
    r"(?:(?P<time>\d{2}-\d{2} \d{2}:\d{2}:\d{2}(?:\.\d+)?|\.\.\.) +)?"
    r"(?:\[(?P<source>[\w./-]+:\d+)\](?: |$))?"
)
_TENSOR_RANK = re.compile(r"_TP(\d+)")
_MAX_LINE = 20_000


@dataclasses.dataclass(frozen=True, slots=True)
class LogLine:
    """One line: its message, and who wrote it when, as far as the line says.

    ``time`` is vLLM's own ``MM-DD HH:MM:SS``, ``stamp`` the one that journal or container engine put before it.
    """

    message: str
    level: str = ""
    process: str = ""
    pid: str = ""
    rank: str = ""
    time: str = ""
    stamp: str = ""
    source: str = ""

    @property
    def writer(self) -> str:
        """Return what tells processes apart whose lines are mixed."""
        return f"{self.process} {self.pid} {self.rank}"


def read_lines(text: str) -> list[LogLine]:
    """Split a log into lines; one without a time takes over that of the line before it from the same writer."""
    lines: list[LogLine] = []
    times: dict[str, str] = {}
    # A progress bar returns to the start of its line; a container's log keeps both.
    for raw in re.split(r"\r\n|\n|\r", text):
        line = read_line(raw[:_MAX_LINE])
        if line.time:
            times[line.writer] = times[""] = line.time
        elif times:
            line = dataclasses.replace(line, time=times.get(line.writer, times[""]))
        lines.append(line)
    return lines


def read_line(raw: str) -> LogLine:
    """Take one line apart."""
    text = _ANSI.sub("", raw).rstrip()
    stamp = ""
    match = _STAMP.match(text)
    if match:
        stamp, text = match["stamp"].replace(" ", "T"), text[match.end() :]
    else:
        text = _MONTH_DAY.sub("", text)
    if stamp or len(text) < len(raw.rstrip()):
        text = _JOURNAL.sub("", text)
    text = _COMPOSE.sub("", text)
    process = pid = rank = ""
    match = _PROCESS.match(text)
    if match:
        process, pid, rank = match["name"], match["pid"], match["rank"] or ""
        tensor = _TENSOR_RANK.search(process)
        rank = rank or (tensor[1] if tensor else "")
        text = text[match.end() :]
    match = _RANK.match(text)
    if match:
        rank, text = match["rank"], text[match.end() :]
    level = time = source = ""
    match = _LEVEL.match(text)
    if match:
        level, source = match["level"], match["source"] or ""
        time = match["time"] if match["time"] not in (None, "...") else ""
        text = text[match.end() :]
    return LogLine(text, level, process, pid, rank, time, stamp, source)


def joined(lines: t.Iterable[LogLine]) -> str:
    """Return the messages as one text in which a message that was wrapped over two lines is whole again."""
    return " ".join(line.message.strip() for line in lines)

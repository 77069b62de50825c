# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where a boot log comes from on a box: the journal of a systemd unit, or the log of a container.

Only the last boot is read, from its beginning: a server that has run for weeks has a long log, and what it said while
it booted stands at the front.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._guarded_json import shown

# argv, most bytes -> exit status and what the command printed to both outputs, in order.
Run = t.Callable[[list[str], int], "tuple[int, bytes]"]

MAX_BYTES: t.Final = 16 << 20
_TIMEOUT_S: t.Final = 120.0
_UNIT = re.compile(r"^[\w:.@\\-]{1,255}$")
_CONTAINER = re.compile(r"^[A-Za-z0-9][\w.-]{0,254}$")


class BootSourceError(ValueError):
    """There is no log to read; the message says why and what to do."""


def run_limited(argv: list[str], limit: int) -> tuple[int, bytes]:
    """Run a command and return its exit status and the first ``limit`` bytes that it prints."""
    source, sink = os.pipe()
    printed = bytearray()

    def collect() -> None:
        # Closing the pipe at the limit ends the command: the front is all that is wanted.
        with os.fdopen(source, "rb") as stream:
            printed.extend(stream.read(limit))

    reader = threading.Thread(target=collect)
    reader.start()
    try:
        with os.fdopen(sink, "wb") as end:
            status = subprocess.run(  # pylint: disable=ansible-bad-function  # run_command keeps all output in memory
                argv, stdin=subprocess.DEVNULL, stdout=end, stderr=subprocess.STDOUT, timeout=_TIMEOUT_S, check=False
            ).returncode
    except OSError as exc:
        message = f"{argv[0]} cannot be run ({exc.strerror}); install it, or give the log as text."
        raise BootSourceError(message) from None
    except subprocess.TimeoutExpired:
        raise BootSourceError(f"{argv[0]} did not answer within {_TIMEOUT_S:.0f} s.") from None
    finally:
        reader.join()
    return (0 if len(printed) == limit else status), bytes(printed)


def read_unit(unit: str, run: Run = run_limited) -> str:
    """Return what a systemd unit wrote since it last started."""
    if not _UNIT.match(unit):
        raise BootSourceError(f"{shown(unit)} is no name of a systemd unit.")
    name = unit if "." in unit else f"{unit}.service"
    status, printed = run(["systemctl", "show", "--property=LoadState,InvocationID", "--", name], MAX_BYTES)
    shows = dict(line.partition("=")[::2] for line in _text(printed).splitlines())
    if status != 0:
        raise BootSourceError(f"systemctl cannot show {name}: {shown(_text(printed).strip())}.")
    if shows.get("LoadState") == "not-found":
        raise BootSourceError(f"systemd knows no unit {name}; give the instance's unit, for example vllm-coordinator.")
    invocation = shows.get("InvocationID", "")
    if not re.fullmatch(r"[0-9a-f]{32}", invocation):
        raise BootSourceError(f"{name} has not run since the box booted, so it has no boot log; start it first.")
    argv = ["journalctl", "--no-pager", "--quiet", "--output=short-iso-precise", f"_SYSTEMD_INVOCATION_ID={invocation}"]
    status, printed = run(argv, MAX_BYTES)
    if status != 0 or not printed.strip():
        raise BootSourceError(f"The journal shows nothing of {name}'s last start; run the task with become.")
    return _text(printed)


def read_container(name: str, run: Run = run_limited) -> str:
    """Return what a container wrote since it last started."""
    if not _CONTAINER.match(name):
        raise BootSourceError(f"{shown(name)} is no name of a container.")
    template = "{{.State.StartedAt}} {{.HostConfig.LogConfig.Type}}"
    status, printed = run(["docker", "inspect", "--type=container", f"--format={template}", name], MAX_BYTES)
    started, _space, driver = _text(printed).strip().partition(" ")
    if status != 0:
        raise BootSourceError(f"Docker has no container {name}; give a container that is there, or its unit.")
    if driver == "none":
        raise BootSourceError(f"The container {name} keeps no log of its own; read the journal of its unit instead.")
    status, printed = run(["docker", "logs", "--timestamps", f"--since={started}", name], MAX_BYTES)
    if status != 0:
        raise BootSourceError(f"Docker cannot read the log of {name}: {shown(_text(printed).strip())}.")
    return _text(printed)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes a line into the journal of another unit, where the person who looks for it will look.

A unit that has stopped cannot speak for itself. A message of root with the field OBJECT_SYSTEMD_UNIT is shown by
"journalctl -u" of the unit that it names (systemd.journal-fields(7), journalctl(1)).

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import socket
import sys
import typing as t

_SOCKET: t.Final = "/run/systemd/journal/socket"
# A line that is lost is better than a daemon that hangs with the journal.
_SEND_S: t.Final = 2.0
_PRIORITY_ERROR: t.Final = 3
_PRIORITY_WARNING: t.Final = 4


def error(unit: str, message: str, path: str = _SOCKET) -> None:
    """Write one line of priority "error" about a unit; on a box without a journal, to standard output."""
    _write(unit, message, _PRIORITY_ERROR, path)


def warning(unit: str, message: str, path: str = _SOCKET) -> None:
    """Write one line of priority "warning" about a unit; on a box without a journal, to standard output."""
    _write(unit, message, _PRIORITY_WARNING, path)


def _write(unit: str, message: str, priority: int, path: str) -> None:
    line = " ".join(message.split())
    fields = {
        "MESSAGE": line,
        "PRIORITY": str(priority),
        "SYSLOG_IDENTIFIER": unit.removesuffix(".service"),
        "OBJECT_SYSTEMD_UNIT": unit,
    }
    packet = "".join(f"{name}={value}\n" for name, value in fields.items()).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
            journal.settimeout(_SEND_S)
            journal.sendto(packet, path)
    except TimeoutError:
        # Standard output goes to the same journal.
        return
    except OSError:
        sys.stdout.write(f"{line}\n")

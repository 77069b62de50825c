# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tells systemd that a daemon still works: one whose unit has WatchdogSec= is ended and started anew where it does not.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import typing as t

_SEND_S: t.Final = 2.0


def alive() -> None:
    """Say that this process works; say nothing where nobody waits for it (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A word that is lost is followed by the next one; one that blocks would itself be what hangs.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(_SEND_S)
        manager.sendto(b"WATCHDOG=1", "\0" + address[1:] if address.startswith("@") else address)

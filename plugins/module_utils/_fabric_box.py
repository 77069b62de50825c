# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The part of the program on a box that is about the fabric.

    fleet.pyz fabric apply SECONDS        put wanted.yaml in place; take it back without a word from outside
    fleet.pyz fabric return               take back what nobody has confirmed, as after a reboot in between
    fleet.pyz fabric verify SECONDS       wait until the twins are as they were set up, or say which are not
    fleet.pyz fabric sink SECONDS ADDRESS...   take what another box sends, to load the twins

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import argparse
import collections.abc as c
import time
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _command, _fabric_apply, _fabric_load, _fabric_state

_POLL_S: t.Final = 1.0


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Describe the commands to the program's parser."""
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("apply", "return", "verify", "sink"):
        command = commands.add_parser(name)
        if name != "return":
            command.add_argument("seconds", type=float)
        if name == "sink":
            command.add_argument("addresses", nargs="+")


def main(given: argparse.Namespace, say: c.Callable[[str], None]) -> int:
    """Run one of the commands."""
    attempt = _fabric_apply.Apply(_fabric_apply.Places(), say)
    if given.what == "apply":
        return attempt.apply(given.seconds)
    if given.what == "return":
        attempt.give_back("nobody has confirmed what netplan applied before this box was interrupted")
        return 0
    if given.what == "sink":
        _fabric_load.serve(given.addresses, given.seconds)
        return 0
    return verify(given.seconds, say)


def verify(seconds: float, say: c.Callable[[str], None]) -> int:
    """Wait until the twins are as they were set up; say in one line that they are, or what is wrong."""
    wanted = _fabric_state.read()
    deadline = time.monotonic() + seconds
    while (found := _fabric_state.faults(wanted, _command.run)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if not found:
        say(f"the fabric is as it was set up: {', '.join(f'{one.interface} {one.address}' for one in wanted)}")
        return 0
    say(f"the fabric is not as it was set up: {'; '.join(map(str, found))}")
    return 1

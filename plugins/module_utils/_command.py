# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs a command where there is no AnsibleModule to run it: in the program on the box, or with a time limit.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import subprocess
import typing as t

# What a shell reports for a program that is missing, and what timeout(1) reports.
NOT_FOUND: t.Final = 127
TIMED_OUT: t.Final = 124


def run(argv: list[str], *, stdin: str = "", timeout_s: float | None = None) -> tuple[int, str, str]:
    """Run a command and return its exit status, standard output and standard error, as run_command does.

    A program that cannot be started gives NOT_FOUND, one that takes longer than ``timeout_s`` seconds TIMED_OUT.
    """
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function  # run_command knows no time limit
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TIMED_OUT, "", f"{argv[0]} did not end within {timeout_s:g} s"
    except OSError as error:
        return NOT_FOUND, "", f"{argv[0]}: {error.strerror}"
    return done.returncode, done.stdout, done.stderr

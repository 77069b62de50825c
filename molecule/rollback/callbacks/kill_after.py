# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kills ansible-playbook between two tasks, as an operator, a CI runner or the kernel does it."""

from __future__ import annotations

import os
import signal

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: kill_after
type: aggregate
short_description: kills ansible-playbook between two tasks
description:
  - Kills the whole process group before the task that follows the one of number GB10_TEST_KILL_AFTER, counted from 1.
"""


class CallbackModule(CallbackBase):
    """Counts tasks, and ends all at once."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "kill_after"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._left = int(os.environ.get("GB10_TEST_KILL_AFTER", "0"))

    def v2_playbook_on_task_start(self, task: object, is_conditional: bool) -> None:
        """A task begins, so the one before it has ended."""
        del task, is_conditional
        if self._left == 0:
            os.killpg(os.getpgid(0), signal.SIGKILL)
        self._left -= 1

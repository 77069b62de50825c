# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs a module step by step until its work is finished, and shows meanwhile what it says of its progress.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

_display = Display()


class ProgressAction(ActionBase):
    """An action whose module takes O(begin) and O(step), and returns C(finished) and C(progress)."""

    _supports_check_mode = True
    _supports_async = False
    # What the module works on, for the line that is shown.
    _subject: t.ClassVar[str] = "name"

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Begin the work, then look at it until it is finished or has failed."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        host = str((task_vars or {}).get("inventory_hostname"))
        subject = str(self._task.args.get(self._subject, ""))
        args, begin, said = dict(self._task.args), True, ""
        while True:
            step = self._execute_module(module_args={**args, "begin": begin}, task_vars=task_vars)
            if begin and step.get("diff"):
                result["diff"] = step["diff"]
            if step.get("failed") or step.get("unreachable") or step.get("finished", True):
                # What the first step changed is changed, whatever the last one says of itself.
                changed = bool(step.get("changed")) or not begin
                return {**step, **result, "changed": changed}
            if step.get("progress") != said:
                said = str(step.get("progress"))
                about = f"{host}: {subject}" if subject else host
                _display.display(f"  {about}: {said}", color="bright gray")
            args, begin = self._following(args, step), False

    def _following(self, args: dict[str, t.Any], _step: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """Return what the steps after the first one are given."""
        return args

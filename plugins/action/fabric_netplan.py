# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Confirms over a connection that began after netplan was applied, however often the one before was cut."""

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

_POLL_S: t.Final = 1.0
# Beside the window: netplan itself, on the way there and back, and connections that take their time to fail.
_MARGIN_S: t.Final = 180.0


class ActionModule(ActionBase):
    """See plugins/modules/fabric_netplan.py for what it takes and returns."""

    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Run the module; with ``state: confirmed``, once netplan is done and the box is reached anew."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        if self._task.args.get("state") != "confirmed" or self._task.check_mode:
            return {**result, **self._execute_module(task_vars=task_vars)}
        seconds = float(self._task.args.get("window", 60)) + _MARGIN_S
        deadline = time.monotonic() + seconds
        reason = "netplan was not done"
        while time.monotonic() < deadline:
            try:
                looked = self._anew({"state": "applied"}, task_vars)
                if not looked.get("applying", False):
                    return {**result, **self._anew(self._task.args, task_vars)}
            except AnsibleConnectionFailure as error:
                reason = str(error)
            time.sleep(_POLL_S)
        message = f"The box was not reached within {seconds:g} s after its network was changed: {reason}"
        return {**result, "failed": True, "msg": f"{message}. It goes back by itself."}

    def _anew(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        """Run the module over a connection of its own."""
        self._connection.reset()
        found: dict[str, t.Any] = self._execute_module(module_args=arguments, task_vars=task_vars)
        return found

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Gives the module of the same name the ladder of figures, which the controller knows and a box does not."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.gb10.fleet.plugins.plugin_utils._fabric_facts import nccl_ladder


class ActionModule(ActionBase):
    """See plugins/modules/nccl_info.py for what it takes and returns."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Run the module with the shipped ladder, where the task brings none."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        arguments = {"ladder": nccl_ladder(), **self._task.args}
        return {**result, **self._execute_module(module_args=arguments, task_vars=task_vars)}

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Gives cubin_info the tables that lie on the controller: modules carry code to a host, and no data files."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.gb10.fleet.plugins.plugin_utils import _kernel_families


class ActionModule(ActionBase):  # type: ignore[misc,unused-ignore]
    """Fill in what the user left out, and run the module."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Run cubin_info on the host."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        arguments = {key: value for key, value in self._task.args.items() if value is not None}
        result.update(
            self._execute_module(
                module_name="gb10.fleet.cubin_info",
                module_args={**_kernel_families.load(), **arguments},
                task_vars=task_vars,
            )
        )
        return result

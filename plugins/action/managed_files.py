# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Renders the templates of the module of the same name, and hands it all files at once."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gb10.fleet.plugins.plugin_utils import _templates


class ActionModule(ActionBase):
    """See plugins/modules/managed_files.py for what it takes and returns."""

    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Render, then run the module once."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        files = self._task.args.get("files")
        if not isinstance(files, list):
            raise AnsibleActionFail("managed_files: files has to be a list of mappings, each with dest and content.")
        if not files:
            return {**result, "changed": False, "written": []}
        rendered = [_templates.rendered(self, one, task_vars or {}) for one in files]
        return {**result, **self._execute_module(module_args={"files": rendered}, task_vars=task_vars)}

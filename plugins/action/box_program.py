# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packs the collection's program and copies it to the box."""

from __future__ import annotations

import hashlib
import pathlib
import tempfile
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.gb10.fleet.plugins.plugin_utils import _box_program


class ActionModule(ActionBase):
    """See plugins/modules/box_program.py for what it takes and returns."""

    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Pack, ask the box whether it has that program, and copy it where it has not."""
        super().run(tmp, task_vars)
        _result, options = self.validate_argument_spec({"dest": {"type": "path", "required": True}})
        program = _box_program.program()
        wanted = {"dest": options["dest"], "sha256": hashlib.sha256(program).hexdigest()}
        found: dict[str, t.Any] = self._execute_module(module_args=wanted, task_vars=task_vars)
        return found if found.get("failed") or found.get("present") else self._copy(program, options["dest"], task_vars)

    def _copy(self, program: bytes, dest: str, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        """Let Ansible's own copy do it: it knows check mode and permissions."""
        with tempfile.TemporaryDirectory(prefix="gb10-fleet-") as folder:
            packed = pathlib.Path(folder) / "fleet.pyz"
            packed.write_bytes(program)
            task = self._task.copy()
            task.args = {"src": str(packed), "dest": dest, "mode": "0755", "owner": "root", "group": "root"}
            copy = self._shared_loader_obj.action_loader.get(
                "ansible.legacy.copy",
                task=task,
                connection=self._connection,
                play_context=self._play_context,
                loader=self._loader,
                templar=self._templar,
                shared_loader_obj=self._shared_loader_obj,
            )
            result: dict[str, t.Any] = copy.run(task_vars=task_vars)
        return result

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packs the collection's program and copies it to the box."""

from __future__ import annotations

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
        """Pack, and let Ansible's own copy do the rest: it knows check mode, backups and permissions."""
        super().run(tmp, task_vars)
        _result, options = self.validate_argument_spec({"dest": {"type": "path", "required": True}})
        with tempfile.TemporaryDirectory(prefix="gb10-fleet-") as folder:
            packed = pathlib.Path(folder) / "fleet.pyz"
            packed.write_bytes(_box_program.program())
            task = self._task.copy()
            task.args = {"src": str(packed), "dest": options["dest"], "mode": "0755", "owner": "root", "group": "root"}
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

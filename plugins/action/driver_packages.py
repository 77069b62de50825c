# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shows the progress of the module of the same name."""

from __future__ import annotations

import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils._progress import ProgressAction


class ActionModule(ProgressAction):
    """See plugins/modules/driver_packages.py for what it takes and returns."""

    _subject: t.ClassVar[str] = "branch"

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Run it step by step; a plan changes nothing, however long somebody else had to be waited for."""
        result = super().run(tmp, task_vars)
        if self._task.args.get("state") == "planned" and not result.get("failed"):
            result["changed"] = False
        return result

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Renders the templates of the module of the same name, and shows its progress."""

from __future__ import annotations

import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils import _templates
from ansible_collections.gb10.fleet.plugins.plugin_utils._progress import ProgressAction


class ActionModule(ProgressAction):
    """See plugins/modules/vllm_deployment.py for what it takes and returns."""

    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Render once, then run the module until the switch has ended."""
        files = self._task.args.get("files") or []
        self._task.args["files"] = [_templates.rendered(self, one, task_vars or {}) for one in files]
        return super().run(tmp, task_vars)

    def _following(self, args: dict[str, t.Any], step: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """Wait for the generation that the first step has found, whatever counts as the previous one by then."""
        return {**args, "generation": step["generation"]}

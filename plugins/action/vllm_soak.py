# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shows the progress of the module of the same name."""

from __future__ import annotations

import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils._progress import ProgressAction


class ActionModule(ProgressAction):
    """See plugins/modules/vllm_soak.py for what it takes and returns."""

    _subject: t.ClassVar[str] = "instance"

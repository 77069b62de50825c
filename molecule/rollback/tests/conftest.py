# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the deployment is killed after every single task, or after those that are near the switch."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def every_task() -> bool:
    """GB10_TEST_EVERY_TASK=1 takes a quarter of an hour; without it, the boundaries around the switch are tried."""
    return os.environ.get("GB10_TEST_EVERY_TASK", "") not in {"", "0"}

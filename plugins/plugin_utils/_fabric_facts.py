# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is known of fabrics between Sparks, as dated data.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import copy
import functools
import pathlib
import typing as t

import yaml

_LADDER: t.Final = pathlib.Path(__file__).parent / "data" / "nccl_ladder.yml"


@functools.cache
def _ladder() -> dict[str, t.Any]:
    ladder: dict[str, t.Any] = yaml.safe_load(_LADDER.read_text(encoding="utf-8"))
    return {key: value for key, value in ladder.items() if key != "read"}


def nccl_ladder() -> dict[str, t.Any]:
    """Return what bandwidths mean, as the module nccl_info takes it."""
    return copy.deepcopy(_ladder())

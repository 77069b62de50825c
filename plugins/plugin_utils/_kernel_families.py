# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The table of kernel families, and what else cubin_info knows about versions.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import functools
import typing as t
from pathlib import Path

import yaml

from ansible_collections.gb10.fleet.plugins.module_utils._cubin import Family

TABLE = Path(__file__).parent / "data" / "kernel_families.yml"
# What only a reader of the table wants to know stays here: it would only fill the request.
_PROSE = ("source", "date")


@functools.cache
def load() -> dict[str, t.Any]:
    """Return the parameters of cubin_info that are data: families, packages, jit_targets and one version."""
    data = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    families = [{key: value for key, value in row.items() if key not in _PROSE} for row in data["families"]]
    for row in families:
        row["match"] = {str(major): alternatives for major, alternatives in row["match"].items()}
        Family.from_dict(row)
    return {
        "families": families,
        "packages": data["packages"],
        "jit_targets": data["jit_targets"],
        "flashinfer_cubin_ignored_since": data["flashinfer_cubin_ignored_since"],
    }

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One plan for all ranks of a serving group: the pool is the smallest that any of its boxes has room for.

vLLM takes the minimum over ranks by itself (v1/core/kv_cache_utils.py, get_kv_cache_configs, read in 0.26.0 on
2026-11-29): a larger pool on one box would be reserved there and never used.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import _fabric_layout

_SHARED: t.Final = ("kv_cache_memory_bytes", "gpu_memory_utilization")


def same_pools(
    instances: c.Sequence[c.Mapping[str, t.Any]], plans: c.Mapping[str, c.Mapping[str, t.Any]]
) -> list[dict[str, t.Any]]:
    """Return the instances of a box with the pools that its serving group has agreed on; ``plans`` are by box.

    An instance whose own plan is the smallest already, or whose group is not planned as a whole, is left as it is.
    """
    return [{**one, **_agreed(one, plans)} for one in instances]


def _agreed(instance: c.Mapping[str, t.Any], plans: c.Mapping[str, c.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    members = instance.get("serving_group", {}).get("members", [])
    planned = [plans.get(one["box"], {}).get("instances", {}).get(instance["name"], {}) for one in members]
    found = {}
    for key in _SHARED:
        values = [one.get(key) for one in planned]
        if values and None not in values and len(set(values)) > 1:
            found[key] = min(values)
    if found:
        # A pool that was computed from a fraction, and a fraction that a pool was computed for, go together.
        found = {key: min(one[key] for one in planned) for key in _SHARED}
    return found


def layout_findings(instance: c.Mapping[str, t.Any], checkpoint: c.Mapping[str, t.Any]) -> list[Finding]:
    """Return what of the model forbids to deal it out to the ranks: attention heads, KV heads, layers."""
    tensor = int(instance.get("tensor_parallel_size") or 1)
    pipeline = int(instance.get("pipeline_parallel_size") or 1)
    found = _fabric_layout.model_findings(tensor, pipeline, checkpoint.get("geometry") or {})
    # A memory plan speaks in whole sentences.
    return [
        dataclasses.replace(one, message=f"{one.message}.", remedy=f"{one.remedy[:1].upper()}{one.remedy[1:]}.")
        for one in found
    ]

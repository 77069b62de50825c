# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Joins what was observed of a box and what its inventory wants, and plans its memory with both.

The sizes come from what does not change between two runs (the pool, the checkpoint, the limits of the model role).
What happens to be free right now decides only whether the plan can be carried out, never what it says.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections.abc as c
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._finding import Finding
from ansible_collections.gb10.fleet.plugins.plugin_utils import (
    _flag_policy,
    _group_plan,
    _image_kernels,
    _known_findings,
    _vllm_cli,
)
from ansible_collections.gb10.fleet.plugins.plugin_utils._memory_plan import plan_memory

# vLLM flags that a model role gives in "args" and that the size of its cache depends on.
_SIZING_FLAGS: t.Final = (
    "max_num_batched_tokens",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "load_format",
    "async_scheduling",
)


def box_plan(
    instances: c.Sequence[c.Mapping[str, t.Any]],
    *,
    memory: c.Mapping[str, t.Any],
    observed: c.Mapping[str, t.Any],
    checkpoints: c.Mapping[str, c.Mapping[str, t.Any]],
    host_reserve_bytes: int,
    images: c.Mapping[str, c.Mapping[str, t.Any]] | None = None,
    today: str = "",
) -> dict[str, t.Any]:
    """Return the plan of a box: ``instances`` by name, ``box``, ``findings`` and ``verdict``.

    ``checkpoints`` holds what checkpoint_info returned, by the name of the instance; ``images`` what cubin_info
    returned, by the reference of the image, where an image was looked at. Each planned instance also says what its boot
    has to show (``expects``). With a day (``today``) the dated facts that only the checkpoint decides are judged, too.
    """
    pool = {
        "total_bytes": memory["total_bytes"],
        "available_bytes": memory["available_bytes"],
        "platform": "cpu" if observed["gpu"] == "none" else "gb10",
        "holders": _holders(memory, observed),
        # A switch stops what the inventory does not name any more before it starts anything.
        "leaving": [state["unit"] for state in observed["instances"].values()],
    }
    wanted = [_entry(one, checkpoints.get(one["name"], {})) for one in instances]
    plan = plan_memory(pool, wanted, host_reserve_bytes=host_reserve_bytes)
    planned = {one["name"]: _planned(one, host_reserve_bytes) for one in plan["instances"]}
    findings = list(plan["findings"])
    for one in instances:
        checkpoint = checkpoints.get(one["name"], {})
        image = (images or {}).get(one["image"]["reference"])
        judged = _image_kernels.judge(one, checkpoint, image)
        planned[one["name"]] |= {"expects": dict(judged.expects), "image_seen": image is not None}
        found = [*_group_plan.layout_findings(one, checkpoint), *judged.findings]
        if today and checkpoint:
            found += _known_findings.checkpoint_findings(one, checkpoint, today)
        findings += [_of_instance(one["name"], finding) for finding in found]
    verdict = "refused" if any(one["severity"] == "error" for one in findings) else plan["verdict"]
    return {**plan, "instances": planned, "findings": findings, "verdict": verdict}


def _of_instance(name: str, finding: Finding) -> dict[str, str]:
    return {**finding.as_dict(), "message": f"Instance {name}: {finding.message}"}


def _entry(instance: c.Mapping[str, t.Any], checkpoint: c.Mapping[str, t.Any]) -> dict[str, t.Any]:
    args = _vllm_cli.plain_args(instance["args"])
    entry: dict[str, t.Any] = dict(instance)
    entry |= {name: args[name] for name in _SIZING_FLAGS if name in args}
    extra = _flag_policy.extra_bytes(args)
    entry["kv_offload_bytes"] = extra.pop("kv_offloading_size", 0) or _offloaded(args)
    entry["extra_bytes"] = extra
    entry["prefix_caching"] = _caches_prefixes(args)
    entry["layer_partition"] = instance["env"].get("VLLM_PP_LAYER_PARTITION")
    entry["context_may_exceed"] = bool(args.get("hf_overrides")) or _allows_long(instance["env"])
    if checkpoint:
        entry |= {
            "geometry": checkpoint["geometry"],
            "scheme": checkpoint["scheme"],
            # Before a download only the index of the shards says how large they are.
            "weights_bytes": checkpoint["weights_bytes_total"] or checkpoint.get("weights_bytes_declared"),
            "expert_bytes": checkpoint["part_bytes"].get("experts"),
            "part_bytes": checkpoint["part_bytes"],
            # Facts of an earlier run may lack it.
            "layer_bytes": checkpoint.get("layer_bytes"),
            "lm_head_tied": checkpoint.get("lm_head_tied"),
        }
    return entry


def _caches_prefixes(args: c.Mapping[str, t.Any]) -> bool:
    """Return whether prefixes are cached, under whichever name the release has for it."""
    off = ("no_enable_prefix_caching", "disable_prefix_caching")
    return bool(args.get("enable_prefix_caching", True)) and not any(args.get(name) for name in off)


def _allows_long(env: c.Mapping[str, t.Any]) -> bool:
    return str(env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0")).lower() in {"1", "true"}


def _offloaded(args: c.Mapping[str, t.Any]) -> int:
    """Return how many bytes of KV cache a connector keeps beside the pool, over all ranks.

    vllm/v1/kv_offload/cpu/spec.py of 0.32.0: cpu_bytes_to_use of the native connector, to which kv_offloading_size
    (counted by the policy) comes down, too.
    """
    config = args.get("kv_transfer_config")
    extra = config.get("kv_connector_extra_config") if isinstance(config, c.Mapping) else None
    given = extra.get("cpu_bytes_to_use") if isinstance(extra, c.Mapping) else None
    return int(_flag_policy.number(given))


def _holders(memory: c.Mapping[str, t.Any], observed: c.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    """Return who holds memory: our own units with what was planned for them, everybody else with what they hold.

    Processes of vLLM are those of our units, unless none of these runs.
    """
    own = [
        {"name": state["unit"], "unit": state["unit"], "bytes": state["memory_bytes"]}
        for state in observed["instances"].values()
        if state["running"]
    ]
    others = [
        {"name": one["name"], "pid": one["pid"], "bytes": one["bytes"]}
        for one in memory["holders"]
        if not (one["vllm"] and own)
    ]
    return own + others


def _planned(planned: c.Mapping[str, t.Any], host_reserve_bytes: int) -> dict[str, t.Any]:
    numbers = planned["numbers"]
    return {
        **planned,
        "memory_bytes": numbers["total"]["value"] if "total" in numbers else 0,
        # What the start gate asks for: the highest point of the boot, and the host's reserve on top.
        "memory_floor_bytes": numbers["boot_peak"]["value"] + host_reserve_bytes if "boot_peak" in numbers else 0,
    }

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The speed class that memory bandwidth allows: bytes read per generated token over bytes per second.

A roofline is a ceiling, not a forecast: it knows nothing of kernels, of speculation or of batches.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils._plan_inputs import GIB, Instance, Number, facts

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_cache import KvLayout


def roofline(instance: Instance, weights: int, layout: KvLayout | None, platform: str) -> dict[str, Number]:
    """Return the weights read per token and the ceilings of tokens per second that follow; {} where not known."""
    fact = facts()["platforms"][platform]
    bandwidth = fact["bandwidth_bytes_per_s"]
    # A token passes all stages of a pipeline, one after the other.
    if instance.pipeline > 1:
        ranks = instance.request.tensor_parallel_size
        weights = instance.pipeline * weights if instance.measured_weights else -(-instance.weights_bytes // ranks)
    active = _active_bytes(instance, weights)
    if not bandwidth or active is None:
        return {}
    value, reason = active
    numbers = {
        "active_bytes_per_token": Number(value, "bytes", reason, None),
        "decode_ceiling": Number(
            round(bandwidth / value, 1),
            "tokens/s",
            f"{value / GIB:.2f} GiB of weights read per token at {bandwidth / 1e9:g} GB/s, one sequence, short context",
            None,
        ),
    }
    if layout is not None:
        # What a full context holds is read again for each token of it.
        cache = layout.blocks_per_request * layout.pool.bytes_per_block
        numbers["decode_ceiling_full_context"] = Number(
            round(bandwidth / (value + cache), 1),
            "tokens/s",
            f"the same with {cache / GIB:.2f} GiB of cache for {layout.max_model_len} tokens",
            None,
        )
    return numbers


def _active_bytes(instance: Instance, weights: int) -> tuple[int, str] | None:
    geometry = instance.geometry
    if geometry is None:
        return None
    if not geometry.experts:
        return weights, "a dense model reads all its weights for every token"
    if not instance.expert_bytes or not geometry.experts_per_token or not instance.weights_bytes:
        return None
    experts = weights * instance.expert_bytes / instance.weights_bytes
    active = round(weights - experts + experts * geometry.experts_per_token / geometry.experts)
    return active, f"{geometry.experts_per_token} of {geometry.experts} experts and everything else"

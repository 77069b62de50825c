# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""vLLM's own arithmetic of the KV cache: blocks, tokens and concurrency for a number of bytes, to the token.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_groups import Pool, build_pool, stage_bytes
from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_rules import KvUnsupportedError, rules_for
from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_specs import KvRequest, layer_specs, staged_specs

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import ModelGeometry

__all__ = ["KvFit", "KvLayout", "KvRequest", "KvTooSmall", "KvUnsupportedError", "kv_layout"]

GIB = 1 << 30

# RoPE that only sizes a table, so that a longer context does not change what it computes
# (vllm/config/speculative.py, read in 0.33.0 on 2026-11-29).
_STRETCHABLE_ROPE = frozenset({"default", "linear", "llama3", "ntk", "proportional"})


@dataclasses.dataclass(frozen=True, slots=True)
class KvFit:
    """What a pool holds: vLLM's "GPU KV cache size" and "Maximum concurrency" lines."""

    block_size: int
    bytes_per_block: int
    num_blocks: int
    tokens: int
    max_concurrency: float
    blocks_per_request: int


@dataclasses.dataclass(frozen=True, slots=True)
class KvTooSmall:
    """Why a pool is refused at the start: what one request of full length needs, and the longest that fits."""

    needed_bytes: int
    estimated_max_len: int

    @property
    def need_gib(self) -> float:
        """Return the need as vLLM prints it."""
        return round(self.needed_bytes / GIB, 2)


@dataclasses.dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape of a cache before its size is known. ``note`` says which rules stand in for a version not read.

    ``stages`` has the bytes of one block on each stage of a pipeline, ``stage`` is the one of this layout. It is
    empty without a pipeline, and where a stage's part is not known.
    """

    block_size: int
    max_model_len: int
    in_flight: int
    pool: Pool
    null_block_reserved: bool
    note: str
    stages: tuple[int, ...] = ()
    stage: int = 0

    @property
    def bytes_per_block(self) -> int:
        """Return the bytes that one block takes over all groups of layers, on the stage where it takes the most.

        All ranks are given the same bytes, and take the fewest blocks that any of them has.
        """
        return max(self.stages) if self.stages else self.pool.bytes_per_block

    @property
    def own_bytes_per_block(self) -> int:
        """Return the bytes that one block takes on the stage of this layout."""
        return self.stages[self.stage] if self.stages else self.pool.bytes_per_block

    def held(self, kv_bytes: int) -> int:
        """Return what this rank holds of a cache of so many bytes: a stage with fewer layers holds less."""
        return kv_bytes // self.bytes_per_block * self.own_bytes_per_block if self.stages else kv_bytes

    def from_own(self, room: int) -> int:
        """Return the bytes to ask for, in whole blocks, so that this rank holds no more than ``room``."""
        if not self.own_bytes_per_block:
            return room // self.bytes_per_block * self.bytes_per_block
        return room // self.own_bytes_per_block * self.bytes_per_block

    @property
    def blocks_per_request(self) -> int:
        """Return the blocks that a request of full length takes."""
        return self.pool.blocks(self.max_model_len, self.in_flight)

    def minimum_bytes(self, length: int | None = None) -> int:
        """Return the smallest cache with which vLLM starts, for the full context or for a shorter one."""
        return self._needed(self.max_model_len if length is None else length) + self._reserved()

    def bytes_for(self, sequences: int, length: int | None = None) -> int:
        """Return the smallest cache that holds this many sequences of full length (or of ``length``) at a time."""
        blocks = sequences * self.pool.blocks(self.max_model_len if length is None else length, self.in_flight)
        return max(blocks * self.bytes_per_block, self.minimum_bytes(length))

    def fit(self, kv_bytes: int) -> KvFit | KvTooSmall:
        """Return what a cache of this many bytes per rank holds, or why vLLM refuses it."""
        budget = kv_bytes - self._reserved()
        needed = self._needed(self.max_model_len)
        if needed > budget:
            return KvTooSmall(needed, self.longest(kv_bytes))
        num_blocks = kv_bytes // self.bytes_per_block
        concurrency = num_blocks / self.blocks_per_request
        return KvFit(
            block_size=self.block_size,
            bytes_per_block=self.bytes_per_block,
            num_blocks=num_blocks,
            # A float is what vLLM multiplies and cuts off, too.
            tokens=int(concurrency * self.max_model_len),
            max_concurrency=concurrency,
            blocks_per_request=self.blocks_per_request,
        )

    def longest(self, kv_bytes: int) -> int:
        """Return the longest context, up to the one asked for, that a cache of this many bytes starts with; 0: none."""
        budget = kv_bytes - self._reserved()
        low, high = 0, self.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            if self._needed(middle) <= budget:
                low = middle
            else:
                high = middle - 1
        return low

    def _needed(self, length: int) -> int:
        """Return the bytes that one request needs in the check before the start."""
        if self.stages:
            return self.pool.blocks(length, self.in_flight) * self.bytes_per_block
        return self.pool.needed_bytes(length, self.in_flight)

    def _reserved(self) -> int:
        return self.bytes_per_block if self.null_block_reserved else 0


@functools.lru_cache(maxsize=4096)
def kv_layout(geometry: ModelGeometry, request: KvRequest) -> KvLayout:
    """Return the shape of an engine's cache on one rank; raise KvUnsupportedError where it is not known."""
    rules = rules_for(request.vllm)
    length = request.max_model_len
    if (
        rules.draft_limits_context
        and request.num_speculative_tokens
        and request.draft is None
        and geometry.max_model_len
        and geometry.rope_type not in _STRETCHABLE_ROPE
    ):
        length = min(length, geometry.max_model_len)
        request = dataclasses.replace(request, max_model_len=length)
    specs, block_size = layer_specs(geometry, request, rules)
    staged = staged_specs(geometry, request, rules)
    mode = "async" if request.async_scheduling else "sync"
    return KvLayout(
        block_size=block_size,
        max_model_len=length,
        in_flight=rules.batches_in_flight[mode] * request.max_num_batched_tokens,
        pool=build_pool(specs, rules),
        null_block_reserved=rules.null_block_reserved,
        note=rules.note,
        stages=stage_bytes(specs, staged, len(request.stage_layers), rules),
        stage=request.stage,
    )

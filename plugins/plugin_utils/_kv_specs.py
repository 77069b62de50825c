# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What each layer of a model costs in vLLM's cache: tokens per block, bytes per block, blocks per request.

Note that this plugin util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import math
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._model_layers import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    IndexedAttention,
    KimiDelta,
    LatentAttention,
    LayerCount,
    Mamba2,
    NoCache,
    Recurrent,
    SparseLatentAttention,
)
from ansible_collections.gb10.fleet.plugins.plugin_utils._kv_rules import (
    KvIndivisibleError,
    KvRules,
    KvUnsupportedError,
)
from ansible_collections.gb10.fleet.plugins.plugin_utils._pipeline import stages_of

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._model_geometry import ModelGeometry

# Bytes of one element. A model runs in two bytes whatever its checkpoint says, unless --dtype float32 is forced.
_KV_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
_STATE_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}

# fp8_ds_mla, DeepSeek's own layout of a latent vector (vllm/v1/kv_cache_interface.py, read in 0.26.0 to 0.33.0 on
# 2026-11-29): 512 fp8 + 64 bf16 + 16 scales for V3.2, 448 fp8 + 64 bf16 + 8 scales for V4.
_SPARSE_LATENT_BYTES = {(512, 64): 656}
_COMPRESSED_BYTES = {(512, 64): 584}
# DeepSeek-V4 aligns its pages for the kernels.
_COMPRESSED_ALIGNMENT = 576
# Tokens of a block of the sliding window and of the compressor's state, by compression ratio (vllm/models/deepseek_v4).
_WINDOW_BLOCK = 64
_COMPRESSOR_BLOCK = {4: 4, 128: 8}


def ceil_div(value: int, by: int) -> int:
    """Divide, rounding up."""
    return -(-value // by)


def round_up(value: int, to: int) -> int:
    """Round up to a multiple."""
    return ceil_div(value, to) * to


@dataclasses.dataclass(frozen=True, slots=True)
class KvRequest:
    """The settings that decide how much cache one rank of an engine holds, under vLLM's own names.

    ``draft`` holds the cache layers of a draft model that is not part of the checkpoint (EAGLE, DFlash); None means the
    checkpoint's own MTP module. An n-gram drafter has no layers: an empty tuple.

    ``stage_layers`` has the number of layers of each stage of a pipeline, and ``stage`` is the one that is asked about;
    with one stage or none nothing is dealt out.
    """

    vllm: str
    max_model_len: int
    max_num_batched_tokens: int = 8192
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    num_speculative_tokens: int = 0
    prefix_caching: bool = True
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    async_scheduling: bool = True
    gdn_prefill_backend: str = "auto"
    platform: str = "gb10"
    draft: tuple[LayerCount, ...] | None = None
    stage_layers: tuple[int, ...] = ()
    stage: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class CacheSpec:
    """One layer's cache. Layers with equal specs can share a group.

    ``family`` decides what a request needs: ``full`` one block per ``block_size`` tokens, ``window`` and ``chunk`` what
    lies in reach, ``state`` a fixed number of states, ``state_all`` a state per block as well.
    """

    family: str
    block_size: int
    page: int
    reach: int = 0
    states: int = 0
    latent: bool = False
    # Layers of equal cost but of another make form a group of their own in vLLM.
    make: tuple[t.Any, ...] = ()

    def blocks(self, length: int, in_flight: int) -> int:
        """Return the blocks that one request of this length can need."""
        if self.family == "full":
            return ceil_div(length, self.block_size)
        if self.family == "window":
            return ceil_div(min(self.reach - 1 + in_flight, length), self.block_size) + 1
        if self.family == "chunk":
            return ceil_div(min(self.reach + in_flight, length), self.block_size)
        if self.family == "state_all":
            return ceil_div(length, self.block_size) + self.states
        return self.states


Counted = list[tuple[CacheSpec, int]]
# The cache of each layer in the order of the layers, with the stage that holds it.
Staged = list[tuple[CacheSpec, int]]


def layer_specs(geometry: ModelGeometry, request: KvRequest, rules: KvRules) -> tuple[Counted, int]:
    """Return the cache of every layer with the number of such layers, and vLLM's block_size."""
    return _Builder(geometry, request, rules).build()


def staged_specs(geometry: ModelGeometry, request: KvRequest, rules: KvRules) -> Staged:
    """Return the cache of each layer with the stage that holds it; empty where the order of the layers is not known."""
    return _Builder(geometry, request, rules).staged()


class _Builder:
    """Turns the layers of a geometry into cache specs under one set of rules."""

    def __init__(self, geometry: ModelGeometry, request: KvRequest, rules: KvRules) -> None:
        self.geometry = geometry
        self.request = request
        self.rules = rules
        self.tp = request.tensor_parallel_size
        dtype = request.kv_cache_dtype
        if dtype == "auto" and geometry.kv_cache_dtype:
            dtype = geometry.kv_cache_dtype
        self.kv_dtype = dtype
        if dtype not in _KV_BYTES:
            raise KvUnsupportedError(f"kv_cache_dtype {dtype} is not known; known are {', '.join(_KV_BYTES)}.")
        self.kv_bytes = _KV_BYTES[dtype]
        self.layers = [entry for entry in (*geometry.layers, *self._draft()) if not isinstance(entry.layer, NoCache)]

    def build(self) -> tuple[Counted, int]:
        self._check()
        block, page = self._block()
        specs: Counted = []
        for entry in self.layers:
            specs.extend((spec, entry.count) for spec in self._specs(entry.layer, block, page))
        merged: dict[CacheSpec, int] = {}
        for spec, count in specs:
            merged[spec] = merged.get(spec, 0) + count
        return list(merged.items()), block

    def staged(self) -> Staged:
        order = self.geometry.sequence
        stages = stages_of(self.request.stage_layers)
        if len(stages) < 2 or len(order) != len(stages):
            return []
        block, page = self._block()
        last = len(self.request.stage_layers) - 1
        held = list(zip((entry.layer for entry in order), stages, strict=True))
        # A drafter runs on the last stage.
        held += [(entry.layer, last) for entry in self._draft() for _layer in range(entry.count)]
        return [
            (spec, stage)
            for layer, stage in held
            if not isinstance(layer, NoCache)
            for spec in self._specs(layer, block, page)
        ]

    def _block(self) -> tuple[int, int]:
        """Return the tokens of a block, and the bytes of a page where states and attention share one size."""
        recurrent = [entry.layer for entry in self.layers if isinstance(entry.layer, Recurrent)]
        return self._hybrid_block(recurrent[0]) if recurrent else (self._plain_block(), 0)

    def _draft(self) -> tuple[LayerCount, ...]:
        if not self.request.num_speculative_tokens:
            return ()
        if self.request.draft is not None:
            return self.request.draft
        if not self.geometry.draft_layers:
            raise KvUnsupportedError(
                f"num_speculative_tokens is {self.request.num_speculative_tokens}, but no MTP module of "
                f"{self.geometry.architecture} is known here, and no draft model was described."
            )
        return self.geometry.draft_layers

    def _check(self) -> None:
        request = self.request
        for name in ("max_model_len", "max_num_batched_tokens", "tensor_parallel_size"):
            if getattr(request, name) < 1:
                raise KvUnsupportedError(f"{name} is {getattr(request, name)}; expected 1 or more.")
        if self.geometry.attention_heads % self.tp:
            raise KvIndivisibleError(
                f"tensor_parallel_size {self.tp} does not divide the model's {self.geometry.attention_heads} heads."
            )
        kinds = {entry.layer.kind for entry in self.layers}
        if not kinds:
            raise KvUnsupportedError("the model has no layer that keeps a cache.")
        for first in self.rules.not_yet:
            if first.kind in kinds or first.architecture == self.geometry.architecture:
                raise KvUnsupportedError(f"{self.geometry.architecture} on vLLM {request.vllm}: {first.reason}.")
        if request.platform != "gb10" and kinds != {"full_attention"}:
            raise KvUnsupportedError(f"on {request.platform} only models with full attention throughout are known.")

    # Blocks

    def _plain_block(self) -> int:
        layers = {type(entry.layer) for entry in self.layers}
        platform = self.request.platform
        if CompressedAttention in layers:
            return self.rules.block(platform, "compressed")
        if SparseLatentAttention in layers:
            return self.rules.block(platform, "sparse_latent")
        if IndexedAttention in layers:
            return self.rules.indexed_block
        return self.rules.block(platform, "latent" if LatentAttention in layers else "full")

    def _hybrid_block(self, recurrent: Recurrent) -> tuple[int, int]:
        """Return the block size at which attention pages are as large as states, and the bytes of such a page."""
        attention = next((entry.layer for entry in self.geometry.layers if isinstance(entry.layer, Attention)), None)
        latent = next((entry.layer for entry in self.geometry.layers if isinstance(entry.layer, LatentAttention)), None)
        if attention is not None:
            per_token = self._attention_bytes(attention)
            alignment = self.rules.block(self.request.platform, "full")
        elif latent is not None:
            per_token = self._latent_bytes(latent)
            alignment = max(self.rules.block(self.request.platform, "latent"), self.rules.latent_hybrid_alignment)
        else:
            raise KvUnsupportedError("a model of recurrent layers alone is not known.")
        state = self._state_bytes(recurrent)
        mode = self._prefix_mode(recurrent)
        if mode == "all" and isinstance(recurrent, Mamba2):
            alignment = math.lcm(recurrent.chunk_size, alignment)
            block = round_up(ceil_div(state, per_token), alignment)
        else:
            if mode == "align" and self._checkpoints(recurrent) and isinstance(recurrent, GatedDeltaNet):
                alignment = math.lcm(alignment, self.rules.gated_delta_net_prefix_alignment)
            block = alignment * ceil_div(state, alignment * per_token)
        return block, block * per_token

    # Layers

    def _specs(self, layer: t.Any, block: int, page: int) -> list[CacheSpec]:
        if isinstance(layer, Attention):
            return [self._attention(layer, block)]
        if isinstance(layer, LatentAttention):
            return [CacheSpec("full", block, block * self._latent_bytes(layer), latent=True, make=("latent",))]
        if isinstance(layer, SparseLatentAttention):
            return self._sparse_latent(layer, block)
        if isinstance(layer, IndexedAttention):
            # Keys and values of all heads, and a bfloat16 index key that every rank keeps whole.
            main = self._attention(Attention(layer.kv_heads, layer.head_dim, layer.head_dim), block)
            return [main, CacheSpec("full", block, block * layer.index_head_dim * 2, latent=True, make=("index",))]
        if isinstance(layer, CompressedAttention):
            return self._compressed(layer, block)
        return [self._recurrent(layer, block, page)]

    def _attention(self, layer: Attention, block: int) -> CacheSpec:
        family = "chunk" if layer.chunk else "window" if layer.window else "full"
        make = (self._heads(layer.kv_heads), layer.head_dim, layer.v_head_dim)
        page = block * self._attention_bytes(layer)
        return CacheSpec(family, block, page, reach=layer.chunk or layer.window, make=make)

    def _sparse_latent(self, layer: SparseLatentAttention, block: int) -> list[CacheSpec]:
        if self.kv_dtype not in {"auto", "fp8", "fp8_e4m3"}:
            raise KvUnsupportedError(f"kv_cache_dtype {self.kv_dtype} is not known for sparse latent attention.")
        dims = (layer.kv_lora_rank, layer.rope_head_dim)
        if dims not in _SPARSE_LATENT_BYTES:
            raise KvUnsupportedError(f"sparse latent attention of {dims[0]} + {dims[1]} is not known.")
        specs = [CacheSpec("full", block, block * _SPARSE_LATENT_BYTES[dims], latent=True, make=("latent",))]
        if layer.index_head_dim:
            page = block * _index_bytes(layer.index_head_dim)
            specs.append(CacheSpec("full", block, page, latent=True, make=("index",)))
        return specs

    def _compressed(self, layer: CompressedAttention, block: int) -> list[CacheSpec]:
        if self.kv_dtype == "auto" and not self.rules.compressed_takes_auto:
            raise KvUnsupportedError(f"vLLM {self.request.vllm} refuses kv_cache_dtype auto for DeepSeek-V4; use fp8.")
        if self.kv_bytes == 2 and self.kv_dtype != "auto":
            raise KvUnsupportedError(f"kv_cache_dtype {self.kv_dtype} is not known for DeepSeek-V4.")
        dims = (layer.head_dim, layer.rope_head_dim)
        if dims not in _COMPRESSED_BYTES:
            raise KvUnsupportedError(f"compressed attention of {dims[0]} with {dims[1]} rotated is not known.")

        ratio = layer.compress_ratio

        def aligned(make: str, tokens: int, size: int, reach: int = 0) -> CacheSpec:
            page = round_up(size, _COMPRESSED_ALIGNMENT)
            family = "window" if reach else "full"
            return CacheSpec(family, tokens, page, reach=reach, latent=True, make=(make,))

        width = _COMPRESSED_BYTES[dims]
        window = aligned("window", _WINDOW_BLOCK, _WINDOW_BLOCK * width, layer.window)
        if ratio == 1:
            return [window]
        if ratio not in _COMPRESSOR_BLOCK:
            raise KvUnsupportedError(f"compression ratio {ratio} is not known; known are 4 and 128.")
        # The compressor keeps float32 keys and scores of the tokens that it has not compressed yet; with a ratio of 4
        # it looks at two windows.
        overlap = 2 if ratio == 4 else 1
        tokens = _COMPRESSOR_BLOCK[ratio]
        state = 2 * overlap * 4
        specs = [
            window,
            aligned("history", block, block // ratio * width),
            aligned("compressor", tokens, tokens * state * layer.head_dim, overlap * ratio),
        ]
        if layer.index_head_dim:
            index = _index_bytes(layer.index_head_dim)
            specs += [
                aligned("index", block, block // ratio * index),
                aligned("index_compressor", tokens, tokens * state * layer.index_head_dim, overlap * ratio),
            ]
        return specs

    def _recurrent(self, layer: Recurrent, block: int, page: int) -> CacheSpec:
        mode = self._prefix_mode(layer)
        states = self.request.num_speculative_tokens
        if mode == "all":
            return CacheSpec("state_all", block, page, states=states, make=(layer,))
        states += 1 if mode == "none" else 2 + self._checkpoints(layer)
        # Without prefix caching vLLM gives the state one block for the whole context.
        size = block if mode == "align" else self.request.max_model_len
        return CacheSpec("state", size, page, states=states, make=(layer,))

    # Bytes

    def _heads(self, kv_heads: int) -> int:
        if max(kv_heads, self.tp) % min(kv_heads, self.tp):
            raise KvIndivisibleError(f"{kv_heads} KV heads cannot be spread over {self.tp} ranks.")
        return max(1, kv_heads // self.tp)

    def _attention_bytes(self, layer: Attention) -> int:
        return self._heads(layer.kv_heads) * (layer.head_dim + layer.v_head_dim) * self.kv_bytes

    def _latent_bytes(self, layer: LatentAttention) -> int:
        return (layer.kv_lora_rank + layer.rope_head_dim) * self.kv_bytes

    def _state_bytes(self, layer: Recurrent) -> int:
        """Return the bytes of one state on one rank: the convolution's window and the recurrent matrix."""
        drafts = self.request.num_speculative_tokens
        conv_bytes = self._state_dtype("mamba_cache_dtype", self.request.mamba_cache_dtype)
        ssm_dtype = self.request.mamba_ssm_cache_dtype
        if isinstance(layer, KimiDelta):
            if ssm_dtype not in self.rules.kimi_delta_ssm_dtypes:
                raise KvUnsupportedError(
                    f"mamba_ssm_cache_dtype {ssm_dtype} is not known for Kimi Delta Attention on vLLM "
                    f"{self.request.vllm}; known are {', '.join(self.rules.kimi_delta_ssm_dtypes)}."
                )
            width = 3 * layer.heads * layer.head_dim
            matrix = self._share(layer.heads, "heads") * layer.head_dim**2 * 4
            return self._share(width, "channels") * (layer.conv_kernel - 1 + drafts) * conv_bytes + matrix
        if ssm_dtype == "auto":
            ssm_dtype = self.geometry.ssm_dtype or self.request.mamba_cache_dtype
        ssm_bytes = self._state_dtype("mamba_ssm_cache_dtype", ssm_dtype)
        if isinstance(layer, GatedDeltaNet):
            width = 2 * layer.key_head_dim * layer.key_heads + layer.value_head_dim * layer.value_heads
            matrix = self._share(layer.value_heads, "value heads") * layer.value_head_dim * layer.key_head_dim
        else:
            # Groups that cannot be spread evenly are repeated on every rank.
            groups = layer.groups if layer.groups % self.tp == 0 else self.tp
            width = layer.heads * layer.head_dim + 2 * groups * layer.state_size
            matrix = self._share(layer.heads, "heads") * layer.head_dim * layer.state_size
        conv = self._share(width, "channels") * (layer.conv_kernel - 1 + drafts) * conv_bytes
        return conv + matrix * ssm_bytes

    def _share(self, value: int, what: str) -> int:
        if value % self.tp:
            raise KvIndivisibleError(f"{value} {what} of a recurrent layer cannot be spread over {self.tp} ranks.")
        return value // self.tp

    def _state_dtype(self, name: str, dtype: str) -> int:
        if dtype not in _STATE_BYTES:
            raise KvUnsupportedError(f"{name} {dtype} is not known; known are {', '.join(_STATE_BYTES)}.")
        return _STATE_BYTES[dtype]

    def _prefix_mode(self, layer: Recurrent) -> str:
        if not self.request.prefix_caching:
            return "none"
        return self.rules.mamba2_prefix_mode if isinstance(layer, Mamba2) else "align"

    def _checkpoints(self, layer: Recurrent) -> int:
        # FlashInfer's kernel computes the checkpoints of Gated DeltaNet, and takes only key heads of 128.
        if isinstance(layer, GatedDeltaNet) and (
            layer.key_head_dim != 128 or self.request.gdn_prefill_backend not in {"auto", "flashinfer"}
        ):
            return 0
        return self.rules.checkpoint_states[layer.kind]


def _index_bytes(head_dim: int) -> int:
    """Return the bytes of one index key: fp8 with a float32 scale for every 128 elements."""
    return head_dim + head_dim // 128 * 4

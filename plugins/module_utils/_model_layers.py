# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What one layer of a model keeps between tokens, before any vLLM version or tensor parallel size is known.

A layer here says only what the checkpoint fixes. What a layer costs (block size, padding, dtype) is a matter of the
vLLM version and of the flags, and is worked out on the controller.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t


@dataclasses.dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of every token (full), of the last ``window`` (sliding) or of the current ``chunk`` (chunked)."""

    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int = 0
    chunk: int = 0

    @property
    def kind(self) -> str:
        """Return the name that geometry{} gives to the layer."""
        if self.chunk:
            return "chunked_attention"
        return "sliding_attention" if self.window else "full_attention"


@dataclasses.dataclass(frozen=True, slots=True)
class IndexedAttention:
    """Full attention whose key blocks are chosen by an index of one key vector per token (MiniMax-M3)."""

    kv_heads: int
    head_dim: int
    index_head_dim: int
    kind: t.ClassVar[str] = "indexed_attention"


@dataclasses.dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one compressed vector per token, the same on every rank."""

    kv_lora_rank: int
    rope_head_dim: int
    kind: t.ClassVar[str] = "latent_attention"


@dataclasses.dataclass(frozen=True, slots=True)
class SparseLatentAttention:
    """MLA behind a lightning indexer (DeepSeek-V3.2, GLM-5); ``index_head_dim`` is 0 where it has none of its own."""

    kv_lora_rank: int
    rope_head_dim: int
    index_head_dim: int
    kind: t.ClassVar[str] = "sparse_latent_attention"


@dataclasses.dataclass(frozen=True, slots=True)
class CompressedAttention:
    """DeepSeek-V4: a sliding window of latent vectors and, with ``compress_ratio`` > 1, a compressed long history."""

    head_dim: int
    rope_head_dim: int
    window: int
    compress_ratio: int
    index_head_dim: int
    kind: t.ClassVar[str] = "compressed_attention"


@dataclasses.dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Gated DeltaNet linear attention: a state of fixed size per sequence."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    kind: t.ClassVar[str] = "gated_delta_net"


@dataclasses.dataclass(frozen=True, slots=True)
class Mamba2:
    """A Mamba-2 mixer: a state of fixed size per sequence."""

    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_kernel: int
    chunk_size: int
    kind: t.ClassVar[str] = "mamba2"


@dataclasses.dataclass(frozen=True, slots=True)
class KimiDelta:
    """Kimi Delta Attention: a state of fixed size per sequence, always kept in float32."""

    heads: int
    head_dim: int
    conv_kernel: int
    kind: t.ClassVar[str] = "kimi_delta"


@dataclasses.dataclass(frozen=True, slots=True)
class NoCache:
    """A layer that keeps nothing: only experts or a feed-forward part, or the keys and values of an earlier layer."""

    kind: t.ClassVar[str] = "no_cache"


# pylint takes "slots" for a sign that a class has no operators.
# pylint: disable=unsupported-binary-operation
Layer = (
    Attention
    | IndexedAttention
    | LatentAttention
    | SparseLatentAttention
    | CompressedAttention
    | GatedDeltaNet
    | Mamba2
    | KimiDelta
    | NoCache
)
Recurrent = GatedDeltaNet | Mamba2 | KimiDelta
# pylint: enable=unsupported-binary-operation

_BY_KIND: dict[str, type[t.Any]] = {
    "full_attention": Attention,
    "sliding_attention": Attention,
    "chunked_attention": Attention,
    **{
        cls.kind: cls
        for cls in (
            IndexedAttention,
            LatentAttention,
            SparseLatentAttention,
            CompressedAttention,
            GatedDeltaNet,
            Mamba2,
            KimiDelta,
            NoCache,
        )
    },
}


@dataclasses.dataclass(frozen=True, slots=True)
class LayerCount:
    """Equal layers, and how many there are."""

    layer: Layer
    count: int

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain data: the kind, the count, and what the kind fixes."""
        fields = {key: value for key, value in dataclasses.asdict(self.layer).items() if value or key[-3:] == "dim"}
        return {"kind": self.layer.kind, "count": self.count, **fields}

    @classmethod
    def from_dict(cls, data: t.Mapping[str, t.Any]) -> LayerCount:
        """Read back what as_dict() wrote."""
        kind = data.get("kind")
        if kind not in _BY_KIND:
            raise ValueError(f"geometry: {kind!r} is no kind of layer; known are {', '.join(sorted(_BY_KIND))}.")
        known = {field.name for field in dataclasses.fields(_BY_KIND[kind])}
        fields = {key: value for key, value in data.items() if key in known}
        try:
            return cls(_BY_KIND[kind](**fields), int(data["count"]))
        except (KeyError, TypeError, ValueError) as exc:
            raise ValueError(f"geometry: a layer of kind {kind} is incomplete: {exc}.") from None


def order_of(layers: t.Iterable[Layer], counts: t.Sequence[LayerCount]) -> tuple[int, ...]:
    """Return for each layer, from the first on, which of the counted kinds it is."""
    index = {entry.layer: at for at, entry in enumerate(counts)}
    return tuple(index[layer] for layer in layers)


def count_layers(layers: t.Iterable[Layer]) -> tuple[LayerCount, ...]:
    """Count equal layers, in the order in which each kind first appears."""
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(LayerCount(layer, count) for layer, count in counts.items())

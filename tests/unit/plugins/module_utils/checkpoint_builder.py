# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds checkpoint directories for tests: headers are real, data is a hole in a sparse file."""

from __future__ import annotations

import json
import math
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._safetensors import DTYPE_BITS

if t.TYPE_CHECKING:
    from pathlib import Path

Tensors = dict[str, tuple[str, tuple[int, ...]]]


def header_of(tensors: Tensors, metadata: dict[str, str] | None = None) -> tuple[bytes, int]:
    """Return the header of a safetensors file with its length in front, and the size of the data."""
    entries: dict[str, t.Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * DTYPE_BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw, at


def write_shard(path: Path, tensors: Tensors, *, cut: int = 0, extra: int = 0) -> int:
    """Write a shard, ``cut`` bytes too short or ``extra`` bytes too long; return the size of the data."""
    header, size = header_of(tensors)
    with path.open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + size - cut + extra)
    return size


def write_json(path: Path, content: object) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content), encoding="utf-8")


def write_index(directory: Path, shards: dict[str, Tensors], total: int | None = None) -> None:
    """Write the index of the shards."""
    weight_map = {tensor: shard for shard, tensors in shards.items() for tensor in tensors}
    content: dict[str, t.Any] = {"weight_map": weight_map}
    if total is not None:
        content["metadata"] = {"total_size": total}
    write_json(directory / "model.safetensors.index.json", content)


def plain(module: str, rows: int = 64, columns: int = 128, dtype: str = "BF16") -> Tensors:
    """Return a module that is not quantised."""
    return {f"{module}.weight": (dtype, (rows, columns))}


def modelopt_nvfp4(module: str, rows: int = 64, columns: int = 128, *, activations: bool = True) -> Tensors:
    """Return NVFP4 as ModelOpt stores it."""
    tensors: Tensors = {
        f"{module}.weight": ("U8", (rows, columns // 2)),
        f"{module}.weight_scale": ("F8_E4M3", (rows, columns // 16)),
        f"{module}.weight_scale_2": ("F32", ()),
    }
    return {**tensors, f"{module}.input_scale": ("F32", ())} if activations else tensors


def packed_nvfp4(module: str, rows: int = 64, columns: int = 128, *, activations: bool = True) -> Tensors:
    """Return NVFP4 as compressed-tensors stores it."""
    tensors: Tensors = {
        f"{module}.weight_packed": ("U8", (rows, columns // 2)),
        f"{module}.weight_scale": ("F8_E4M3", (rows, columns // 16)),
        f"{module}.weight_global_scale": ("F32", (1,)),
    }
    return {**tensors, f"{module}.input_global_scale": ("F32", (1,))} if activations else tensors


def block_fp8(module: str, rows: int = 256, columns: int = 384, scale: str = "F32") -> Tensors:
    """Return FP8 in blocks of 128 x 128, as DeepSeek and Qwen store it."""
    role = "scale" if scale == "F8_E8M0" else "weight_scale_inv"
    return {
        f"{module}.weight": ("F8_E4M3", (rows, columns)),
        f"{module}.{role}": (scale, (-(-rows // 128), -(-columns // 128))),
    }


def channel_fp8(module: str, rows: int = 64, columns: int = 128) -> Tensors:
    """Return FP8 with one scale for each output channel."""
    return {f"{module}.weight": ("F8_E4M3", (rows, columns)), f"{module}.weight_scale": ("BF16", (rows, 1))}


def mxfp8(module: str, rows: int = 64, columns: int = 128) -> Tensors:
    """Return MXFP8 as ModelOpt stores it."""
    return {f"{module}.weight": ("F8_E4M3", (rows, columns)), f"{module}.weight_scale": ("U8", (rows, columns // 32))}


def deepseek_fp4(module: str, rows: int = 64, columns: int = 128) -> Tensors:
    """Return MXFP4 as DeepSeek-V4 stores it: two values in each signed byte, scales that are powers of two."""
    return {f"{module}.weight": ("I8", (rows, columns // 2)), f"{module}.scale": ("F8_E8M0", (rows, columns // 32))}


def gptq_int4(module: str, rows: int = 64, columns: int = 128, *, bits: int = 4) -> Tensors:
    """Return packed integers as GPTQ and AutoRound store them."""
    return {
        f"{module}.qweight": ("I32", (columns * bits // 32, rows)),
        f"{module}.qzeros": ("I32", (columns // 128, rows * bits // 32)),
        f"{module}.scales": ("F16", (columns // 128, rows)),
    }


def awq_int4(module: str, rows: int = 64, columns: int = 128) -> Tensors:
    """Return packed 4-bit integers as AWQ stores them."""
    return {
        f"{module}.qweight": ("I32", (columns, rows // 8)),
        f"{module}.qzeros": ("I32", (columns // 128, rows // 8)),
        f"{module}.scales": ("F16", (columns // 128, rows)),
    }


def small_qwen3(*, layers: int = 2) -> dict[str, t.Any]:
    """Return the config of a small dense Qwen3, a model whose geometry is known."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "vocab_size": 512,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def dense_tensors(
    make: t.Callable[..., Tensors], *, layers: int = 2, head: t.Callable[..., Tensors] = plain
) -> Tensors:
    """Return the tensors of a small dense model whose linear layers are all made in one way."""
    tensors: Tensors = {"model.embed_tokens.weight": ("BF16", (512, 128)), "model.norm.weight": ("BF16", (128,))}
    for layer in range(layers):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"):
            tensors |= make(f"model.layers.{layer}.{name}", 128, 128)
        for name in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            tensors |= make(f"model.layers.{layer}.{name}", 256, 128)
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = ("BF16", (128,))
    return tensors | head("lm_head", 512, 128)

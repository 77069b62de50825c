# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the tensors of a checkpoint are, whatever its config says: bytes by type and part, the scheme of each module.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils import _weight_scheme as schemes
from ansible_collections.gb10.fleet.plugins.module_utils._weight_names import (
    fold_experts,
    layer_of,
    part_of,
    split_name,
)
from ansible_collections.gb10.fleet.plugins.module_utils._weight_scheme import PLAIN, Scheme, unknown

if t.TYPE_CHECKING:
    from ansible_collections.gb10.fleet.plugins.module_utils._safetensors import TensorInfo
    from ansible_collections.gb10.fleet.plugins.module_utils._weight_names import Part

Variant = tuple[str, tuple[int, ...]]

_WEIGHTS = ("weight", "weight_packed", "qweight", "blocks")
_SCALES = ("weight_scale", "weight_scale_inv", "scale", "scales", "qscale_weight")
_INPUT_SCALES = ("input_scale", "input_global_scale", "qscale_act")
_POWER_OF_TWO = ("U8", "F8_E8M0")
_FLOATS = ("BF16", "F16", "F32", "F64")
_FLOAT8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


@dataclasses.dataclass(slots=True)
class StoredModule:
    """The tensors of one module; the experts of a layer count as one, with every variant that occurs among them."""

    part: Part
    nbytes: int = 0
    roles: dict[str, collections.Counter[Variant]] = dataclasses.field(default_factory=dict)

    def schemes(self) -> list[tuple[Scheme, float]]:
        """Return the schemes that the weights are stored in, each with its share of the module."""
        found: collections.Counter[Scheme] = collections.Counter()
        for role in _WEIGHTS:
            for (dtype, shape), count in self.roles.get(role, collections.Counter()).items():
                if role != "weight" or len(shape) > 1:
                    found[self._scheme(role, dtype, shape)] += count
        total = sum(found.values())
        return [(scheme, count / total) for scheme, count in found.most_common()]

    def _scheme(self, role: str, dtype: str, shape: tuple[int, ...]) -> Scheme:
        if role == "blocks":
            return schemes.mxfp4()
        scale = self._first(_SCALES)
        if role == "qweight":
            return self._integer(shape, scale)
        if dtype in _FLOATS:
            return PLAIN
        if dtype in _FLOAT8:
            return _float8(shape, scale)
        if dtype == "I32" and role == "weight_packed":
            return schemes.integer(0, method="gptq", group_size=0)
        return self._float4(dtype, shape, scale)

    def _first(self, roles: t.Iterable[str]) -> Variant | None:
        return next((variant for role in roles for variant in self.roles.get(role, ())), None)

    def _float4(self, dtype: str, shape: tuple[int, ...], scale: Variant | None) -> Scheme:
        """Tell 4-bit floats apart by their scales: one E4M3 for each 16 values, or one power of two for each 32."""
        if scale is None or dtype not in ("U8", "I8", "F4"):
            return unknown(f"{dtype} without a scale that tells what it is")
        bytes_per_scale = shape[-1] / scale[1][-1] if shape and scale[1] and scale[1][-1] else 0
        if scale[0] == "F8_E4M3" and (dtype == "F4" or bytes_per_scale == 8):
            return schemes.nvfp4(activations=4 if self._first(_INPUT_SCALES) else 16)
        if scale[0] in _POWER_OF_TWO and (dtype == "F4" or bytes_per_scale == 16):
            return schemes.mxfp4()
        return unknown(f"{dtype} weights with {scale[0]} scales")

    def _integer(self, shape: tuple[int, ...], scale: Variant | None) -> Scheme:
        """Read packed integers: the zero points, packed like the weights, tell how many bits a value has."""
        zeros = self._first(("qzeros",))
        bits = 0
        if zeros and scale and zeros[1] and scale[1] and scale[1][-1]:
            bits = 32 * zeros[1][-1] // scale[1][-1]
        awq = bool(scale and shape and scale[1] and shape[-1] != scale[1][-1])
        return schemes.integer(bits, method="awq" if awq else "gptq", group_size=0)


def _float8(shape: tuple[int, ...], scale: Variant | None) -> Scheme:
    if scale is None:
        return schemes.fp8(granularity="unknown unit")
    dtype, scale_shape = scale
    if dtype in _POWER_OF_TWO and shape and scale_shape and scale_shape[-1] * 32 == shape[-1]:
        return schemes.mxfp8()
    return schemes.fp8(granularity=_granularity(shape, scale_shape))


def _granularity(shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> str:
    """Tell from the shapes what one scale stands for; the last block of a row or column may be cut."""
    sides, counts = shape[-2:], scale_shape[-2:]
    if len(counts) == 2 and counts == tuple(-(-size // 128) for size in sides):
        return "block 128x128"
    if math.prod(scale_shape) == math.prod(shape[:-2]):
        return "tensor"
    if math.prod(scale_shape) == math.prod(shape[:-1]):
        return "channel"
    if len(counts) < 2 or not all(counts):
        return "unknown unit"
    return f"block {-(-sides[0] // counts[0])}x{-(-sides[1] // counts[1])}"


class TensorCensus:
    """Counts the tensors of all shards of a checkpoint."""

    def __init__(self, num_layers: int | None) -> None:
        self._num_layers = num_layers
        self.tensors = 0
        self.bytes_by_dtype: collections.Counter[str] = collections.Counter()
        self.bytes_by_part: collections.Counter[Part] = collections.Counter()
        self.bytes_by_layer: collections.Counter[int] = collections.Counter()
        self.modules: dict[str, StoredModule] = {}

    def add(self, name: str, tensor: TensorInfo) -> None:
        """Count one tensor."""
        module, role = split_name(name)
        folded = fold_experts(module)
        entry = self.modules.get(folded)
        if entry is None:
            entry = self.modules[folded] = StoredModule(part_of(module, self._num_layers))
        entry.nbytes += tensor.nbytes
        entry.roles.setdefault(role, collections.Counter())[tensor.dtype, tensor.shape] += 1
        self.tensors += 1
        self.bytes_by_dtype[tensor.dtype] += tensor.nbytes
        self.bytes_by_part[entry.part] += tensor.nbytes
        layer = layer_of(module, self._num_layers)
        if layer is not None:
            self.bytes_by_layer[layer] += tensor.nbytes

    def layer_bytes(self) -> list[int]:
        """Return the bytes of each layer of the model, from the first on; empty where one of them was not seen."""
        known = [self.bytes_by_layer[layer] for layer in range(self._num_layers or 0)]
        return known if all(known) else []

# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The shape of a model as its config.json (or Mistral's params.json) declares it: what memory plans are computed from.

What is not known here is refused by name, in GeometryError; nothing is guessed from a model that looks similar.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._model_config import GeometryError, ModelConfig
from ansible_collections.gb10.fleet.plugins.module_utils._model_families import read_layers, read_ssm_dtype
from ansible_collections.gb10.fleet.plugins.module_utils._model_layers import (
    LayerCount,
    count_layers,
    order_of,
)

__all__ = ["GeometryError", "ModelGeometry"]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelGeometry:
    """What a checkpoint fixes about its layers, caches and limits.

    ``layers`` counts equal layers of the model itself, and ``order`` says for each layer, from the first on, which of
    them it is (empty where only the counts are known); ``draft_layers`` those that multi-token prediction (MTP) adds
    when it is asked for, empty where the checkpoint or vLLM has none. ``max_model_len`` is the longest context that
    the checkpoint declares, 0 where it declares none. ``ssm_dtype`` is the dtype that the checkpoint asks for its
    recurrent state, ``kv_cache_dtype`` the one that its quantisation gives to the KV cache; both are empty where it
    asks for none.
    """

    architecture: str
    model_type: str
    layers: tuple[LayerCount, ...]
    draft_layers: tuple[LayerCount, ...] = ()
    order: tuple[int, ...] = ()
    hidden_size: int = 0
    attention_heads: int = 0
    vocab_size: int = 0
    experts: int = 0
    experts_per_token: int = 0
    dtype: str = ""
    ssm_dtype: str = ""
    kv_cache_dtype: str = ""
    rope_type: str = "default"
    max_model_len: int = 0

    @property
    def num_layers(self) -> int:
        """Return the number of layers of the model without its draft layers."""
        return sum(entry.count for entry in self.layers)

    @property
    def sequence(self) -> tuple[LayerCount, ...]:
        """Return the kind of each layer, from the first on; empty where only the counts are known."""
        if len(self.layers) == 1:
            return self.layers * self.layers[0].count
        return tuple(self.layers[at] for at in self.order)

    @classmethod
    def from_config(
        cls, config: t.Mapping[str, t.Any], hf_quant_config: t.Mapping[str, t.Any] | None = None
    ) -> ModelGeometry:
        """Read the geometry from a parsed config.json or params.json; raise GeometryError where it cannot be known.

        ``hf_quant_config`` is the parsed hf_quant_config.json of a ModelOpt checkpoint, where there is one and
        config.json has no quantization_config of its own.
        """
        if hf_quant_config and isinstance(config, dict) and "quantization_config" not in config:
            config = {**config, "quantization_config": hf_quant_config}
        view = ModelConfig.read(config)
        layers, draft = read_layers(view)
        counts = count_layers(layers)
        return cls(
            architecture=view.architecture,
            model_type=view.text("model_type"),
            layers=counts,
            order=order_of(layers, counts),
            draft_layers=count_layers(draft),
            hidden_size=view.integer("hidden_size", default=0),
            attention_heads=view.integer("num_attention_heads", default=0),
            vocab_size=view.integer("vocab_size", default=0),
            experts=view.integer(*_EXPERTS, default=0),
            experts_per_token=view.integer(*_EXPERTS_PER_TOKEN, default=0),
            dtype=view.dtype(),
            ssm_dtype=read_ssm_dtype(view),
            kv_cache_dtype=view.kv_cache_dtype(),
            rope_type=view.rope_type(),
            max_model_len=view.max_model_len(),
        )

    def as_dict(self) -> dict[str, t.Any]:
        """Return plain data, the ``geometry{}`` of checkpoint_info."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["layers"] = [entry.as_dict() for entry in self.layers]
        data["draft_layers"] = [entry.as_dict() for entry in self.draft_layers]
        data["order"] = list(self.order)
        return data

    @classmethod
    def from_dict(cls, data: t.Mapping[str, t.Any]) -> ModelGeometry:
        """Read back what as_dict() wrote; raise GeometryError where a part is missing or not understood."""
        known = {field.name for field in dataclasses.fields(cls)}
        fields = {key: value for key, value in data.items() if key in known}
        try:
            for name in ("layers", "draft_layers"):
                fields[name] = tuple(LayerCount.from_dict(entry) for entry in fields.get(name, ()))
            fields["order"] = tuple(int(at) for at in fields.get("order", ()))
            counts = [entry.count for entry in fields["layers"]]
            if fields["order"] and [fields["order"].count(at) for at in range(len(counts))] != counts:
                raise ValueError("geometry: order does not have every layer once.")
            return cls(**fields)
        except (TypeError, ValueError) as exc:
            raise GeometryError(str(exc)) from None


# Spellings of the same field over model families, in the order in which vLLM looks for them
# (vllm/transformers_utils/config.py, read in 0.33.0 on 2026-11-29).
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "top_k")

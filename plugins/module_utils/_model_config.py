# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A parsed config.json or params.json, read field by field with errors that name the field.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import dataclasses
import typing as t

# Where multimodal wrappers keep the language model's part.
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")

# Mistral's own names, and the names that Hugging Face gives to the same fields.
_MISTRAL_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
}

# The checkpoint's limit is the smallest of these (vllm model_arch_config_convertor, read in 0.33.0 on 2026-11-29).
# Layers are counted one by one; a thousand is more than any model has had.
_MOST_LAYERS = 10_000
# Kinds of RoPE scaling whose factor the declared length has in it.
_STRETCHED_ALREADY = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
_MAX_LEN_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)


class GeometryError(ValueError):
    """What a checkpoint declares is missing, contradictory or not known; the message says what and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """The fields of the language model, whatever wrapper they came in."""

    architecture: str
    outer: t.Mapping[str, t.Any]
    inner: t.Mapping[str, t.Any]

    @classmethod
    def read(cls, config: t.Mapping[str, t.Any]) -> ModelConfig:
        """Find the architecture and the language model's part of a parsed config.json or params.json."""
        if not isinstance(config, dict):
            raise GeometryError(f"config.json: expected an object, found {type(config).__name__}.")
        if "n_layers" in config and "num_hidden_layers" not in config and "dim" in config:
            config = _from_mistral(config)
        inner: t.Mapping[str, t.Any] = config
        # Qwen-Omni nests twice: thinker_config holds the text_config.
        for _depth in range(2):
            nested = next((inner[name] for name in _NESTED if isinstance(inner.get(name), dict)), None)
            if nested is None or "num_hidden_layers" in inner:
                break
            inner = nested
        architectures = config.get("architectures") or inner.get("architectures") or []
        if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
            raise GeometryError(
                "config.json: architectures is missing; without it nobody can tell which layers vLLM will build."
            )
        return cls(architectures[0], config, inner)

    def has(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self.inner.get(name) is not None

    def get(self, name: str, default: t.Any = None) -> t.Any:
        """Return the field as it stands, or the default where it is missing or null."""
        value = self.inner.get(name)
        return default if value is None else value

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return the first of the named fields that is there, as a whole number."""
        for name in names:
            value = self.inner.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise GeometryError(f"config.json: {name} is {value!r}; expected a whole number.")
            if "layer" in name and value > _MOST_LAYERS:
                raise GeometryError(f"config.json: {name} is {value}; no model has more than {_MOST_LAYERS} layers.")
            return value
        if default is None:
            raise GeometryError(f"config.json: {names[0]} is missing; {self.architecture} cannot be sized without it.")
        return default

    def positive(self, *names: str, default: int | None = None) -> int:
        """Return integer(), refusing zero."""
        value = self.integer(*names, default=default)
        if value < 1:
            raise GeometryError(f"config.json: {names[0]} is {value}; expected 1 or more.")
        return value

    def names(self, name: str, length: int) -> list[str]:
        """Return a list of strings with one entry per layer; extra entries at the end (draft layers) are cut off."""
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise GeometryError(f"config.json: {name} is not a list of names.")
        if len(value) < length:
            raise GeometryError(f"config.json: {name} has {len(value)} entries for {length} layers.")
        return value[:length]

    def text(self, name: str) -> str:
        """Return a field as text, looking at the outer part where the language model's own lacks it."""
        value = self.inner.get(name, self.outer.get(name))
        return value if isinstance(value, str) else ""

    def dtype(self) -> str:
        """Return the dtype of the model (bfloat16, float16, float32), or an empty string where none is declared."""
        for part in (self.outer, self.inner):
            for name in ("dtype", "torch_dtype"):
                if isinstance(part.get(name), str):
                    return str(part[name]).removeprefix("torch.")
        return ""

    def max_model_len(self) -> int:
        """Return the longest context that the checkpoint declares, its RoPE scaling included, or 0."""
        if self.has("model_max_length"):
            return self.integer("model_max_length")
        declared = min((self.integer(name) for name in _MAX_LEN_NAMES if self.has(name)), default=0)
        return max([declared, *(round(length) for length in self._stretched(declared))])

    def _stretched(self, declared: int) -> t.Iterator[float]:
        """Yield the lengths that RoPE scaling makes of the declared one (vllm/config/model.py of 0.32.0)."""
        for name in ("rope_parameters", "rope_scaling"):
            rope = self.get(name)
            parts = (
                [part for part in rope.values() if isinstance(part, dict)] or [rope] if isinstance(rope, dict) else []
            )
            for part in parts:
                kind, factor = part.get("rope_type") or part.get("type"), part.get("factor")
                original = part.get("original_max_position_embeddings")
                if not _is_factor(factor):
                    continue
                if kind not in _STRETCHED_ALREADY:
                    yield declared * factor
                elif kind == "yarn" and _is_factor(original):
                    # Releases before 0.32 scale the original length, which most checkpoints have declared already.
                    yield original * factor

    def head_dim(self) -> int:
        """Return the size of an attention head."""
        declared = self.integer("head_dim", "hidden_size_per_head", default=0)
        if declared:
            return declared
        return self.positive("hidden_size") // self.positive("num_attention_heads")

    def kv_heads(self) -> int:
        """Return the number of heads that keys and values have; all attention heads where nothing else is said."""
        return self.positive(
            "n_head_kv",
            "num_kv_heads",
            "num_key_value_heads",
            "multi_query_group_num",
            "num_attention_groups",
            "num_attention_heads",
        )

    def rope_type(self) -> str:
        """Return how RoPE is scaled (yarn, llama3, ...), or "default" where it is not."""
        for name in ("rope_parameters", "rope_scaling"):
            rope = self.get(name)
            if isinstance(rope, dict):
                # One entry per layer type: the layers that stretch their context are the ones that matter.
                parts = [part for part in rope.values() if isinstance(part, dict)] or [rope]
                kinds = {str(part.get("rope_type") or part.get("type") or "default") for part in parts}
                return next((kind for kind in sorted(kinds) if kind != "default"), "default")
        return "yarn" if self.get("yarn") else "default"

    def kv_cache_dtype(self) -> str:
        """Return the dtype that the checkpoint's quantisation gives to the cache where the user asks for none."""
        for part in (self.outer, self.inner):
            quantization = part.get("quantization_config")
            if isinstance(quantization, dict):
                inner = quantization.get("quantization")
                return _kv_cache_dtype({**quantization, **(inner if isinstance(inner, dict) else {})})
        return ""


def _is_factor(value: object) -> t.TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < 1e9


def _kv_cache_dtype(quantization: t.Mapping[str, t.Any]) -> str:
    scheme = quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo")
    if isinstance(scheme, dict):
        bits, kind = scheme.get("num_bits"), scheme.get("type")
        if kind == "float" and bits in (8, 4):
            return "fp8" if bits == 8 else "nvfp4"
        return ""
    name = str(scheme or "").lower()
    return name if name in {"fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4"} else ""


def _from_mistral(params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return Mistral's params.json with Hugging Face's names and the architecture that vLLM gives it."""
    config = {_MISTRAL_NAMES.get(name, name): value for name, value in params.items()}
    config.setdefault("model_type", "mistral")
    moe = config.get("moe")
    if isinstance(moe, dict) and moe:
        config.setdefault("num_experts", moe.get("num_experts"))
        config.setdefault("num_experts_per_tok", moe.get("num_experts_per_tok"))
        shared = moe.get("num_shared_experts") or 0
        config["architectures"] = ["MistralLarge3ForCausalLM" if shared else "MixtralForCausalLM"]
    else:
        config["architectures"] = ["MistralForCausalLM"]
    window = config.get("sliding_window")
    if isinstance(window, list) and window:
        # A pattern such as [null, 4096]: one entry per layer, repeated over the depth of the model.
        repeats = int(config["num_hidden_layers"]) // len(window)
        config["layer_types"] = ["full_attention" if size is None else "sliding_attention" for size in window] * repeats
        config["sliding_window"] = next((size for size in window if size), None)
    config.setdefault("max_position_embeddings", config.get("max_seq_len") or 128_000)
    return config

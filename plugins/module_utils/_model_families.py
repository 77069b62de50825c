# Copyright: gb10.fleet contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The layers that vLLM builds for each architecture it is known to build, and the draft layers of its MTP module.

Each reader answers (layers of the model, layers that multi-token prediction adds). The facts were read in vLLM 0.22.0
to 0.33.0 (vllm/model_executor/models, vllm/models, vllm/config/speculative.py) on 2026-11-29. An architecture that is
not in the table is refused by name: models of a similar name have different caches.

Note that this module util is private to the collection and can change without notice.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gb10.fleet.plugins.module_utils._model_config import GeometryError, ModelConfig
from ansible_collections.gb10.fleet.plugins.module_utils._model_layers import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    IndexedAttention,
    KimiDelta,
    LatentAttention,
    Layer,
    Mamba2,
    NoCache,
    SparseLatentAttention,
)

Layers = tuple[list[Layer], list[Layer]]
Reader = t.Callable[[ModelConfig], Layers]


def read_layers(config: ModelConfig) -> Layers:
    """Return the model's layers and its MTP layers; raise GeometryError for an architecture that is not known."""
    reader = READERS.get(config.architecture)
    if reader is None:
        raise GeometryError(
            f"config.json: architecture {config.architecture} is not known here, so its cache cannot be computed; "
            "state kv_cache_memory_bytes for the model role and measure it."
        )
    return reader(config)


def read_ssm_dtype(config: ModelConfig) -> str:
    """Return the dtype of the recurrent state where the user asks for none; empty: that of the other state."""
    if config.architecture.startswith("Qwen3_5"):
        return config.text("mamba_ssm_dtype")
    if READERS.get(config.architecture) is _nemotron_h:
        return config.text("mamba_ssm_cache_dtype") or "float32"
    return ""


def _full(config: ModelConfig) -> Attention:
    head_dim = config.head_dim()
    return Attention(config.kv_heads(), head_dim, head_dim)


def _sliding(config: ModelConfig) -> Attention:
    head_dim = config.head_dim()
    return Attention(config.kv_heads(), head_dim, head_dim, window=config.positive("sliding_window"))


def _by_layer_type(config: ModelConfig, readers: dict[str, t.Callable[[ModelConfig], Layer]]) -> list[Layer]:
    """Return one layer per entry of layer_types, refusing a type that the architecture is not known to have."""
    layers: list[Layer] = []
    for name in config.names("layer_types", config.positive("num_hidden_layers")):
        if name not in readers:
            raise GeometryError(f"config.json: layer_types has {name!r}, which {config.architecture} is not known for.")
        layers.append(readers[name](config))
    return layers


def _decoder(config: ModelConfig) -> list[Layer]:
    """Return the layers of an ordinary decoder: full attention, sliding where the config says so."""
    if config.has("layer_types"):
        return _by_layer_type(config, {"full_attention": _full, "sliding_attention": _sliding})
    count = config.positive("num_hidden_layers")
    # Qwen ships a window that use_sliding_window turns off; 0 turns it off everywhere.
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    return [_sliding(config) if windowed else _full(config)] * count


def _plain(config: ModelConfig) -> Layers:
    return _decoder(config), []


def _with_mtp(config: ModelConfig) -> Layers:
    """Return an ordinary decoder whose MTP layers are full attention like its own (GLM-4.5, ERNIE-4.5, MiMo)."""
    return _decoder(config), [_full(config)] * config.integer("num_nextn_predict_layers", default=0)


def _every(default_pattern: int) -> Reader:
    """Return a reader for models in which every ``pattern``-th layer is full where layer_types is not written out."""

    def read(config: ModelConfig) -> Layers:
        if config.has("layer_types"):
            return _decoder(config), []
        pattern = config.positive("sliding_window_pattern", default=default_pattern)
        count = config.positive("num_hidden_layers")
        return [_sliding(config) if (i + 1) % pattern else _full(config) for i in range(count)], []

    return read


def _gpt_oss(config: ModelConfig) -> Layers:
    # vLLM looks at the parity of the layer's index, never at layer_types.
    count = config.positive("num_hidden_layers")
    return [_full(config) if i % 2 else _sliding(config) for i in range(count)], []


def _gemma4(config: ModelConfig) -> Layers:
    count = config.positive("num_hidden_layers")
    own = count - config.integer("num_kv_shared_layers", default=0)
    global_dim = config.positive("global_head_dim", default=config.head_dim())
    global_heads = config.kv_heads()
    if config.get("attention_k_eq_v") and config.has("num_global_key_value_heads"):
        global_heads = config.positive("num_global_key_value_heads")
    layers: list[Layer] = []
    for index, name in enumerate(config.names("layer_types", count)):
        if index >= own:
            layers.append(NoCache())
        elif name == "sliding_attention":
            layers.append(_sliding(config))
        elif name == "full_attention":
            layers.append(Attention(global_heads, global_dim, global_dim))
        else:
            raise GeometryError(f"config.json: layer_types has {name!r}, which Gemma 4 is not known for.")
    return layers, []


def _llama4(config: ModelConfig) -> Layers:
    count = config.positive("num_hidden_layers")
    full = _full(config)
    chunk = config.integer("attention_chunk_size", default=0)
    local = Attention(full.kv_heads, full.head_dim, full.head_dim, chunk=chunk) if chunk else full
    rope = config.get("no_rope_layers")
    if not isinstance(rope, list) or len(rope) != count:
        interval = config.positive("no_rope_layer_interval", default=4)
        rope = [(i + 1) % interval for i in range(count)]
    return [local if uses_rope else full for uses_rope in rope], []


def _qwen_hybrid(mtp_field: str) -> Reader:
    """Return a reader for Gated DeltaNet hybrids; ``mtp_field`` counts the full-attention layers of their MTP."""

    def read(config: ModelConfig) -> Layers:
        gdn = GatedDeltaNet(
            key_heads=config.positive("linear_num_key_heads"),
            value_heads=config.positive("linear_num_value_heads"),
            key_head_dim=config.positive("linear_key_head_dim"),
            value_head_dim=config.positive("linear_value_head_dim"),
            conv_kernel=config.positive("linear_conv_kernel_dim"),
        )
        if config.has("layer_types"):
            layers = _by_layer_type(config, {"full_attention": _full, "linear_attention": lambda _config: gdn})
        else:
            interval = config.positive("full_attention_interval", default=4)
            count = config.positive("num_hidden_layers")
            layers = [gdn if (i + 1) % interval else _full(config) for i in range(count)]
        return layers, [_full(config)] * config.integer(mtp_field, default=1)

    return read


def _nemotron_h(config: ModelConfig) -> Layers:
    mamba = Mamba2(
        heads=config.positive("mamba_num_heads"),
        head_dim=config.positive("mamba_head_dim"),
        groups=config.positive("n_groups"),
        state_size=config.positive("ssm_state_size"),
        conv_kernel=config.positive("conv_kernel"),
        chunk_size=config.positive("chunk_size", "mamba_chunk_size"),
    )
    by_letter: dict[str, Layer] = {"M": mamba, "*": _full(config), "E": NoCache(), "-": NoCache()}
    by_name = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}

    def pattern(field: str, names_field: str) -> str:
        letters = config.get(field)
        if letters is None and config.has(names_field):
            names = config.get(names_field)
            letters = "".join(by_name.get(str(name), "?") for name in names)
        if not isinstance(letters, str) or not set(letters) <= set(by_letter):
            raise GeometryError(f"config.json: {field} is {letters!r}; expected the letters M, *, E and -.")
        return letters

    layers = [by_letter[letter] for letter in pattern("hybrid_override_pattern", "layers_block_type")]
    depth = config.integer("num_nextn_predict_layers", default=0)
    draft = (
        [by_letter[letter] for letter in pattern("mtp_hybrid_override_pattern", "mtp_layers_block_type")]
        if depth
        else []
    )
    return layers, draft * depth


def _granite_hybrid(config: ModelConfig) -> Layers:
    count = config.positive("num_hidden_layers")
    heads = config.positive("mamba_n_heads")
    inner = config.positive("mamba_expand", default=2) * config.positive("hidden_size")
    mamba = Mamba2(
        heads=heads,
        head_dim=inner // heads if config.get("mamba_d_head") == "auto" else config.positive("mamba_d_head"),
        groups=config.positive("mamba_n_groups"),
        state_size=config.positive("mamba_d_state"),
        conv_kernel=config.positive("mamba_d_conv"),
        chunk_size=config.positive("mamba_chunk_size"),
    )
    field = "layer_types" if config.has("layer_types") else "layers_block_type"
    known: dict[str, Layer] = {"mamba": mamba, "attention": _full(config)}
    names = config.names(field, count)
    if not set(names) <= set(known):
        raise GeometryError(
            f"config.json: {field} has {sorted(set(names) - set(known))}; expected mamba and attention."
        )
    return [known[name] for name in names], []


def _kimi_linear(config: ModelConfig) -> Layers:
    linear = config.get("linear_attn_config")
    if not isinstance(linear, dict):
        raise GeometryError("config.json: linear_attn_config is missing; Kimi Linear cannot be sized without it.")
    try:
        # The layer numbers count from 1.
        delta = {int(number) - 1 for number in linear["kda_layers"]}
        kda = KimiDelta(int(linear["num_heads"]), int(linear["head_dim"]), int(linear["short_conv_kernel_size"]))
    except (KeyError, TypeError, ValueError) as exc:
        raise GeometryError(f"config.json: linear_attn_config is not complete: {exc}.") from None
    count = config.positive("num_hidden_layers")
    return [kda if i in delta else _latent(config) for i in range(count)], []


def _latent(config: ModelConfig) -> LatentAttention:
    return LatentAttention(config.positive("kv_lora_rank"), config.integer("qk_rope_head_dim"))


def _mla(config: ModelConfig) -> Layers:
    latent = _latent(config)
    count = config.positive("num_hidden_layers")
    return [latent] * count, [latent] * config.integer("num_nextn_predict_layers", default=0)


def _sparse_mla(config: ModelConfig) -> Layers:
    def layer(index_head_dim: int) -> SparseLatentAttention:
        return SparseLatentAttention(
            config.positive("kv_lora_rank"), config.integer("qk_rope_head_dim"), index_head_dim
        )

    count = config.positive("num_hidden_layers")
    own = layer(config.positive("index_head_dim"))
    shared = layer(0)
    every = config.positive("index_topk_freq", default=1)
    offset = config.integer("index_skip_topk_offset", default=2)
    pattern = config.get("index_topk_pattern")
    layers: list[Layer] = []
    for index in range(count):
        if pattern is None:
            skips = max(index - offset + 1, 0) % every != 0
        else:
            skips = index < len(pattern) and pattern[index] == "S"
        layers.append(shared if skips else own)
    return layers, [own] * config.integer("num_nextn_predict_layers", default=0)


def _deepseek_v4(config: ModelConfig) -> Layers:
    count = config.positive("num_hidden_layers")
    draft = config.integer("num_nextn_predict_layers", default=0)
    ratios = config.get("compress_ratios")
    if ratios is None and config.has("compress_rates"):
        rates = config.get("compress_rates")
        ratios = [rates.get(name, 0) for name in config.names("layer_types", count)]
    if not isinstance(ratios, list) or len(ratios) < count or not all(isinstance(ratio, int) for ratio in ratios):
        raise GeometryError("config.json: compress_ratios is missing or shorter than the model; DeepSeek-V4 needs it.")

    def layer(ratio: int) -> CompressedAttention:
        return CompressedAttention(
            head_dim=config.positive("head_dim"),
            rope_head_dim=config.positive("qk_rope_head_dim"),
            window=config.positive("sliding_window"),
            compress_ratio=max(1, ratio),
            # Only the layers that compress four tokens into one choose among them with an indexer.
            index_head_dim=config.positive("index_head_dim") if ratio == 4 else 0,
        )

    return [layer(ratio) for ratio in ratios[:count]], [layer(1)] * draft


def _minimax_m3(config: ModelConfig) -> Layers:
    full = _full(config)
    sparse = config.get("sparse_attention_config")
    if not isinstance(sparse, dict):
        raise GeometryError("config.json: sparse_attention_config is missing; MiniMax-M3 cannot be sized without it.")
    index_dim = sparse.get("sparse_index_dim")
    if not isinstance(index_dim, int) or index_dim < 1:
        raise GeometryError(f"config.json: sparse_attention_config.sparse_index_dim is {index_dim!r}; expected a size.")
    indexed = IndexedAttention(full.kv_heads, full.head_dim, index_dim)
    frequency = sparse.get("sparse_attention_freq") or []
    count = config.positive("num_hidden_layers")
    layers: list[Layer] = [indexed if i < len(frequency) and frequency[i] else full for i in range(count)]
    return layers, [indexed] * config.integer("num_mtp_modules", default=1)


def _named(reader: Reader, *architectures: str) -> dict[str, Reader]:
    return dict.fromkeys(architectures, reader)


READERS: dict[str, Reader] = {
    **_named(
        _plain,
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Mistral3ForConditionalGeneration",
        "PixtralForConditionalGeneration",
        "MixtralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Phi3ForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Glm4ForCausalLM",
        "Exaone4ForCausalLM",
        "SeedOssForCausalLM",
        "NemotronForCausalLM",
    ),
    **_named(_with_mtp, "Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration", "Ernie4_5_MoeForCausalLM"),
    **_named(_every(2), "Gemma2ForCausalLM"),
    **_named(_every(6), "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    **_named(_gemma4, "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    **_named(_gpt_oss, "GptOssForCausalLM"),
    **_named(_llama4, "Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    **_named(_qwen_hybrid("num_nextn_predict_layers"), "Qwen3NextForCausalLM"),
    **_named(
        _qwen_hybrid("mtp_num_hidden_layers"),
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    # The Omni and VL models have a NemotronHForCausalLM as their language model (llm_config), the only part with a
    # cache: vllm/model_executor/models/registry.py and nano_nemotron_vl.py of 0.32.0.
    **_named(
        _nemotron_h,
        "NemotronHForCausalLM",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Super_Omni_Reasoning_V3",
        "NemotronH_Omni_Reasoning_V3",
    ),
    **_named(_granite_hybrid, "GraniteMoeHybridForCausalLM"),
    **_named(_kimi_linear, "KimiLinearForCausalLM"),
    **_named(
        _mla,
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "KimiK25ForConditionalGeneration",
        "KimiVLForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    ),
    **_named(_sparse_mla, "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"),
    **_named(_deepseek_v4, "DeepseekV4ForCausalLM"),
    **_named(_minimax_m3, "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
}

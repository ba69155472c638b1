"""Tiny configs of classes of transformers, derived from the defaults of their config classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SIZES: Mapping[str, int] = {
    "vocab_size": 128,
    "vocab_size_per_layer_input": 128,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "n_ctx": 256,
    "sliding_window": 24,
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim"), 64
    ),
    **dict.fromkeys(
        ("intermediate_size", "d_ff", "ffn_dim", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim"),
        96,
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 2
    ),
    "encoder_layers": 2,
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    "expert_ffn_hidden_size": 48,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("num_shared_experts", "n_shared_experts", "topk_group"), 1),
    "n_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "qk_head_dim": 24,
    "v_head_dim": 16,
    "hidden_size_per_layer_input": 16,
    "local_attention": 24,
    "index_head_dim": 16,
    "index_block_size": 8,
    "index_topk_blocks": 2,
    "index_topk": 8,
    "attention_chunk_size": 16,
}
"""The sizes of tiny configs by field; a field of the defaults is set if it is larger."""

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
TOKENS = {"pad": 0, "bos": 1, "eos": 2}

FIELDS: Mapping[str, Mapping[str, Any]] = {
    "Dots3NoteForCausalLM": {"num_key_value_heads": 4},
    "XmodForCausalLM": {"languages": ["en_XX"], "default_language": "en_XX"},
    "Dots1ForCausalLM": {"n_routed_experts": 4, "n_group": 1},
    "NemotronForCausalLM": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "LongcatFlashForCausalLM": {"num_layers": 1},
    "Gemma3nForCausalLM": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        "laurel_rank": 8,
        "altup_num_inputs": 2,
    },
    "MiniMaxM3VLForCausalLM": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "MusicgenForCausalLM": {"num_codebooks": 1},
    "MusicgenMelodyForCausalLM": {"num_codebooks": 1},
}
"""Fields that the rules below cannot find."""


def tiny_configs(cls: Any) -> Iterator[dict[str, Any]]:
    """Fields for the config class of a model class, the likeliest first.

    Later ones set fields that are None by default, or keep the number of layers.
    """
    own = dict(FIELDS.get(cls.__name__, {}))
    defaults = defaults_of(cls.config_class)
    yield tiny(cls, defaults) | own
    yield tiny(cls, defaults, fill=True) | own
    yield tiny(cls, defaults, layers=4) | own


def defaults_of(config_class: Any) -> dict[str, Any]:
    """The fields of a default config; {} if there is none."""
    try:
        found: dict[str, Any] = config_class().to_dict()
    except Exception:  # a config class may need fields
        return {}
    return found


def tiny(
    cls: Any, defaults: Mapping[str, Any], *, fill: bool = False, layers: int = 2
) -> dict[str, Any]:
    """The fields of a tiny config, also of its parts (text, vision...)."""
    made = shrink(defaults, fill=fill, layers=layers)
    for part in getattr(cls.config_class, "sub_configs", {}):
        if isinstance(defaults.get(part), dict):
            made[part] = shrink(defaults[part], fill=fill, layers=layers)
    if "is_decoder" in defaults and not defaults.get("is_encoder_decoder"):
        made["is_decoder"] = True
    return made


def shrink(defaults: Mapping[str, Any], *, fill: bool, layers: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field, value in defaults.items():
        if field.endswith(("_token_id", "_token_index")):
            made |= {} if value is None else {field: token(field, value)}
        elif field in SIZES and isinstance(value, int) and not isinstance(value, bool):
            made[field] = min(value, SIZES[field]) if value > 0 else value
        elif field in SIZES and value is None and fill:
            made[field] = SIZES[field]
    latent = "kv_lora_rank" in defaults
    if latent and "num_key_value_heads" in made:
        made["num_key_value_heads"] = made["num_attention_heads"]
    if latent:  # derived from the sizes of the rotated part
        made.pop("head_dim", None)
        made.pop("qk_head_dim", None)
    rope = defaults.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_theta", 0) is None:
        made["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    return made | cut(defaults, made, layers)


def token(field: str, value: Any) -> Any:
    """A token id below the tiny vocabulary; media have ids of their own."""
    known = TOKENS.get(field.partition("_")[0])
    found = known if known is not None else 100 + sum(map(ord, field)) % 27
    return [found] if isinstance(value, list) else found


def cut(defaults: Mapping[str, Any], made: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Lists by layer cut to a layer of each kind, and the number of layers."""
    field = next((f for f in LAYERS if isinstance(made.get(f), int)), None)
    if field is None:
        return {}
    whole, kinds = defaults[field], defaults.get("layer_types")
    kinds = kinds if isinstance(kinds, list) and len(kinds) == whole else None
    count = min(layers, whole)
    if kinds is None:
        kept = list(range(count))
    else:
        first = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
        rest = [layer for layer in range(whole) if layer not in first]
        kept = sorted(first + rest[: max(0, count - len(first))])
    lists = {
        each: [value[layer] for layer in kept]
        for each, value in defaults.items()
        if isinstance(value, list) and len(value) == whole and not each.endswith("_token_id")
    }
    return lists | {field: len(kept)}

"""The keys of a GGUF file for a model of the hub: those of its config, below its architecture.

Most architectures share names of fields and of keys. The record's `gguf_metadata` has the others.
Source: llama.cpp (gguf-py/gguf/constants.py, src/llama-arch.cpp, 2026).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ostro import Architecture, ConfigWriter, resolve
from ostro.checkpoints import PluginManager
from ostro.errors import Unsupported
from ostro.ops import rope_frequencies

ARCHITECTURE = "general.architecture"

PROJECTOR = "clip."
"""The prefix of the keys of a projector file."""

KEYS: Mapping[str, Sequence[str]] = {
    "block_count": ("num_hidden_layers", "num_layers"),
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size", "d_model"),
    "feed_forward_length": ("intermediate_size", "d_ff"),
    "vocab_size": ("vocab_size",),
    "attention.head_count": ("num_attention_heads", "num_heads"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim", "d_kv"),
    "attention.value_length": ("head_dim", "d_kv"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "attention.scale": ("attention_multiplier",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok", "moe_topk", "top_k_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
    ),
    "expert_shared_count": ("n_shared_experts", "num_shared_expert"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "leading_dense_block_count": ("first_k_dense_replace", "num_dense_layers"),
}
"""The keys without the architecture, and the fields that they store: the first that exists."""

YARN = {
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}
LONGROPE = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}


def config_keys(
    record: Architecture, config: Any, raw: Mapping[str, Any], plugins: PluginManager
) -> dict[str, Any]:
    """The keys of a text model, with the prefix of its architecture, and those of its projector.

    `config` is its typed config, `raw` its config.json, in which "preprocessor_config" are the
    settings of its processor. Raises Unsupported without an architecture
    of GGUF files.
    """
    whole, config = config, text_config(config)
    found = {key: field_of(config, fields) for key, fields in KEYS.items()}
    found |= rope_keys(config)
    if not has_windows(config):
        found["attention.sliding_window"] = None
    name = text_name(record, raw)
    has_media = name is not None and name not in record.gguf
    records = [(record, whole, raw)]
    if has_media:
        text = plugins.architecture_for(gguf=name)
        records.append((text, config, raw.get("text_config", raw)))
    for each, typed, its in records:
        if each.gguf_metadata is not None:
            write: ConfigWriter = resolve(each.gguf_metadata)
            found |= write(typed, its)
    stated = found.pop(ARCHITECTURE, None)
    name = name if has_media else stated or name
    if name is None:
        raise Unsupported(f"{record.name} has no architecture of GGUF files; use --to uqff")
    named = {key: value for key, value in found.items() if value is not None}
    return {ARCHITECTURE: name} | {
        key if key.startswith(("general.", "tokenizer.", PROJECTOR)) else f"{name}.{key}": value
        for key, value in named.items()
    }


def text_config(config: Any) -> Any:
    """The config of a model's decoder; the config itself for a model of text."""
    return getattr(config, "text", config)


def text_name(record: Architecture, raw: Mapping[str, Any]) -> str | None:
    """The GGUF architecture of a record, for one with media that of its text; None without one.

    Of several texts it is the one with the model type of the config, else the first.
    """
    names = [name.partition("+")[0] for name in record.gguf]
    text = raw.get("text_config")
    kind = text.get("model_type") if isinstance(text, Mapping) else None
    return kind if kind in names else next(iter(names), None)


def field_of(config: Any, fields: Sequence[str]) -> Any:
    """The value of the first field that the config has, of a list of equal values one; or None."""
    found = next((getattr(config, name) for name in fields if hasattr(config, name)), None)
    return found[0] if isinstance(found, tuple) and len({*found}) == 1 else found


def has_windows(config: Any) -> bool:
    """Whether a layer has a sliding window."""
    layers = range(getattr(config, "num_hidden_layers", 0))
    return hasattr(config, "window") and any(config.window(i) for i in layers)


def rules(config: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The rope rule of layers with full attention, and of layers with a window if they differ."""
    rule: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in rule:
        return rule["full_attention"], rule.get("sliding_attention", {})
    return rule, {}


def rope_keys(config: Any) -> dict[str, Any]:
    """The keys of the rope rule; none for a model without."""
    rule, local = rules(config)
    if not rule:
        return {}
    part = rule.get("partial_rotary_factor", 1.0)
    found: dict[str, Any] = {
        "rope.freq_base": float(rule["rope_theta"]),
        "rope.freq_base_swa": float(local["rope_theta"]) if local else None,
        "rope.dimension_count": int(config.head_dim * part),
    }
    if sections := rule.get("mrope_section"):
        found["rope.dimension_sections"] = [*sections, 0, 0, 0, 0][:4]
    kind = rule.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rule["factor"])}
    if kind == "yarn":
        stored = {f"rope.scaling.{key}": rule.get(field) for field, key in YARN.items()}
        found |= stored
    if kind in ("longrope", "su"):
        found |= {
            "rope.scaling.type": "longrope",
            "rope.scaling.attn_factor": rope_frequencies(rule, config.head_dim, 1)[1],
            "rope.scaling.original_context_length": rule.get("original_max_position_embeddings"),
        }
    return found


def rope_tensors(config: Any, r: int) -> dict[str, Tensor]:
    """The tensors that store a rope rule: one factor [r/2] float32 per pair of `r` dimensions."""
    import torch

    rule, _ = rules(config)
    kind = rule.get("rope_type", "default")
    if kind in ("longrope", "su"):
        return {name: torch.tensor(rule[field]).float() for field, name in LONGROPE.items()}
    if kind == "proportional":  # the other pairs are not rotated
        factors = torch.full((r // 2,), 1e30)
        factors[: int(rule.get("partial_rotary_factor", 1.0) * r // 2)] = 1.0
        return {"rope_freqs.weight": factors}
    if kind == "llama3":
        plain = {**rule, "rope_type": "default"}
        (scaled, _), (default, _) = (
            rope_frequencies(each, config.head_dim, 1) for each in (rule, plain)
        )
        return {"rope_freqs.weight": default / scaled}
    return {}

"""Granite 4.0's names on the hub and in GGUF files, which Bamba's GGUF files share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, ExpertNames
from ostro.architectures.bamba.names import LAYER, MIXERS
from ostro.architectures.granite import names as granite
from ostro.architectures.granitemoe import names as granitemoe
from ostro.architectures.granitemoehybrid.model import Config
from ostro.architectures.llama import names as llama
from ostro.architectures.mamba2 import names as mamba2


def names(config: Config) -> ExpertNames:
    """GraniteMoE's names, and those of Mamba 2; without experts, the shared MLP is the only one."""
    found = granitemoe.names(config)
    hub = (*MIXERS, *found.hub)
    if not config.num_local_experts:
        ours = [pair.ours.replace(granitemoe.SHARED, f"{LAYER}.mlp") for pair in hub]
        hub = tuple(replace(pair, ours=name) for pair, name in zip(hub, ours, strict=True))
    states = mamba2.mixer_names(f"{LAYER}.self_attn", config.mixer())
    return replace(found, hub=hub, gguf=(*states, *found.gguf))


def gguf_config(container: Container) -> dict[str, Any]:
    """Granite's keys, and those of experts and states.

    A layer without key heads is Mamba 2. `rope.scaling.finetuned` is the switch of the rope.
    Without `attention.scale` (Bamba), scores are scaled by head_dim ** -0.5.
    """
    get = llama.under(container.metadata["general.architecture"], container.metadata)
    heads = get("attention.head_count_kv")
    counts = [int(n) for n in heads] if isinstance(heads, Iterable) else []
    raw = granite.gguf_config(container)
    states = mamba2.state_sizes(get)
    fields = {
        "mamba_n_heads": states["num_heads"],
        "mamba_d_head": states["head_dim"],
        "mamba_n_groups": states["n_groups"],
        "mamba_d_state": states["state_size"],
        "mamba_d_conv": states["conv_kernel"],
        "mamba_expand": states["expand"],
        "shared_intermediate_size": get(
            "expert_shared_feed_forward_length", raw.get("intermediate_size")
        ),
        "num_experts_per_tok": get("expert_used_count"),
    }
    found = {key: value for key, value in fields.items() if value is not None}
    if "attention_multiplier" not in raw and isinstance(raw.get("head_dim"), int):
        found["attention_multiplier"] = max(raw["head_dim"], 1) ** -0.5
    if counts:
        found["layer_types"] = ["full_attention" if n else "linear_attention" for n in counts]
    return {
        **raw,
        **found,
        "num_local_experts": get("expert_count", 0),
        "position_embedding_type": "rope" if get("rope.scaling.finetuned", True) else "nope",
        "attention_bias": any(name.endswith("attn_q.bias") for name in container.tensors),
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in container.tensors),
    }


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of states; a layer of Mamba 2 has no key heads."""
    heads = [
        config.num_key_value_heads if config.attends(i) else 0
        for i in range(config.num_hidden_layers)
    ]
    return mamba2.state_keys(config.mixer()) | {
        "general.architecture": "granitehybrid" if 0 in heads else "granite",
        "attention.head_count_kv": heads,
        "attention.scale": config.attention_multiplier,
        "rope.scaling.finetuned": config.position_embedding_type == "rope",
    }

"""Adapters for the conformance kit's tiny llama, in memory and in PEFT folders."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.plugins.conformance.parity import Subject

LINEARS = [f"model.layers.{i}.self_attn.{part}_proj" for i in range(2) for part in "qvo"]


def adapter(
    made: Subject, seed: int, rank: int = 4, invocation: tuple[int, ...] = ()
) -> AdapterWeights:
    """A random adapter on some linears, large enough to change greedy texts."""
    generator = torch.Generator().manual_seed(seed)
    d = made.config.hidden_size  # type: ignore[attr-defined]
    sizes = {"q": d, "v": made.config.num_key_value_heads * made.config.head_dim, "o": d}  # type: ignore[attr-defined]
    weights = {
        name: LowRank(
            a=torch.randn(rank, d, generator=generator) / d**0.5,
            b=torch.randn(sizes[name[-6]], rank, generator=generator),
            scale=0.5,
        )
        for name in LINEARS
    }
    return AdapterWeights(kind="lora", weights=weights, invocation=invocation)


def save(weights: AdapterWeights, folder: Path, **config: object) -> Path:
    """Write an adapter as PEFT does."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, each in weights.weights.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = each.a.contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = each.b.contiguous()
    save_file(tensors, folder / "adapter_model.safetensors")
    rank = next(iter(weights.weights.values())).rank
    fields = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank / 2,
        "target_modules": ["q_proj", "v_proj", "o_proj"],
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return folder

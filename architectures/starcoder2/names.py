"""StarCoder2's names on the hub and in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.phi import names as phi
from ostro.architectures.starcoder2.model import Config

HUB = (
    Pair(f"{phi.LAYER}.mlp.c_fc", f"{phi.LAYER}.mlp.fc1"),
    Pair(f"{phi.LAYER}.mlp.c_proj", f"{phi.LAYER}.mlp.fc2"),
)


def names(config: Config) -> Names:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    return Names(hub=HUB, gguf=phi.gguf_pairs(config))


def gguf_config(container: Container) -> dict[str, Any]:
    """The trunk's keys; a file without biases has no key for it."""
    raw = phi.gguf_config(container)
    raw["norm_epsilon"] = raw.pop("layer_norm_eps")
    return raw | {"use_bias": "blk.0.attn_output.bias" in container.tensors}


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The epsilon is that of layer norms only."""
    return {"attention.layer_norm_rms_epsilon": None}

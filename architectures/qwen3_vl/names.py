"""The names of the Qwen3-VL families on the hub."""

from __future__ import annotations

from ostro import Names, Pair
from ostro.architectures.qwen2_5_vl import model as qwen2_5_vl
from ostro.architectures.qwen3_vl.config import SightedConfig


def names(config: SightedConfig) -> Names:
    """The vision encoder is below `model`, beside the language model."""
    patch, mlp = "visual.patch_embed.proj.weight", "visual.blocks.{i}.mlp"
    return Names(
        hub=(
            Pair(f"model.{patch}", patch, qwen2_5_vl.Flatten(config.vision.patch_shape)),
            Pair(f"model.{mlp}.linear_fc1", f"{mlp}.fc1"),
            Pair(f"model.{mlp}.linear_fc2", f"{mlp}.fc2"),
            Pair("model.visual", "visual"),
            Pair("model.language_model", "model"),
        )
    )

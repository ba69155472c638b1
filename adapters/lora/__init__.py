"""LoRA adapters (Hu et al. 2021): PEFT and MLX folders; GGUF, diffusers and kohya files."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Adapter, Files, hookimpl

PICKLES = ("adapter_model.bin", "pytorch_lora_weights.bin", "adapters.npz")
"""Weight files that are refused: pickles, and archives that ostro cannot read."""


def claims(files: Files, config: Mapping[str, Any]) -> bool:
    """Whether a folder is a LoRA, by adapter_config.json, else by its weight files.

    False for model folders and X-LoRA folders.
    """
    if "xlora_config.json" in files.names:
        return False
    if "peft_type" in config:
        return config["peft_type"] == "LORA"
    if config:
        return "lora_parameters" in config or "fine_tune_type" in config
    if {"config.json", "model_index.json"} & {*files.names}:
        return False
    return any(name.endswith((".safetensors", ".gguf")) or name in PICKLES for name in files.names)


@hookimpl
def ostro_adapters() -> Iterable[Adapter]:
    yield Adapter(name="lora", claims=claims, load=f"{__name__}.read:read")

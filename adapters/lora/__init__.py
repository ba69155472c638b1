"""LoRA (Hu et al. 2021): PEFT's folders, MLX's, GGUF adapters, diffusers' and kohya's files."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Adapter, Files, hookimpl

PICKLES = ("adapter_model.bin", "pytorch_lora_weights.bin", "adapters.npz")
"""Weights of adapters that would have to be unpickled, or that no reader here opens."""


def claims(files: Files, config: Mapping[str, Any]) -> bool:
    """Whether a folder looks like a LoRA: by its adapter_config.json, else by its weight files.

    A folder of a model, and an X-LoRA's, which is a kind of its own, are left alone.
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

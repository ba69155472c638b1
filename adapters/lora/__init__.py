"""LoRA (Hu et al. 2021): folders of PEFT and MLX, GGUF adapters, files of diffusers and kohya."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Adapter, Files, hookimpl

PICKLES = ("adapter_model.bin", "pytorch_lora_weights.bin", "adapters.npz")
"""Weight files that are refused: pickles, and archives without a reader."""


def claims(files: Files, config: Mapping[str, Any]) -> bool:
    """Whether a folder is a LoRA, from adapter_config.json, else from its weight files.

    Model folders and X-LoRA folders are not claimed.
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

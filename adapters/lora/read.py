"""Detect the format of a LoRA folder from its file names and headers, and read it."""

from __future__ import annotations

from ostro import AdapterSource, AdapterWeights, errors
from ostro.adapters.lora import diffusers, folder, gguf, kohya, mlx, peft


def read(source: AdapterSource) -> AdapterWeights:
    """Read an adapter's factors from its folder, in any of the formats.

    Raises errors.AdapterError with the file and its key or tensor.
    """
    if source.config.get("peft_type") == "LORA":
        return peft.read(source)
    # a config without peft_type is mlx-lm's
    if source.config:
        return mlx.read(source)
    for suffix in (".gguf", ".safetensors"):
        if found := [name for name in source.files.names if name.endswith(suffix)]:
            return _single(source, _one(found))
    folder.refuse_pickles(source)
    raise errors.AdapterError(
        f"{source.files.root.name}: neither adapter_config.json nor a .safetensors or .gguf file"
    )


def _one(names: list[str]) -> str:
    """The only weight file of a folder without a config."""
    if len(names) == 1 or diffusers.FILE in names:
        return diffusers.FILE if diffusers.FILE in names else names[0]
    raise errors.AdapterError(
        f"several weight files and no adapter_config.json: {', '.join(sorted(names)[:5])}; "
        "keep one adapter in a folder"
    )


def _single(source: AdapterSource, name: str) -> AdapterWeights:
    container = source.open(name)
    if name.endswith(".gguf"):
        return gguf.read(name, container)
    return (kohya if kohya.claims(container) else diffusers).read(name, container)

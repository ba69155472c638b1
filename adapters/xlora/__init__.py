"""X-LoRA adapters (Buehler and Buehler 2024): LoRAs scaled per token by a classifier."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Adapter, Files, hookimpl

CONFIG = "xlora_config.json"
"""The config of the original X-LoRA library and mistral.rs; PEFT uses adapter_config.json."""


def claims(files: Files, config: Mapping[str, Any]) -> bool:
    """Whether a folder is an X-LoRA, by its config."""
    return config.get("peft_type") == "XLORA" or CONFIG in files.names


@hookimpl
def ostro_adapters() -> Iterable[Adapter]:
    yield Adapter(name="xlora", claims=claims, load=f"{__name__}.read:read")

"""X-LoRA (Buehler and Buehler 2024): several LoRAs, with scalings per token from a classifier."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Adapter, Files, hookimpl

CONFIG = "xlora_config.json"
"""What the first library of X-LoRA and mistral.rs call it; PEFT says it in adapter_config.json."""


def claims(files: Files, config: Mapping[str, Any]) -> bool:
    """Whether a folder is an X-LoRA, from its configs."""
    return config.get("peft_type") == "XLORA" or CONFIG in files.names


@hookimpl
def ostro_adapters() -> Iterable[Adapter]:
    yield Adapter(name="xlora", claims=claims, load=f"{__name__}.read:read")

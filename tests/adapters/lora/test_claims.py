"""The LoRA plugin claims LoRA folders, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostro import Files
from ostro.adapters.lora import claims
from ostro.core.plugins.manager import PluginManager

PEFT = {"peft_type": "LORA"}


@pytest.mark.parametrize(
    ("names", "config", "ours"),
    [
        (("adapter_config.json", "adapter_model.safetensors"), PEFT, True),
        (("adapter_config.json", "adapter_model.bin"), PEFT, True),
        (("adapter_config.json", "adapters.safetensors"), {"lora_parameters": {}}, True),
        (("adapter_config.json", "adapters.safetensors"), {"fine_tune_type": "full"}, True),
        (("adapter.gguf",), {}, True),
        (("pytorch_lora_weights.safetensors",), {}, True),
        (("pytorch_lora_weights.bin",), {}, True),
        (("adapter_config.json", "adapter_model.safetensors"), {"peft_type": "XLORA"}, False),
        (("adapter_config.json", "adapter_model.safetensors"), {"peft_type": "IA3"}, False),
        (("adapter_config.json", "xlora_config.json"), PEFT, False),
        (("adapter_config.json",), {"other": 1}, False),
        (("config.json", "model.safetensors"), {}, False),
        (("model_index.json", "a.safetensors"), {}, False),
        (("README.md",), {}, False),
    ],
)
def test_claims(names: tuple[str, ...], config: dict[str, Any], ours: bool) -> None:
    assert claims(Files(root=Path("x"), names=names), config) is ours


def test_the_plugin_is_found(plugins: PluginManager) -> None:
    assert plugins.get("adapters", "lora").load == "ostro.adapters.lora.read:read"

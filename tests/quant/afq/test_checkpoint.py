"""A tiny llama in MLX's format, served: its logits are those of the dequantized weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ostro.core.plugins import PluginManager
from ostro.core.testing.parity import deviation, subject
from ostro.quant.afq import naive

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def packed(weight: Tensor, bits: int, group: int) -> tuple[dict[str, Tensor], Tensor]:
    """What MLX stores of a weight, by suffix, and what remains of it."""
    codes, scales, biases = naive.quantize(weight, bits, group)
    words = naive.pack(codes, bits)
    parts = {"weight": words, "scales": scales, "biases": biases}
    return parts, naive.dequantize(words, scales, biases, bits)


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (3, 32)])
@torch.inference_mode()
def test_it_says_what_its_weights_say(bits: int, group: int, tmp_path: Path) -> None:
    plugins = PluginManager()
    plugins.load()
    with subject(plugins, "llama", config={**SIZES, **HEADS}, std=0.05) as tiny:
        tensors = dict(tiny.reference.state_dict())
        for name, weight in tiny.reference.state_dict().items():
            if weight.dim() == 2:
                del tensors[name]
                parts, dense = packed(weight, 8 if "down_proj" in name else bits, group)
                tensors |= {name.replace("weight", suffix): t for suffix, t in parts.items()}
                weight.copy_(dense)
        save_file(tensors, tiny.folder / "model.safetensors", metadata={"format": "mlx"})
        config = tiny.raw_config | {"quantization": {"bits": bits, "group_size": group}}
        (tiny.folder / "config.json").write_text(json.dumps(config))
        tiny.reference.save_pretrained(tmp_path)
        plain = replace(tiny, folder=tmp_path)
        loaded = tiny.load(exact=True)
        assert any("AFQ8 (8 bits" in line for line in loaded.explain)
        ours, truth = tiny.answer(tiny.engine(loaded)), plain.answer(plain.engine())
        assert deviation(ours, truth) <= 1e-5

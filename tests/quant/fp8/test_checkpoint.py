"""A tiny llama in FP8, served: its logits are those of the dequantized weights."""

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
from ostro.quant.fp8 import naive

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def packed(weight: Tensor, blocks: bool) -> tuple[dict[str, Tensor], Tensor]:
    """A weight's tensors by suffix, and what remains of it."""
    if not blocks:
        q, scale = naive.quantize(weight)
        parts = {"weight": q, "weight_scale": scale.view(1), "input_scale": torch.ones(1)}
        return parts, naive.dequantize(q, scale.expand(len(q), 1))
    n, k = weight.shape
    scale = torch.linspace(0.01, 0.02, -(-n // 128) * -(-k // 128)).view(-(-n // 128), -1)
    spread = scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    q = (weight / spread).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale_inv": scale}, q.float() * spread


@pytest.mark.parametrize("blocks", [False, True], ids=["tensors", "blocks"])
@torch.inference_mode()
def test_it_says_what_its_weights_say(blocks: bool, tmp_path: Path) -> None:
    plugins = PluginManager()
    plugins.load()
    with subject(plugins, "llama", config={**SIZES, **HEADS}, std=0.05) as tiny:
        tensors = dict(tiny.reference.state_dict())
        for name, weight in tiny.reference.state_dict().items():
            if weight.dim() == 2 and "embed" not in name and "head" not in name:
                del tensors[name]
                parts, dense = packed(weight, blocks)
                tensors |= {name.replace("weight", suffix): t for suffix, t in parts.items()}
                weight.copy_(dense)
        save_file(tensors, tiny.folder / "model.safetensors", metadata={"format": "pt"})
        said = {"quant_method": "fp8"} | ({"weight_block_size": [128, 128]} if blocks else {})
        config = tiny.raw_config | {"quantization_config": said}
        (tiny.folder / "config.json").write_text(json.dumps(config))
        tiny.reference.save_pretrained(tmp_path)
        plain = replace(tiny, folder=tmp_path)
        loaded = tiny.load(exact=True)
        assert any("F8_E4M3 (8 bits" in line for line in loaded.explain)
        ours, truth = tiny.answer(tiny.engine(loaded)), plain.answer(plain.engine())
        assert deviation(ours, truth) <= 1e-5

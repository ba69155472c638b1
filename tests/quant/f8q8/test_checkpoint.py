"""A tiny llama in F8Q8, served: its logits are those of the dequantized weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from ostro.core.plugins import PluginManager
from ostro.core.testing.parity import deviation, subject
from ostro.quant.f8q8.storage import F8Q8

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@torch.inference_mode()
def test_it_says_what_its_weights_say(tmp_path: Path) -> None:
    plugins = PluginManager()
    plugins.load()
    with subject(plugins, "llama", config={**SIZES, **HEADS}, std=0.05) as tiny:
        tensors = dict(tiny.reference.state_dict())
        for name, weight in tiny.reference.state_dict().items():
            if weight.dim() == 2:
                del tensors[name]
                made = F8Q8.quantize(weight, "f8q8", torch.float32)
                tensors |= {name.replace("weight", s): t for s, t in made.save().items()}
                weight.copy_(made.dequantize())
        save_file(tensors, tiny.folder / "model.safetensors", metadata={"format": "pt"})
        tiny.reference.save_pretrained(tmp_path)
        plain = replace(tiny, folder=tmp_path)
        loaded = tiny.load(exact=True)
        assert any("F8Q8 (8 bits" in line for line in loaded.explain)
        ours, truth = tiny.answer(tiny.engine(loaded)), plain.answer(plain.engine())
        assert deviation(ours, truth) <= 1e-5

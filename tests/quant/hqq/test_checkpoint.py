"""A tiny llama as hqq saves it, served: its logits are those of the dequantized weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ostro.core.plugins import PluginManager
from ostro.core.testing.parity import deviation, subject
from ostro.quant.hqq import checkpoint, naive
from ostro.quant.hqq.storage import Across, Hqq

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def across(weight: torch.Tensor) -> Across:
    """A weight in groups of 64 across its rows, each from its least to its largest."""
    lies = checkpoint.form(4, 64).of(*weight.shape)
    lies = replace(lies, layout=lies.layout._replace(axis=0))
    groups = weight.reshape(lies.layout.matrix)
    scale = (groups.amax(0, keepdim=True) - groups.amin(0, keepdim=True)) / 15
    zero = -groups.amin(0, keepdim=True) / scale
    codes = (groups / scale + zero).round().clamp(0, 15).to(torch.uint8)
    words = naive.pack(codes, lies.layout)
    beside = {**lies.beside, "axis": torch.tensor(0)}
    return Across(words, scale, zero, replace(lies, beside=beside), torch.float32)


@pytest.mark.parametrize("axis", [0, 1])
@torch.inference_mode()
def test_it_says_what_its_weights_say(axis: int, tmp_path: Path) -> None:
    plugins = PluginManager()
    plugins.load()
    with subject(plugins, "llama", config={**SIZES, **HEADS}, std=0.05) as tiny:
        tensors = dict(tiny.reference.state_dict())
        for name, weight in tiny.reference.state_dict().items():
            if weight.dim() != 2 or "embed" in name or "head" in name:
                continue  # hqq leaves them as they are
            bits = "hqq8" if "down_proj" in name else "hqq3"
            made = Hqq.quantize(weight, bits, torch.float32) if axis else across(weight)
            del tensors[name]
            tensors |= {name.replace("weight", s): t.clone() for s, t in made.save().items()}
            weight.copy_(made.dequantize())
        save_file(tensors, tiny.folder / "model.safetensors", metadata={"format": "pt"})
        tiny.reference.save_pretrained(tmp_path)
        plain = replace(tiny, folder=tmp_path)
        loaded = tiny.load(exact=True)
        assert any("HQQ" in line for line in loaded.explain)
        ours, truth = tiny.answer(tiny.engine(loaded)), plain.answer(plain.engine())
        assert deviation(ours, truth) <= 1e-5

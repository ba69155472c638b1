"""A tiny llama as bitsandbytes saves it, served: its logits are those of the plain weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ostro.core.plugins import PluginManager
from ostro.core.testing.parity import deviation, subject
from ostro.quant.bnb import STATE, naive

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
Packer = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
MAP = GOLDEN["nf4.64.6x128.float32.weight.quant_map"]


def nf4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A weight in blocks of 64, by suffix, and what remains of it."""
    blocks = weight.view(-1, 64)
    absmax = blocks.abs().amax(-1)
    codes = (blocks / absmax[:, None])[..., None].sub(MAP).abs().argmin(-1)
    packed = naive.pack(codes.flatten().to(torch.uint8))
    said = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [*weight.shape]}
    parts = {
        "weight": packed[:, None],
        "weight.absmax": absmax,
        "weight.quant_map": MAP.clone(),
        f"{STATE}nf4": torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8),
    }
    return parts, naive.dequantize(packed, MAP, absmax, 64, 0, weight.numel()).view(weight.shape)


def int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scb = weight.abs().amax(-1)
    q = (weight / scb[:, None] * 127).round().to(torch.int8)
    format = torch.zeros((), dtype=torch.uint8)
    return {"weight": q, "SCB": scb, "weight_format": format}, q * (scb * naive.STEP)[:, None]


@pytest.mark.parametrize("packed", [nf4, int8])
@torch.inference_mode()
def test_it_says_what_its_weights_say(packed: Packer, tmp_path: Path) -> None:
    plugins = PluginManager()
    plugins.load()
    with subject(plugins, "llama", config={**SIZES, **HEADS}, std=0.05) as tiny:
        tensors = dict(tiny.reference.state_dict())
        for name, weight in tiny.reference.state_dict().items():
            if weight.dim() == 2 and "embed" not in name and "head" not in name:
                del tensors[name]
                parts, dense = packed(weight)
                front = name.removesuffix("weight")
                tensors |= {f"{front}{suffix}": t for suffix, t in parts.items()}
                weight.copy_(dense)
        save_file(tensors, tiny.folder / "model.safetensors", metadata={"format": "pt"})
        config = tiny.raw_config | {"quantization_config": {"quant_method": "bitsandbytes"}}
        (tiny.folder / "config.json").write_text(json.dumps(config))
        tiny.reference.save_pretrained(tmp_path)
        plain = replace(tiny, folder=tmp_path)
        loaded = tiny.load(exact=True)
        assert any("NF4 (4" in line or "INT8 (8" in line for line in loaded.explain)
        ours, truth = tiny.answer(tiny.engine(loaded)), plain.answer(plain.engine())
        assert deviation(ours, truth) <= 1e-5

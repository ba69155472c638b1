"""A tiny llama in AWQ, served: its logits are those of the dequantized weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ostro.core.plugins import PluginManager
from ostro.core.testing.parity import deviation, subject
from ostro.quant.awq import naive

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
GROUP, TOP = 64, 15


def packed(weight: Tensor) -> dict[str, Tensor]:
    """A weight rounded to the nearest, as AutoAWQ holds it."""
    groups = weight.unflatten(-1, (-1, GROUP))
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    scales = ((high - low) / TOP).half()
    zeros = (-low / scales.float()).round().clamp(0, TOP)
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(0, TOP)
    return {
        "qweight": naive.pack(codes.flatten(-2).t().to(torch.uint8)),
        "qzeros": naive.pack(zeros.t().to(torch.uint8)),
        "scales": scales.t().contiguous(),
    }


@torch.inference_mode()
def test_it_says_what_its_weights_say(tmp_path: Path) -> None:
    plugins = PluginManager()
    plugins.load()
    with subject(plugins, "llama", config={**SIZES, **HEADS}, std=0.05) as tiny:
        tensors = dict(tiny.reference.state_dict())
        for name, weight in tiny.reference.state_dict().items():
            if weight.dim() != 2 or "embed" in name or "head" in name:
                continue
            del tensors[name]
            parts = packed(weight)
            tensors |= {name.replace("weight", suffix): t for suffix, t in parts.items()}
            weight.copy_(naive.dequantize(*parts.values()))
        save_file(tensors, tiny.folder / "model.safetensors", metadata={"format": "pt"})
        said = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
        config = {**tiny.raw_config, "quantization_config": said}
        (tiny.folder / "config.json").write_text(json.dumps(config))
        tiny.reference.save_pretrained(tmp_path)
        plain = replace(tiny, folder=tmp_path)
        loaded = tiny.load(exact=True)
        assert any("AWQ4 (4 bits" in line for line in loaded.explain)
        ours, truth = tiny.answer(tiny.engine(loaded)), plain.answer(plain.engine())
        assert deviation(ours, truth) <= 1e-5

"""A tiny llama of compressed-tensors, served: its logits are those of the dequantized weights."""

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
from ostro.quant.compressed_tensors import naive

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
STD = 0.1
Made = tuple[dict[str, Tensor], Tensor]


def packed(weight: Tensor) -> Made:
    """4 bits in groups of 64, with zeros, rounded to the nearest; and what remains of it."""
    groups = weight.unflatten(-1, (-1, 64))
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    scale = (high - low) / 15
    zero = (-low / scale).round().clamp(0, 15).to(torch.uint8)
    codes = (groups / scale[..., None] + zero[..., None]).round().clamp(0, 15)
    codes = codes.flatten(-2).to(torch.uint8)
    found = {
        "weight_packed": naive.pack(codes, 4),
        "weight_scale": scale,
        "weight_zero_point": naive.pack(zero.t(), 4).t().contiguous(),
        "weight_shape": torch.tensor(weight.shape),
    }
    return found, naive.dequantize(codes, scale, zero)


def int8(weight: Tensor) -> Made:
    scale = weight.abs().amax(-1, keepdim=True) / 127
    q = (weight / scale).round().to(torch.int8)
    return {"weight": q, "weight_scale": scale}, q * scale


def fp8(weight: Tensor) -> Made:
    scale = weight.abs().amax() / 448
    q = (weight / scale).to(torch.float8_e4m3fn)
    found = {"weight": q, "weight_scale": scale[None], "input_scale": torch.tensor([0.5])}
    return found, q.float() * scale


def nvfp4(weight: Tensor) -> Made:
    groups, whole = weight.unflatten(-1, (-1, 16)), 448 * 6 / weight.abs().amax()
    scale = (groups.abs().amax(-1) / 6 * whole).to(torch.float8_e4m3fn)
    d, table = whole.reciprocal().reshape(1, 1), naive.table_of_fp4()
    near = groups[..., None] / (scale.float() * d)[..., None, None] - table
    codes = near.abs().argmin(-1).flatten(-2).to(torch.uint8)
    found = {
        "weight_packed": naive.pack_halves(codes),
        "weight_scale": scale,
        "weight_global_scale": whole[None],
    }
    return found, naive.dequantize(codes, scale, table=table, d=d)


@pytest.mark.parametrize(
    ("usual", "down", "formats"),
    [
        (packed, int8, ("INT4 (4 bits, groups of 64)", "INT8 (8 bits, groups of 192)")),
        (fp8, nvfp4, ("input_scale unused", "NVFP4 (4 bits, groups of 16)")),
        (nvfp4, fp8, ("NVFP4 (4 bits, groups of 16)", "FP8 (8 bits, groups of 192)")),
    ],
    ids=["int4", "fp8", "nvfp4"],
)
@torch.inference_mode()
def test_it_says_what_its_weights_say(usual, down, formats, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plugins = PluginManager()
    plugins.load()
    with subject(plugins, "llama", config={**SIZES, **HEADS}, std=STD) as tiny:
        tensors = dict(tiny.reference.state_dict())
        for name, weight in tiny.reference.state_dict().items():
            if weight.dim() != 2 or "embed" in name or "head" in name:
                continue
            del tensors[name]
            parts, dense = (down if "down_proj" in name else usual)(weight)
            tensors |= {name.replace("weight", suffix): t for suffix, t in parts.items()}
            weight.copy_(dense)
        save_file(tensors, tiny.folder / "model.safetensors", metadata={"format": "pt"})
        said = {"quant_method": "compressed-tensors", "format": "mixed", "ignore": ["lm_head"]}
        config = {**tiny.raw_config, "quantization_config": said}
        (tiny.folder / "config.json").write_text(json.dumps(config))
        tiny.reference.save_pretrained(tmp_path)
        plain = replace(tiny, folder=tmp_path)
        loaded = tiny.load(exact=True)
        for format in formats:
            assert any(format in line for line in loaded.explain), loaded.explain
        ours, truth = tiny.answer(tiny.engine(loaded)), plain.answer(plain.engine())
        assert deviation(ours, truth) <= 1e-5

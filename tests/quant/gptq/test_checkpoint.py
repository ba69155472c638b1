"""A tiny llama in GPTQ, served: its logits are those of the dequantized weights."""

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
from ostro.quant.gptq import naive

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
GROUP = 64
STD = 0.1
"""The spread of weights, at which sums in another order, of columns that were moved, stay near."""


def packed(weight: Tensor, bits: int, act: bool) -> tuple[dict[str, Tensor], Tensor]:
    """A weight rounded to the nearest as a "gptq" file holds it, and what remains of it. Groups are
    of neighbours, or with `act` of the columns whose weights are large, as act-order has it.
    """
    k, top = weight.shape[1], 2**bits - 1
    groups = torch.arange(k, dtype=torch.int32) // GROUP
    if act:
        groups = groups[weight.abs().sum(0).argsort().argsort()]
    order = groups.argsort(stable=True)
    parts = weight[:, order].unflatten(-1, (-1, GROUP))
    low, high = parts.amin(-1).clamp_max(0), parts.amax(-1).clamp_min(0)
    scales = ((high - low) / top).half()
    zeros = (-low / scales.float()).round().clamp(0, top)
    group = groups.long()
    codes = (weight / scales.float()[:, group] + zeros[:, group]).round().clamp(0, top)
    found = {
        "qweight": naive.pack(codes.to(torch.uint8), bits).t().contiguous(),
        "qzeros": naive.pack_zeros(zeros.t().to(torch.uint8), bits, less_one=True),
        "scales": scales.t().contiguous(),
        "g_idx": groups,
    }
    return found, (codes - zeros[:, group]) * scales.float()[:, group]


@pytest.mark.parametrize(("bits", "act"), [(4, False), (4, True), (3, False)])
@torch.inference_mode()
def test_it_says_what_its_weights_say(bits: int, act: bool, tmp_path: Path) -> None:
    plugins = PluginManager()
    plugins.load()
    with subject(plugins, "llama", config={**SIZES, **HEADS}, std=STD) as tiny:
        tensors = dict(tiny.reference.state_dict())
        for name, weight in tiny.reference.state_dict().items():
            if weight.dim() != 2 or "embed" in name or "head" in name:
                continue
            del tensors[name]
            parts, dense = packed(weight, 8 if "down_proj" in name else bits, act)
            tensors |= {name.replace("weight", suffix): t for suffix, t in parts.items()}
            weight.copy_(dense)
        save_file(tensors, tiny.folder / "model.safetensors", metadata={"format": "pt"})
        said = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": act}
        said["dynamic"] = {"+:.*down_proj.*": {"bits": 8}}
        config = {**tiny.raw_config, "quantization_config": said}
        (tiny.folder / "config.json").write_text(json.dumps(config))
        tiny.reference.save_pretrained(tmp_path)
        plain = replace(tiny, folder=tmp_path)
        loaded = tiny.load(exact=True)
        for found in (f"GPTQ{bits} ({bits} bits", "GPTQ8 (8 bits"):
            assert any(found in line for line in loaded.explain)
        ours, truth = tiny.answer(tiny.engine(loaded)), plain.answer(plain.engine())
        assert deviation(ours, truth) <= 1e-5

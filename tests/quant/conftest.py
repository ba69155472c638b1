"""A fixture that serves a tiny llama in a weight format, saved as by other tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import deviation, subject

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 160}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}

Made = tuple[Mapping[str, Tensor], Tensor]
"""The tensors of a weight in a checkpoint, by suffix, and the dequantized weight [n, k]."""

Serve = Callable[..., tuple[float, list[str]]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Serve a llama whose matrices `pack(name, weight)` -> Made has quantized. Return the deviation
    of its logits from those of the dequantized weights, and the explanation of the loader.

    Embedding and head stay floats unless `whole`; `std` is the standard deviation of the weights,
    `writer` the file's "format" metadata, `config` further fields of config.json.
    """

    @torch.inference_mode()
    def run(
        pack: Callable[[str, Tensor], Made],
        *,
        whole: bool = False,
        std: float = 0.05,
        writer: str = "pt",
        **config: Any,
    ) -> tuple[float, list[str]]:
        plugins = PluginManager()
        plugins.load()
        with subject(plugins, "llama", config={**SIZES, **HEADS}, std=std) as tiny:
            tensors = dict(tiny.reference.state_dict())
            for name, weight in tiny.reference.state_dict().items():
                if weight.dim() != 2 or not (whole or "layers" in name):
                    continue
                del tensors[name]
                parts, meant = pack(name, weight)
                front = name.removesuffix("weight")
                tensors |= {f"{front}{suffix}": t.clone() for suffix, t in parts.items()}
                weight.copy_(meant)
            save_file(tensors, tiny.folder / "model.safetensors", metadata={"format": writer})
            (tiny.folder / "config.json").write_text(json.dumps(tiny.raw_config | config))
            tiny.reference.save_pretrained(tmp_path)
            plain, loaded = replace(tiny, folder=tmp_path), tiny.load(exact=True)
            ours, truth = tiny.answer(tiny.engine(loaded)), plain.answer(plain.engine())
            return deviation(ours, truth), loaded.explain

    return run

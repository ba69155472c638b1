"""The format, its storage and a checkpoint, compared with plain torch and transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ostro_quant_int8_rows import NAME, naive
from ostro_quant_int8_rows.storage import Int8Rows
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import ostro
from ostro.testing import BAR, deviation, reinitialise

TOKENS = [3, 17, 99, 4, 56, 23, 8, 8, 120, 61]


def weight(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (3, 5, 16)], ids=str)
def test_the_error_is_at_most_half_a_scale(shape: tuple[int, ...]) -> None:
    w = weight(*shape)
    q, scale = naive.quantize(w)
    error = (naive.dequantize(q, scale) - w).abs()
    assert (error <= 0.5001 * scale[..., None]).all()
    assert q.abs().max() == 127


def test_a_row_of_zeros_stays_zeros() -> None:
    assert naive.dequantize(*naive.quantize(torch.zeros(2, 4))).equal(torch.zeros(2, 4))


def test_every_verb_says_what_the_plain_weight_says() -> None:
    made = Int8Rows.quantize(weight(40, 24), NAME, torch.float32)
    plain, x = made.dequantize(), weight(5, 24)
    torch.testing.assert_close(made.matmul(x), x @ plain.t())
    ids = torch.tensor([0, 39, 7, 7])
    assert made.rows(ids).equal(plain[ids])
    both = Int8Rows.fuse([made, made])
    assert both is not None and both.dequantize().equal(torch.cat([plain, plain]))
    stacked = Int8Rows.stack([made, made])
    assert stacked is not None and stacked.shape == (2, 40, 24)
    rows, experts = torch.cat([x, x]), torch.tensor([0] * 5 + [1] * 5)
    torch.testing.assert_close(stacked.grouped(rows, experts), rows @ plain.t())
    assert made.nbytes == 40 * 24 + 40 * 4
    again = Int8Rows(*made.save().values(), torch.float32)
    assert again.dequantize().equal(plain)


def test_deterministic_execution_is_refused() -> None:
    target = ostro.ops.Target(device=torch.device("cpu"), dtype=torch.float32, deterministic=True)
    with pytest.raises(ostro.errors.Unsupported, match="no deterministic kernel"):
        Int8Rows.quantize(weight(2, 2), NAME, torch.float32).finalize(target)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """A llama with dequantized weights of this format."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    made = LlamaForCausalLM(config).eval()
    reinitialise(made, 0.2)
    return made


@pytest.fixture(scope="module")
def folder(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of `model` in this format, with the same dequantized weights."""
    folder = tmp_path_factory.mktemp("model")
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.dim() != 2:
            tensors[name] = tensor
            continue
        q, scale = naive.quantize(tensor)
        tensors[name], tensors[name.replace(".weight", ".scale")] = q, scale
        tensor.copy_(naive.dequantize(q, scale))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    config["quantization_config"] = {"quant_method": NAME}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def logits(folder: Path) -> Tensor:
    from ostro.checkpoints import PluginManager
    from ostro.core.engine.startup.build import build_engine
    from ostro.core.load.model import load_model

    settings, plugins = ostro.Settings(dtype="float32"), PluginManager()
    plugins.load(settings)
    loaded = load_model(folder, settings, plugins)
    assert any(NAME in line for line in loaded.explain), loaded.explain
    return build_engine(loaded, settings, plugins, [], rows=64, blocks=16).runner.logits(TOKENS)


@torch.inference_mode()
def test_a_checkpoint_says_what_its_weights_say(model: LlamaForCausalLM, folder: Path) -> None:
    ours = logits(folder)
    assert deviation(ours, model(torch.tensor([TOKENS])).logits[0]) <= BAR


def test_it_is_claimed_only_where_the_config_says_so(folder: Path) -> None:
    file = folder / "config.json"
    config = file.read_text()
    file.write_text(config.replace(NAME, "another"))
    try:
        with pytest.raises(ostro.errors.CheckpointError, match="no installed format reads"):
            logits(folder)
    finally:
        file.write_text(config)

"""GGUF files of the families with states, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor

from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import BAR, deviation, subject

CHANGES: dict[str, dict[str, Any]] = {
    "lfm2": {"conv_bias": False, "block_multiple_of": 32},
    "mamba2": {"use_bias": False, "time_step_limit": [0.0, float("inf")]},
}
"""What a GGUF file cannot say, at the value that it stands for."""


def lfm2_header(writer: GGUFWriter, config: Any) -> None:
    attends = [kind == "full_attention" for kind in config.layer_types]
    size = int(config.block_ffn_dim_multiplier * int(2 * config.intermediate_size / 3))
    writer.add_feed_forward_length(-(-size // 32) * 32)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([config.num_key_value_heads * flag for flag in attends])
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_vocab_size(config.vocab_size)


def mamba2_header(writer: GGUFWriter, config: Any) -> None:
    writer.add_feed_forward_length(0)
    writer.add_context_length(2**20)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.expand * config.hidden_size)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_time_step_rank(config.num_heads)
    writer.add_ssm_group_count(config.n_groups)


def moved(name: str, tensor: Tensor, config: Any) -> tuple[str, Tensor]:
    """A tensor by the name and in the shape that the converter gives it."""
    if name.endswith(".dt_bias"):
        return name.replace(".dt_bias", ".dt_proj.bias"), tensor
    if name.endswith(".A_log"):
        return name, -tensor.exp()[:, None]
    if name.endswith(".D"):
        return name, tensor[:, None]
    if name.endswith("mixer.norm.weight"):
        return name, tensor.view(config.n_groups, -1)
    return name, tensor.squeeze(1) if tensor.dim() == 3 else tensor


@torch.no_grad()
def convert(reference: Any, arch: str, file: Path, format: str) -> None:
    """Write the file, and leave the reference with the numbers that it holds."""
    config = reference.config
    writer = GGUFWriter(file, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    {"lfm2": lfm2_header, "mamba2": mamba2_header}[arch](writer, config)
    number = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, parameter in reference.named_parameters():
        theirs, data = moved(name, parameter.clone(), config)
        matrix = parameter.dim() == 2
        kind = GGMLQuantizationType[format if matrix else "F32"]
        packed = gguf.quantize(data.contiguous().numpy(), kind)
        writer.add_tensor(names.get_name(theirs, (".weight", ".bias")), packed, raw_dtype=kind)
        if matrix:
            parameter.copy_(torch.from_numpy(gguf.dequantize(packed, kind)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("format", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", CHANGES)
def test_logits_equal_transformers(name: str, format: str, tmp_path: Path) -> None:
    plugins = PluginManager()
    plugins.load(Settings())
    config = {**plugins.get("architectures", name).conformance.tiny, **CHANGES[name]}
    with subject(plugins, name, config=config) as tiny:
        convert(tiny.reference, name, tmp_path / "model.gguf", format)
        asked = Settings(dtype="float32", device="cpu", exact=True)
        model = load_model(tmp_path / "model.gguf", asked, plugins)
        logits = tiny.engine(model).runner.logits(tiny.prompt)
        assert deviation(logits, tiny.run_reference(tiny.prompt)) <= BAR


@pytest.mark.parametrize("name", CHANGES)
def test_transforms_are_inverted(name: str) -> None:
    plugins = PluginManager()
    plugins.load(Settings())
    record = plugins.get("architectures", name)
    config = resolve(record.config).from_hf({**record.conformance.tiny, "vocab_size": 128})
    changed = [p for p in resolve(record.names)(config).gguf if p.transform is not None]
    assert changed
    for pair in changed:
        shape = (128, 1, 4) if "conv" in pair.ours else (128,)
        tensor = torch.randn(shape)
        there = pair.transform.write(tensor)
        assert there.shape != tensor.shape
        torch.testing.assert_close(pair.transform.read(there), tensor)

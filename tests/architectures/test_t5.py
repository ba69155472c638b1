"""T5's encoder against transformers, from folders and from GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter

from ostro.architectures.t5 import TINY
from ostro.architectures.t5.model import Config
from ostro.core.errors import ConfigError
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, deviation, subject


class TestT5(ArchitectureTests):
    name = "t5"


@torch.inference_mode()
def test_the_first_version_has_no_gate() -> None:
    plugins = PluginManager()
    plugins.load(Settings())
    with subject(plugins, "t5", config={**TINY, "feed_forward_proj": "relu"}) as tiny:
        ours, _ = tiny.engine().runner.hidden([tiny.prompt])
        truth = tiny.reference(torch.tensor([tiny.prompt])).last_hidden_state[0]
        assert deviation(ours, truth) <= BAR


@torch.no_grad()
def convert(reference: Any, file: Path, format: str) -> None:
    """Write the file as llama.cpp's converter does, and leave the reference with its numbers."""
    config, writer = reference.config, GGUFWriter(file, "t5encoder")
    writer.add_context_length(512)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_key_length(config.d_kv)
    writer.add_value_length(config.d_kv)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5ENCODER, config.num_layers)
    for name, parameter in reference.named_parameters():
        plain = parameter.dim() == 1 or "relative_attention_bias" in name
        kind = GGMLQuantizationType["F32" if plain else format]
        packed = gguf.quantize(parameter.numpy(), kind)
        writer.add_tensor(str(names.get_name(name, (".weight",))), packed, raw_dtype=kind)
        parameter.copy_(torch.from_numpy(gguf.dequantize(packed, kind)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("format", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize("mlp", ["relu", "gated-gelu"])
def test_gguf_files(mlp: str, format: str, tmp_path: Path) -> None:
    """No key states the largest distance of positions: that of all published models is used."""
    plugins = PluginManager()
    plugins.load(Settings())
    shape = {**TINY, "d_kv": 16, "feed_forward_proj": mlp, "relative_attention_max_distance": 128}
    with subject(plugins, "t5", config=shape) as tiny:
        convert(tiny.reference, tmp_path / "model.gguf", format)
        loaded = load_model(tmp_path / "model.gguf", Settings(dtype="float32", exact=True), plugins)
        assert deviation(tiny.answer(tiny.engine(loaded)), tiny.expected) <= BAR


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"feed_forward_proj": "gated-silu"}, "feed_forward_proj='gated-silu'"),
        ({"relative_attention_max_distance": 4}, "no bucket for distant positions"),
        ({"d_model": 0}, "d_model=0"),
        ({"layer_norm_epsilon": 1.0}, "layer_norm_epsilon=1.0"),
    ],
    ids=str,
)
def test_what_is_not_implemented_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Config.from_hf({**TINY, **change})


def test_buckets_are_those_of_transformers() -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    from ostro.architectures.t5.model import RelativeBias

    bias = RelativeBias(Config.from_hf({**TINY, "relative_attention_num_buckets": 32}))
    bias.longest = 128
    distance = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(distance, True, 32, 128)
    assert torch.equal(bias.bucket(distance), theirs)

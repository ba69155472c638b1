"""Configs and names of Qwen2.5-VL and Qwen3-VL as files have them, old and new, and in GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from ostro.core.errors import CheckpointError, ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, resolve
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

FAMILIES = ("qwen2_5_vl", "qwen3_vl")


def raw(plugins: PluginManager, name: str, **changes: dict[str, Any]) -> dict[str, Any]:
    """A family's tiny config.json, with other values in its parts."""
    tiny = plugins.get("architectures", name).conformance.tiny
    parts = {
        part: {**tiny[part], **changes.get(part, {})} for part in ("text_config", "vision_config")
    }
    return {**tiny, **parts, "model_type": name}


def configured(plugins: PluginManager, name: str, stated: dict[str, Any]) -> Any:
    return resolve(plugins.get("architectures", name).config).from_hf(stated)


def test_old_files_state_the_texts_part_at_the_top(plugins: PluginManager) -> None:
    stated = raw(plugins, "qwen2_5_vl")
    text = dict(stated["text_config"])
    rope = text.pop("rope_parameters")
    text |= {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
        "use_sliding_window": False,
        "sliding_window": 32768,
        "max_window_layers": 70,
        "tie_word_embeddings": True,
    }
    vision = {**stated["vision_config"], "in_chans": 3, "spatial_patch_size": 14}
    old = configured(
        plugins, "qwen2_5_vl", {**text, "vision_config": vision, "model_type": "qwen2_5_vl"}
    )
    new = configured(plugins, "qwen2_5_vl", stated)
    assert old.text.sections == new.text.sections and old.vision == new.vision
    assert old.text.rope_parameters["rope_theta"] == rope["rope_theta"]
    assert old.text.tie_word_embeddings and not new.text.tie_word_embeddings
    assert not any(old.text.window(i) for i in range(old.num_hidden_layers))
    assert (old.vocab_size, old.max_position_embeddings) == (128, 256)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("qwen2_5_vl", {"text_config": {"rope_parameters": {"mrope_section": [2, 2]}}}, "sections"),
        ("qwen3_vl", {"text_config": {"rope_parameters": {}}}, r"\[24, 20, 20\]"),
        ("qwen2_5_vl", {"vision_config": {"out_hidden_size": 32}}, "out_hidden_size=32"),
        ("qwen2_5_vl", {"vision_config": {"num_heads": 3}}, "num_heads=3"),
        ("qwen2_5_vl", {"vision_config": {"window_size": 4}}, "window_size=4"),
        ("qwen2_5_vl", {"vision_config": {"patch_size": [4, 4]}}, "patch_size"),
        ("qwen2_5_vl", {"vision_config": {"depth": 0}}, "depth=0"),
        ("qwen3_vl", {"vision_config": {"num_position_embeddings": 24}}, "24 is not a square"),
        ("qwen3_vl", {"vision_config": {"deepstack_visual_indexes": [1, 3]}}, "deepstack"),
        ("qwen3_vl", {"vision_config": {"hidden_act": "silu"}}, "hidden_act='silu'"),
        ("qwen3_vl", {"vision_config": {"rope_parameters": {"rope_type": "yarn"}}}, "yarn"),
    ],
)
def test_what_cannot_be_is_refused(
    plugins: PluginManager, name: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        configured(plugins, name, raw(plugins, name, **changes))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "stated",
    [
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}},
        {"tie_word_embeddings": True},
    ],
    ids=str,
)
def test_vision_configs_written_in_full(
    plugins: PluginManager, name: str, stated: dict[str, Any]
) -> None:
    """transformers 5.0 names the rope "default"; 4.x writes the base class's keys."""
    plain = configured(plugins, name, raw(plugins, name))
    full = configured(plugins, name, raw(plugins, name, vision_config=stated))
    assert full.tie_word_embeddings == plain.tie_word_embeddings
    assert full.vision.depth == plain.vision.depth


@pytest.mark.parametrize("name", FAMILIES)
def test_trees_of_transformers_are_read_as_well(plugins: PluginManager, name: str) -> None:
    record: Architecture = plugins.get("architectures", name)
    names = resolve(record.names)(configured(plugins, name, raw(plugins, name)))
    tree = {
        "model.language_model.layers.0.mlp.up_proj.weight": "model.layers.0.mlp.up_proj.weight",
        "model.language_model.embed_tokens.weight": "model.embed_tokens.weight",
        "model.visual.blocks.1.attn.qkv.bias": "visual.blocks.1.attn.qkv.bias",
        "model.visual.patch_embed.proj.weight": "visual.patch_embed.proj.weight",
        "lm_head.weight": "lm_head.weight",
    }
    named, left = names.read(tree)
    assert not left and {each.theirs: each.name for each in named} == tree


def test_a_patch_of_another_shape_is_refused(plugins: PluginManager) -> None:
    record: Architecture = plugins.get("architectures", "qwen2_5_vl")
    names = resolve(record.names)(configured(plugins, "qwen2_5_vl", raw(plugins, "qwen2_5_vl")))
    [kernel] = names.find("visual.patch_embed.proj.weight", "hub")
    weight = torch.arange(32.0 * 96).view(32, 3, 2, 4, 4)
    assert torch.equal(kernel.transform.write(kernel.transform.read(weight)), weight)
    with pytest.raises(CheckpointError, match=r"\(32, 3, 1, 4, 4\)"):
        kernel.transform.read(weight[:, :, :1])


@pytest.mark.parametrize(
    ("name", "arch"), [("qwen2_vl_text", "qwen2vl"), ("qwen3_vl_text", "qwen3vl")]
)
def test_the_texts_part_is_read_from_gguf(
    plugins: PluginManager, name: str, arch: str, tmp_path: Path
) -> None:
    shape = {**plugins.get("architectures", name).conformance.tiny, "use_sliding_window": False}
    with subject(plugins, name, config=shape) as made:
        file = tmp_path / "text.gguf"
        convert(made, arch, file)
        ours = Subject(made.record, made.reference, file, plugins, shape)
        logits = made.engine(ours.load(arch=None)).runner.logits(made.prompt)
        assert deviation(logits, made.run_reference(made.prompt)) <= BAR


def convert(made: Subject, arch: str, file: Path) -> None:
    """Write a reference's weights with the keys of llama.cpp's converter."""
    config, writer = made.reference.config, gguf.GGUFWriter(file, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_sections([2, 3, 3, 0])
    if arch == "qwen3vl":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_num_deepstack_layers(3)
    number = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, weight in made.reference.named_parameters():
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), weight.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

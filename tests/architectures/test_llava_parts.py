"""LLaVA with other texts and vision encoders than Llama and CLIP."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

from ostro.architectures.llava import TINY
from ostro.architectures.llava import TOWER as CLIP
from ostro.architectures.llava.parts import TEXTS, text_record
from ostro.architectures.siglip import TINY as SIGLIP
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.plugins.conformance.parity import BAR, deviation, subject

SIGLIP_TOWER = {**SIGLIP, "num_hidden_layers": 4}
PAIRS = {
    "mistral": CLIP,
    "qwen2": SIGLIP_TOWER,
    "qwen3": CLIP,
    "gemma": SIGLIP_TOWER,
    "granite": SIGLIP_TOWER,
    "phi3": CLIP,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("text", PAIRS)
@pytest.mark.parametrize("strategy", ["default", "full"])
def test_other_texts_and_towers(plugins: PluginManager, text: str, strategy: str) -> None:
    """The features of Granite are scaled, those of Gemma are not. The reference does not divide
    the logits of Granite by logits_scaling, which GraniteForCausalLM does.
    """
    shape = {**plugins.get("architectures", text).conformance.tiny, "model_type": text}
    if text == "granite":
        shape["logits_scaling"] = 1.0
    change = {
        "text_config": shape,
        "vision_config": PAIRS[text],
        "vision_feature_select_strategy": strategy,
        "vision_feature_layer": -1 if strategy == "full" else -2,
    }
    with subject(plugins, "llava", config={**TINY, **change}) as made:
        assert made.off(made.engine()) <= BAR


def test_logits_of_granite_are_divided(plugins: PluginManager) -> None:
    shape = {**plugins.get("architectures", "granite").conformance.tiny, "model_type": "granite"}
    with subject(plugins, "llava", config={**TINY, "text_config": shape}) as made:
        example = made.examples[0]
        ours = made.answer(made.engine(), example) * shape["logits_scaling"]
        assert deviation(ours, made.reference_output(example)) <= BAR


def test_every_text_has_a_record() -> None:
    for name in TEXTS:
        tested = text_record(name).conformance
        assert tested.tiny is not None and tested.reference.startswith("transformers:")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mistral", {"num_key_value_heads": 8, "max_position_embeddings": 131072}),
        ("qwen2", {"max_position_embeddings": 32768, "sliding_window": None}),
        ("gemma", {"head_dim": 256, "max_position_embeddings": 8192}),
        ("phi3", {"rms_norm_eps": 1e-5, "num_key_value_heads": 32}),
        ("llama", {"num_key_value_heads": 32, "head_dim": 8}),
    ],
)
def test_keys_that_a_part_omits_have_the_defaults_of_its_class(
    plugins: PluginManager, text: str, expected: dict[str, object]
) -> None:
    """transformers 4 omits what equals the default. Values that follow from others do not count."""
    part = {"model_type": text, "hidden_size": 256, "num_attention_heads": 32}
    raw = {**TINY, "model_type": "llava", "text_config": part}
    config = resolve(plugins.get("architectures", "llava").config).from_hf(raw)
    assert {key: getattr(config.text, key) for key in expected} == expected


def test_the_published_llava_interleave_is_read(plugins: PluginManager) -> None:
    """Qwen2 and SigLIP: the tower below vision_model, and a tied head in the text config."""
    text = {**plugins.get("architectures", "qwen2").conformance.tiny, "model_type": "qwen2"}
    change = {
        "text_config": {**text, "tie_word_embeddings": True},
        "vision_config": SIGLIP_TOWER,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }
    with subject(plugins, "llava", config={**TINY, **change}) as made:
        config = made.folder / "config.json"
        stated = json.loads(config.read_text())
        stated.pop("tie_word_embeddings")
        config.write_text(json.dumps({**stated, "ignore_index": -100}))
        file = made.folder / "model.safetensors"
        tensors = {
            name.replace("vision_tower.", "vision_tower.vision_model."): tensor
            for name, tensor in load_file(file).items()
        }
        save_file(tensors, file, {"format": "pt"})
        assert made.off(made.engine()) <= BAR

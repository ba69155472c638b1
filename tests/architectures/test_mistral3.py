"""Mistral 3, and LLaVA with Pixtral's vision encoder, against transformers, with images."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from safetensors.torch import load_file, save_file
from tiny.images import ImageTests

from ostro import Container
from ostro.architectures.llava.inputs import Inputs as LlavaInputs
from ostro.architectures.llava.model import Config as LlavaConfig
from ostro.architectures.mistral.names import gguf_config as text_config
from ostro.architectures.mistral3 import TINY
from ostro.architectures.mistral3.examples import image_examples, prompted
from ostro.architectures.mistral3.model import Config
from ostro.architectures.mistral3.projector import gguf_config
from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

TEXT = TINY["text_config"]
PIXTRAL_12B = {
    "image_token_index": 1,
    "image_break_token_id": 2,
    "image_end_token_id": 3,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "image_seq_length": 1,
    "text_config": TEXT,
    "vision_config": TINY["vision_config"],
}


class TestMistral3(ImageTests):
    name = "mistral3"
    prompted = staticmethod(prompted)

    def test_rows_end_with_their_own_tokens(self, tiny: Subject) -> None:
        item = prompted(tiny.inputs, (0,)).items[0]
        columns = item.arrays["pixels"].shape[2] // 12
        rows = item.arrays["pixels"].shape[1] // 12
        expected = tuple((9 + i * (columns + 1), columns) for i in range(rows))
        assert item.spans == expected and rows > 1 and not item.atomic

    @pytest.mark.parametrize(
        "change",
        [
            {"vision_feature_layer": -2},
            {"multimodal_projector_bias": True},
            {"projector_hidden_act": "relu"},
            {"spatial_merge_size": 1},
            {"tie_word_embeddings": True, "text_config": {**TEXT, "tie_word_embeddings": True}},
        ],
        ids=str,
    )
    def test_configs_equal_the_reference(
        self, plugins: PluginManager, change: dict[str, Any]
    ) -> None:
        with subject(plugins, "mistral3", config={**TINY, **change}) as made:
            assert made.off(made.engine()) <= BAR

    def test_published_files_are_read(self, plugins: PluginManager) -> None:
        """Prefixes as in files of transformers 4, and no tie_word_embeddings."""
        with subject(plugins, "mistral3") as made:
            config = made.folder / "config.json"
            stated = json.loads(config.read_text())
            for part in (stated, stated["text_config"], stated["vision_config"]):
                part.pop("tie_word_embeddings", None)
            stated["vision_config"].pop("rope_parameters")
            stated["vision_config"] |= {"rope_theta": 10000.0, "head_dim": 8}
            config.write_text(json.dumps(stated))
            file, older = made.folder / "model.safetensors", {}
            for name, tensor in load_file(file).items():
                name = name.replace("model.language_model", "language_model.model")
                name = re.sub(r"^lm_head", "language_model.lm_head", name)
                older[name.removeprefix("model.")] = tensor
            assert {name.split(".")[0] for name in older} == {
                "language_model",
                "multi_modal_projector",
                "vision_tower",
            }
            save_file(older, file, {"format": "pt"})
            assert made.off(made.engine()) <= BAR


def test_llava_with_pixtrals_encoder_equals_the_reference(plugins: PluginManager) -> None:
    with subject(plugins, "llava", config=PIXTRAL_12B) as made:
        raw = json.loads((made.folder / "config.json").read_text())
        (made.folder / "preprocessor_config.json").write_text('{"size": {"longest_edge": 48}}')
        found = list(image_examples(LlavaInputs({**raw, **PIXTRAL_12B}, made.folder)))
        engine = made.engine()
        for example in found:
            assert deviation(made.answer(engine, example), made.reference_output(example)) <= BAR
    with pytest.raises(ConfigError, match="expected full"):
        LlavaConfig.from_hf({**PIXTRAL_12B, "vision_feature_select_strategy": "default"})


@pytest.fixture(scope="module")
def plugins() -> PluginManager:
    from ostro.core.settings import Settings

    manager = PluginManager()
    manager.load(Settings())
    return manager


@pytest.mark.parametrize(
    "change",
    [
        {"spatial_merge_size": 0},
        {"spatial_merge_size": -1},
        {"spatial_merge_size": "x"},
        {"spatial_merge_size": 1 << 62},
        {"vision_feature_layer": [1, 2]},
        {"vision_feature_layer": []},
        {"vision_feature_layer": -9},
        {"vision_feature_layer": "x"},
        {"vision_feature_select_strategy": "default"},
        {"multimodal_projector_bias": 3},
        {"projector_hidden_act": "tanh"},
        {"image_token_index": 1 << 40},
        {"image_token_index": -1},
        {"text_config": {"model_type": "llama4"}},
        {"vision_config": {"model_type": "siglip_vision_model"}},
        {"vision_config": 3},
    ],
    ids=str,
)
def test_hostile_configs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Config.from_hf({**TINY, **change})


def test_gguf_files_of_other_models_are_refused() -> None:
    """Pixtral 12B has no patch merger, and Ministral 3 scales q."""
    path = Path("model.gguf")
    plain = SimpleNamespace(path=path, tensors={}, metadata={})
    with pytest.raises(ConfigError, match="has no mm"):
        gguf_config(cast(Container, plain))
    scaled = SimpleNamespace(
        path=path, tensors={}, metadata={"mistral3.attention.temperature_scale": 0.1}
    )
    with pytest.raises(ConfigError, match="temperature_scale"):
        text_config(cast(Container, scaled))

"""LLaVA against transformers, with images in the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.images import ImageTests

from ostro.architectures.llava import TINY
from ostro.architectures.llava.examples import IMAGES, PREPROCESSOR, prompted
from ostro.architectures.llava.inputs import Inputs, Preprocessor
from ostro.architectures.llava.model import Config
from ostro.architectures.siglip import TINY as SIGLIP
from ostro.core.errors import ConfigError, RequestError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import BAR, Subject, subject


class TestLlava(ImageTests):
    name = "llava"
    prompted = staticmethod(prompted)

    def test_an_image_becomes_a_token_for_each_patch(self, tiny: Subject) -> None:
        item = tiny.inputs.image(IMAGES[0])
        assert item.tokens == (1,) * 16 and item.cost == 17 and not item.atomic
        prompt = prompted(tiny.inputs, (0, 1))
        assert [item.spans for item in prompt.items] == [((9, 16),), ((34, 16),)]

    @pytest.mark.parametrize(
        "change",
        [
            {"vision_feature_layer": -1},
            {"vision_feature_layer": 1},
            {"vision_feature_layer": [-2, 1, 3]},
            {"vision_feature_select_strategy": "full"},
            {"multimodal_projector_bias": False},
            {"projector_hidden_act": "relu"},
            {"projector_hidden_act": "gelu_pytorch_tanh"},
        ],
        ids=str,
    )
    def test_what_a_config_may_ask_for(
        self, plugins: PluginManager, change: dict[str, Any]
    ) -> None:
        with subject(plugins, "llava", config={**TINY, **change}) as made:
            assert made.off(made.engine()) <= BAR

    def test_trees_of_transformers_are_read_as_well(self, tiny: Subject) -> None:
        theirs, left = tiny.names.read(tiny.reference.state_dict())
        files, _ = tiny.names.read(list(tiny.load().container.tensors))
        assert not left and {n.name for n in theirs} == {n.name for n in files}

    def test_older_files_are_read_as_well(self, tiny: Subject) -> None:
        """With "vision_model" below the tower, and a table of positions."""
        files = list(tiny.load().container.tensors)
        older = [n.replace("vision_tower.", "vision_tower.vision_model.") for n in files]
        older.append("vision_tower.vision_model.embeddings.position_ids")
        found, left = tiny.names.read(older)
        assert not left
        assert {n.name for n in found} == {n.name for n in tiny.names.read(files)[0]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image_token_index": 128}, "image_token_index=128"),
        ({"text_config": 3}, "text_config=3 is not an object"),
        ({"vision_config": None}, "vision_config=None is not an object"),
        ({"text_config": {"model_type": "mamba2"}}, "model_type='mamba2'"),
        ({"text_config": {"model_type": ["llama"]}}, "model_type="),
        ({"vision_config": {"model_type": "vit"}}, "model_type='vit'"),
        ({"vision_feature_layer": -6}, r"vision_feature_layer=\[-6\]"),
        ({"vision_feature_select_strategy": "cls"}, "strategy='cls'"),
        ({"projector_hidden_act": "tanh"}, "projector_hidden_act='tanh'"),
        ({"vision_feature_layer": []}, r"vision_feature_layer=\[\]"),
        ({"vision_feature_layer": ["x"]}, "vision_feature_layer"),
        ({"multimodal_projector_bias": 3}, "multimodal_projector_bias"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Config.from_hf({**TINY, **change})


def test_what_a_file_leaves_out_is_the_default() -> None:
    text = {"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5, "rope_theta": 5e5}
    tower = {"model_type": "clip_vision_model", "num_hidden_layers": 24, "vocab_size": 32000}
    config = Config.from_hf({"model_type": "llava", "text_config": text, "vision_config": tower})
    assert (config.text.hidden_size, config.text.intermediate_size) == (4096, 11008)
    assert config.text.rope_parameters["rope_theta"] == 5e5
    assert config.vision_feature_layer == (23,) and config.seen.num_hidden_layers == 23


def test_a_prompt_without_a_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    maker = Inputs(TINY, tmp_path)
    with pytest.raises(RequestError, match="no place"):
        maker.expand_placeholders([5, 6, 7], [maker.image(IMAGES[0])])
    with pytest.raises(RequestError, match="item 1 of the prompt is image, got nothing"):
        maker.expand_placeholders([5, 1, 7], [])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("size", [(24, 24), (30, 50), (61, 24), (7, 9)], ids=str)
def test_pixels_equal_the_references(tmp_path: Path, padded: bool, size: tuple[int, int]) -> None:
    pil = pytest.importorskip("transformers.models.llava.image_processing_pil_llava")
    own = {"do_pad": padded, "image_processor_type": "LlavaImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSOR, **own}))
    image = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    theirs = pil.LlavaImageProcessorPil(**PREPROCESSOR, do_pad=padded)
    expected = theirs(image, return_tensors="np", input_data_format="channels_last")
    found = Preprocessor.read(tmp_path)(image)
    np.testing.assert_allclose(found, expected["pixel_values"][0], rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
@pytest.mark.parametrize("size", [(1, 1), (30, 50), (2000, 10)], ids=str)
def test_pixels_of_siglip_equal_the_references(
    tmp_path: Path, size: tuple[int, int], name: str
) -> None:
    """SigLIP's settings have other defaults."""
    pil = pytest.importorskip("transformers.models.siglip.image_processing_pil_siglip")
    settings = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 24, "width": 24}}
    found = settings if name.startswith("pre") else {"image_processor": settings}
    (tmp_path / name).write_text(json.dumps(found))
    image = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    expected = pil.SiglipImageProcessorPil(size=settings["size"])(
        image, return_tensors="np", input_data_format="channels_last"
    )
    item = Inputs({**TINY, "vision_config": SIGLIP}, tmp_path).image(image)
    pixels = item.arrays["pixels"].numpy()
    np.testing.assert_allclose(pixels, expected["pixel_values"][0], rtol=0, atol=2e-6)
    assert len(item.tokens) == 15


@pytest.mark.parametrize("padded", [False, True])
def test_images_that_are_too_narrow_are_refused(tmp_path: Path, padded: bool) -> None:
    settings = {
        "size": {"shortest_edge": 336},
        "crop_size": {"height": 336, "width": 336},
        "do_pad": padded,
        "image_processor_type": "LlavaImageProcessor",
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    maker = Inputs({"vision_config": {"image_size": 336, "patch_size": 14}}, tmp_path)
    assert len(maker.image(np.zeros((1, 1, 3), np.uint8)).tokens) == 576
    with pytest.raises(RequestError, match="too narrow"):
        maker.image(np.zeros((20000, 10, 3), np.uint8))


def test_padding_by_another_preprocessor_is_refused(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSOR, "do_pad": True}))
    with pytest.raises(ConfigError, match="do_pad=true is not implemented"):
        Preprocessor.read(tmp_path)

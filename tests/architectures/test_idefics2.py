"""Idefics 2 against transformers, with images in the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.images import ImageTests

from ostro.architectures.idefics2 import PERCEIVER, TINY
from ostro.architectures.idefics2.config import Config
from ostro.architectures.idefics2.inputs import Inputs
from ostro.architectures.idefics3 import FAKE
from ostro.architectures.idefics3.examples import prompted
from ostro.core.errors import ConfigError, RequestError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import BAR, subject


class TestIdefics2(ImageTests):
    name = "idefics2"
    prompted = staticmethod(prompted)

    @pytest.mark.sample(1)
    @pytest.mark.parametrize(
        "change",
        [
            {"hidden_size": 4096},
            {"num_key_value_heads": 4, "hidden_act": "gelu", "resampler_depth": 1},
            {"resampler_n_latents": 5, "rms_norm_eps": 1e-3},
        ],
        ids=str,
    )
    def test_resamplers_equal_the_reference(
        self, plugins: PluginManager, change: dict[str, Any]
    ) -> None:
        """The first has the text's width; the vision config is as in published files."""
        tower = {**TINY["vision_config"], "model_type": "idefics2"}
        parts = {"vision_config": tower, "perceiver_config": {**PERCEIVER, **change}}
        with subject(plugins, "idefics2", config={**TINY, **parts}) as made:
            assert made.off(made.engine()) <= BAR


def test_published_configs_are_read() -> None:
    text = {"model_type": "mistral", "vocab_size": 32003, "max_position_embeddings": 32768}
    perceiver = {"model_type": "idefics2"}
    tower = {"model_type": "idefics2", "hidden_size": 1152, "image_size": 980, "patch_size": 14}
    tower |= {"intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
    tower |= {"tie_word_embeddings": True}  # as transformers 4 writes it
    parts = {"text_config": text, "perceiver_config": perceiver, "vision_config": tower}
    config = Config.from_hf({"model_type": "idefics2", "image_token_id": 32001, **parts})
    assert config.perceiver.resampler_n_latents == 64 and config.vision.side == 70
    assert config.perceiver.hidden_size == config.text.hidden_size == 4096
    assert config.text.num_key_value_heads == 8, "the default of the model type, not the heads"


@pytest.mark.parametrize(
    "change",
    [
        {"perceiver_config": {**PERCEIVER, key: value}}
        for key in (
            "resampler_n_latents",
            "resampler_depth",
            "resampler_n_heads",
            "resampler_head_dim",
            "num_key_value_heads",
        )
        for value in (0, -1, "x", 1 << 62)
    ]
    + [
        {"perceiver_config": {**PERCEIVER, "num_key_value_heads": 3}},
        {"perceiver_config": {**PERCEIVER, "rms_norm_eps": -1.0}},
        {"perceiver_config": {**PERCEIVER, "rms_norm_eps": "x"}},
        {"perceiver_config": 3},
        {"image_token_id": -1},
        {"image_token_id": "x"},
        {"text_config": {"model_type": "llama"}},
        {"vision_config": {**TINY["vision_config"], "patch_size": 0}},
        {"vision_config": {**TINY["vision_config"], "num_hidden_layers": 1 << 40}},
    ],
    ids=str,
)
def test_hostile_configs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Config.from_hf({**TINY, **change})


RAW = {"image_token_id": 1, "image_marks": {FAKE: 2}, "vision_config": {"patch_size": 14}}
SETTINGS = {"size": {"shortest_edge": 378, "longest_edge": 980}}


def maker(folder: Path, name: str = "preprocessor_config.json", **more: Any) -> Inputs:
    """Write the settings as transformers 4 or 5."""
    settings = {**SETTINGS, "image_processor_type": "Idefics2ImageProcessor", **more}
    found = settings if name.startswith("pre") else {"image_processor": settings}
    (folder / name).write_text(json.dumps(found))
    return Inputs(RAW, folder)


def image(height: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.sample(2)
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
@pytest.mark.parametrize(
    "size", [(1, 1), (30, 50), (981, 980), (333, 1501), (2100, 990), (20000, 10)], ids=str
)
def test_tiles_equal_the_references(
    tmp_path: Path, size: tuple[int, int], name: str, split: bool
) -> None:
    pil = pytest.importorskip("transformers.models.idefics2.image_processing_pil_idefics2")
    inputs, picture = maker(tmp_path, name, do_image_splitting=split), image(*size)
    if split and min(size) < 2:
        with pytest.raises(RequestError, match="cannot be split"):
            inputs.image(picture)
        return
    processor = pil.Idefics2ImageProcessorPil(**SETTINGS, do_image_splitting=split)
    expected = processor(picture, return_tensors="np", input_data_format="channels_last")
    item = inputs.image(picture)
    pixels, sizes = item.arrays["pixels"].numpy(), item.arrays["sizes"].numpy()
    np.testing.assert_allclose(pixels, expected["pixel_values"][0], rtol=0, atol=2e-6)
    mask = expected["pixel_attention_mask"][0]
    assert sizes.tolist() == [[m[:, 0].sum(), m[0].sum()] for m in mask]
    assert list(item.tokens) == [2, *[1] * 64] * len(pixels) + [2]


def test_one_token_separates_adjacent_images(tmp_path: Path) -> None:
    inputs = maker(tmp_path)
    first, second, third = (inputs.image(image(9, 9 + i)) for i in range(3))
    prompt = inputs.expand_placeholders([7, 1, 1, 8, 1], [first, second, third])
    rows = [1] * 64
    assert prompt.tokens == [7, 2, *rows, 2, *rows, 2, 8, 2, *rows, 2]
    assert [item.spans for item in prompt.items] == [((2, 64),), ((67, 64),), ((134, 64),)]
    with pytest.raises(RequestError, match="got nothing"):
        inputs.expand_placeholders([1, 1], [first])


@pytest.mark.parametrize(
    "settings",
    [
        {"do_resize": False},
        {"do_center_crop": True},
        {"size": {"height": 9, "width": 9}},
        {"size": {"shortest_edge": 0, "longest_edge": 9}},
        {"size": {"shortest_edge": 13, "longest_edge": 980}},
        {"size": {"shortest_edge": 378, "longest_edge": 1 << 40}},
        {"size": 24},
        {"image_std": [1, 0, 1]},
    ],
    ids=str,
)
def test_settings_that_are_not_implemented_are_refused(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        maker(tmp_path, **settings).image(image(4, 4))

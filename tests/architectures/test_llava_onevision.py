"""LLaVA-OneVision against transformers, with images and videos in the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ostro.architectures.llava_onevision.inputs import Inputs
from ostro.architectures.llava_onevision.model import Config
from ostro.core.errors import OstroError, RequestError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, subject

IMAGE, VIDEO = 151646, 151647
SIDE = 48
PINPOINTS = [[SIDE * i, SIDE * j] for i in range(1, 5) for j in range(1, 5)]
PUBLISHED = {
    "crop_size": None,
    "do_center_crop": None,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_grid_pinpoints": PINPOINTS,
    "size": {"height": SIDE, "width": SIDE},
}
RAW = {
    "vision_config": {"image_size": SIDE, "patch_size": 14, "model_type": "siglip_vision_model"},
    "image_grid_pinpoints": PINPOINTS,
    "vision_aspect_ratio": "anyres_max_4",
}
"""Three patches of 14 pixels in a row of a tile, with six pixels left over."""


class TestLlavaOnevision(ArchitectureTests):
    name = "llava_onevision"


def test_published_folders_are_read(plugins: PluginManager) -> None:
    """A tied head in the text config, the tower below vision_model."""
    tiny = plugins.get("architectures", "llava_onevision").conformance.tiny
    text = {**tiny["text_config"], "tie_word_embeddings": True}
    with subject(plugins, "llava_onevision", config={**tiny, "text_config": text}) as made:
        config = made.folder / "config.json"
        stated = json.loads(config.read_text())
        stated["tie_word_embeddings"] = False
        config.write_text(json.dumps({**stated, "use_image_newline_parameter": True}))
        file = made.folder / "model.safetensors"
        tensors = {
            name.replace("vision_tower.", "vision_tower.vision_model."): tensor
            for name, tensor in load_file(file).items()
        }
        assert "image_newline" in tensors and "language_model.lm_head.weight" not in tensors
        save_file(tensors, file, {"format": "pt"})
        assert made.off(made.engine()) <= BAR


@pytest.mark.parametrize(
    "change",
    [
        {"vision_aspect_ratio": "pad"},
        {"vision_aspect_ratio": "anyres_max_"},
        {"vision_aspect_ratio": "anyres_max_-3"},
        {"vision_aspect_ratio": "anyres_max_0"},
        {"vision_aspect_ratio": "anyres_max_\u00b2"},
        {"vision_aspect_ratio": 9},
        {"video_token_index": -1},
        {"video_token_index": 128},
        {"image_grid_pinpoints": [[24, 25]]},
        {"vision_feature_select_strategy": "default"},
    ],
    ids=str,
)
def test_hostile_fields_are_refused(plugins: PluginManager, change: dict[str, Any]) -> None:
    tiny = plugins.get("architectures", "llava_onevision").conformance.tiny
    with pytest.raises(OstroError):
        Config.from_hf({**tiny, **change})


def test_what_a_file_leaves_out_is_the_default() -> None:
    config = Config.from_hf(
        {"model_type": "llava_onevision", "text_config": {}, "vision_config": {"image_size": 384}}
    )
    assert (config.text_type, config.vision_type) == ("qwen2", "siglip_vision_model")
    assert config.vision_feature_layer == (12,) and len(config.image_grid_pinpoints) == 36


@pytest.fixture(params=["preprocessor_config.json", "processor_config.json"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the settings of transformers 4 or 5."""
    settings = {**PUBLISHED, "image_processor_type": "LlavaOnevisionImageProcessor"}
    nested = {"image_processor": settings, "video_processor": PUBLISHED}
    found = settings if request.param.startswith("pre") else nested
    (tmp_path / request.param).write_text(json.dumps(found))
    return tmp_path


def picture(height: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


def processors() -> tuple[Any, Any]:
    """The reference's image processor, and its processor without a tokenizer."""
    pil = pytest.importorskip(
        "transformers.models.llava_onevision.image_processing_pil_llava_onevision"
    )
    from transformers.models.llava_onevision.processing_llava_onevision import (
        LlavaOnevisionProcessor,
    )

    images = pil.LlavaOnevisionImageProcessorPil(**PUBLISHED)
    whole = LlavaOnevisionProcessor.__new__(LlavaOnevisionProcessor)
    whole.image_processor, whole.num_image_tokens = images, 9
    whole.vision_aspect_ratio, whole.vision_feature_select_strategy = "anyres_max_4", "full"
    whole.image_token, whole.video_token = "i", "v"
    return images, whole


SIZES = [(1, 1), (48, 48), (49, 30), (150, 151), (400, 90), (90, 400), (20000, 10), (10, 20000)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tiles_of_one_image_equal_the_references(folder: Path, size: tuple[int, int]) -> None:
    image, (images, whole) = picture(*size), processors()
    expected = images([image], return_tensors="np", input_data_format="channels_last")
    maker = Inputs(RAW, folder)
    [item] = maker.expand_placeholders([5, IMAGE, 6], [maker.image(image)]).items
    assert {*item.arrays} == {"pixels", "grid"}
    pixels = item.arrays["pixels"].numpy()
    np.testing.assert_allclose(pixels, expected["pixel_values"][0], rtol=0, atol=2e-6)
    assert item.rows == len(whole.replace_image_token(expected, 0))


def test_each_of_several_images_is_a_square(folder: Path) -> None:
    pictures, (images, whole) = [picture(40, 90), picture(64, 30)], processors()
    expected = images([pictures], return_tensors="np", input_data_format="channels_last")
    maker = Inputs(RAW, folder)
    items = [maker.image(each) for each in pictures]
    prompt = maker.expand_placeholders([IMAGE, 6, IMAGE], items)
    for i, item in enumerate(prompt.items):
        pixels = item.arrays["pixels"].numpy()
        np.testing.assert_allclose(pixels, expected["pixel_values"][i], rtol=0, atol=2e-6)
        assert item.rows == len(whole.replace_image_token(expected, i)) == 10
    assert prompt.items[0].key not in (prompt.items[1].key, items[0].key)


def test_a_narrow_image_among_several_is_refused(folder: Path) -> None:
    maker = Inputs(RAW, folder)
    items = [maker.image(picture(20000, 10)), maker.image(picture(20, 10))]
    with pytest.raises(RequestError, match="too narrow"):
        maker.expand_placeholders([IMAGE, IMAGE], items)


@pytest.mark.parametrize("frames", [1, 5, 50])
def test_videos_have_rows_of_pooled_frames(folder: Path, frames: int) -> None:
    maker, (_, whole) = Inputs(RAW, folder), processors()
    video = np.stack([picture(30, 50)] * frames)
    items = [maker.video(video, 5.0), maker.image(video[0])]
    prompt = maker.expand_placeholders([VIDEO, 7, IMAGE], items)
    pixels = prompt.items[0].arrays["pixels"]
    assert pixels.shape == (min(frames, 32), 3, SIDE, SIDE)
    expected = {"pixel_values_videos": [pixels.numpy()]}
    assert prompt.items[0].rows == len(whole.replace_video_token(expected, 0))
    assert len(prompt.items[1].arrays["pixels"].numpy()) > 1

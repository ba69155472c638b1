"""LLaVA-NeXT and LLaVA-NeXT-Video against transformers, with images and videos in the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tiny.images import ImageTests

from ostro.architectures.granite import TINY as GRANITE
from ostro.architectures.llava_next import TINY
from ostro.architectures.llava_next.examples import prompted
from ostro.architectures.llava_next.inputs import Inputs, VideoInputs
from ostro.architectures.llava_next.model import Config, VideoConfig
from ostro.architectures.siglip import TINY as SIGLIP
from ostro.core.errors import ConfigError, OstroError
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, subject


class TestLlavaNext(ImageTests):
    name = "llava_next"
    prompted = staticmethod(prompted)


class TestLlavaNextVideo(ArchitectureTests):
    name = "llava_next_video"


def test_published_granite_vision_is_read(plugins: PluginManager) -> None:
    """Granite with four layers of SigLIP; tower and newline as in files of transformers 4."""
    change = {
        "text_config": {**GRANITE, "model_type": "granite", "logits_scaling": 1.0},
        "vision_config": {**SIGLIP, "num_hidden_layers": 4},
        "vision_feature_layer": [-4, -3, -2, -1],
        "vision_feature_select_strategy": "full",
    }
    change["text_config"]["max_position_embeddings"] = 512
    with subject(plugins, "llava_next", config={**TINY, **change}) as made:
        config = made.folder / "config.json"
        stated = json.loads(config.read_text())
        config.write_text(json.dumps({**stated, "use_image_newline_parameter": True}))
        file = made.folder / "model.safetensors"
        tensors = {
            name.replace("vision_tower.", "vision_tower.vision_model."): tensor
            for name, tensor in load_file(file).items()
        }
        assert "image_newline" in tensors
        save_file(tensors, file, {"format": "pt"})
        assert made.off(made.engine()) <= BAR


@pytest.mark.parametrize("mode", ["average", "max"])
def test_modes_of_pooling(plugins: PluginManager, mode: str) -> None:
    tiny = plugins.get("architectures", "llava_next_video").conformance.tiny
    with subject(plugins, "llava_next_video", config={**tiny, "spatial_pool_mode": mode}) as made:
        assert made.off(made.engine()) <= BAR


@pytest.mark.parametrize(
    "change",
    [
        {"image_grid_pinpoints": []},
        {"image_grid_pinpoints": [[24, 50]]},
        {"image_grid_pinpoints": [[24, 0]]},
        {"image_grid_pinpoints": [[24, -24]]},
        {"image_grid_pinpoints": [[24]]},
        {"image_grid_pinpoints": [[24, "x"]]},
        {"image_grid_pinpoints": [[24.0, 24]]},
        {"image_grid_pinpoints": [24, 24]},
        {"image_grid_pinpoints": [[24 << 30, 24 << 30]]},
        {"image_grid_pinpoints": 3},
        {"vision_feature_select_strategy": "full"},
        {"spatial_pool_mode": "conv"},
        {"spatial_pool_stride": 0},
        {"spatial_pool_stride": 1 << 40},
        {"spatial_pool_stride": "x"},
        {"video_token_index": -1},
        {"video_token_index": 1 << 40},
    ],
    ids=str,
)
def test_hostile_fields_are_refused(plugins: PluginManager, change: dict[str, Any]) -> None:
    tiny = plugins.get("architectures", "llava_next_video").conformance.tiny
    with pytest.raises(OstroError):
        VideoConfig.from_hf({**tiny, **change})


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "patch_size", "image_size"])
def test_huge_encoders_are_refused(plugins: PluginManager, key: str) -> None:
    """By the config, or because the weights have other shapes."""
    with subject(plugins, "llava_next") as made:
        config = made.folder / "config.json"
        stated = json.loads(config.read_text())
        stated["vision_config"][key] = 1 << 20
        config.write_text(json.dumps(stated))
        with pytest.raises(OstroError):
            load_model(made.folder, Settings(device="cpu", dtype="float32"), plugins)


def test_a_row_too_many_in_each_tile_is_refused() -> None:
    tower = {**SIGLIP, "num_hidden_layers": 4}
    with pytest.raises(ConfigError, match="does not select the 16 patches"):
        Config.from_hf({**TINY, "vision_config": tower})


PUBLISHED = {
    "size": {"shortest_edge": 336},
    "crop_size": {"height": 336, "width": 336},
    "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
}
SIZES = [(1, 1), (336, 336), (337, 300), (500, 333), (333, 500), (1300, 90), (90, 1300), (50, 7)]
TOWER = {"vision_config": {"image_size": 336, "patch_size": 14}}


def write(folder: Path, name: str, **more: Any) -> Path:
    """Write the settings as transformers 4 or 5."""
    settings = {**PUBLISHED, "image_processor_type": "LlavaNextImageProcessor", **more}
    found = settings if name.startswith("pre") else {"image_processor": settings}
    (folder / name).write_text(json.dumps(found))
    return folder


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
@pytest.mark.parametrize("size", [*SIZES, (20000, 10), (10, 20000)], ids=str)
def test_tiles_and_placeholders_equal_the_references(
    tmp_path: Path, size: tuple[int, int], name: str
) -> None:
    pil = pytest.importorskip("transformers.models.llava_next.image_processing_pil_llava_next")
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    image = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    processor = pil.LlavaNextImageProcessorPil(**PUBLISHED)
    expected = processor(image, return_tensors="np", input_data_format="channels_last")
    item = Inputs(TOWER, write(tmp_path, name)).image(image)
    pixels = item.arrays["pixels"].numpy()
    np.testing.assert_allclose(pixels, expected["pixel_values"][0], rtol=0, atol=2e-6)
    whole = LlavaNextProcessor.__new__(LlavaNextProcessor)
    whole.image_processor, whole.patch_size = processor, 14
    whole.num_additional_image_tokens, whole.vision_feature_select_strategy = 1, "default"
    count = whole._get_number_of_features(*size, 336, 336) - 1
    assert len(item.tokens) == count


def test_other_resolutions_than_those_of_the_model_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "preprocessor_config.json", image_grid_pinpoints=[[336, 672]])
    stated = {**TOWER, "image_grid_pinpoints": PUBLISHED["image_grid_pinpoints"]}
    with pytest.raises(ConfigError, match="differ"):
        Inputs(stated, tmp_path).image(np.zeros((4, 4, 3), np.uint8))
    write(tmp_path, "preprocessor_config.json", image_grid_pinpoints=[[336, 600]])
    with pytest.raises(ConfigError, match="multiple"):
        Inputs(TOWER, tmp_path).image(np.zeros((4, 4, 3), np.uint8))


@pytest.mark.parametrize("nested", [False, True])
def test_frames_are_sampled_and_sized(tmp_path: Path, nested: bool) -> None:
    settings = {**PUBLISHED, "num_frames": 8}
    if nested:
        found = {"image_processor": PUBLISHED, "video_processor": settings}
        (tmp_path / "processor_config.json").write_text(json.dumps(found))
    else:
        write(tmp_path, "preprocessor_config.json")
        (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    maker = VideoInputs(TOWER, tmp_path)
    frames = np.zeros((21, 30, 50, 3), np.uint8)
    frames += np.arange(21, dtype=np.uint8)[:, None, None, None] * 10
    item = maker.video(frames, 5.0)
    assert item.arrays["pixels"].shape == (8, 3, 336, 336) and len(item.tokens) == 8 * 144
    light = item.arrays["pixels"].numpy()[:, 0, 5, 5]
    levels = (light * 0.26862954 + 0.48145466) * 255 / 10
    assert np.round(levels).astype(int).tolist() == [0, 3, 6, 9, 11, 14, 17, 20]
    with pytest.raises(OstroError, match="0 frames"):
        maker.video(frames[:0], 5.0)
    with pytest.raises(OstroError, match="does not support video"):
        Inputs(TOWER, tmp_path).video(frames, 5.0)

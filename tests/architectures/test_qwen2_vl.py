"""Qwen2-VL's files as published, its config and its preprocessing. The kit is in test_qwen_vl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ostro.architectures.qwen2_vl.inputs import Inputs
from ostro.architectures.qwen2_vl.model import Config
from ostro.core.errors import OstroError, RequestError
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import BAR, subject

PREPROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
}
"""The file of Qwen2-VL-2B-Instruct."""


def published(tiny: dict[str, Any]) -> dict[str, Any]:
    """A config in the layout of the hub: the text at the top level, mrope by its type."""
    text = dict(tiny["text_config"])
    rope = text.pop("rope_parameters")
    vision = {**tiny["vision_config"], "in_chans": 3, "spatial_patch_size": 14}
    return {
        **{key: value for key, value in tiny.items() if key != "text_config"},
        **text,
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "vision_config": {**vision, "spatial_merge_size": 2, "temporal_patch_size": 2},
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
        "use_sliding_window": False,
        "sliding_window": 32768,
        "max_window_layers": 28,
        "vision_token_id": 5,
        "attention_dropout": 0.0,
    }


def test_published_folders_are_read(plugins: PluginManager) -> None:
    with subject(plugins, "qwen2_vl") as made:
        config = made.folder / "config.json"
        tiny = dict(plugins.get("architectures", "qwen2_vl").conformance.tiny)
        config.write_text(json.dumps(published(tiny)))
        file = made.folder / "model.safetensors"
        tensors = {}
        for name, tensor in load_file(file).items():
            name = name.replace("model.language_model.", "model.").replace("model.visual", "visual")
            tensors[name] = tensor
        assert {"visual.merger.ln_q.weight", "visual.blocks.0.mlp.fc1.weight"} <= {*tensors}
        save_file(tensors, file, {"format": "pt"})
        assert made.off(made.engine()) <= BAR


def test_the_default_config_is_that_of_the_reference() -> None:
    config = Config.from_hf({"model_type": "qwen2_vl", **TEXT, "vision_config": {}})
    vision = config.vision
    assert (vision.hidden_size, vision.intermediate_size, vision.out_hidden_size) == (
        1280,
        5120,
        3584,
    )
    assert (vision.hidden_act, config.text.sections) == ("quick_gelu", (16, 24, 24))


TEXT = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}


@pytest.mark.parametrize("value", [-1, 0, 1 << 40, "x", [7, "y"], 1.5], ids=str)
@pytest.mark.parametrize(
    "key", ["depth", "embed_dim", "hidden_size", "mlp_ratio", "num_heads", "hidden_act"]
)
def test_hostile_fields_are_refused(plugins: PluginManager, key: str, value: Any) -> None:
    tiny = plugins.get("architectures", "qwen2_vl").conformance.tiny
    with pytest.raises(OstroError):
        Config.from_hf({**tiny, "vision_config": {**tiny["vision_config"], key: value}})


@pytest.mark.parametrize("key", ["depth", "embed_dim", "mlp_ratio", "patch_size"])
def test_huge_encoders_are_refused(plugins: PluginManager, key: str) -> None:
    """By the config, or because the weights have other shapes."""
    with subject(plugins, "qwen2_vl") as made:
        config = made.folder / "config.json"
        stated = json.loads(config.read_text())
        stated["vision_config"][key] = 1 << 20
        config.write_text(json.dumps(stated))
        with pytest.raises(OstroError):
            load_model(made.folder, Settings(device="cpu", dtype="float32"), plugins)


@pytest.fixture(params=["preprocessor_config.json", "processor_config.json"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the settings of transformers 4 or 5."""
    nested = {"image_processor": PREPROCESSOR, "video_processor": PREPROCESSOR}
    found = PREPROCESSOR if request.param.startswith("pre") else nested
    (tmp_path / request.param).write_text(json.dumps(found))
    return tmp_path


@pytest.mark.parametrize("size", [(1, 1), (28, 28), (30, 50), (211, 300), (10, 2000)], ids=str)
def test_patches_equal_the_references(folder: Path, size: tuple[int, int]) -> None:
    pil = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    processor = pil.Qwen2VLImageProcessorPil(**PREPROCESSOR)
    found = Inputs({}, folder).image(image)
    expected = processor(image, return_tensors="np", input_data_format="channels_last")
    assert np.array_equal(found.arrays["grid"].numpy(), expected["image_grid_thw"][0])
    patches = found.arrays["patches"].numpy()
    np.testing.assert_allclose(patches, expected["pixel_values"], rtol=0, atol=1e-6)
    assert found.tokens == (151655,) * (expected["image_grid_thw"].prod() // 4)


def test_an_image_of_10_by_20000_pixels_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match="too narrow"):
        Inputs({}, folder).image(np.zeros((20000, 10, 3), np.uint8))


def test_groups_of_frames_have_consecutive_times(folder: Path) -> None:
    video = Inputs({}, folder).video(np.zeros((7, 56, 84, 3), np.uint8), 1.0)
    assert video.arrays["grid"].numpy().tolist()[0] == 3
    assert video.arrays["times"].numpy().tolist() == [0, 1, 2]

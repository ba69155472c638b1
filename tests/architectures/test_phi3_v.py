"""Phi-3-vision against transformers' Phi-3 and CLIP, with images in the prompt."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny.images import ImageTests
from tiny.published import Tensors, publish, published_deviation

from ostro.architectures.phi3_v.config import CLIP, Config
from ostro.architectures.phi3_v.examples import prompted
from ostro.architectures.phi3_v.inputs import Inputs
from ostro.core.errors import CheckpointError, ConfigError, RequestError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import BAR, Subject, subject

TABLE, SHARED = "model.embed_tokens.weight", "model.vision_embed_tokens.wte.weight"
ROOT = "model.vision_embed_tokens.img_processor.vision_model"
PUBLISHED = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "do_convert_rgb": True,
    "image_processor_type": "Phi3VImageProcessor",
    "num_img_tokens": 144,
}


def both(tensors: Tensors) -> Tensors:
    ids = torch.arange(17)[None]
    return {**tensors, SHARED: tensors[TABLE].clone(), f"{ROOT}.embeddings.position_ids": ids}


def shared(tensors: Tensors) -> Tensors:
    return {SHARED if name == TABLE else name: tensor for name, tensor in tensors.items()}


def neither(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != TABLE}


class TestPhi3V(ImageTests):
    name = "phi3_v"
    prompted = staticmethod(prompted)

    @pytest.mark.parametrize("layout", [both, shared])
    def test_published_names(self, tiny: Subject, tmp_path: Path, layout: Any) -> None:
        """The embeddings of tokens below those of images, "su", and position ids of CLIP."""
        given = tiny.raw_config["rope_parameters"]
        factors = {key: given[key] for key in ("short_factor", "long_factor")}
        config = {
            "model_type": "phi3_v",
            "rope_scaling": {"type": "su", **factors},
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "resid_pdrop": 0.0,
        }
        loaded = publish(tiny, tmp_path, config, layout, dropped=("rope_parameters",))
        assert published_deviation(tiny, loaded) <= BAR

    def test_a_checkpoint_without_embeddings_is_refused(
        self, tiny: Subject, tmp_path: Path
    ) -> None:
        with pytest.raises(CheckpointError, match="embed_tokens"):
            publish(tiny, tmp_path, {}, neither)

    def test_features_of_other_layers(self, plugins: PluginManager) -> None:
        tiny = plugins.get("architectures", self.name).conformance.tiny
        for layer in (-1, 2):
            part = {**tiny["img_processor"], "layer_idx": layer, "type_feature": "patch"}
            with subject(plugins, self.name, config={**tiny, "img_processor": part}) as made:
                assert made.off(made.engine()) <= BAR

    @pytest.mark.parametrize(
        "change",
        [{"embd_layer": {}}, {"img_processor": {}}, {"embd_layer": 3}, {"img_processor": "x"}]
        + [
            {"img_processor": {key: value}}
            for key, value in (
                ("name", "siglip"),
                ("type_feature", "cls_patch"),
                ("image_dim_out", 1024),
                ("num_img_tokens", 5),
                *(("layer_idx", value) for value in (0, 5, -5, -6, 1 << 40, "x", 1.0, None, True)),
            )
        ]
        + [
            {"embd_layer": {key: value}}
            for key, value in (
                ("hd_transform_order", "glb_sub"),
                ("projection_cls", "linear"),
                ("use_hd_transform", False),
                ("with_learnable_separator", False),
                ("embedding_cls", "audio"),
            )
        ]
        + [
            {"vision_config": {key: value}}
            for key, value in (
                ("image_size", 18),
                ("image_size", 0),
                ("patch_size", 1 << 40),
                ("num_channels", 1),
                ("hidden_size", 30),
                ("num_hidden_layers", 1 << 40),
                ("num_hidden_layers", -1),
                ("hidden_act", "tanh"),
            )
        ]
        + [{"image_token_id": value} for value in (-1, 128, 1 << 40, "x")]
        + [{"rope_parameters": {"rope_type": "linear"}}, {"sliding_window": 0}],
        ids=str,
    )
    def test_hostile_configs_are_refused(
        self, plugins: PluginManager, change: dict[str, Any]
    ) -> None:
        raw = {**plugins.get("architectures", self.name).conformance.tiny}
        for key, value in change.items():
            raw[key] = {**raw[key], **value} if value and isinstance(value, dict) else value
        with pytest.raises(ConfigError):
            Config.from_hf(raw)


def test_published_configs_are_read() -> None:
    text = {"hidden_size": 3072, "vocab_size": 32064, "sliding_window": 131072}
    parts = {
        "img_processor": {
            "image_dim_out": 1024,
            "model_name": "openai/clip-vit-large-patch14-336",
            "name": "clip_vision_model",
            "num_img_tokens": 144,
        },
        "embd_layer": {
            "embedding_cls": "image",
            "hd_transform_order": "sub_glb",
            "projection_cls": "mlp",
            "use_hd_transform": True,
            "with_learnable_separator": True,
        },
    }
    heads = {"num_attention_heads": 32, "num_hidden_layers": 32, "intermediate_size": 8192}
    factors = {"type": "su", "short_factor": [1.0] * 48, "long_factor": [1.5] * 48}
    rest = {"rope_scaling": factors, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
    config = Config.from_hf({**text, **heads, **rest, **parts, "model_type": "phi3_v"})
    assert config.vision_config == CLIP and config.cells == 12
    assert config.image_token_id == 32044 and config.seen.num_hidden_layers == 23
    assert config.rope_parameters["rope_type"] == "longrope"


def maker(folder: Path, name: str = "preprocessor_config.json", **more: Any) -> Inputs:
    """Write the settings as transformers 4 or 5."""
    settings = {**PUBLISHED, **more}
    found = settings if name.startswith("pre") else {"image_processor": settings}
    (folder / name).write_text(json.dumps(found))
    return Inputs({"model_type": "phi3_v"}, folder)


def expected(image: np.ndarray[Any, Any], crops: int) -> tuple[torch.Tensor, tuple[int, int]]:
    """The published rule: tiles on white, the whole image by bicubic interpolation in torch."""
    picture = Image.fromarray(image)
    tall = picture.height > picture.width
    if tall:
        picture = picture.transpose(Image.Transpose.TRANSPOSE)
    ratio, scale = picture.width / picture.height, 1
    while scale * math.ceil(scale / ratio) <= crops:
        scale += 1
    width = 336 * (scale - 1)
    picture = picture.resize((width, int(width / ratio)), Image.Resampling.BILINEAR)
    height = math.ceil(picture.height / 336) * 336
    canvas = Image.new("RGB", (width, height), (255, 255, 255))
    canvas.paste(picture, (0, int((height - picture.height) / 2)))
    if tall:
        canvas = canvas.transpose(Image.Transpose.TRANSPOSE)
    values = torch.from_numpy(np.array(canvas)).permute(2, 0, 1).float() / 255
    mean, std = (torch.tensor(PUBLISHED[key])[:, None, None] for key in ("image_mean", "image_std"))
    values = (values - mean) / std
    whole = torch.nn.functional.interpolate(values[None], size=(336, 336), mode="bicubic")
    rows, columns = values.shape[1] // 336, values.shape[2] // 336
    tiles = values.unfold(1, 336, 336).unfold(2, 336, 336).permute(1, 2, 0, 3, 4)
    return torch.cat((whole, tiles.flatten(0, 1))), (rows, columns)


SIZES = [(1, 1), (336, 336), (337, 300), (500, 333), (333, 501), (90, 1300), (1300, 90), (50, 7)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
@pytest.mark.parametrize("crops", [1, 4, 16])
def test_tiles_and_placeholders_equal_the_published_rule(
    tmp_path: Path, crops: int, name: str
) -> None:
    inputs = maker(tmp_path, name, num_crops=crops)
    for size in (*SIZES, (20000, 10), (10, 20000)):
        image = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
        if crops * 336 // (max(size) // min(size)) < 1:
            with pytest.raises(RequestError, match="too narrow"):
                inputs.image(image)
            continue
        tiles, (rows, columns) = expected(image, crops)
        item = inputs.image(image)
        pixels = item.arrays["pixels"].numpy()
        np.testing.assert_allclose(pixels, tiles.numpy(), rtol=0, atol=2e-5, err_msg=str(size))
        assert item.arrays["grid"].numpy().tolist() == [rows, columns] and len(tiles) <= crops + 1
        count = (rows * columns + 1) * 144 + 1 + (rows + 1) * 12
        assert item.tokens == (32044,) * count


@pytest.mark.parametrize(
    "settings",
    [
        {"num_crops": 0},
        {"num_crops": -4},
        {"num_crops": 1 << 40},
        {"num_crops": "x"},
        {"do_resize": False},
        {"do_pad": True},
        {"image_std": [1, 0, 1]},
        {"image_mean": [1]},
    ],
    ids=str,
)
def test_settings_that_are_not_implemented_are_refused(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        maker(tmp_path, **settings).image(np.zeros((4, 4, 3), np.uint8))

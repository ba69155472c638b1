"""Pixtral's vision encoder against transformers, and its images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ostro import Medium
from ostro.architectures.pixtral import TINY
from ostro.architectures.pixtral.inputs import Pictures, Preprocessor
from ostro.architectures.pixtral.model import Config
from ostro.core.errors import ConfigError, OstroError, RequestError, TokenizerError, Unsupported
from ostro.core.nn import Linear
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.step import ROWS
from ostro.plugins.conformance.architecture import ArchitectureTests, NonzeroDelta
from ostro.plugins.conformance.formats import assert_matches_dequantized, sample_formats, wide
from ostro.plugins.conformance.parity import BAR, RED, STD, Subject, deviation, subject

SIZES = ((24, 36), (12, 48), (6, 6))
DRAW = torch.Generator().manual_seed(1)
IMAGES = [torch.randn(3, *size, generator=DRAW) for size in SIZES]


@torch.inference_mode()
def seen(model: Any) -> Tensor:
    media = [Medium("image", {"pixels": image}) for image in IMAGES]
    return torch.cat([features for (features,) in model.encode(media, ROWS)])


@torch.inference_mode()
def truth(made: Subject) -> Tensor:
    padded = torch.zeros(len(IMAGES), 3, 24, 48)
    for out, image in zip(padded, IMAGES, strict=True):
        out[:, : image.shape[1], : image.shape[2]] = image
    found: Tensor = made.reference(padded, torch.tensor(SIZES)).last_hidden_state[0]
    return found


class TestPixtral(ArchitectureTests):
    name = "pixtral"

    def test_features_equal_the_reference(self, tiny: Subject) -> None:
        assert deviation(seen(tiny.load().model), truth(tiny)) <= BAR

    def test_every_mutant_fails_parity(self, tiny: Subject, plugins: PluginManager) -> None:
        green = []
        for mutant in resolve(str(tiny.record.conformance.mutants))():
            with subject(plugins, "pixtral", std=mutant.std or STD) as made:
                model = made.load().model
                mutant.apply(model)
                if deviation(seen(model), truth(made)) < RED:
                    green.append(mutant.name)
        assert not green, f"the parity test does not notice: {', '.join(green)}"

    @pytest.mark.parametrize(
        "change",
        [
            {"hidden_act": "silu"},
            {"rope_parameters": {"rope_theta": 50.0, "rope_type": "axial"}},
            {"rope_parameters": {"rope_theta": 50.0, "rope_type": "default"}},
            {"head_dim": 8, "rope_theta": 10000.0},
        ],
        ids=str,
    )
    def test_configs_equal_the_reference(
        self, plugins: PluginManager, change: dict[str, Any]
    ) -> None:
        with subject(plugins, "pixtral", config={**TINY, **change}) as made:
            assert deviation(seen(made.load().model), truth(made)) <= BAR

    def test_adapter_deltas_reach_every_linear(self, tiny: Subject) -> None:
        model = tiny.load().model
        before = seen(model)
        for path, module in model.named_modules():
            if isinstance(module, Linear):
                module.deltas.append(NonzeroDelta())
                assert not torch.equal(seen(model), before), path
                module.deltas.clear()

    @pytest.mark.slow
    def test_quantized_models_match_dequantized_weights(self, plugins: PluginManager) -> None:
        with wide(plugins, plugins.get("architectures", "pixtral")) as made:
            for format in sample_formats(plugins, "pixtral"):
                loaded = made.load(quant=format, exact=True)
                assert_matches_dequantized(
                    loaded, plugins, format, lambda model=loaded.model: [seen(model)]
                )

    def test_text_input_is_rejected(self, tiny: Subject) -> None:
        with pytest.raises(Unsupported, match="no text"):
            tiny.load().model.hidden(ROWS)


@pytest.mark.parametrize(
    "change",
    [
        {key: value}
        for key in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "image_size",
            "patch_size",
            "num_channels",
        )
        for value in (0, -1, "x", 1 << 62)
    ]
    + [
        {"hidden_size": 36},
        {"head_dim": 4},
        {"head_dim": "x"},
        {"hidden_act": "relu"},
        {"layer_norm_eps": 1e-6},
        {"rope_theta": 0},
        {"rope_theta": "x"},
        {"rope_theta": None},
        {"rope_theta": True},
        {"rope_theta": float("nan")},
        {"rope_parameters": {"rope_type": "yarn"}},
        {"rope_parameters": {"rope_theta": [1]}},
        {"rope_parameters": 3},
    ],
    ids=str,
)
def test_hostile_configs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Config.from_hf({**TINY, **change})


RAW = {"vision_config": {"patch_size": 14}, "image_break_token_id": 2, "image_end_token_id": 3}
SETTINGS = {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 1540}}


def pictures(folder: Path, name: str = "preprocessor_config.json", **more: Any) -> Pictures:
    """Write the settings as transformers 4 or 5."""
    settings = {**SETTINGS, **more}
    found = settings if name.startswith("pre") else {"image_processor": settings}
    (folder / name).write_text(json.dumps(found))
    return Pictures(RAW, folder, 1, 2)


def image(height: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
@pytest.mark.parametrize(
    "size", [(1, 1), (30, 50), (28, 28), (29, 57), (1541, 1540), (1000, 1900), (3000, 3)], ids=str
)
def test_pixels_and_placeholders_equal_the_references(
    tmp_path: Path, size: tuple[int, int], name: str
) -> None:
    pil = pytest.importorskip("transformers.models.pixtral.image_processing_pil_pixtral")
    processor = pil.PixtralImageProcessorPil(size=SETTINGS["size"], patch_size=28)
    expected = processor(image(*size), return_tensors="np", input_data_format="channels_last")
    item = pictures(tmp_path, name).item(image(*size))
    pixels = item.arrays["pixels"].numpy()
    np.testing.assert_allclose(pixels, expected["pixel_values"][0], rtol=0, atol=2e-6)
    rows, columns = (side // 28 for side in expected["image_sizes"][0])
    assert item.tokens == ((1,) * columns + (2,)) * (rows - 1) + (1,) * columns + (3,)
    assert item.cost == pixels[0].size // 14**2


def test_images_that_are_too_narrow_or_too_large_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="too narrow"):
        pictures(tmp_path).item(image(20000, 10))
    for size in ((60000, 10), (10, 60000), (9000, 9000)):
        with pytest.raises(RequestError, match="too large"):
            pictures(tmp_path, size={"longest_edge": 1 << 40}).item(image(*size))


@pytest.mark.parametrize(
    "settings",
    [
        {"do_resize": False},
        {"do_center_crop": True},
        {"size": {"shortest_edge": 9}},
        {"size": {"longest_edge": 0}},
        {"size": {"longest_edge": "x"}},
        {"size": 24},
        {"image_std": [1, 0, 1]},
    ],
    ids=str,
)
def test_settings_that_are_not_implemented_are_refused(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json"):
        pictures(tmp_path, **settings)


def test_an_image_may_have_limits_of_both_sides(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 56, "width": 112}}')
    assert Preprocessor.read(tmp_path).prepare(image(112, 112), 28).shape == (3, 56, 56)


def test_marks_are_read_from_the_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    raw = {"vision_config": {"patch_size": 14}}
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        Pictures(raw, tmp_path, 1, 2)
    vocabulary = {"[IMG]": 0, "[IMG_BREAK]": 5, "[IMG_END]": 6, "<row>": 7}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[IMG]"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    made = Pictures(raw, tmp_path, 1, 2)
    assert (made.line, made.end) == (5, 6)
    file = tmp_path / "processor_config.json"
    file.write_text(json.dumps({"image_break_token": "<row>"}))
    assert Pictures(raw, tmp_path, 1, 2).line == 7
    for broken in ('{"image_end_token": 3}', '{"image_end_token": "<none>"}', "[]"):
        file.write_text(broken)
        with pytest.raises(OstroError, match=r"image_end_token|processor_config"):
            Pictures(raw, tmp_path, 1, 2)

"""SigLIP's tower against transformers, and the pixels that it and its relatives are shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ostro import Medium
from ostro.architectures.siglip import TINY
from ostro.architectures.siglip.model import Config
from ostro.architectures.siglip.pixels import Preprocessor, check_shape
from ostro.core.errors import ConfigError, RequestError, Unsupported
from ostro.core.nn import Linear
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.step import ROWS
from ostro.plugins.conformance.architecture import ArchitectureTests, NonzeroDelta
from ostro.plugins.conformance.formats import (
    assert_matches_dequantized,
    formats,
    sample_formats,
    wide,
)
from ostro.plugins.conformance.parity import BAR, RED, STD, Subject, deviation, subject

SIDE = 24
IMAGES = torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
RNG = np.random.default_rng(0)


@torch.inference_mode()
def seen(model: Any, images: Tensor = IMAGES) -> Tensor:
    media = [Medium("image", {"pixels": image}) for image in images]
    return torch.stack([features for (features,) in model.encode(media, ROWS)])


@torch.inference_mode()
def truth(made: Subject) -> Tensor:
    found: Tensor = made.reference(IMAGES).last_hidden_state
    return found


class TestSiglip(ArchitectureTests):
    name = "siglip"

    def test_what_is_seen_equals_the_reference(self, tiny: Subject) -> None:
        assert deviation(seen(tiny.load().model), truth(tiny)) <= BAR

    def test_every_state_equals_the_references(self, tiny: Subject) -> None:
        with torch.inference_mode():
            ours = tiny.load().model.vision_model(IMAGES, ROWS)
            theirs = tiny.reference(IMAGES, output_hidden_states=True).hidden_states
        assert len(ours) == len(theirs) == 4
        assert all(deviation(a, b) <= BAR for a, b in zip(ours, theirs, strict=True))

    def test_images_do_not_depend_on_their_neighbours(self, tiny: Subject) -> None:
        model = tiny.load().model
        alone = torch.cat([seen(model, image[None]) for image in IMAGES])
        assert deviation(seen(model), alone) <= BAR / 10

    def test_every_mutant_fails_parity(self, tiny: Subject, plugins: PluginManager) -> None:
        green, found = [], list(resolve(str(tiny.record.conformance.mutants))())
        for mutant in found:
            with subject(plugins, "siglip", std=mutant.std or STD) as made:
                model = made.load().model
                mutant.apply(model)
                if deviation(seen(model), truth(made)) < RED:
                    green.append(mutant.name)
        assert len(found) >= 6
        assert not green, f"the parity test does not notice: {', '.join(green)}"

    def test_adapter_deltas_reach_every_linear(self, tiny: Subject) -> None:
        model = tiny.load().model
        before = seen(model)
        for path, module in model.named_modules():
            if isinstance(module, Linear):
                module.deltas.append(NonzeroDelta())
                assert not torch.equal(seen(model), before), path
                module.deltas.clear()

    @pytest.mark.parametrize("head", [False, True])
    def test_older_files_and_their_pooling(self, plugins: PluginManager, head: bool) -> None:
        from safetensors.torch import load_file, save_file

        config = {**TINY, "vision_use_head": head}
        with subject(plugins, "siglip", config=config) as made:
            assert deviation(seen(made.load().model), truth(made)) <= BAR
            file = made.folder / "model.safetensors"
            older = {f"vision_model.{name}": tensor for name, tensor in load_file(file).items()}
            save_file(older, file)
            assert deviation(seen(made.load().model), truth(made)) <= BAR

    def test_images_of_another_size_are_refused(self, tiny: Subject) -> None:
        with pytest.raises(RequestError, match="18 x 24 pixels"):
            seen(tiny.load().model, torch.zeros(1, 3, 18, 24))

    @pytest.mark.slow
    @pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_quantized_models_match_dequantized_weights(
        self, plugins: PluginManager, every: bool
    ) -> None:
        with wide(plugins, plugins.get("architectures", "siglip")) as made:
            for format in formats(plugins) if every else sample_formats(plugins, "siglip"):
                loaded = made.load(quant=format, exact=True)
                assert_matches_dequantized(
                    loaded, plugins, format, lambda model=loaded.model: [seen(model)]
                )

    def test_text_input_is_rejected(self, tiny: Subject) -> None:
        with pytest.raises(Unsupported, match="no text"):
            tiny.load().model.hidden(ROWS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"num_attention_heads": 5}, "not a multiple"),
        ({"image_size": 0}, "image_size=0"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Config.from_hf({**TINY, **change})


SIGLIP = {"size": {"height": SIDE, "width": SIDE}}
CLIP = {
    "size": {"shortest_edge": SIDE},
    "crop_size": {"height": SIDE, "width": SIDE},
    "do_center_crop": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
SIZES = [(24, 24), (30, 50), (61, 24), (7, 9), (100, 33)]


def picture(height: int, width: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


def read(folder: Path, **settings: Any) -> Preprocessor:
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return Preprocessor.read(folder)


MODELS = "transformers.models"
SIGLIP_PIL = f"{MODELS}.siglip.image_processing_pil_siglip:SiglipImageProcessorPil"
CLIP_PIL = f"{MODELS}.clip.image_processing_pil_clip:CLIPImageProcessorPil"


@pytest.fixture(params=[(SIGLIP_PIL, SIGLIP), (CLIP_PIL, CLIP)], ids=["siglip", "clip"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Preprocessor, Any]]:
    """Ours and the reference's, over the same file."""
    theirs, settings = request.param
    yield read(tmp_path, **settings), resolve(theirs)(**settings)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels_equal_the_references(both: tuple[Preprocessor, Any], size: tuple[int, int]) -> None:
    ours, theirs = both
    pixels = picture(*size)
    expected = theirs(pixels, return_tensors="np", input_data_format="channels_last")
    found = ours(pixels)
    assert found.shape == (3, SIDE, SIDE) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected["pixel_values"][0], rtol=0, atol=2e-6)


def test_settings_are_found_where_processors_keep_them(tmp_path: Path) -> None:
    whole = {"processor_class": "X", "image_processor": {**SIGLIP, "do_convert_rgb": None}}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    assert Preprocessor.read(tmp_path).shape == (SIDE, SIDE)
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_seq_length": 4}))
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json is missing"):
        Preprocessor.read(tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"do_resize": False}, "do_resize=false"),
        ({"do_pad": True}, "do_pad=true"),
        ({"size": {"longest_edge": 9}}, "longest_edge"),
        ({"size": {"shortest_edge": 9}}, "of varying shape"),
        ({"size": {"height": 0, "width": 9}}, "not positive"),
        ({**CLIP, "crop_size": {"height": 30, "width": 30}}, "exceeds size"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"size": 24}, "size"),
    ],
    ids=str,
)
def test_settings_that_are_not_implemented_are_refused(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read(tmp_path, **settings)
    assert "preprocessor_config.json" in str(caught.value)


def test_images_that_a_tower_does_not_take_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"preprocessor_config\.json produces images of \(24, 24\)"
    ):
        check_shape(read(tmp_path, **SIGLIP), tmp_path, 30)

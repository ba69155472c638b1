"""Idefics 3 and SmolVLM against transformers, with images in the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.images import ImageTests
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from ostro.architectures.idefics3 import FAKE, TINY, WHOLE
from ostro.architectures.idefics3.examples import prompted
from ostro.architectures.idefics3.inputs import IMAGE, Inputs
from ostro.architectures.idefics3.model import Config, buckets
from ostro.core.errors import ConfigError, OstroError, TokenizerError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, subject


class TestIdefics3(ImageTests):
    name = "idefics3"
    prompted = staticmethod(prompted)

    @pytest.mark.parametrize("size", [(26, 1), (26, 4), (28, 4), (18, 3)], ids=str)
    def test_configs_equal_the_reference(
        self, plugins: PluginManager, size: tuple[int, int]
    ) -> None:
        """Other sizes of tiles and cells; the vision config as in published files."""
        side, scale = size
        tower = {**TINY["vision_config"], "image_size": side, "model_type": "idefics3"}
        config = {**TINY, "vision_config": tower, "scale_factor": scale}
        with subject(plugins, "idefics3", config=config) as made:
            assert made.off(made.engine()) <= BAR


class TestSmolVLM(ArchitectureTests):
    name = "smolvlm"


def test_positions_equal_the_references() -> None:
    """Of square tiles, with the rounding of float32."""
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.idefics3.modeling_idefics3")
    from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig

    for side in (1, 4, 26, 27, 32, 70):
        config = Idefics3VisionConfig(hidden_size=1, image_size=2 * side, patch_size=2)
        theirs = module.Idefics3VisionEmbeddings(config)
        theirs.patch_embedding.weight.data.zero_()
        theirs.patch_embedding.bias.data.zero_()
        theirs.position_embedding.weight.data = torch.arange(side**2).float()[:, None]
        whole = torch.ones(1, side, side, dtype=torch.bool)
        found = theirs(torch.zeros(1, 3, 2 * side, 2 * side), whole).flatten().long()
        axis = buckets(side, side)
        assert torch.equal(found, (axis[:, None] * side + axis).flatten())


@pytest.mark.parametrize(
    "change",
    [
        {"scale_factor": 0},
        {"scale_factor": -2},
        {"scale_factor": 3},
        {"scale_factor": "x"},
        {"scale_factor": 1 << 62},
        {"image_token_id": -1},
        {"image_token_id": 1 << 40},
        {"image_token_id": "x"},
        {"text_config": {"model_type": "mamba2"}},
        {"text_config": 3},
        {"vision_config": {"model_type": "clip_vision_model"}},
        {"vision_config": {**TINY["vision_config"], "num_hidden_layers": 1 << 40}},
        {"vision_config": {**TINY["vision_config"], "patch_size": 0}},
        {"vision_config": {**TINY["vision_config"], "image_size": 3}},
        {"vision_config": {**TINY["vision_config"], "hidden_act": "relu"}},
    ],
    ids=str,
)
def test_hostile_configs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Config.from_hf({**TINY, **change})


RAW = {
    "image_token_id": 1,
    "scale_factor": 2,
    "vision_config": {"image_size": 364, "patch_size": 14},
}
SETTINGS = {"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}}
SIZES = [(1, 1), (30, 50), (364, 364), (1000, 700), (333, 1500), (1456, 100), (5, 999), (3000, 2)]


def maker(folder: Path, name: str = "preprocessor_config.json", **more: Any) -> Inputs:
    """Write the settings as transformers 4 or 5, and a tokenizer."""
    settings = {**SETTINGS, "image_processor_type": "Idefics3ImageProcessor", **more}
    found = settings if name.startswith("pre") else {"image_processor": settings}
    (folder / name).write_text(json.dumps(found))
    tiles = [f"<row_{i + 1}_col_{j + 1}>" for i in range(6) for j in range(6)]
    vocabulary = {text: id for id, text in enumerate(["?", IMAGE, FAKE, WHOLE, *tiles])}
    lines = {"\n": len(vocabulary), "\n\n": len(vocabulary) + 1}
    tokenizer = Tokenizer(models.WordLevel({**vocabulary, **lines}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("x", "removed")
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in vocabulary])
    tokenizer.save(str(folder / "tokenizer.json"))
    return Inputs(RAW, folder)


def image(height: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.sample(3)
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tiles_and_placeholders_equal_the_references(
    tmp_path: Path, size: tuple[int, int], name: str, split: bool
) -> None:
    pil = pytest.importorskip("transformers.models.idefics3.image_processing_pil_idefics3")
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    processor = pil.Idefics3ImageProcessorPil(**SETTINGS, do_image_splitting=split)
    picture = image(*size)
    expected = processor(
        picture, return_tensors="np", input_data_format="channels_last", return_row_col_info=True
    )
    inputs = maker(tmp_path, name, do_image_splitting=split)
    item = inputs.image(picture)
    pixels = item.arrays["pixels"].numpy()
    np.testing.assert_allclose(pixels, expected["pixel_values"][0], rtol=0, atol=2e-6)
    whole = Idefics3Processor.__new__(Idefics3Processor)
    whole.fake_image_token, whole.image_token, whole.global_image_tag = FAKE, IMAGE, WHOLE
    whole.image_seq_len = 169
    text = whole.replace_image_token(expected, 0)
    assert list(item.tokens) == inputs.tokenizer.encode(text).ids
    assert 0 not in item.tokens and item.tokens.count(1) == 169 * len(pixels)


def test_narrow_images_are_refused_or_tiled(tmp_path: Path) -> None:
    for size in ((20000, 10), (10, 20000), (60000, 1), (1, 60000)):
        try:
            pixels = maker(tmp_path).image(image(*size)).arrays["pixels"]
            assert pixels.shape[0] == 5
        except OstroError as error:
            assert "narrow" in str(error)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_resize": False},
        {"do_center_crop": True},
        {"size": {"height": 9, "width": 9}},
        {"size": {"longest_edge": 0}},
        {"size": {"longest_edge": 1 << 40}},
        {"size": 24},
        {"max_image_size": {"longest_edge": 384}},
        {"max_image_size": {"longest_edge": -1}},
        {"max_image_size": {}},
        {"image_std": [1, 0, 1]},
    ],
    ids=str,
)
def test_settings_that_are_not_implemented_are_refused(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json"):
        maker(tmp_path, **settings).image(image(4, 4))


def test_vocabularies_without_the_tokens_are_refused(tmp_path: Path) -> None:
    inputs = maker(tmp_path)
    with pytest.raises(TokenizerError, match="image_token_id=7"):
        Inputs({**RAW, "image_token_id": 7}, tmp_path).image(image(4, 4))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="is missing"):
        inputs.image(image(4, 4))
    marked = Inputs({**RAW, "image_marks": {FAKE: 2, WHOLE: 3, "\n": 4}}, tmp_path)
    assert marked.tokens(0, 0)[:2] == [2, 3]
    with pytest.raises(TokenizerError, match="row_1_col_1"):
        marked.tokens(1, 2)
    tile = {"<row_1_col_1>": 5}
    twice = Inputs({**RAW, "image_marks": {FAKE: 2, WHOLE: 3, "\n": 4, **tile}}, tmp_path)
    assert twice.tokens(1, 1).count(4) == 2

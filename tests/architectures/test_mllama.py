"""Mllama against transformers, with images in the prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace
from tiny.images import ImageTests

from ostro import Prompt
from ostro.architectures.llava.examples import IMAGES, prompted
from ostro.architectures.mllama.config import Config
from ostro.architectures.mllama.examples import PREPROCESSOR, reference
from ostro.architectures.mllama.inputs import Inputs, Preprocessor
from ostro.core.errors import ConfigError, RequestError
from ostro.core.plugins.manager import PluginManager
from ostro.core.step import ROWS
from ostro.plugins.conformance.examples import Example
from ostro.plugins.conformance.parity import BAR, RED, Subject, deviation

IMAGE = 128


class TestMllama(ImageTests):
    name = "mllama"
    prompted = staticmethod(prompted)

    def test_an_image_is_seen_from_its_token_on(self, tiny: Subject) -> None:
        prompt = prompted(tiny.inputs, (0, 1))
        first, second = prompt.items
        assert [(item.since, item.spans) for item in prompt.items] == [(9, ()), (19, ())]
        assert len(prompt.tokens) == 29 and prompt.tokens[9] == IMAGE
        assert (first.length, second.length) == (40, 40) and first.cost == 4 * 16
        assert tiny.inputs.image(IMAGES[2][:12, :12]).length == 10

    @pytest.mark.parametrize("before", [0, 9])
    def test_the_reference_is_another_before_the_first_image_alone(
        self, tiny: Subject, before: int
    ) -> None:
        """That of transformers, whose rows there attend to all images alike."""
        prompt = prompted(tiny.inputs, (0,), before=before)
        example = Example(prompt, reference(prompt))
        ids, tiny.reference.unseeing = torch.tensor([prompt.tokens]), 0
        plain = transformers.MllamaForConditionalGeneration.forward
        with torch.inference_mode():
            expected = plain(tiny.reference, ids, **example.arguments()).logits[0]
        off = deviation(tiny.answer(tiny.engine(), example), expected)
        assert off > RED if before else off <= BAR

    def test_the_tower_equals_the_references(self, tiny: Subject) -> None:
        """One tile, two below each other, two side by side, four."""
        maker, runner = tiny.inputs, tiny.engine().runner
        sizes = ((12, 12), (24, 12), (12, 24), (24, 24), (9, 30))
        images = [IMAGES[0][:height, :width] for height, width in sizes]
        made = [maker.image(image) for image in images]
        assert [item.length // 10 for item in made] == [1, 2, 2, 4, 3]
        ids = [int(item.arrays["ratio"].numpy()[0]) for item in made]
        assert ids == [1, 5, 2, 6, 3]
        with torch.inference_mode():
            states = runner.model.encode([runner.medium(item) for item in made], ROWS)
        for item, (ours,) in zip(made, states, strict=True):
            prompt = Prompt(tokens=[IMAGE], items=[replace(item, since=0)])
            asked = Example(prompt, reference(prompt)).arguments()
            del asked["cross_attention_mask"]
            model = tiny.reference.model
            with torch.inference_mode():
                seen = model.multi_modal_projector(model.vision_model(**asked).last_hidden_state)
            assert deviation(ours, seen.flatten(0, 3)[: item.length]) <= BAR

    def test_states_that_enter_the_layers_are_taken(self, tiny: Subject) -> None:
        """Meta's rule for layers 0 and 2, with layers that add 1, 10 and 100."""
        engine = tiny.engine()
        tower = engine.runner.model.vision_model
        medium = engine.runner.medium(tiny.inputs.image(IMAGES[0][:12, :12]))
        pixels, ratio = medium.arrays["pixels"], medium.arrays["ratio"]
        for i, layer in enumerate(tower.transformer.layers):
            layer.forward = lambda x, step, i=i: x + 10**i
        with torch.inference_mode():
            (x,) = tower.embed([pixels], ratio, ROWS)
            (out,) = tower([pixels], ratio, ROWS)
        d = x.shape[-1]
        first, second = out[:, d:].unflatten(1, (d, 2)).unbind(-1)
        torch.testing.assert_close(first, x[0, : len(first)])
        torch.testing.assert_close(second, x[0, : len(first)] + 11)

    def test_suppressed_tokens_are_never_generated(self, tiny: Subject) -> None:
        prompt = prompted(tiny.inputs, (0,))
        found = tiny.engine().runner.logits(prompt.tokens, items=prompt.items)
        assert found.shape[1] == 136 and found[:, 128:].max() < -1e38 and found.isfinite().all()

    def test_images_side_by_side_are_refused(self, tiny: Subject) -> None:
        maker = tiny.inputs
        item = maker.image(IMAGES[0])
        with pytest.raises(RequestError, match="put text between"):
            maker.expand_placeholders([7, IMAGE, IMAGE, 7], [item, item])
        assert maker.expand_placeholders([7, IMAGE, 7, IMAGE], [item, item]).items[1].since == 3

    def test_trees_of_transformers_are_read_as_well(self, tiny: Subject) -> None:
        theirs, left = tiny.names.read(tiny.reference.state_dict())
        files, _ = tiny.names.read(list(tiny.load().container.tensors))
        assert not left and {n.name for n in theirs} == {n.name for n in files}


@pytest.fixture
def tiny_config() -> dict[str, Any]:
    manager = PluginManager()
    manager.load()
    return dict(manager.get("architectures", "mllama").conformance.tiny)


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("text", {"cross_attention_layers": [4]}, r"cross_attention_layers=\[4\]"),
        ("text", {"tie_word_embeddings": True}, "tie_word_embeddings"),
        ("vision", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("vision", {"attention_heads": 5}, "not a multiple of attention_heads=5"),
        ("vision", {"intermediate_layers_indices": [0, 3]}, "intermediate_layers_indices"),
        ("vision", {"vision_output_dim": 64}, "vision_output_dim=64"),
        ("vision", {"supported_aspect_ratios": [[1, 5]]}, "supported_aspect_ratios"),
        ("vision", {"num_global_layers": 0}, "num_global_layers=0"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(
    tiny_config: dict[str, Any], part: str, change: dict[str, Any], said: str
) -> None:
    key = f"{part}_config"
    with pytest.raises(ConfigError, match=said):
        Config.from_hf({**tiny_config, key: {**tiny_config[key], **change}})


def test_what_a_file_leaves_out_is_the_default() -> None:
    text, tower = {"model_type": "mllama_text_model"}, {"model_type": "mllama_vision_model"}
    raw = {"model_type": "mllama", "text_config": text, "vision_config": tower}
    config = Config.from_hf(raw)
    assert (config.vocab_size, config.text.vocab_size, config.rows) == (128264, 128256, 4 * 1025)
    assert (config.text.num_hidden_layers, config.text.num_key_value_heads) == (40, 8)
    assert config.text.rope_parameters["rope_theta"] == 500000.0
    assert config.text.cross_attention_layers[-1] == 38


RNG = np.random.default_rng(0)
SIZES = [(12, 12), (5, 7), (24, 12), (100, 20), (20, 100), (13, 30), (47, 48), (300, 12), (25, 24)]


@pytest.fixture(params=[4, 3])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Preprocessor, Any]]:
    """Ours and the reference's, over the same file."""
    pil = pytest.importorskip("transformers.models.mllama.image_processing_pil_mllama")
    settings = {**PREPROCESSOR, "max_image_tiles": request.param, "image_mean": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    yield Preprocessor.read(tmp_path), pil.MllamaImageProcessorPil(**settings)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tiles_equal_the_references(both: tuple[Preprocessor, Any], size: tuple[int, int]) -> None:
    ours, theirs = both
    image, most = RNG.integers(0, 256, (*size, 3), np.uint8), ours.max_image_tiles
    cuts = [(r, c) for r in range(1, most + 1) for c in range(1, most // r + 1)]
    found, cut = ours.tiles(image, cuts)
    expected = theirs(image, return_tensors="np", input_data_format="channels_last")
    assert cuts.index(cut) + 1 == expected["aspect_ratio_ids"][0, 0]
    assert len(found) == expected["aspect_ratio_mask"].sum()
    np.testing.assert_allclose(
        found, expected["pixel_values"][0, 0, : len(found)], rtol=0, atol=2e-6
    )


def test_more_tiles_than_the_tower_sees_are_refused(
    tmp_path: Path, tiny_config: dict[str, Any]
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({**PREPROCESSOR, "max_image_tiles": 5})
    )
    with pytest.raises(ConfigError, match="max_image_tiles=5"):
        Inputs(tiny_config, tmp_path).image(IMAGES[0])
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({**PREPROCESSOR, "do_pad": False})
    )
    with pytest.raises(ConfigError, match="do_pad=false"):
        Inputs(tiny_config, tmp_path).image(IMAGES[0])

"""Gemma 3 with images against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny.images import ImageTests

from ostro.architectures.gemma3.examples import LINE, write_tokenizer
from ostro.architectures.gemma3.inputs import Inputs
from ostro.architectures.gemma3.vision import Config
from ostro.architectures.llava.examples import IMAGES, prompted
from ostro.core.errors import ConfigError, TokenizerError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import Subject

SOFT, MARK, END = 1, 2, 3


class TestGemma3Images(ImageTests):
    name = "gemma3_images"
    prompted = staticmethod(prompted)

    def test_an_image_stands_between_marks_and_empty_lines(self, tiny: Subject) -> None:
        item = tiny.inputs.image(IMAGES[0])
        assert item.atomic and item.cost == 64 and item.tokens == (MARK, *[SOFT] * 16, END)
        prompt = prompted(tiny.inputs, (0, 1))
        assert [item.spans for item in prompt.items] == [((11, 16),), ((40, 16),)]
        two = LINE + 1
        assert prompt.tokens[9:11] == [two, MARK] and prompt.tokens[27:29] == [END, two]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("a\n*b", "a3*2b"),
            ("a\n\n*b", "a31*2b"),
            ("a*\nb", "a2*3b"),
            ("**", "2*31*2"),
            ("a\n\n\n\nb*", "a31b2*2"),
            ("*\n\n\n\n", "2*33"),
        ],
    )
    def test_lines_around_images_are_joined_as_a_tokenizer_would(
        self, tiny: Subject, text: str, expected: str
    ) -> None:
        """What the reference makes is the text with images in it, split once: here digits are
        tokens of so many ends of lines, and a star is an image.
        """
        ids = {"a": 50, "b": 51, "*": MARK}
        maker, tokens = tiny.inputs, list[int]()
        for part in text.replace("\n\n\n", "3").replace("\n\n", "2").replace("\n", "1"):
            tokens.append(ids[part] if part in ids else LINE - 1 + int(part))
        prompt = maker.expand_placeholders(tokens, [maker.image(IMAGES[0])] * text.count("*"))
        marks = {50: "a", 51: "b", MARK: "*", **{LINE - 1 + n: str(n) for n in (1, 2, 3)}}
        said = "".join(marks[token] for token in prompt.tokens if token not in (SOFT, END))
        assert said == expected

    def test_text_alone_stays_as_it_is(self, tiny: Subject) -> None:
        tokens = [50, LINE, LINE, 51]
        assert tiny.inputs.expand_placeholders(tokens, []).tokens == tokens

    def test_trees_of_transformers_and_older_files_are_read_as_well(self, tiny: Subject) -> None:
        spaces = tiny.names
        files = list(tiny.load().container.tensors)
        older = [n.replace("vision_tower.", "vision_tower.vision_model.") for n in files]
        unused = ["vision_tower.vision_model.head.probe", "model.vision_tower.head.probe"]
        wanted = {(n.name, type(n.transform)) for n in spaces.read(files)[0]}
        for theirs in (list(tiny.reference.state_dict()), [*older, *unused]):
            found, left = spaces.read(theirs)
            tied = {n for n in found if n.name == "lm_head.weight"}
            assert not left
            assert {(n.name, type(n.transform)) for n in {*found} - tied} == wanted


@pytest.fixture
def tiny_config(pytestconfig: pytest.Config) -> dict[str, Any]:
    manager = PluginManager()
    manager.load()
    return dict(manager.get("architectures", "gemma3_images").conformance.tiny)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mm_tokens_per_image": 15}, "mm_tokens_per_image=15"),
        ({"mm_tokens_per_image": 9}, "mm_tokens_per_image=9"),
        ({"image_token_index": 128}, "image_token_index=128"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, "'clip_vision_model'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(
    tiny_config: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Config.from_hf({**tiny_config, **change})


def test_what_a_file_leaves_out_is_the_default() -> None:
    """As the published 4B states it."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    tower = {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    }
    config = Config.from_hf({"model_type": "gemma3", "text_config": text, "vision_config": tower})
    assert (config.vocab_size, config.text.num_attention_heads) == (262208, 8)
    assert (config.text.num_key_value_heads, config.text.head_dim, config.pooled) == (4, 256, 4)
    rules = config.text.rope_parameters
    assert rules["full_attention"]["factor"] == 8.0
    assert rules["full_attention"]["rope_theta"] == 1e6
    assert rules["sliding_attention"]["rope_theta"] == 1e4
    assert config.tie_word_embeddings and config.text.tie_word_embeddings


def test_missing_input_configs_are_errors(tmp_path: Path, tiny_config: dict[str, Any]) -> None:
    maker = Inputs(tiny_config, tmp_path)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        maker.split(2)
    write_tokenizer(tmp_path, runs=0)
    with pytest.raises(TokenizerError, match="has no newline token"):
        maker.split(2)
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json is missing"):
        maker.image(IMAGES[0])
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"do_pan_and_scan": True}))
    with pytest.raises(ConfigError, match="do_pan_and_scan"):
        maker.image(IMAGES[0])

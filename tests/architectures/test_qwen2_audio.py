"""Qwen2-Audio against transformers: what it hears, prompts with sounds in them, and without."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ostro.architectures.qwen2_audio import TINY
from ostro.architectures.qwen2_audio.examples import CLIPS
from ostro.architectures.qwen2_audio.inputs import Inputs
from ostro.architectures.qwen2_audio.model import Config, names
from ostro.core.errors import ConfigError, RequestError
from ostro.plugins.conformance import ArchitectureTests
from ostro.plugins.conformance.examples import sound
from ostro.plugins.conformance.parity import BAR, Subject

AUDIO = 120


class TestQwen2Audio(ArchitectureTests):
    name = "qwen2_audio"

    def test_audio_has_as_many_tokens_as_in_the_reference(self, tiny: Subject) -> None:
        for samples in (*CLIPS, sound(3, 0.0301), sound(4, 0.999)):
            frames = -(-len(samples) // 160)
            rows = (frames - 1) // 2 + 1
            item = tiny.inputs.audio(samples)
            assert item.tokens == (AUDIO,) * ((rows - 2) // 2 + 1) and item.cost == rows
        prompt = tiny.examples[3].prompt
        assert [item.spans for item in prompt.items] == [((9, 7),), ((21, 25),)]
        assert prompt.tokens[9:16] == [AUDIO] * 7 and prompt.positions is None

    def test_trees_of_transformers_are_read_as_well(self, tiny: Subject) -> None:
        config = Config.from_hf(TINY)
        theirs, left = names(config).read(tiny.reference.state_dict())
        held = {named.name for named in theirs}
        files, _ = names(config).read(json.loads(json.dumps(list(tiny.load().container.tensors))))
        assert not left and held == {named.name for named in files}

    def test_names_of_a_save_that_repeats_the_prefix(self, tiny: Subject, tmp_path: Path) -> None:
        """transformers 5.17 saves the text below language_model.model.model."""
        shutil.copytree(tiny.folder, tmp_path, dirs_exist_ok=True)
        tensors = load_file(tmp_path / "model.safetensors")
        old, new = "language_model.model.", "language_model.model.model."
        assert any(name.startswith(old) for name in tensors)
        moved = {name.replace(old, new, 1): tensor for name, tensor in tensors.items()}
        save_file(moved, tmp_path / "model.safetensors")
        again = replace(tiny, folder=tmp_path)
        assert again.off(again.engine()) <= BAR


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    (tmp_path / "preprocessor_config.json").write_text('{"feature_size": 20, "chunk_length": 1}')
    return Inputs(TINY, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"audio_token_index": 128}, "audio_token_index=128"),
        ({"text_config": 3}, "not an object"),
        ({"audio_config": {**TINY["audio_config"], "d_model": 30}}, "not a multiple"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Config.from_hf({**TINY, **change})


def test_what_a_file_leaves_out_is_the_default() -> None:
    text = {"model_type": "qwen2", "vocab_size": 156032, "intermediate_size": 11008}
    config = Config.from_hf({"text_config": text, "audio_config": {}})
    assert (config.text.hidden_size, config.text.num_key_value_heads) == (4096, 32)
    assert (config.audio.d_model, config.audio.num_mel_bins) == (1280, 128)


@pytest.mark.parametrize(("seconds", "said"), [(1.1, r"has 1\.1 s"), (0.02, "too short")])
def test_audio_that_is_too_short_or_malformed_is_rejected(
    inputs: Inputs, seconds: float, said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        inputs.audio(sound(0, seconds))


def test_a_prompt_without_a_place_is_refused(inputs: Inputs) -> None:
    with pytest.raises(RequestError, match="no place"):
        inputs.expand_placeholders([1, 2, 3], [inputs.audio(CLIPS[0])])


def test_inputs_ask_for_a_preprocessor_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json"):
        Inputs(TINY, tmp_path)

"""Whisper against transformers: what it hears, what it makes of it, and its spectra."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from ostro.architectures.whisper import TINY
from ostro.architectures.whisper.alignment import combine, median
from ostro.architectures.whisper.inputs import Inputs
from ostro.architectures.whisper.model import Config
from ostro.core.errors import ConfigError, RequestError
from ostro.core.step import ROWS
from ostro.plugins.conformance import ArchitectureTests
from ostro.plugins.conformance.examples import sound
from ostro.plugins.conformance.parity import BAR, RED, Subject, deviation, greedy

HEARS = {"feature_size": TINY["num_mel_bins"], "chunk_length": 1}
"""A tiny model's preprocessor_config.json: windows of one second."""


class TestWhisper(ArchitectureTests):
    name = "whisper"

    def test_states_equal_the_references(self, tiny: Subject) -> None:
        runner = tiny.engine().runner
        for example in tiny.examples:
            [item] = example.prompt.items
            with torch.inference_mode():
                [(states,)] = runner.model.encode([runner.medium(item)], ROWS)
                expected = tiny.reference.model.encoder(**example.arguments()).last_hidden_state[0]
            assert deviation(states, expected) <= BAR

    def test_another_sound_is_another_answer(self, tiny: Subject) -> None:
        (first, _), (second, expected) = tiny.cases
        assert first.prompt.tokens == second.prompt.tokens
        assert deviation(tiny.answer(tiny.engine(), first), expected) > RED

    def test_no_state_of_previous_audio_remains(self, tiny: Subject) -> None:
        engine = tiny.engine(rows=40)
        greedy(engine, [example.prompt for example in tiny.examples], 8)
        assert engine.stats().blocks_used == 0


def inputs_of(folder: Path, raw: dict[str, Any], **hears: Any) -> Inputs:
    (folder / "preprocessor_config.json").write_text(json.dumps({**HEARS, **hears}))
    return Inputs(raw, folder)


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("seconds", [0.5, 7.013, 30])
def test_spectra_are_those_of_the_reference(tmp_path: Path, bins: int, seconds: float) -> None:
    raw = {**TINY, "num_mel_bins": bins, "max_source_positions": 1500}
    inputs = inputs_of(tmp_path, raw, feature_size=bins, chunk_length=30)
    theirs = WhisperFeatureExtractor(feature_size=bins)
    samples = sound(3, seconds)
    samples[1000:3000] = 0

    def expected(**how: Any) -> np.ndarray[Any, Any]:
        found = theirs(samples, sampling_rate=16000, return_tensors="np", **how)
        return np.asarray(found.input_features[0])

    item = inputs.audio(samples)
    assert (item.since, item.length, item.cost) == (0, 1500, 1500)
    assert np.abs(item.arrays["spectrum"].numpy() - expected()).max() < 1e-4
    whole = expected(padding="longest", truncation=False)
    assert np.abs(inputs.spectrum(samples) - whole).max() < 1e-4


def test_long_audio_is_encoded_in_windows(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, TINY)
    spectrum = inputs.spectrum(sound(1, 2.5))
    middle, last = inputs.window(spectrum, 60), inputs.window(spectrum, 180)
    assert np.array_equal(middle.arrays["spectrum"].numpy(), spectrum[:, 60:160])
    padded = last.arrays["spectrum"].numpy()
    assert np.array_equal(padded[:, :70], spectrum[:, 180:]) and not padded[:, 70:].any()
    assert len({middle.key, last.key, inputs.window(spectrum, 61).key}) == 3
    assert inputs.window(spectrum, 60).key == middle.key
    with pytest.raises(RequestError, match=r"has 2\.5 s"):
        inputs.audio(sound(1, 2.5))


@pytest.mark.parametrize(
    ("hears", "said"),
    [
        ({"feature_size": 80}, "100 frames of 80 bins"),
        ({"sampling_rate": 8000}, "sampling_rate=8000"),
        ({"hop_length": "x"}, "hop_length='x'"),
        ({"chunk_length": 30}, "3000 frames"),
    ],
    ids=str,
)
def test_a_folder_that_hears_otherwise_is_refused(
    tmp_path: Path, hears: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        inputs_of(tmp_path, TINY, **hears)


def test_a_folder_that_does_not_say_how_it_hears_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no preprocessor_config\.json"):
        Inputs(TINY, tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"feature_extractor": 3}'])
def test_a_folder_that_holds_no_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"^preprocessor_config\.json: "):
        Inputs(TINY, tmp_path)


def test_the_feature_extractor_config_may_be_in_the_processor_file(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": HEARS}))
    assert Inputs(TINY, tmp_path).mel.seconds == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"activation_function": "relu"}, "activation_function='relu'"),
        ({"encoder_attention_heads": 3}, "not a multiple of encoder_attention_heads=3"),
        ({"decoder_layers": 0}, "num_hidden_layers=0"),
        ({"max_source_positions": 0}, "max_source_positions=0"),
    ],
    ids=str,
)
def test_what_is_not_implemented_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Config.from_hf({**TINY, **change})


def test_keys_of_training_and_generation_pass() -> None:
    more = {
        "model_type": "whisper",
        "suppress_tokens": [1, 2],
        "forced_decoder_ids": [[1, 50259]],
        "mask_time_prob": 0.2,
        "dropout": 0.1,
        "num_hidden_layers": 9,
        "scale_embedding": True,
    }
    config = Config.from_hf({**TINY, **more})
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (2, 64, 16)
    assert config.max_position_embeddings == 96


@pytest.mark.parametrize("tokens", [1, 3, 4])
def test_a_median_of_few_values_reflects_no_end_that_is_not_there(tokens: int) -> None:
    x = torch.randn(2, 5, tokens)
    smooth = median(x, 7)
    assert smooth.shape == x.shape
    assert torch.equal(smooth, x) is (tokens <= 3)


def test_weights_are_standardized_over_the_tokens() -> None:
    weights = torch.rand(2, 3, 7)
    centered = weights - weights.mean(1, keepdim=True)
    standard = centered / (centered**2).mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(combine(weights, 1), standard.mean(0))
    assert torch.equal(combine(weights[:, :1], 1), torch.zeros(1, 7))

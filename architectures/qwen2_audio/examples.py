"""Example prompts with audio, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers import WhisperFeatureExtractor

from ostro.architectures.qwen2_audio.inputs import Inputs
from ostro.testing import Example, sound, words

CLIPS = [sound(seed, seconds) for seed, seconds in enumerate((0.3, 1.0, 0.567))]
SELECTIONS = ((0,), (1,), (0, 1), (2, 0, 1))
"""The audio clips of each prompt, by index."""


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    hears = {"feature_size": raw["audio_config"]["num_mel_bins"], "chunk_length": 1}
    (folder / "preprocessor_config.json").write_text(json.dumps(hears))
    inputs, extract = Inputs(raw, folder), WhisperFeatureExtractor(**hears)
    for selection in SELECTIONS:
        tokens, sounds = words(9, 100), [CLIPS[i] for i in selection]
        for i in selection:
            tokens += [raw["audio_token_index"], *words(5, 100, seed=i)]
        prompt = inputs.expand_placeholders(tokens, [inputs.audio(samples) for samples in sounds])
        yield Example(prompt, reference(extract, sounds, len(prompt.tokens)))


def reference(
    extract: WhisperFeatureExtractor, sounds: list[np.ndarray[Any, Any]], count: int
) -> dict[str, np.ndarray[Any, Any]]:
    """The arguments of the reference for a prompt of `count` tokens with these clips."""
    features = extract(sounds, sampling_rate=16000, return_attention_mask=True, return_tensors="np")
    return {
        "input_features": features.input_features,
        "feature_attention_mask": features.attention_mask,
        "attention_mask": np.ones((1, count), np.int64),
    }

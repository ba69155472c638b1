"""Example prompts with audio, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ostro import Prompt
from ostro.architectures.whisper.inputs import Inputs
from ostro.testing import Example, sound, words

SECONDS = (1.0, 0.6)
"""The lengths of audio: a full window, and a shorter one."""


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    hears = {"feature_size": raw["num_mel_bins"], "chunk_length": 1}
    (folder / "preprocessor_config.json").write_text(json.dumps(hears))
    inputs = Inputs(raw, folder)
    for seed, seconds in enumerate(SECONDS):
        item = inputs.audio(sound(seed, seconds))
        prompt = Prompt(tokens=words(50, raw["vocab_size"]), items=[item])
        yield Example(prompt, {"input_features": item.arrays["spectrum"].numpy()[None]})

"""Example prompts with tiled images, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ostro
from ostro import Prompt
from ostro.architectures.idefics3.inputs import Inputs
from ostro.testing import Example, pixels, words

IMAGES = [pixels(seed, *size) for seed, size in enumerate(((30, 45), (30, 45), (70, 20), (9, 9)))]
SELECTIONS = ((0,), (0, 2), (3, 2, 0))
"""The images of each prompt, by index; two images have one size."""


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    side = raw["vision_config"]["image_size"]
    settings = {"size": {"longest_edge": 3 * side}, "max_image_size": {"longest_edge": side}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    inputs = Inputs(raw, folder)
    for seen in SELECTIONS:
        prompt = prompted(inputs, seen)
        tiles = [item.arrays["pixels"].numpy() for item in prompt.items]
        yield Example(prompt, {"pixel_values": np.concatenate(tiles)[None]})


def prompted(inputs: ostro.Inputs, seen: Sequence[int], before: int = 9, behind: int = 9) -> Prompt:
    """A prompt with `before` text tokens, then each image and `behind` text tokens."""
    tokens = words(before, 120)
    for seed in range(1, 1 + len(seen)):
        tokens += [inputs.placeholders["image"], *words(behind, 120, seed=seed)]
    return inputs.expand_placeholders(tokens, [inputs.image(IMAGES[i]) for i in seen])

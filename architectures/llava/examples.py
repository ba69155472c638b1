"""Example prompts with images, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ostro
from ostro import Prompt
from ostro.architectures.llava.inputs import Inputs
from ostro.testing import Example, pixels, words

SIDE = 24
PREPROCESSOR = {
    "size": {"shortest_edge": SIDE},
    "crop_size": {"height": SIDE, "width": SIDE},
    "do_center_crop": True,
}
IMAGES = [pixels(seed, *size) for seed, size in enumerate(((30, 45), (50, 26), (24, 24)))]
SELECTIONS = ((0,), (0, 1), (1, 2, 0))
"""The images of each prompt, by index."""


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    inputs = Inputs(raw, folder)
    for seen in SELECTIONS:
        prompt = prompted(inputs, seen)
        yield Example(prompt, {"pixel_values": shown(prompt)})


def prompted(inputs: ostro.Inputs, seen: Sequence[int], before: int = 9, behind: int = 9) -> Prompt:
    """A prompt with `before` text tokens, then each image and `behind` text tokens."""
    tokens = words(before, 120)
    for seed in range(1, 1 + len(seen)):
        tokens += [inputs.placeholders["image"], *words(behind, 120, seed=seed)]
    return inputs.expand_placeholders(tokens, [inputs.image(IMAGES[i]) for i in seen])


def shown(prompt: Prompt) -> np.ndarray[Any, Any]:
    """The pixel values of all images of a prompt."""
    return np.stack([item.arrays["pixels"].numpy() for item in prompt.items])

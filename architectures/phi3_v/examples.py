"""Example prompts with tiled images, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ostro
from ostro import Item, Prompt
from ostro.architectures.phi3_v.inputs import Inputs
from ostro.testing import Example, pixels, words

IMAGES = [pixels(seed, *size) for seed, size in enumerate(((30, 45), (30, 45), (70, 20), (9, 9)))]
SELECTIONS = ((0,), (0, 2), (3, 2, 0))
"""The images of each prompt, by index; two images have one size."""

CROPS = 6


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    (folder / "preprocessor_config.json").write_text(json.dumps({"num_crops": CROPS}))
    inputs = Inputs(raw, folder)
    for seen in SELECTIONS:
        prompt = prompted(inputs, seen)
        yield Example(prompt, arguments(prompt.items))


def prompted(inputs: ostro.Inputs, seen: tuple[int, ...], before: int = 9) -> Prompt:
    """A prompt with `before` text tokens, then each image and nine text tokens."""
    tokens = words(before, 120)
    for seed in range(1, 1 + len(seen)):
        tokens += [inputs.placeholders["image"], *words(9, 120, seed=seed)]
    return inputs.expand_placeholders(tokens, [inputs.image(IMAGES[i]) for i in seen])


def arguments(items: list[Item]) -> dict[str, Any]:
    """The arguments of the reference: tiles are padded to the largest number of an image."""
    tiles = [item.arrays["pixels"].numpy() for item in items]
    sizes = [item.arrays["grid"].numpy() * tiles[0].shape[-1] for item in items]
    padded = [np.pad(each, ((0, CROPS + 1 - len(each)), *[(0, 0)] * 3)) for each in tiles]
    return {"pixel_values": np.stack(padded), "image_sizes": np.stack(sizes)}

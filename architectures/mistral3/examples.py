"""Example prompts with images of several sizes, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ostro
from ostro import Prompt
from ostro.architectures.mistral3.inputs import Inputs
from ostro.testing import Example, pixels, words

EDGE = 48
IMAGES = [pixels(seed, *size) for seed, size in enumerate(((30, 45), (30, 45), (70, 20), (5, 7)))]
SELECTIONS = ((0,), (0, 2), (3, 2, 0))
"""The images of each prompt, by index; two images have one size."""


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    settings = {"size": {"longest_edge": EDGE}, "image_processor_type": "PixtralImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    yield from image_examples(Inputs(raw, folder))


def image_examples(inputs: ostro.Inputs) -> Iterator[Example]:
    for indices in SELECTIONS:
        prompt = prompted(inputs, indices)
        yield Example(prompt, arguments(prompt))


def prompted(
    inputs: ostro.Inputs, indices: Sequence[int], before: int = 9, behind: int = 9
) -> Prompt:
    """A prompt with `before` text tokens, then each image and `behind` text tokens."""
    tokens = words(before, 120)
    for seed in range(1, 1 + len(indices)):
        tokens += [inputs.placeholders["image"], *words(behind, 120, seed=seed)]
    return inputs.expand_placeholders(tokens, [inputs.image(IMAGES[i]) for i in indices])


def arguments(prompt: Prompt) -> dict[str, Any]:
    """The arguments of the reference: images are padded to the largest of a prompt."""
    values = [item.arrays["pixels"].numpy() for item in prompt.items]
    sizes = np.array([each.shape[1:] for each in values])
    padded = np.zeros((len(values), 3, *sizes.max(0)), np.float32)
    for out, each in zip(padded, values, strict=True):
        out[:, : each.shape[1], : each.shape[2]] = each
    return {"pixel_values": padded, "image_sizes": sizes}

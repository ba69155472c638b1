"""Example prompts with images of several sizes, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ostro import Item
from ostro.architectures.idefics2.inputs import Inputs
from ostro.architectures.idefics3.examples import SELECTIONS, prompted
from ostro.testing import Example

SIZE = {"shortest_edge": 14, "longest_edge": 40}


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    settings = {"size": SIZE, "do_image_splitting": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    inputs = Inputs(raw, folder)
    for seen in SELECTIONS:
        prompt = prompted(inputs, seen)
        yield Example(prompt, arguments(prompt.items))


def arguments(items: list[Item]) -> dict[str, Any]:
    """The arguments of the reference: tiles are padded to the largest of a prompt."""
    pairs = [
        (tile, size)
        for item in items
        for tile, size in zip(
            item.arrays["pixels"].numpy(), item.arrays["sizes"].numpy(), strict=True
        )
    ]
    height, width = np.array([size for _, size in pairs]).max(0)
    values = np.zeros((1, len(pairs), 3, height, width), np.float32)
    masks = np.zeros((1, len(pairs), height, width), np.int64)
    for i, (tile, (h, w)) in enumerate(pairs):
        values[0, i, :, :h, :w] = tile[:, :h, :w]
        masks[0, i, :h, :w] = 1
    return {"pixel_values": values, "pixel_attention_mask": masks}

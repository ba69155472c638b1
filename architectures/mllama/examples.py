"""Example prompts with images, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ostro import Prompt
from ostro.architectures.llava.examples import SELECTIONS, prompted
from ostro.architectures.mllama.inputs import Inputs
from ostro.testing import Example

SIDE, TILES = 12, 4
PREPROCESSOR = {
    "size": {"height": SIDE, "width": SIDE},
    "resample": 2,
    "max_image_tiles": TILES,
    "do_pad": True,
    "image_processor_type": "MllamaImageProcessor",
}


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    inputs = Inputs(raw, folder)
    for seen in SELECTIONS:
        prompt = prompted(inputs, seen)
        yield Example(prompt, reference(prompt))


def reference(prompt: Prompt) -> dict[str, np.ndarray[Any, Any]]:
    """The arguments of the reference for a prompt, as from its processor."""
    firsts = [item.first for item in prompt.items]
    count, length = len(firsts), len(prompt.tokens)
    shown = np.zeros((1, count, TILES, 3, SIDE, SIDE), np.float32)
    mask = np.zeros((1, count, TILES), np.int64)
    seen = np.zeros((1, length, count, TILES), np.int64)
    for i, (item, start, stop) in enumerate(
        zip(prompt.items, firsts, [*firsts[1:], length], strict=True)
    ):
        tiles = item.arrays["pixels"].numpy()
        shown[0, i, : len(tiles)], mask[0, i, : len(tiles)] = tiles, 1
        seen[0, start:stop, i, : len(tiles)] = 1
    ratios = [item.arrays["ratio"].numpy() for item in prompt.items]
    return {
        "pixel_values": shown,
        "aspect_ratio_ids": np.stack(ratios, 1),
        "aspect_ratio_mask": mask,
        "cross_attention_mask": seen,
    }

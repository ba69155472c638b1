"""Example prompts with images and videos, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ostro
from ostro import Prompt
from ostro.architectures.qwen2_5_vl import TOKENS
from ostro.architectures.qwen2_5_vl.inputs import Inputs
from ostro.testing import Example, pixels, words

MEDIA = {"i": pixels(0, 24, 40), "j": pixels(1, 33, 17), "v": pixels(2, 6, 16, 24)}
"""Two images of different shape, and a video of six frames."""

SELECTIONS = ("i", "ij", "v", "ivj", "vi")
ARGUMENTS = {
    "image": ("pixel_values", "image_grid_thw"),
    "video": ("pixel_values_videos", "video_grid_thw"),
}
"""The reference's argument names of patches and grids, by kind of media."""


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    equip(folder, raw["vision_config"]["patch_size"])
    yield from media_examples(Inputs(raw, folder))


def equip(folder: Path, patch: int) -> None:
    """Write the files that the Inputs read: images of 4 to 256 patches."""
    size = {"shortest_edge": 4 * patch**2, "longest_edge": 256 * patch**2}
    settings = {"patch_size": patch, "size": size}
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).write_text(json.dumps(settings))


def media_examples(inputs: ostro.Inputs) -> Iterator[Example]:
    for seen in SELECTIONS:
        prompt = prompted(inputs, seen)
        yield Example(prompt, reference(prompt))


def prompted(inputs: ostro.Inputs, seen: str) -> Prompt:
    """A prompt with text around media, as from a chat template; videos have 2 frames per second."""
    tokens, items = words(9, 128), []
    start, end = TOKENS["vision_start_token_id"], TOKENS["vision_end_token_id"]
    for i, name in enumerate(seen, 1):
        media = MEDIA[name]
        item = inputs.image(media) if media.ndim == 3 else inputs.video(media, 2.0)
        tokens += [start, TOKENS[f"{item.kind}_token_id"], end, *words(4, 128, seed=i)]
        items.append(item)
    return inputs.expand_placeholders(tokens, items)


def reference(prompt: Prompt) -> dict[str, np.ndarray[Any, Any]]:
    """The arguments of the reference for a prompt, as from its processor."""
    ids = np.array([prompt.tokens])
    kinds = [TOKENS["image_token_id"], TOKENS["video_token_id"]]
    inputs = {"mm_token_type_ids": sum((ids == kind) * i for i, kind in enumerate(kinds, 1))}
    for kind, (patches, grids) in ARGUMENTS.items():
        arrays = [item.arrays for item in prompt.items if item.kind == kind]
        if arrays:
            inputs[patches] = np.concatenate([each["patches"].numpy() for each in arrays])
            inputs[grids] = np.stack([each["grid"].numpy() for each in arrays])
    if any(item.arrays["times"].numpy().any() for item in prompt.items):
        inputs["second_per_grid_ts"] = np.ones(len(inputs["video_grid_thw"]), np.float32)
    return inputs

"""Prompts with images and videos in them, small enough for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ostro
from ostro import Prompt
from ostro.architectures.qwen2_5_vl import PLACES
from ostro.architectures.qwen2_5_vl.inputs import Inputs
from ostro.testing import Example, pixels, words

MEDIA = {"i": pixels(0, 24, 40), "j": pixels(1, 33, 17), "v": pixels(2, 6, 16, 24)}
"""Two images of different shape, and a video of six frames."""

SEEN = ("i", "ij", "v", "ivj", "vi")
TAKEN = {
    "image": ("pixel_values", "image_grid_thw"),
    "video": ("pixel_values_videos", "video_grid_thw"),
}
"""Under which names the reference takes the patches of a kind of media, and their grids."""


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    equip(folder, raw["vision_config"]["patch_size"])
    yield from seeing(Inputs(raw, folder))


def equip(folder: Path, patch: int) -> None:
    """Write the files that the inputs read: images of 4 to 256 patches."""
    size = {"shortest_edge": 4 * patch**2, "longest_edge": 256 * patch**2}
    settings = {"patch_size": patch, "size": size}
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).write_text(json.dumps(settings))


def seeing(inputs: ostro.Inputs) -> Iterator[Example]:
    for seen in SEEN:
        prompt = prompted(inputs, seen)
        yield Example(prompt, reference(prompt))


def prompted(inputs: ostro.Inputs, seen: str) -> Prompt:
    """Text around media, as a chat template has them; videos have two frames per second."""
    tokens, items = words(9, 128), []
    start, end = PLACES["vision_start_token_id"], PLACES["vision_end_token_id"]
    for i, name in enumerate(seen, 1):
        media = MEDIA[name]
        item = inputs.image(media) if media.ndim == 3 else inputs.video(media, 2.0)
        tokens += [start, PLACES[f"{item.kind}_token_id"], end, *words(4, 128, seed=i)]
        items.append(item)
    return inputs.place(tokens, items)


def reference(prompt: Prompt) -> dict[str, np.ndarray[Any, Any]]:
    """What the reference's processor would have made of the same prompt."""
    ids = np.array([prompt.tokens])
    kinds = [PLACES["image_token_id"], PLACES["video_token_id"]]
    asked = {"mm_token_type_ids": sum((ids == kind) * i for i, kind in enumerate(kinds, 1))}
    for kind, (patches, grids) in TAKEN.items():
        arrays = [item.arrays for item in prompt.items if item.kind == kind]
        if arrays:
            asked[patches] = np.concatenate([each["patches"].numpy() for each in arrays])
            asked[grids] = np.stack([each["grid"].numpy() for each in arrays])
    if any(item.arrays["times"].numpy().any() for item in prompt.items):
        asked["second_per_grid_ts"] = np.ones(len(asked["video_grid_thw"]), np.float32)
    return asked

"""Example prompts with tiled images and videos, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ostro
from ostro import Prompt
from ostro.architectures.llava.examples import PREPROCESSOR
from ostro.architectures.llava_next.inputs import Inputs, VideoInputs
from ostro.testing import Example, pixels, words

MEDIA = (pixels(0, 30, 45), pixels(1, 30, 45), pixels(2, 50, 26), pixels(3, 5, 26, 30))
"""Three images, two of one size, and a video of five frames."""

SELECTIONS = ((0,), (0, 2), (1, 2, 0))
VIDEOS = ((0, 1), (3,), (2, 3, 1))


def equip(folder: Path, raw: Mapping[str, Any]) -> None:
    """Write the settings that the Inputs read."""
    settings = {**PREPROCESSOR, "image_grid_pinpoints": raw["image_grid_pinpoints"]}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    equip(folder, raw)
    yield from media_examples(Inputs(raw, folder), SELECTIONS)


def video_examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    equip(folder, raw)
    yield from media_examples(VideoInputs(raw, folder), VIDEOS)


def media_examples(inputs: ostro.Inputs, selections: Sequence[Sequence[int]]) -> Iterator[Example]:
    for indices in selections:
        prompt = prompted(inputs, indices)
        yield Example(prompt, arguments(prompt, [MEDIA[i] for i in indices]))


def prompted(
    inputs: ostro.Inputs, indices: Sequence[int], before: int = 9, behind: int = 9
) -> Prompt:
    """A prompt with `before` text tokens, then each medium and `behind` text tokens."""
    tokens, items = words(before, 120), []
    for seed, i in enumerate(indices, 1):
        item = inputs.image(MEDIA[i]) if MEDIA[i].ndim == 3 else inputs.video(MEDIA[i], 2.0)
        tokens += [inputs.placeholders[item.kind], *words(behind, 120, seed=seed)]
        items.append(item)
    return inputs.expand_placeholders(tokens, items)


def arguments(prompt: Prompt, media: Sequence[np.ndarray[Any, Any]]) -> dict[str, Any]:
    """The arguments of the reference: tiles are padded to the largest number of a prompt."""
    found: dict[str, Any] = {}
    values = {
        kind: [item.arrays["pixels"].numpy() for item in prompt.items if item.kind == kind]
        for kind in ("image", "video")
    }
    if values["image"]:
        most = max(map(len, values["image"]))
        found["pixel_values"] = np.stack(
            [np.pad(each, ((0, most - len(each)), *[(0, 0)] * 3)) for each in values["image"]]
        )
        found["image_sizes"] = np.array([each.shape[:2] for each in media if each.ndim == 3])
    if values["video"]:
        found["pixel_values_videos"] = np.stack(values["video"])
    return found

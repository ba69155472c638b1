"""Example prompts with images and videos, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

import ostro
from ostro import Prompt
from ostro.architectures.gemma4.inputs import Inputs
from ostro.testing import Example, pixels, words

ROWS = {"image": 12, "video": 6}
"""`max_soft_tokens` of tiny models."""

MEDIA = [
    *(pixels(0, 30, 45), pixels(1, 45, 30), pixels(2, 24, 24), pixels(3, 5, 20, 30)),
    *(np.random.default_rng(n).normal(0, 0.1, n).astype(np.float32) for n in (5000, 3333)),
]
"""Three images, a video of five frames, and two sounds."""

SELECTIONS = ((0,), (1, 2), (4,), (5, 0, 4), (3,), (2, 3, 0))
"""The media of each prompt, by index."""

BINS = 8
"""Bins of spectra of tiny models."""

STAMPS = " :0123456789"
"""Characters of timestamps; their tokens begin at 40."""


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    vision = raw["vision_config"]
    shared = {name: vision[name] for name in ("patch_size", "pooling_kernel_size")}
    for kind, name in (("image", "preprocessor_config"), ("video", "video_preprocessor_config")):
        settings = {**shared, "max_soft_tokens": ROWS[kind], "num_frames": 3, "feature_size": BINS}
        (folder / f"{name}.json").write_text(json.dumps(settings))
    ids = {character: i for i, character in enumerate(STAMPS, 40)}
    Tokenizer(models.BPE(ids, [])).save(str(folder / "tokenizer.json"))
    inputs = Inputs(raw, folder)
    for indices in SELECTIONS:
        if not inputs.has_audio and max(indices) > 3:
            continue
        prompt = prompted(inputs, indices)
        yield Example(prompt, arguments(prompt, raw))


def prompted(
    inputs: ostro.Inputs, indices: Sequence[int], before: int = 9, behind: int = 16
) -> Prompt:
    """A prompt with `before` text tokens, then each medium and `behind` text tokens."""
    tokens, items = words(before, 120), []
    for seed, i in enumerate(indices, 1):
        media = MEDIA[i]
        if media.ndim == 1:
            items.append(inputs.audio(media))
        else:
            items.append(inputs.image(media) if media.ndim == 3 else inputs.video(media, 2.0))
        tokens += [inputs.placeholders[items[-1].kind], *words(16, 120, seed=seed)]
    return inputs.expand_placeholders(tokens, items)


def arguments(prompt: Prompt, raw: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The arguments of the reference: patches and their places, padded to the largest image."""
    ids = np.array([prompt.tokens])
    kinds = [raw["image_token_id"], raw["video_token_id"]]
    arguments = {"mm_token_type_ids": sum((ids == kind) * i for i, kind in enumerate(kinds, 1))}
    names = {"image": "pixel_values", "video": "pixel_values_videos"}
    for kind, name in names.items():
        arrays = [item.arrays for item in prompt.items if item.kind == kind]
        if not arrays:
            continue
        frames, places, counts = [], [], []
        most = max(int(each["grid"].numpy()[1:].prod()) for each in arrays)
        for each in arrays:
            t, h, w = each["grid"].numpy().tolist()
            counts.append(t)
            spots = np.stack(np.meshgrid(np.arange(w), np.arange(h)), -1).reshape(-1, 2)
            for patches in each["patches"].numpy().reshape(t, h * w, -1):
                lacking = ((0, most - len(patches)), (0, 0))
                frames.append(np.pad(patches, lacking))
                places.append(np.pad(spots, lacking, constant_values=-1))
        arguments[name] = np.stack(frames)
        arguments[f"{kind}_position_ids"] = np.stack(places)
        if kind == "video":
            arguments["num_frames_per_video"] = np.array(counts)
    spectra = [i.arrays["spectrum"].numpy() for i in prompt.items if i.kind == "audio"]
    if spectra:
        most = max(map(len, spectra))
        arguments["input_features"] = np.stack(
            [np.pad(each, ((0, most - len(each)), (0, 0))) for each in spectra]
        )
        arguments["input_features_mask"] = np.stack([np.arange(most) < len(s) for s in spectra])
    return arguments

"""Image and video preprocessing: from pixels to patches, in numpy and Pillow.

Reference classes Qwen2VLImageProcessorPil and Qwen2VLVideoProcessor of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from ostro.architectures.qwen2_5_vl.grid import SIDE, Grid
from ostro.checkpoints import read_config
from ostro.errors import ConfigError, RequestError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]

MAX_ASPECT = 200
"""The largest aspect ratio."""

FILES = {
    "image": ("preprocessor_config.json",),
    "video": ("video_preprocessor_config.json", "preprocessor_config.json"),
}
"""The settings file of each kind of media, if processor_config.json does not exist."""


class Preprocessor(msgspec.Struct, frozen=True, kw_only=True):
    """A preprocessor's settings; names, meanings and defaults are those of transformers.

    `size` holds the smallest ("shortest_edge") and largest ("longest_edge") number of pixels of an
    image or frame; `min_pixels` and `max_pixels` take precedence.
    """

    size: dict[str, int] = {}
    min_pixels: int | None = None
    max_pixels: int | None = None
    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    image_mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    resample: int = 3
    rescale_factor: float = 1 / 255
    do_resize: bool = True
    do_rescale: bool = True
    do_normalize: bool = True
    num_frames: int | None = None
    fps: float | None = None
    min_frames: int = 4
    max_frames: int = 768
    cap_pixels_per_frame: bool | None = None
    max_video_tokens: int | None = None

    @property
    def factor(self) -> int:
        """Both sides of an image are a multiple of this, in pixels."""
        return self.patch_size * self.merge_size

    def limits(self, low: int, high: int) -> tuple[int, int]:
        """The smallest and largest number of pixels, by default `low` and `high`."""
        low = self.min_pixels or self.size.get("shortest_edge", low)
        return low, self.max_pixels or self.size.get("longest_edge", high)

    def resize(self, frames: Pixels, height: int, width: int) -> Pixels:
        """Resize frames [f, h, w, 3]."""
        if frames.shape[1:3] == (height, width):
            return frames
        images = (Image.fromarray(frame) for frame in frames)
        method = Image.Resampling(self.resample)
        return np.stack([np.asarray(image.resize((width, height), method)) for image in images])

    def patches(self, frames: Pixels) -> tuple[Floats, Grid]:
        """Frames [f, h, w, 3], sides multiples of `factor` -> patches [n, k] and their grid.

        Values are normalised and in the order channel, frame, row, column; the last frame is
        repeated to fill the last patches.
        """
        time, size, merge = self.temporal_patch_size, self.patch_size, self.merge_size
        lacking = -len(frames) % time
        frames = np.concatenate([frames, np.repeat(frames[-1:], lacking, 0)])
        t, h, w = len(frames) // time, frames.shape[1] // size, frames.shape[2] // size
        if max(h, w) > SIDE:
            raise RequestError(f"an image of more than {SIDE} patches on a side", param="messages")
        split = (t, time, h // merge, merge, size, w // merge, merge, size, 3)
        cut = frames.reshape(split).transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
        values = cut.reshape(t * h * w, 3, -1).astype(np.float32)
        values *= self.rescale_factor
        values -= np.array(self.image_mean, np.float32)[:, None]
        values /= np.array(self.image_std, np.float32)[:, None]
        return values.reshape(len(values), -1), (t, h, w)


SHARED_SETTINGS = {
    "patch_size": "patch_size",
    "temporal_patch_size": "temporal_patch_size",
    "merge_size": "spatial_merge_size",
}
"""Settings that are also in the vision config, with their names there."""


def read(folder: Path, kind: str, vision: Mapping[str, Any]) -> Preprocessor:
    """The settings for images or videos of the model in `folder`, whose tower's config is `vision`.

    Raises ConfigError for a missing file, or settings that are not implemented.
    """
    path = folder / "processor_config.json"
    whole = read_config(path, missing_ok=True).get(f"{kind}_processor")
    if whole is None:
        found = [folder / name for name in FILES[kind] if (folder / name).exists()]
        path = found[0] if found else folder / FILES[kind][0]
        if not found:
            raise ConfigError(
                f"{path} is missing, which has the {kind} settings; download the model again, "
                "or copy the file from its original"
            )
        whole = read_config(path)
    return settings_of(whole, path, vision)


def settings_of(found: Mapping[str, Any], path: Path, vision: Mapping[str, Any]) -> Preprocessor:
    """The settings of a file. Raises ConfigError."""
    try:
        settings = msgspec.convert(found, Preprocessor)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    if fault := refusal(settings, vision):
        raise ConfigError(f"{path}: {fault}")
    return settings


def refusal(settings: Preprocessor, vision: Mapping[str, Any]) -> str | None:
    """The reason why settings are not implemented, or None."""
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if not getattr(settings, name):
            return f"{name}=false is not implemented"
    if settings.num_frames is not None:
        return "num_frames is not implemented; use fps"
    for ours, theirs in SHARED_SETTINGS.items():
        value = getattr(settings, ours)
        if value < 1 or vision.get(theirs, value) != value:
            return f"{ours}={value}, but the config has {theirs}={vision.get(theirs)}"
    return None


def fit(
    height: int,
    width: int,
    factor: int,
    limits: tuple[int, int],
    *,
    frames: int = 1,
    counted: int = 1,
) -> tuple[int, int]:
    """The size in multiples of `factor` with the closest aspect ratio and pixels within `limits`.

    For a video, `limits` apply to the pixels of all `frames`, of `counted` frames when resized.
    Raises RequestError if one side is more than `MAX_ASPECT` times the other.
    """
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise RequestError(
            f"an image of {width} x {height} pixels is too narrow: one side may be at most "
            f"{MAX_ASPECT} times the other",
            param="messages",
        )
    sides, (low, high) = (height, width), limits
    h, w = (round(side / factor) * factor for side in sides)
    ratio = frames * height * width
    if counted * h * w > high:
        shrink = math.sqrt(ratio / high)
        h, w = (max(factor, math.floor(side / shrink / factor) * factor) for side in sides)
    elif counted * h * w < low:
        grow = math.sqrt(low / ratio)
        h, w = (math.ceil(side * grow / factor) * factor for side in sides)
    return h, w

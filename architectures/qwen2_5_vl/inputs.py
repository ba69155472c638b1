"""Qwen2.5-VL's inputs: patches of images and videos, and three positions per token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

import ostro
from ostro import Array, Item, content_key
from ostro.architectures.qwen2_5_vl.grid import Grid, Ints
from ostro.architectures.qwen2_5_vl.pixels import (
    Floats,
    Pixels,
    Preprocessor,
    fit,
    read,
    settings_of,
)
from ostro.errors import RequestError, Unsupported

Seconds = np.ndarray[Any, np.dtype[np.float64]]

IMAGE_LIMITS = (56 * 56, 28 * 28 * 1280)
FPS = 2.0
"""The default sampling rate of videos in frames per second."""


class Inputs(ostro.Inputs):
    """Images and videos as items with the arrays "patches" [n, k] float32, their "grid" [3] int64
    (patches in time, rows and columns) and "times" [t] int64, the temporal position of each.
    """

    video_limits: ClassVar[tuple[int, int]] = (128 * 28 * 28, 768 * 28 * 28)
    video_tokens: ClassVar[int] = 128000

    @property
    def placeholders(self) -> Mapping[str, int]:
        return {"image": self.token("image", 151655), "video": self.token("video", 151656)}

    def token(self, name: str, default: int) -> int:
        """The id of a token in the config, or `default`."""
        return int(self.raw.get(f"{name}_token_id") or default)

    @property
    def vision(self) -> Mapping[str, Any]:
        return self.raw.get("vision_config") or {}

    @property
    def merge(self) -> int:
        """The side, in patches, of a cell that becomes one row of the language model."""
        return int(self.vision.get("spatial_merge_size", 2))

    def rows(self, grid: Grid) -> int:
        """The number of language model rows of a grid."""
        return math.prod(grid) // self.merge**2

    @cached_property
    def images(self) -> Preprocessor:
        if stated := self.raw.get("preprocessor_config"):
            return settings_of(stated, self.folder, self.vision)
        return read(self.folder, "image", self.vision)

    @cached_property
    def videos(self) -> Preprocessor:
        if "preprocessor_config" in self.raw:
            raise Unsupported(
                "a projector file (mmproj) has no video settings; send images, or load the model "
                "from its original files",
                param="messages",
            )
        return read(self.folder, "video", self.vision)

    def image_size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width in pixels of a resized image."""
        return fit(height, width, self.images.factor, self.images.limits(*IMAGE_LIMITS))

    def image_tokens(self, width: int, height: int) -> int:
        rows, columns = (side // self.images.patch_size for side in self.image_size(height, width))
        return self.rows((1, rows, columns))

    def image(self, pixels: Pixels) -> Item:
        size = self.image_size(*pixels.shape[:2])
        patches, grid = self.images.patches(self.images.resize(pixels[None], *size))
        pad = self.placeholders["image"]
        return item("image", patches, grid, np.zeros(1, np.int64), (pad,) * self.rows(grid), pad)

    def video(self, frames: Pixels, fps: float) -> Item:
        if not len(frames) or not fps > 0:
            raise RequestError(
                f"a video of {len(frames)} frames, {fps} per second, is not supported",
                param="messages",
            )
        chosen = self.sample(len(frames), fps)
        _, height, width, _ = frames.shape
        size = self.video_size(len(chosen), height, width)
        patches, grid = self.videos.patches(self.videos.resize(frames[chosen], *size))
        seconds = chosen / fps
        tokens = self.tokens_of_video(grid, seconds)
        times = self.times(grid[0], len(chosen) / len(frames) * fps)
        return item("video", patches, grid, times, tokens, self.placeholders["video"])

    def sample(self, total: int, fps: float) -> Ints:
        """The indices of sampled frames, a multiple of the temporal patch size."""
        settings, group = self.videos, self.videos.temporal_patch_size
        most = min(settings.max_frames, total) // group * group
        requested = total / fps * (settings.fps or FPS)
        count = min(max(requested, settings.min_frames), most, total)
        count = max(int(count) // group * group, min(group, total))
        # in float32, as the reference computes them
        return (np.arange(count) * (total / count)).astype(np.float32).astype(np.int64)

    def video_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """The height and width in pixels of resized frames."""
        settings, factor = self.videos, self.videos.factor
        low, high = settings.limits(*self.video_limits)
        if settings.cap_pixels_per_frame:
            tokens = settings.max_video_tokens or self.video_tokens
            share = int(tokens * factor**2 * 0.9) * settings.temporal_patch_size // frames
            high = max(min(high, share), int(low * 1.05))
        return fit(height, width, factor, (low, high))

    def tokens_of_video(self, grid: Grid, seconds: Seconds) -> list[int]:
        """The placeholder tokens of a video with frames at `seconds`."""
        return [self.placeholders["video"]] * self.rows(grid)

    def times(self, count: int, fps: float) -> Ints:
        """Temporal positions of a video's patches at `fps` sampled frames per second."""
        # in float32, as the reference computes them
        apart = np.float32(self.videos.temporal_patch_size / fps)
        step = np.float32(self.vision.get("tokens_per_second", 4)) * apart
        return (np.arange(count, dtype=np.float32) * step).astype(np.int64)

    def positions(self, tokens: Sequence[int], items: Sequence[Item]) -> Array | None:
        """Three positions per token. Text advances all axes; the rows of a grid have its time, row
        and column, and the following text starts after the largest of the three.

        Raises RequestError for a video that exceeds the model's positions.
        """
        if not items:
            return None
        out = np.empty((3, len(tokens)), np.int64)
        done = position = 0
        for start, cells in self.spans(items):
            out[:, done:start] = position + np.arange(start - done)
            position += start - done
            done = start + cells.shape[1]
            out[:, start:done] = position + cells
            position += int(cells.max()) + 1
        out[:, done:] = position + np.arange(len(tokens) - done)
        text = self.raw.get("text_config") or self.raw
        if out.max() >= (most := text.get("max_position_embeddings", out.max() + 1)):
            raise RequestError(
                f"the media reach position {out.max()}, but the model supports {most}; send a "
                "shorter video, or one with more frames per second",
                param="messages",
            )
        return Array.of(out.astype(np.int32))

    def spans(self, items: Sequence[Item]) -> Iterator[tuple[int, Ints]]:
        """The start of each span of rows, and the time, row and column of its rows: [3, count]."""
        for each in items:
            t, h, w = each.arrays["grid"].numpy().tolist()
            cells = np.indices((t, h // self.merge, w // self.merge)).reshape(3, -1)
            cells[0] = each.arrays["times"].numpy()[cells[0]]
            done = 0
            for start, count in each.spans:
                yield start, cells[:, done : done + count]
                done += count


def item(
    kind: str,
    patches: Floats,
    grid: Grid,
    times: Ints,
    tokens: Sequence[int],
    pad: int,
) -> Item:
    """An item; its rows replace the tokens equal to `pad`."""
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "patches": patches,
        "grid": np.array(grid, np.int64),
        "times": times,
    }
    return Item(
        kind=kind,
        key=content_key(*arrays.values()),
        arrays={name: Array.of(array) for name, array in arrays.items()},
        cost=len(patches),
        tokens=tuple(tokens),
        pad=pad,
    )

"""Qwen3-VL's inputs: each group of video frames follows its timestamp as text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from tokenizers import Tokenizer

from ostro import Item, Prompt
from ostro.architectures.qwen2_5_vl import inputs as qwen2_5_vl
from ostro.architectures.qwen2_5_vl.grid import Grid, Ints
from ostro.architectures.qwen2_5_vl.inputs import FPS, Seconds
from ostro.architectures.qwen2_5_vl.pixels import fit
from ostro.checkpoints import read_regular
from ostro.errors import TokenizerError


class Inputs(qwen2_5_vl.Inputs):
    video_limits = (128 * 32 * 32, 768 * 32 * 32)
    video_tokens = 768

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path} is missing, which videos need for timestamps")
        return Tokenizer.from_buffer(read_regular(path))

    def sample(self, total: int, fps: float) -> Ints:
        """The indices of sampled frames, evenly spaced from the first to the last."""
        settings = self.videos
        count = int(total / fps * (settings.fps or FPS))
        count = min(max(count, settings.min_frames), settings.max_frames, total)
        return np.linspace(0, total - 1, count).round().astype(np.int64)

    def video_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """The height and width in pixels of resized frames; limits apply to all frames."""
        settings, factor, group = self.videos, self.videos.factor, self.videos.temporal_patch_size
        frames = max(frames, group)
        low, high = settings.limits(*self.video_limits)
        if settings.cap_pixels_per_frame:
            most = (settings.max_video_tokens or self.video_tokens) * factor**2
            high = frames * max(min(most, high // frames), int(low * 1.05))
        if min(height, width) < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        counted = round(frames / group) * group
        return fit(height, width, factor, (low, high), frames=frames, counted=counted)

    def tokens_of_video(self, grid: Grid, seconds: Seconds) -> list[int]:
        """For every group of frames, its middle timestamp and the placeholders of an image."""
        group = self.videos.temporal_patch_size
        seconds = np.concatenate([seconds, np.repeat(seconds[-1:], -len(seconds) % group)])
        middles = (seconds[::group] + seconds[group - 1 :: group]) / 2
        pads = [self.placeholders["video"]] * (self.rows(grid) // grid[0])
        framed = [self.token("vision_start", 151652), *pads, self.token("vision_end", 151653)]
        return [id for time in middles for id in (*self.stamp(time), *framed)]

    def stamp(self, time: float) -> list[int]:
        """The tokens of a timestamp in seconds."""
        return self.tokenizer.encode(f"<{time:.1f} seconds>", add_special_tokens=False).ids

    def times(self, count: int, fps: float) -> Ints:
        """Zeros: timestamps are text."""
        return np.zeros(count, np.int64)

    def expand_placeholders(self, tokens: Sequence[int], items: Sequence[Item]) -> Prompt:
        """As the base class, without the vision tokens of the template around a video.

        Each group of frames has its own, as in transformers 4.57, with which the family was
        published; later versions keep the outer pair as well.
        """
        start, end = self.token("vision_start", 151652), self.token("vision_end", 151653)
        video, left = self.placeholders["video"], list[int]()
        for token in tokens:
            left.append(token)
            if left[-3:] == [start, video, end]:
                left[-3:] = [video]
        return super().expand_placeholders(left, items)

"""What Qwen3-VL makes of videos: each group of frames stands behind its time, told in words."""

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
from ostro.errors import TokenizerError


class Inputs(qwen2_5_vl.Inputs):
    video_limits = (128 * 32 * 32, 768 * 32 * 32)
    video_tokens = 768

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path} is missing, without which no video's times can be told")
        return Tokenizer.from_file(str(path))

    def sample(self, total: int, fps: float) -> Ints:
        """Which of `total` frames are looked at: the first, the last, and some between."""
        settings = self.videos
        count = int(total / fps * (settings.fps or FPS))
        count = min(max(count, settings.min_frames), settings.max_frames, total)
        return np.linspace(0, total - 1, count).round().astype(np.int64)

    def video_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """The height and width in pixels that frames are brought to; limits are for all of them."""
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

    def tell(self, grid: Grid, seconds: Seconds) -> list[int]:
        """Of every group of frames: the time halfway through it, and its rows as an image's are."""
        group = self.videos.temporal_patch_size
        seconds = np.concatenate([seconds, np.repeat(seconds[-1:], -len(seconds) % group)])
        middles = (seconds[::group] + seconds[group - 1 :: group]) / 2
        pads = [self.placeholders["video"]] * (self.rows(grid) // grid[0])
        framed = [self.token("vision_start", 151652), *pads, self.token("vision_end", 151653)]
        return [id for time in middles for id in (*self.stamp(time), *framed)]

    def stamp(self, time: float) -> list[int]:
        """The tokens that tell a time in seconds."""
        return self.tokenizer.encode(f"<{time:.1f} seconds>", add_special_tokens=False).ids

    def times(self, count: int, fps: float) -> Ints:
        """None: time is told in words."""
        return np.zeros(count, np.int64)

    def place(self, tokens: Sequence[int], items: Sequence[Item]) -> Prompt:
        """As the base does, without the marks of vision that a template puts around a video.

        Its groups of frames have their own. So the family was published, with transformers 4.57;
        later versions keep the outer pair as well.
        """
        start, end = self.token("vision_start", 151652), self.token("vision_end", 151653)
        video, left = self.placeholders["video"], list[int]()
        for token in tokens:
            left.append(token)
            if left[-3:] == [start, video, end]:
                left[-3:] = [video]
        return super().place(left, items)

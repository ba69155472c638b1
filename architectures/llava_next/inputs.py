"""LLaVA-NeXT's inputs: the whole image, then its tiles; videos as square frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from ostro import Array, Item, content_key
from ostro.architectures.llava import inputs as llava
from ostro.architectures.llava_next.tiles import Size, best_resolution, cut, padding
from ostro.architectures.siglip import pixels
from ostro.architectures.siglip.pixels import Pixels, Triple, check_shape, resize
from ostro.checkpoints import read_config
from ostro.errors import ConfigError, RequestError

FRAMES = 32
"""The most frames of a video if the settings have no num_frames."""


class Preprocessor(pixels.Preprocessor, frozen=True, kw_only=True):
    """The preprocessor settings, with LLaVA-NeXT's defaults. `do_pad` concerns batches only."""

    size: dict[str, int] = msgspec.field(default_factory=lambda: {"shortest_edge": 224})
    image_mean: Triple = (0.48145466, 0.4578275, 0.40821073)
    image_std: Triple = (0.26862954, 0.26130258, 0.27577711)
    do_center_crop: bool = True
    do_pad: bool = True
    num_frames: int | None = None
    image_grid_pinpoints: tuple[Size, ...] = (
        (336, 672),
        (672, 336),
        (672, 672),
        (1008, 336),
        (336, 1008),
    )

    @property
    def pads(self) -> bool:
        return self.do_pad

    def refusal(self) -> str | None:
        if self.num_frames is not None and not 0 < self.num_frames <= 4096:
            return f"num_frames={self.num_frames} is not within 1..4096"
        return super().refusal()


class Inputs(llava.Inputs):
    """Images as items with the arrays "pixels" [1 + tiles, 3, S, S] float32, the whole image first,
    and "grid" [4] int64: rows and columns of tiles, and of padding patches on each side.
    """

    settings: ClassVar[type[pixels.Preprocessor]] = Preprocessor

    def settings_of(self, stated: Mapping[str, Any]) -> type[pixels.Preprocessor]:
        return self.settings

    @cached_property
    def resolutions(self) -> Sequence[Size]:
        """The resolutions of tiled images, multiples of the tower's image_size."""
        found: Sequence[Size] = self.preprocessor.image_grid_pinpoints  # type: ignore[attr-defined]
        stated = self.raw.get("image_grid_pinpoints")
        if stated is not None and sorted(map(tuple, stated)) != sorted(found):
            raise ConfigError(
                f"{self.folder}: image_grid_pinpoints of the preprocessor and of config.json differ"
            )
        check_resolutions(found, self.side)
        return found

    def padding(self, size: Size, tiles: Size) -> Size:
        """The padding patches on each side of the tiles of an image of that size."""
        return padding(size, (tiles[0] * self.across, tiles[1] * self.across))

    def count(self, size: Size, tiles: Size) -> int:
        """The number of tokens of an image of that size in pixels."""
        across, (top, left) = self.across, self.padding(size, tiles)
        rows, columns = self.joined(tiles[0] * across - 2 * top, tiles[1] * across - 2 * left)
        return self.patches + rows * (columns + 1)

    def image_tokens(self, width: int, height: int) -> int:
        chosen = best_resolution((height, width), self.resolutions)
        return self.count((height, width), (chosen[0] // self.side, chosen[1] // self.side))

    def image(self, pixels: Pixels) -> Item:
        size = pixels.shape[0], pixels.shape[1]
        chosen = best_resolution(size, self.resolutions)
        side, method = self.side, self.preprocessor.resample
        squares = cut(pixels, chosen, side, method)
        whole = resize(pixels, side, side, method)
        values = np.stack([self.preprocessor(square) for square in (whole, *squares)])
        tiles = chosen[0] // side, chosen[1] // side
        top, left = self.padding(size, tiles)
        count = self.count(size, tiles)
        return item_of(self, "image", count, pixels=values, grid=np.array([*tiles, top, left]))

    def joined(self, rows: int, columns: int) -> Size:
        """The features' rows and columns of all tiles of an image, without padding."""
        return rows, columns


class Videos(llava.Inputs):
    """Videos as items with the array "pixels" [frames, 3, S, S] float32."""

    video_settings: ClassVar[type[Preprocessor]] = Preprocessor
    video_token: ClassVar[int] = 32000

    @property
    def placeholders(self) -> Mapping[str, int]:
        return {**super().placeholders, "video": self.token("video", self.video_token)}

    @cached_property
    def videos(self) -> Preprocessor:
        found = self.video_settings.of(*find_video(self.folder))
        check_shape(found, self.folder, self.side)
        return found

    def video(self, frames: Pixels, fps: float) -> Item:
        """Evenly spaced frames, at most `num_frames`."""
        if not len(frames):
            raise RequestError("a video of 0 frames is not supported", param="messages")
        count = min(len(frames), self.videos.num_frames or FRAMES)
        chosen = np.linspace(0, len(frames) - 1, count).round().astype(np.int64)
        values = np.stack([self.videos(frame) for frame in frames[chosen]])
        return item_of(self, "video", self.video_rows(count), pixels=values)

    def video_rows(self, frames: int) -> int:
        """The rows of a video's features: each frame's, pooled."""
        return frames * (self.across // int(self.raw.get("spatial_pool_stride", 2))) ** 2


class VideoInputs(Videos, Inputs):
    """LLaVA-NeXT-Video's inputs."""

    image_token: ClassVar[int] = 32001


def item_of(inputs: llava.Inputs, kind: str, count: int, **arrays: np.ndarray[Any, Any]) -> Item:
    """An item of `count` placeholders."""
    pad = inputs.placeholders[kind]
    return Item(
        kind=kind,
        key=content_key(kind, *arrays.values()),
        arrays={name: Array.of(array) for name, array in arrays.items()},
        cost=len(arrays["pixels"]) * (1 + inputs.patches),
        tokens=(pad,) * count,
        pad=pad,
    )


def check_resolutions(found: Sequence[Size], side: int) -> None:
    """Raise ConfigError unless resolutions are multiples of `side`, and not too large."""
    for h, w in found:
        if h < 1 or w < 1 or h % side or w % side or h * w > pixels.MAX_AREA:
            raise ConfigError(
                f"image_grid_pinpoints: {[h, w]} is not a multiple of image_size={side} of at most "
                f"{pixels.MAX_AREA} pixels"
            )
    if not found:
        raise ConfigError("image_grid_pinpoints is empty")


def find_video(folder: Path) -> tuple[Mapping[str, Any], Path]:
    """The settings of videos, and their file. Raises ConfigError."""
    for name, key in (
        ("processor_config.json", "video_processor"),
        ("video_preprocessor_config.json", None),
    ):
        path = folder / name
        if not path.exists():
            continue
        found = read_config(path)
        inner = found if key is None else found.get(key)
        if isinstance(inner, Mapping):
            return inner, path
    path, found = pixels.find(folder)
    return found, path

"""Gemma 4's inputs: images of any size as cells of patches, videos as frames with timestamps.

Reference classes Gemma4ImageProcessorPil, Gemma4VideoProcessor and Gemma4Processor of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer

import ostro
from ostro import Array, Item, content_key
from ostro.architectures.gemma4.spectrum import Extractor, Samples
from ostro.architectures.siglip.pixels import Floats, Pixels, Triple, resize
from ostro.checkpoints import read_config, read_regular
from ostro.errors import ConfigError, RequestError, TokenizerError, Unsupported

FILES = {
    "image": ("preprocessor_config.json",),
    "video": ("video_preprocessor_config.json", "preprocessor_config.json"),
}
"""The settings file of each kind, if processor_config.json does not have them."""

SOFT_TOKENS = {"image": 280, "video": 70}
"""The default of `max_soft_tokens`, the most rows of an image or a frame."""

FRAMES = 32
SECONDS = 30
"""The longest sound."""


class Preprocessor(msgspec.Struct, frozen=True, kw_only=True):
    """A preprocessor's settings; names, meanings and defaults are those of transformers."""

    patch_size: int = 16
    pooling_kernel_size: int = 3
    max_soft_tokens: int = 280
    image_mean: Triple = (0.0, 0.0, 0.0)
    image_std: Triple = (1.0, 1.0, 1.0)
    resample: int = 3
    rescale_factor: float = 1 / 255
    do_resize: bool = True
    do_rescale: bool = True
    do_normalize: bool = False
    do_sample_frames: bool = True
    num_frames: int | None = FRAMES
    fps: float | None = None

    def refusal(self, vision: Mapping[str, Any]) -> str | None:
        """The reason why settings are not implemented, or None."""
        for name in ("do_resize", "do_rescale", "do_sample_frames"):
            if not getattr(self, name):
                return f"{name}=false is not implemented"
        for name, default in (("patch_size", 16), ("pooling_kernel_size", 3)):
            value, stated = getattr(self, name), vision.get(name, default)
            if value != stated:
                return f"{name}={value}, but the config has {name}={stated}"
        if not 0 < self.max_soft_tokens <= 1120:
            return f"max_soft_tokens={self.max_soft_tokens} is not within 1..1120"
        if self.num_frames is not None and not 0 < self.num_frames <= 4096:
            return f"num_frames={self.num_frames} is not within 1..4096"
        if self.fps is not None and not 0 < self.fps < math.inf:
            return f"fps={self.fps} is not positive"
        if min(self.image_std) <= 0 or not 0 <= self.resample <= 5:
            return "image_std is not positive, or resample is unknown"
        return None

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width in pixels of the largest image of this aspect ratio with
        `max_soft_tokens` cells.
        """
        cell = self.pooling_kernel_size * self.patch_size
        factor = math.sqrt(self.max_soft_tokens * cell**2 / (height * width))
        h, w = (math.floor(factor * side / cell) for side in (height, width))
        most = self.max_soft_tokens
        if (not h and not w) or (not h and width // height < 1) or (not w and height // width < 1):
            raise RequestError(
                f"an image of {width} x {height} pixels has no cell of {cell} pixels at "
                f"max_soft_tokens={most}; crop it",
                param="messages",
            )
        if not h:
            h, w = 1, min(width // height, most)
        elif not w:
            h, w = min(height // width, most), 1
        return h * cell, w * cell

    def patches(self, frames: Pixels) -> Floats:
        """Frames [t, h, w, 3] -> patches [n, 3 * patch_size ** 2], by row, column and channel."""
        t, height, width, _ = frames.shape
        n = self.patch_size
        values = frames.astype(np.float32) * np.float32(self.rescale_factor)
        if self.do_normalize:
            values -= np.array(self.image_mean, np.float32)
            values /= np.array(self.image_std, np.float32)
        cut = values.reshape(t, height // n, n, width // n, n, 3).transpose(0, 1, 3, 2, 4, 5)
        return np.ascontiguousarray(cut.reshape(-1, 3 * n * n))


class Inputs(ostro.Inputs):
    """Images and videos as items with the arrays "patches" [n, k] float32 and "grid" [3] int64:
    frames, rows and columns of patches.
    """

    @property
    def placeholders(self) -> Mapping[str, int]:
        found = {"image": self.token("image", 258880), "video": self.token("video", 258884)}
        return found | ({"audio": self.token("audio", 258881)} if self.has_audio else {})

    @property
    def has_audio(self) -> bool:
        """Whether the model has a sound encoder."""
        return self.raw.get("audio_config") is not None

    def token(self, name: str, default: int) -> int:
        """The id of a token in the config, or `default`."""
        found = self.raw.get(f"{name}_token_id")
        return default if found is None else int(found)

    @property
    def vision(self) -> Mapping[str, Any]:
        return self.raw.get("vision_config") or {}

    @cached_property
    def atomic(self) -> bool:
        """Whether the rows of an image attend to each other in both directions."""
        text = self.raw.get("text_config") or {}
        return bool(text.get("use_bidirectional_attention") == "vision")

    @cached_property
    def images(self) -> Preprocessor:
        return self.read("image")

    @cached_property
    def videos(self) -> Preprocessor:
        if "preprocessor_config" in self.raw:
            raise Unsupported(
                "a projector file (mmproj) has no video settings; send images, or load the model "
                "from its original files",
                param="messages",
            )
        return self.read("video")

    def read(self, kind: str) -> Preprocessor:
        """The settings for images or videos. Raises ConfigError."""
        path = self.folder / "processor_config.json"
        found = self.raw.get("preprocessor_config")
        found = found or read_config(path, missing_ok=True).get(f"{kind}_processor")
        if not found:
            paths = [self.folder / name for name in FILES[kind]]
            path = next((each for each in paths if each.exists()), paths[0])
            found = read_config(path, missing_ok=True)
        if not found:
            raise ConfigError(
                f"{path} is missing, which has the {kind} settings; download the model again, or "
                "copy the file from its original"
            )
        if kind == "video" and path.name == FILES["image"][0]:
            found = {k: v for k, v in found.items() if k != "max_soft_tokens"}
        return settings_of({"max_soft_tokens": SOFT_TOKENS[kind], **found}, path, self.vision)

    def image_tokens(self, width: int, height: int) -> int:
        settings = self.images
        grid = self.grid(settings, 1, *settings.size(height, width))
        return 2 + math.prod(grid) // settings.pooling_kernel_size**2

    def image(self, pixels: Pixels) -> Item:
        settings = self.images
        size = settings.size(*pixels.shape[:2])
        grid = self.grid(settings, 1, *size)
        patches = settings.patches(resize(pixels, *size, settings.resample)[None])
        pad = self.placeholders["image"]
        rows = math.prod(grid) // settings.pooling_kernel_size**2
        return self.item("image", patches, grid, self.framed(pad, rows), pad)

    def video(self, frames: Pixels, fps: float) -> Item:
        if not len(frames) or not 0 < fps < math.inf:
            raise RequestError(
                f"a video of {len(frames)} frames, {fps} per second, is not supported",
                param="messages",
            )
        settings = self.videos
        chosen = self.sample(len(frames), fps)
        size = settings.size(*frames.shape[1:3])
        grid = self.grid(settings, len(chosen), *size)
        resized = np.stack([resize(frames[i], *size, settings.resample) for i in chosen])
        pad, tokens = self.placeholders["video"], list[int]()
        rows = grid[1] * grid[2] // settings.pooling_kernel_size**2
        for i in chosen:
            seconds = int(i / fps)
            stamp = f"{seconds // 60:02d}:{seconds % 60:02d} "
            tokens += [*self.text(f" {stamp}" if tokens else stamp), *self.framed(pad, rows)]
        return self.item("video", settings.patches(resized), grid, tokens, pad)

    @cached_property
    def sounds(self) -> Extractor:
        path = self.folder / "processor_config.json"
        found = self.raw.get("feature_extractor")
        found = found or read_config(path, missing_ok=True).get("feature_extractor")
        if found is None:
            path = self.folder / FILES["image"][0]
            found = read_config(path, missing_ok=True)
        return Extractor.of(found, path)

    def audio(self, samples: Samples) -> Item:
        """As the base class. Raises RequestError for audio that is too long or too short."""
        if not self.has_audio:
            return super().audio(samples)
        frames, pad = self.sounds.frames(len(samples)), self.placeholders["audio"]
        if len(samples) > SECONDS * self.rate or not frames:
            raise RequestError(
                f"audio of {len(samples) / self.rate:.3f} s is not supported; expected "
                f"{self.sounds.frame / self.rate} to {SECONDS} s",
                param="messages",
            )
        spectrum = self.sounds.spectrum(samples.astype(np.float32))
        rows = -(-frames // 4)
        end = int(self.raw.get("eoa_token_index") or self.token("eoa", 258883))
        return Item(
            kind="audio",
            key=content_key("gemma4", spectrum),
            arrays={"spectrum": Array.of(spectrum)},
            cost=frames,
            tokens=(self.token("boa", 256000), *[pad] * rows, end),
            pad=pad,
        )

    def grid(self, settings: Preprocessor, t: int, height: int, width: int) -> tuple[int, int, int]:
        """Frames, rows and columns of patches. Raises RequestError if there are no embeddings for
        so many.
        """
        h, w = height // settings.patch_size, width // settings.patch_size
        most = int(self.vision.get("position_embedding_size", 10240))
        if max(h, w) > most:
            raise RequestError(
                f"an image of {w} x {h} patches exceeds the {most} patches per side that the "
                "model supports; crop it",
                param="messages",
            )
        return t, h, w

    def sample(self, total: int, fps: float) -> list[int]:
        """The indices of sampled frames; all, if there are fewer than the settings state."""
        settings = self.videos
        count = settings.num_frames or total
        if settings.fps is not None and settings.num_frames is None:
            count = max(1, int(total / fps * settings.fps))
        count = min(count, total)
        return [i * total // count for i in range(count)]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path} is missing, which videos need for timestamps")
        return Tokenizer.from_buffer(read_regular(path))

    def text(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def framed(self, pad: int, rows: int) -> list[int]:
        """The placeholders of an image or a frame, between the tokens at its ends."""
        return [self.token("boi", 255999), *[pad] * rows, self.token("eoi", 258882)]

    def item(
        self,
        kind: str,
        patches: Floats,
        grid: tuple[int, int, int],
        tokens: Sequence[int],
        pad: int,
    ) -> Item:
        """An item; its rows replace the tokens equal to `pad`."""
        shape = np.array(grid, np.int64)
        return Item(
            kind=kind,
            key=content_key(patches, shape),
            arrays={"patches": Array.of(patches), "grid": Array.of(shape)},
            cost=len(patches),
            tokens=tuple(tokens),
            pad=pad,
            atomic=self.atomic,
        )


def settings_of(found: Mapping[str, Any], path: Path, vision: Mapping[str, Any]) -> Preprocessor:
    """The settings of a file. Raises ConfigError."""
    try:
        settings = msgspec.convert(dict(found), Preprocessor)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    if fault := settings.refusal(vision):
        raise ConfigError(f"{path}: {fault}")
    return settings

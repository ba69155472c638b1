"""Image preprocessing: from images to normalised pixels of one size.

Reference classes SiglipImageProcessorPil and CLIPImageProcessorPil of transformers; numpy and
Pillow alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from PIL import Image

from ostro.checkpoints import read_config
from ostro.errors import ConfigError, RequestError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Triple = tuple[float, float, float]

FILES = ("processor_config.json", "preprocessor_config.json")
"""The settings files; the first has them below "image_processor"."""

MAX_AREA = 1 << 26
"""The most pixels of an image in any step of its preprocessing."""

SQUARE = {"height": 224, "width": 224}


class Preprocessor(msgspec.Struct, frozen=True, kw_only=True):
    """A preprocessor's settings; names, meanings and defaults are those of transformers' SigLIP.

    `size` holds "height" and "width", or "shortest_edge", which determines the longer side.
    """

    size: dict[str, int] = msgspec.field(default_factory=lambda: dict(SQUARE))
    crop_size: dict[str, int] = msgspec.field(default_factory=lambda: dict(SQUARE))
    image_mean: Triple = (0.5, 0.5, 0.5)
    image_std: Triple = (0.5, 0.5, 0.5)
    resample: int = 3
    rescale_factor: float = 1 / 255
    do_resize: bool = True
    do_center_crop: bool = False
    do_rescale: bool = True
    do_normalize: bool = True
    do_pad: bool = False
    pads: ClassVar[bool] = False
    """Whether the family pads images; subclasses implement it."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The settings of the model in `folder`.

        Raises ConfigError for a missing file, or settings that are not implemented.
        """
        path, found = find(folder)
        return cls.of(found, path)

    @classmethod
    def of(cls, found: Mapping[str, Any], path: Path) -> Self:
        """The settings of a file. Raises ConfigError."""
        try:
            settings = msgspec.convert({k: v for k, v in found.items() if v is not None}, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{path}: {error}") from None
        if fault := settings.refusal():
            raise ConfigError(f"{path}: {fault}")
        return settings

    def refusal(self) -> str | None:
        """The reason why settings are not implemented, or None."""
        for name in ("do_resize", "do_rescale", "do_normalize"):
            if not getattr(self, name):
                return f"{name}=false is not implemented"
        if self.do_pad != self.pads:
            return f"do_pad={str(self.do_pad).lower()} is not implemented"
        if {*self.size} not in ({"height", "width"}, {"shortest_edge"}):
            return (
                f"size={self.size} is not implemented; expected height and width, or shortest_edge"
            )
        if {*self.crop_size} != {"height", "width"}:
            return f"crop_size={self.crop_size} is not a height and a width"
        if min(*self.size.values(), *self.crop_size.values()) < 1 or min(self.image_std) <= 0:
            return "a size or image_std is not positive"
        crop = max(self.crop_size.values())
        if self.do_center_crop and crop > min(self.size.values()):
            return f"crop_size={self.crop_size} exceeds size={self.size}"
        if self.shape is None:
            return f"size={self.size} without do_center_crop gives images of varying shape"
        return None

    @property
    def shape(self) -> tuple[int, int] | None:
        """The height and width of the result, or None if they depend on the image."""
        sizes = self.crop_size if self.do_center_crop else self.size
        return (sizes["height"], sizes["width"]) if "height" in sizes else None

    def __call__(self, pixels: Pixels) -> Floats:
        """uint8 [height, width, 3] -> normalised [3, *shape]."""
        size = self.target(*pixels.shape[:2])
        check_area(*size)
        pixels = resize(pixels, *size, self.resample)
        if self.do_center_crop:
            pixels = crop(pixels, self.crop_size["height"], self.crop_size["width"])
        return self.normalise(pixels)

    def target(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that an image is resized to."""
        if "height" in self.size:
            return self.size["height"], self.size["width"]
        edge, short = self.size["shortest_edge"], min(height, width)
        longer = int(edge * max(height, width) / short)
        return (edge, longer) if height < width else (longer, edge)

    def normalise(self, pixels: Pixels) -> Floats:
        """uint8 [height, width, 3] -> float32 [3, height, width]."""
        values = np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32)
        values *= self.rescale_factor
        values -= np.array(self.image_mean, np.float32)[:, None, None]
        values /= np.array(self.image_std, np.float32)[:, None, None]
        return values


def find(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The settings file of a folder, and its content. Raises ConfigError."""
    for name in FILES:
        path = folder / name
        if not path.exists():
            continue
        found = read_config(path)
        if name == FILES[1]:
            return path, found
        if isinstance(inner := found.get("image_processor"), Mapping):
            return path, dict(inner)
    raise ConfigError(
        f"{folder / FILES[1]} is missing, which has the image settings; download the model "
        "again, or copy the file from its original"
    )


def check_shape(settings: Preprocessor, folder: Path, side: int) -> None:
    """Raise ConfigError unless a preprocessor produces squares of `side` pixels."""
    if settings.shape != (side, side):
        raise ConfigError(
            f"{folder / FILES[1]} produces images of {settings.shape} pixels, but config.json has "
            f"image_size={side}"
        )


def check_area(height: int, width: int) -> None:
    """Raise RequestError if an image would be resized or padded to more than MAX_AREA pixels."""
    if height * width > MAX_AREA:
        raise RequestError(
            f"an image that is resized to {width} x {height} pixels is too narrow or too large; "
            "crop it",
            param="messages",
        )


def resize(pixels: Pixels, height: int, width: int, method: int) -> Pixels:
    """Resize uint8 [h, w, 3] with one of Pillow's methods."""
    if pixels.shape[:2] == (height, width):
        return pixels
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling(method))
    return np.asarray(image)


def crop(pixels: Pixels, height: int, width: int) -> Pixels:
    """The centre crop of an image."""
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]

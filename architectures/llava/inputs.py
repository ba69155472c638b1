"""LLaVA's inputs: square images, with one placeholder per patch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

import ostro
from ostro import Array, Item, content_key
from ostro.architectures.pixtral.inputs import Pictures
from ostro.architectures.siglip import pixels
from ostro.architectures.siglip.pixels import Floats, Pixels, Triple, check_area, check_shape


class Preprocessor(pixels.Preprocessor, frozen=True, kw_only=True):
    """The preprocessor settings, with CLIP's defaults; LLaVA's may pad images to squares first."""

    image_processor_type: str = "CLIPImageProcessor"
    image_mean: Triple = (0.48145466, 0.4578275, 0.40821073)
    image_std: Triple = (0.26862954, 0.26130258, 0.27577711)
    do_center_crop: bool = True

    @property
    def pads(self) -> bool:
        return self.do_pad and self.image_processor_type.startswith("LlavaImageProcessor")

    def __call__(self, pixels: Pixels) -> Floats:
        return super().__call__(square(pixels, self.image_mean) if self.pads else pixels)


PROCESSORS: Mapping[str, type[pixels.Preprocessor]] = {"SiglipImageProcessor": pixels.Preprocessor}
"""Settings with other defaults than LLaVA's, by image_processor_type."""


class Inputs(ostro.Inputs):
    """Images as items whose array is "pixels" [3, image_size, image_size] float32.

    Those of Pixtral's vision encoder have any size.
    """

    settings: ClassVar[type[pixels.Preprocessor]] = Preprocessor
    image_token: ClassVar[int] = 32000
    vision_type: ClassVar[str] = "clip_vision_model"
    image_size: ClassVar[int] = 224
    patch_size: ClassVar[int] = 32
    """The default of configs without the key."""

    @property
    def placeholders(self) -> Mapping[str, int]:
        return {"image": self.token("image", self.image_token)}

    def token(self, name: str, default: int) -> int:
        """The id of a token in the config, or `default`."""
        return int(self.raw.get(f"{name}_token_index", self.raw.get(f"{name}_token_id", default)))

    @property
    def vision(self) -> Mapping[str, Any]:
        return self.raw.get("vision_config") or {}

    @property
    def side(self) -> int:
        """The side of an image in pixels."""
        return int(self.vision.get("image_size", self.image_size))

    @property
    def across(self) -> int:
        """The patches of one row of an image."""
        return self.side // int(self.vision.get("patch_size", self.patch_size))

    @property
    def patches(self) -> int:
        """The patches of an image."""
        return self.across**2

    @property
    def rows(self) -> int:
        """The rows of an image's features: CLIP has a class token, "default" omits a row."""
        siglip = self.vision.get("model_type") == "siglip_vision_model"
        full = self.raw.get("vision_feature_select_strategy") == "full"
        return self.patches + full - siglip

    @cached_property
    def preprocessor(self) -> pixels.Preprocessor:
        path, stated = self.folder, self.raw.get("preprocessor_config")
        if not stated:
            path, stated = pixels.find(self.folder)
        found = self.settings_of(stated).of(stated, path)
        check_shape(found, self.folder, self.side)
        return found

    def settings_of(self, stated: Mapping[str, Any]) -> type[pixels.Preprocessor]:
        """The class of the settings of a file."""
        kind = str(stated.get("image_processor_type")).removesuffix("Fast").removesuffix("Pil")
        return PROCESSORS.get(kind, self.settings)

    @cached_property
    def pictures(self) -> Pictures:
        """The maker of items for Pixtral's vision encoder."""
        return Pictures(self.raw, self.folder, self.placeholders["image"], self.merge)

    @property
    def merge(self) -> int:
        """The side, in patches, of a cell that becomes one row, for Pixtral's vision encoder."""
        return 1

    @property
    def any_size(self) -> bool:
        """Whether the vision encoder is Pixtral's, whose images have any size."""
        return bool(self.vision.get("model_type", self.vision_type) == "pixtral")

    def image_tokens(self, width: int, height: int) -> int:
        return self.pictures.count_tokens(width, height) if self.any_size else self.rows

    def image(self, pixels: Pixels) -> Item:
        if self.any_size:
            return self.pictures.item(pixels)
        pad = self.placeholders["image"]
        return seen(self.preprocessor(pixels), 1 + self.patches, (pad,) * self.rows, pad)


def seen(
    pixels: np.ndarray[Any, Any], cost: int, tokens: tuple[int, ...], pad: int, **more: Any
) -> Item:
    """An image item; its rows replace the tokens equal to `pad`."""
    return Item(
        kind="image",
        key=content_key("pixels", pixels),
        arrays={"pixels": Array.of(pixels)},
        cost=cost,
        tokens=tokens,
        pad=pad,
        **more,
    )


def square(pixels: Pixels, mean: Triple) -> Pixels:
    """An image centred in a square of the mean colour."""
    height, width, _ = pixels.shape
    side = max(height, width)
    check_area(side, side)
    out = np.empty((side, side, 3), np.uint8)
    out[:] = [int(value * 255) for value in mean]
    top, left = (side - height) // 2, (side - width) // 2
    out[top : top + height, left : left + width] = pixels
    return out

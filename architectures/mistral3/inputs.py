"""Mistral 3's inputs: images of any size, with a placeholder per cell of patches.

Reference class PixtralProcessor of transformers.
"""

from __future__ import annotations

from typing import ClassVar

from ostro.architectures.llava import inputs as llava


class Inputs(llava.Inputs):
    image_token: ClassVar[int] = 10
    vision_type: ClassVar[str] = "pixtral"

    @property
    def merge(self) -> int:
        return int(self.raw.get("spatial_merge_size", 2))

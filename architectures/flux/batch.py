"""The row layout of FLUX's transformer: text and image rows of the images of one request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ostro import Step


@dataclass
class Batch:
    """The layout of n images with `text` and `image` rows each, the same in all denoising steps.

    positions [3, rows] are those of one image's text and image rows; there is a `Step` for each
    kind of rows.
    """

    n: int
    text: int
    image: int
    positions: Tensor
    one: Step
    texts: Step
    images: Step
    both: Step

    @classmethod
    def of(cls, step: Step, n: int, text: int, size: tuple[int, int], device: Any) -> Batch:
        """`step` has a row for each image; size is the packed image's height and width in rows."""
        height, width = size
        image = height * width
        places = torch.zeros(3, text + image, dtype=torch.int64, device=device)
        places[1, text:] = torch.arange(height, device=device).repeat_interleave(width)
        places[2, text:] = torch.arange(width, device=device).repeat(height)

        def rows(each: int) -> Step:
            index = torch.arange(n, device=device).repeat_interleave(each)
            return replace(step.rows(index), bounds=range(0, n * each + 1, max(each, 1)))

        positions = places.repeat(1, n)
        return cls(n, text, image, positions, rows(1), rows(text), rows(image), rows(text + image))

    def join(self, text: Tensor, image: Tensor) -> Tensor:
        """[n * text, ...] and [n * image, ...] -> [n * (text + image), ...], image by image."""
        parts = (x.unflatten(0, (self.n, -1)) for x in (text, image))
        return torch.cat(tuple(parts), 1).flatten(0, 1)

    def part(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """Invert `join`."""
        text, image = both.unflatten(0, (self.n, -1)).split((self.text, self.image), 1)
        return text.flatten(0, 1), image.flatten(0, 1)

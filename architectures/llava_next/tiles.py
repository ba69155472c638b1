"""The tiles of LLaVA-NeXT: an image is scaled to one of several resolutions and cut into squares.

Functions select_best_resolution, get_patch_output_size and unpad_image of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ostro.architectures.siglip.pixels import Pixels, resize

Size = tuple[int, int]
"""A height and a width."""


def best_resolution(size: Size, resolutions: Sequence[Size]) -> Size:
    """The resolution that keeps most pixels of an image, and of those the smallest."""
    height, width = size

    def rank(resolution: Size) -> tuple[int, int]:
        h, w = resolution
        scale = min(w / width, h / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return -kept, h * w - kept

    return min(resolutions, key=rank)


def scaled(size: Size, resolution: Size) -> Size:
    """The size of an image that is scaled to fit in a resolution."""
    (height, width), (h, w) = size, resolution
    across, down = w / width, h / height
    if across < down:
        return min(math.ceil(height * across), h), w
    return h, min(math.ceil(width * down), w)


def cut(pixels: Pixels, resolution: Size, side: int, method: int) -> Pixels:
    """The squares [n, side, side, 3] of an image, row by row, centred on black."""
    h, w = resolution
    height, width = scaled((pixels.shape[0], pixels.shape[1]), resolution)
    out = np.zeros((h, w, 3), np.uint8)
    top, left = (h - height) // 2, (w - width) // 2
    out[top : top + height, left : left + width] = resize(pixels, height, width, method)
    squares = out.reshape(h // side, side, w // side, side, 3)
    return squares.swapaxes(1, 2).reshape(-1, side, side, 3)


def padding(size: Size, grid: Size) -> Size:
    """Rows and columns on each side of a grid of patches that show no part of the image."""
    (height, width), (rows, columns) = size, grid
    if width / height > columns / rows:
        return (rows - int(round(height * (columns / width), 7))) // 2, 0
    return 0, (columns - int(round(width * (rows / height), 7))) // 2


def limited(grid: Size, patches: int) -> Size:
    """The size of a grid that is scaled down if it has many more patches than `patches`."""
    ratio = math.sqrt(grid[0] * grid[1] / patches)
    if ratio <= 1.1:
        return grid
    return max(1, int(grid[0] // ratio)), max(1, int(grid[1] // ratio))

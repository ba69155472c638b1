"""Keys and values quantized to one byte per element, with one scale per token and head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ostro.core.errors import InvalidTensor

SCALED_LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Element dtypes of quantized pages, and the largest magnitude used of each."""


@dataclass(slots=True, frozen=True)
class Scaled:
    """Quantized pages with one scale per token and head.

    elements [blocks, kv, block, d] int8 or float8_e4m3fn; scales [blocks, kv, block] float32, both
    contiguous after the first dimension. The value of an element is the element times its scale.
    """

    elements: Tensor
    scales: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.elements.dtype

    @property
    def shape(self) -> torch.Size:
        return self.elements.shape

    @property
    def bits(self) -> Tensor:
        """The elements as uint8: few operations support float8."""
        return self.elements.view(torch.uint8)


def parts_of(cache: Tensor | Scaled) -> tuple[Tensor, Tensor | None]:
    """Return the elements of a cache and their scales, None if it has none."""
    if isinstance(cache, Scaled):
        return cache.elements, cache.scales
    return cache, None


def stored_type(cache: Tensor | Scaled) -> torch.dtype | None:
    """The one-byte dtype of the elements of a scaled cache; None for floats without scales.

    Raises InvalidTensor for scaled elements of another dtype.
    """
    if not isinstance(cache, Scaled):
        return None
    if cache.dtype not in SCALED_LIMITS:
        known = " or ".join(map(str, SCALED_LIMITS))
        raise InvalidTensor(f"has scaled pages of {cache.dtype}, expected {known}")
    return cache.dtype


def narrow(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantize x [..., d] to elements [..., d] of `dtype` and scales [...] float32.

    A scale is the largest magnitude of its d elements over LIMITS[dtype]; elements are rounded to
    nearest, ties to even. If one of the d elements is infinite or NaN, the scale is NaN, so that
    all of them dequantize to NaN.
    """
    limit, x = SCALED_LIMITS[dtype], x.float()
    # x * 0 is NaN for Inf and NaN, else 0.
    scales = x.abs().amax(-1) / limit + (x * 0).sum(-1)
    units = torch.where(scales[..., None] > 0, x / scales[..., None], 0.0)
    units = units.clamp(-limit, limit)
    return (units.round() if dtype == torch.int8 else units).to(dtype), scales


def widen(elements: Tensor, scales: Tensor) -> Tensor:
    """Dequantize elements [..., d] with scales [...]: float32."""
    return elements.float() * scales[..., None]

"""Half-quadratic quantization: choose zeros for which the errors are small and sparse.

After Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (2023). The
scale s of a group is fixed by its range. The solver searches the zero z that minimises

    |w - s (q - z)|_p ^ p,    q = round(w / s + z) within the codes,    p < 1

by alternating two steps: e is the result of a shrinkage operator on w - s (q - z), and z is the
mean of q - (w - e) / s, so that outliers have little influence on z. In addition to the paper, a
group keeps the pair (s, z) with the least mean error of all iterations, and a few last iterations
fit both s and z to the codes by least squares.
"""

from __future__ import annotations

import torch
from torch import Tensor

POWER = 0.7
BETA = 10.0
BETA_GROWTH = 1.01
ITERATIONS = 6
"""The paper uses 20; those after the sixth improve the mean error by less than 0.2 %."""

FIT_ITERATIONS = 4
MAX_ZERO = 2048
"""Maximum distance of 0 from a group in steps: float16 represents all integers up to it."""

MIN_SCALE = 2.0**-24
CHUNK = {"cpu": 2**14, "cuda": 2**17}
"""Groups at a time: they fit the CPU's cache, and fill a GPU."""


def solve(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """weight [..., k] -> codes uint8 [..., k], scale and zero float16 [..., k / group].

    w = (code - zero) * scale approximately; k must be a multiple of `group`.
    """
    groups = weight.reshape(-1, group)
    chunks = groups.split(CHUNK[weight.device.type])
    found = [solve_groups(chunk.float(), 2**bits - 1) for chunk in chunks]
    codes, scale, zero = (torch.cat(parts) for parts in zip(*found, strict=True))
    shape = (*weight.shape[:-1], -1)
    return codes.view(weight.shape), scale.view(shape), zero.view(shape)


def solve_groups(weight: Tensor, max_code: int) -> tuple[Tensor, Tensor, Tensor]:
    """Groups float32 [m, g], codes 0..max_code -> codes [m, g], scale and zero float16 [m, 1]."""
    scale, zero = initial_parameters(weight, max_code)
    best = Best(weight, max_code)
    beta = BETA
    for _ in range(ITERATIONS):
        codes, error = best.update(scale, zero)
        zero = (codes - (weight - shrink(error, beta)) / scale).mean(-1, keepdim=True)
        beta *= BETA_GROWTH
    for _ in range(FIT_ITERATIONS):
        codes, _ = best.update(best.scale, best.zero)
        best.update(*fit(weight, codes, best.scale, best.zero))
    codes, _ = best.update(best.scale, best.zero)
    return codes.to(torch.uint8), best.scale.half(), best.zero.half()


class Best:
    """The scale and zero of each group, rounded to float16, with the least mean error so far."""

    def __init__(self, weight: Tensor, max_code: int) -> None:
        self.weight, self.max_code = weight, max_code
        self.least_error = torch.full_like(weight[:, :1], torch.inf)
        self.scale = self.zero = torch.zeros_like(self.least_error)

    def update(self, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
        """Codes and errors for a scale and zero; groups for which they are better keep them."""
        scale, zero = scale.half().float(), zero.half().float()
        codes = (self.weight / scale + zero).round_().clamp_(0, self.max_code)
        error = self.weight - (codes - zero) * scale
        mean = error.abs().mean(-1, keepdim=True)
        better = mean < self.least_error
        self.least_error = torch.where(better, mean, self.least_error)
        self.scale = torch.where(better, scale, self.scale)
        self.zero = torch.where(better, zero, self.zero)
        return codes, error


def initial_parameters(weight: Tensor, max_code: int) -> tuple[Tensor, Tensor]:
    """The scale and zero for which the codes span the range of each group."""
    low, high = weight.aminmax(dim=-1, keepdim=True)
    magnitude = torch.maximum(low.abs(), high.abs())
    scale = torch.maximum((high - low) / max_code, magnitude / MAX_ZERO)
    scale = scale.clamp_min(MIN_SCALE).half().float()
    return scale, -low / scale


def shrink(error: Tensor, beta: float) -> Tensor:
    """Shrink errors towards 0; small errors become 0."""
    size = error.abs()
    return error.sign() * (size - size.pow(POWER - 1) / beta).clamp_min_(0)


def fit(weight: Tensor, codes: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """Fit scale and zero to codes and weights by least squares; unchanged if degenerate."""
    code_mean, mean = codes.mean(-1, keepdim=True), weight.mean(-1, keepdim=True)
    centred = codes - code_mean
    slope = (centred * weight).sum(-1, keepdim=True) / centred.square().sum(-1, keepdim=True)
    fitted = code_mean - mean / slope
    valid = (slope > MIN_SCALE) & (fitted.abs() < MAX_ZERO)
    return torch.where(valid, slope, scale), torch.where(valid, fitted, zero)

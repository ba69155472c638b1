"""FLUX's noise schedule: rectified flow in Euler steps (Liu et al. 2022, Esser et al. 2024).

Reference class FlowMatchEulerDiscreteScheduler of diffusers, as its FluxPipeline calls it.
"""

from __future__ import annotations

import math

from ostro.architectures.flux.config import SchedulerConfig


def sigmas(config: SchedulerConfig, steps: int, rows: int) -> list[float]:
    """The share of noise before each of `steps` steps, and 0 after the last: steps + 1 numbers.

    rows: of the packed image. Dynamic shifting raises the noise levels of larger images.
    """
    even = [1 - i / steps for i in range(steps)]
    if config.use_dynamic_shifting:
        mu = shift_of(config, rows)
        factor = math.exp(mu) if config.time_shift_type == "exponential" else mu
    else:
        factor = config.shift
    return [shifted(sigma, factor) for sigma in even] + [0.0]


def shift_of(config: SchedulerConfig, rows: int) -> float:
    """The line through (base_image_seq_len, base_shift) and (max_image_seq_len, max_shift)."""
    span = config.max_image_seq_len - config.base_image_seq_len
    slope = (config.max_shift - config.base_shift) / span
    return config.base_shift + slope * (rows - config.base_image_seq_len)


def shifted(sigma: float, factor: float) -> float:
    """sigma within 0..1, moved towards 1 by a factor above 1."""
    return factor * sigma / (1 + (factor - 1) * sigma)

"""Apply penalties, logit biases and forbidden tokens to logits.

    penalize(logits, params) -> logits (in place)

logits [B, V] float32; `params` is a `Penalties`. For each token of a row: if it occurs in the
prompt or output, repetition r > 0 divides positive logits by r and multiplies negative ones (Keskar
et al. 2019); if it occurs in the output, presence is subtracted once and frequency once per
occurrence (OpenAI API reference). Then sparse amounts are added, in this order: DRY (oobabooga /
koboldcpp "don't repeat yourself": minus multiplier * base ** (match - allowed) for tokens that
would extend a repeated suffix; the caller finds the matches, on the host or device), logit_bias,
bans (-inf).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ostro.core.ops.choose import Kernel


@dataclass(slots=True)
class Penalties:
    """counts [B, V] int32: occurrences in the output; seen [B, V] bool: occurs in the prompt;
    repetition (neutral 1), presence (0), frequency (0) [B] float32; bias_rows, bias_ids [n] int64
    with bias_values [n] float32: sparse additions (logit_bias, DRY as negatives, bans as -inf)."""

    counts: Tensor | None
    seen: Tensor | None
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    bias_rows: Tensor
    bias_ids: Tensor
    bias_values: Tensor


KERNELS = (
    Kernel(
        name="triton", call=f"{__name__}.triton:penalize", devices=("cuda",), deterministic=True
    ),
    Kernel(name="naive", call=f"{__name__}.naive:penalize", deterministic=True),
)

"""Sample one token per row, with sampling parameters per row.

    sample(logits, params) -> tokens [B] int64

logits [B, V] float32, penalties and biases applied already; `params` a `Draw` of [B] tensors.
Order, as in vLLM and transformers: temperature, min_p, top_k, typical, top_p; then one uniform
number u(seed, position) is turned into a token through the inverse of the cumulative distribution,
tokens in id order. u depends on nothing but the row's seed and position, so a seeded request draws
the same tokens whatever else is in the batch. Tokens that are equal under a truncation stay or go
together. A temperature of 0 takes the largest logit (the lowest id of equals).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ostro.core.ops.choose import Kernel


@dataclass(slots=True)
class Draw:
    """Per-row parameters, all [B]. Neutral: temperature 1, top_k 0, top_p 1, min_p 0, typical 1.

    temperature, top_p, min_p, typical float32; top_k int32; seed, position int64. `greedy` (a host
    bool) says that every temperature is 0, `plain` that no row truncates: kernels may skip work.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    typical: Tensor
    seed: Tensor
    position: Tensor
    greedy: bool = False
    plain: bool = False


KERNELS = (
    Kernel(name="triton", call=f"{__name__}.triton:sample", devices=("cuda",), deterministic=True),
    Kernel(name="naive", call=f"{__name__}.naive:sample", deterministic=True),
)

"""Sample one token per row, with sampling parameters per row.

    sample(logits, params) -> tokens [B] int64

logits [B, V] float32, penalties and biases already applied; `params` is a `Draw` of [B] tensors.
Order, as in vLLM and transformers: temperature, min_p, top_k, typical, top_p; then a uniform number
u(seed, position) selects a token by the inverse of the cumulative distribution, tokens in id order.
u depends on the row's seed and position only, so a seeded request samples the same tokens in any
batch. A truncation keeps or drops tokens of equal score together. A temperature of 0 selects the
largest logit (of equal ones the lowest id). The token of a row with NaN, or whose largest logit is
not finite, is -1.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ostro.core.ops.choose import Kernel


@dataclass(slots=True)
class Draw:
    """Per-row parameters, all [B]. Neutral: temperature 1, top_k 0, top_p 1, min_p 0, typical 1.

    temperature, top_p, min_p, typical float32; top_k int32; seed, position int64. Host bools that
    let kernels skip work: `greedy` if every temperature is 0, `plain` if no row truncates.
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

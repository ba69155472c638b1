"""The gated delta rule over the rows of many sequences (Yang et al. 2024, transformers'
Qwen3NextGatedDeltaNet).

    delta_rule(q, k, v, b, a, rate, dt_bias, state, places) -> [T, hv, dv]

q and k [T, hk, dk], v [T, hv, dv], b and a [T, hv] are the rows of all sequences, sequence by
sequence, in one float dtype (views of wider rows, all but the first dimension contiguous); value
head i uses key head i // (hv // hk). rate (negative) and dt_bias [hv] float32. state [blocks, hv,
dk, dv] float32: `places` (a `StateLayout`) locates the state S before the first row of a sequence;
S is zero at the start of a sequence. The state after each row that has a block is saved to it; the
first of them may be the block before. For each row, in float32, with q and k normalised to length 1
(1e-6 under the root) and q then divided by sqrt(dk):

    S = exp(rate * softplus(a + dt_bias)) * S
    S = S + k (sigmoid(b) * (v - k^T S))^T
    y = q^T S

y is rounded once to v's dtype; it is zero for idle sequences.
"""

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(name="triton", call=f"{__name__}.triton:delta_rule", devices=("cuda",)),
    Kernel(
        name="triton_deterministic",
        call=f"{__name__}.triton:delta_rule_deterministic",
        devices=("cuda",),
        deterministic=True,
    ),
    Kernel(
        name="native",
        call=f"{__name__}.native:delta_rule",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:delta_rule", deterministic=True),
)

"""Attention within concatenated sequences, without a cache: encoders and vision towers.

    varlen_attention(q, k, v, bounds, scale, window=0, causal=False) -> [T, h, dv]

q [T, h, d], k [T, kv, d], v [T, kv, dv], strided views allowed; h is a multiple of kv; bounds:
B + 1 ints on the host, sequence s has rows bounds[s]..bounds[s + 1]. Each row attends to its own
sequence: to all rows, or if `causal` to itself and earlier rows; if window > 0, only to those less
than `window` rows away. Scores are q.k * scale; the softmax is float32; the output has q's dtype.
"""

from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(name="sdpa", call=f"{__name__}.sdpa:varlen_attention"),
    Kernel(name="naive", call=f"{__name__}.naive:varlen_attention", deterministic=True),
)

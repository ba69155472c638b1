"""Attention within concatenated sequences, without a cache: encoders and vision towers.

    varlen_attention(q, k, v, bounds, scale, window=0, causal=False) -> [T, h, dv]

q [T, h, d], k [T, kv, d], v [T, kv, dv], strided views allowed; h is a multiple of kv; bounds:
B + 1 ints on the host, sequence s has rows bounds[s]..bounds[s + 1]. Each row sees its own
sequence: all of it, or only rows no later than itself (`causal`), and of these only those less than
`window` rows away where window > 0. Scores are q.k * scale; softmax in float32; output in q's
dtype.
"""

from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(name="sdpa", call=f"{__name__}.sdpa:varlen_attention"),
    Kernel(name="naive", call=f"{__name__}.naive:varlen_attention", deterministic=True),
)

"""The activation of a gated MLP: act(gate) * up, from fused [gate | up] rows.

    act_mul(x, act) -> [..., n]

x [..., 2n] float, gate first; act is "silu", "gelu" (erf), "gelu_tanh" or "relu". Computed in
float32 and rounded once to x's dtype.
"""

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(name="triton", call=f"{__name__}.triton:act_mul", devices=("cuda",), deterministic=True),
    Kernel(
        name="native",
        call=f"{__name__}.native:act_mul",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:act_mul", deterministic=True),
)

"""Operations, each with a naive reference kernel in plain torch, a Triton and a native kernel.

One folder per operation. Its `__init__.py` documents shapes and units and lists its `KERNELS`.
`naive.py`, `triton.py`, `native.py` (with `native.cpp`) and `cpu.py` (stock torch operations)
implement functions of the same signature. A module has an `Op`, which selects its kernel once, at
load; a call has no dispatch overhead.
"""

from ostro.core.ops.choose import Choice, Fused, Kernel, Op, Target

__all__ = ["Choice", "Fused", "Kernel", "Op", "Target"]

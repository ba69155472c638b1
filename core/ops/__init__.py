"""Operations: for each a naive twin that is the truth, a Triton kernel, and a native one.

One folder per op. Its `__init__.py` documents shapes and units in the wrapper's docstring and
lists its `KERNELS`; `naive.py`, `triton.py` and `native.py` (over `native.cpp`; `cpu.py` where
stock operations are fast) hold functions of that same signature.
A module holds an `Op`, which selects its kernel once, at load; a call only calls it.
"""

from ostro.core.ops.choose import Choice, Fused, Kernel, Op, Target

__all__ = ["Choice", "Fused", "Kernel", "Op", "Target"]

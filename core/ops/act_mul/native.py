"""The gated activation on CPU in C++, in one pass."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.core.errors import ConfigError, nearest
from ostro.core.native import ADDRESS, INT, Arg, Signature, functions, load

ACT_MUL = functions(
    load(Path(__file__).with_suffix(".cpp")), "act_mul", ADDRESS, INT, INT, INT, ADDRESS
)
SIGNATURE = Signature(
    "act_mul",
    {"an even width": lambda n: n["width"] > 0 and n["width"] % 2 == 0},
    x=Arg("... width"),
)
ACTS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}


def act_mul(x: Tensor, act: str) -> Tensor:
    """See the package. Raises ConfigError on an unknown activation."""
    if act not in ACTS:
        known = ", ".join(ACTS)
        raise ConfigError(
            f"hidden_act={act!r} is not supported{nearest(act, ACTS)}; expected one of {known}"
        )
    x = x.contiguous()
    SIGNATURE(x)
    n = x.shape[-1] // 2
    y = torch.empty((*x.shape[:-1], n), dtype=x.dtype)
    ACT_MUL[x.dtype](x.data_ptr(), y.numel() // n, n, ACTS[act], y.data_ptr())
    return y

"""The gated activation in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.core.errors import ConfigError, nearest

ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": torch.relu,
}


def act_mul(x: Tensor, act: str) -> Tensor:
    """See the package. Raises ConfigError on an unknown activation."""
    if act not in ACTS:
        known = ", ".join(ACTS)
        raise ConfigError(
            f"hidden_act={act!r} is not supported{nearest(act, ACTS)}; expected one of {known}"
        )
    gate, up = x.float().chunk(2, dim=-1)
    return (ACTS[act](gate) * up).to(x.dtype)

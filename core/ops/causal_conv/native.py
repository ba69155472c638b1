"""Short causal convolution on CPU in C++: parallel over sequences and tiles of channels."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, INT, Arg, Signature, functions, load
from ostro.core.ops.causal_conv import naive
from ostro.core.ops.state_layout import StateLayout

P, N = ADDRESS, INT
KINDS = (P, N, N, P, N, P, P, N, P, P, P, N, P)
CAUSAL_CONV = functions(load(Path(__file__).with_suffix(".cpp")), "causal_conv", *KINDS)
WIDEST = 16  # widest filter of native.cpp, which has a fixed array of taps
SIGNATURE = Signature(
    "causal_conv",
    weight=Arg("channels width", torch.float32),
    bias=Arg("channels", torch.float32, optional=True),
    state=Arg("blocks channels width-1", torch.float32),
    before=Arg("sequences", torch.int64),
    starts=Arg("sequences+1", torch.int64),
    saved=Arg("rows", torch.int64),
    x=Arg("rows channels", strided="rows"),
)


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    places: StateLayout,
    act: str = "",
) -> Tensor:
    """See the package. The channels of a row are contiguous; above WIDEST the naive kernel runs."""
    channels, width = weight.shape
    if width > WIDEST:
        return naive.causal_conv(x, weight, bias, state, places, act)
    where = places.before, places.starts, places.saved
    SIGNATURE(weight, bias, state, *where, x)
    out = torch.empty(x.shape, dtype=x.dtype)
    CAUSAL_CONV[x.dtype](
        x.data_ptr(),
        x.stride(0),
        channels,
        weight.data_ptr(),
        width,
        None if bias is None else bias.data_ptr(),
        state.data_ptr(),
        len(places.before),
        places.starts.data_ptr(),
        places.before.data_ptr(),
        places.saved.data_ptr(),
        act == "silu",
        out.data_ptr(),
    )
    return out

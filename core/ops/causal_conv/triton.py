"""Short causal convolution in Triton: one launch computes the rows, a second updates the states.

A program computes ROWS rows of CHANNELS channels. Rows are independent: each reads the rows before
it from x or from the state of its sequence. The second launch overwrites states only after all
rows have read them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.rows import check_contiguous
from ostro.core.ops.state_layout import SAVED_ROWS, StateLayout

ROWS, CHANNELS = 4, 256
SEQUENCES = 128  # starts of sequences compared at a time


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    places: StateLayout,
    act: str = "",
) -> Tensor:
    """See the package. The states' blocks are contiguous."""
    check_contiguous("causal_conv", weight=weight, bias=bias)
    rows, channels = x.shape
    width, sequences = weight.shape[1], len(places.before)
    out = torch.empty((rows, channels), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    tile = min(CHANNELS, triton.next_power_of_2(channels))
    tiles = triton.cdiv(channels, tile)
    causal_conv_kernel[(triton.cdiv(rows, ROWS), tiles)](
        x,
        weight,
        bias,
        state,
        places.starts,
        places.before,
        places.saved,
        out,
        rows,
        channels,
        sequences,
        *x.stride(),
        state.stride(0),
        SILU=act == "silu",
        WIDTH=width,
        ROWS=ROWS,
        CHANNELS=tile,
        SEQUENCES=SEQUENCES,
    )
    move_states_kernel[(sequences, tiles)](
        x,
        state,
        places.starts,
        places.before,
        places.saved,
        channels,
        *x.stride(),
        state.stride(0),
        SAVED_ROWS=SAVED_ROWS,
        PAST=width - 1,
        COLUMNS=triton.next_power_of_2(max(1, width - 1)),
        CHANNELS=tile,
    )
    return out


@triton.jit(do_not_specialize=["rows", "sequences"])
def causal_conv_kernel(
    x,
    weight,
    bias,
    state,
    starts,
    before,
    saved,
    out,
    rows,
    channels,
    sequences,
    x_row,
    x_step,
    state_block,
    SILU: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    SEQUENCES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    real = row < rows
    owner = owner_of(row, starts, sequences, ROWS, SEQUENCES)
    owner = tl.where(real, owner, 0)
    first = tl.load(starts + owner)
    old = tl.load(before + owner)
    # Without the mask, padding would read in front of `saved` if the first sequence has no rows.
    idle = tl.load(saved + tl.load(starts + owner + 1) - 1, mask=real, other=-1) < 0
    mask = real[:, None] & (c < channels)[None, :]
    sum = tl.zeros((ROWS, CHANNELS), tl.float32)
    if bias is not None:
        sum += tl.load(bias + c, mask=c < channels, other=0.0)[None, :]
    for j in tl.static_range(WIDTH):
        t = row - (WIDTH - 1) + j
        inside = mask & (t >= first)[:, None]
        here = tl.load(x + t[:, None] * x_row + c[None, :] * x_step, mask=inside, other=0.0)
        column = (t - first + (WIDTH - 1))[:, None]
        there = tl.load(
            state + old[:, None] * state_block + c[None, :] * (WIDTH - 1) + column,
            mask=mask & (t < first)[:, None] & (old >= 0)[:, None],
            other=0.0,
        )
        tap = tl.load(weight + c * WIDTH + j, mask=c < channels, other=0.0)
        sum += (here.to(tl.float32) + there) * tap[None, :]
    if SILU:
        sum = sum / (1.0 + tl.exp(-sum))
    sum = tl.where(idle[:, None], 0.0, sum)
    target = out + row[:, None] * channels + c[None, :]
    tl.store(target, sum.to(out.dtype.element_ty), mask=mask)


@triton.jit
def owner_of(row, starts, sequences, ROWS: tl.constexpr, SEQUENCES: tl.constexpr):
    """The sequence of each row: the number of sequences that end at or before it."""
    owner = tl.zeros((ROWS,), tl.int64)
    for s in range(0, sequences, SEQUENCES):
        ends = s + tl.arange(0, SEQUENCES)
        # Padding lanes end at the largest int64, after every row.
        end = tl.load(starts + 1 + ends, mask=ends < sequences, other=9223372036854775807)
        owner += tl.sum((end[None, :] <= row[:, None]).to(tl.int64), 1)
    return owner


@triton.jit
def move_states_kernel(
    x,
    state,
    starts,
    before,
    saved,
    channels,
    x_row,
    x_step,
    state_block,
    SAVED_ROWS: tl.constexpr,
    PAST: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    s = tl.program_id(0)
    old = tl.load(before + s)
    first = tl.load(starts + s)
    rows = tl.load(starts + s + 1) - first
    c = (tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS))[:, None]
    column = tl.arange(0, COLUMNS)[None, :].to(tl.int64)
    mask = (c < channels) & (column < PAST)
    oldest = tl.where(old >= 0, -PAST, 0)  # the first row of the old state, if there is one
    # The last row first: the first one may be saved to the block that holds the old state.
    for back in range(tl.minimum(rows, SAVED_ROWS)):
        row = rows - 1 - back
        block = tl.load(saved + first + row)
        if block >= 0:
            t = row + 1 - PAST + column
            here = tl.load(x + (first + t) * x_row + c * x_step, mask=mask & (t >= 0), other=0.0)
            there = tl.load(
                state + old * state_block + c * PAST + (t + PAST),
                mask=mask & (t < 0) & (t >= oldest),
                other=0.0,
            )
            tl.debug_barrier()  # all threads have read before one stores
            value = here.to(tl.float32) + there
            tl.store(state + block * state_block + c * PAST + column, value, mask=mask)

"""Quantizing float weights to ggml blocks, with the scales and codes of least squared error."""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.checkpoints import GGML_BY_NAME
from ostro.errors import CheckpointError, Unsupported
from ostro.quant.gguf import blocks
from ostro.quant.gguf.schemes import FORMATS
from ostro.quant.gguf.search import search

CHUNK = {"cpu": 1 << 17, "cuda": 1 << 22}
"""Weights that are quantized at a time. Intermediate results stay in the CPU's cache; on a GPU the
search launches a thousand kernels for each chunk, and fewer weights do not fill it.
"""

UNIMPORTANT = 1e-6
"""The least importance, as a fraction of the mean: unimportant weights still get good codes."""


@torch.no_grad()
def quantize(weight: Tensor, format: str, importance: Tensor | None = None) -> Tensor:
    """Pack float weights [n, k] into rows of `format`'s blocks, uint8 [n, bytes per row].

    importance: float [k], for instance the mean squares of the inputs of the columns;
    it weights the squared errors. Weights beyond what the scales can hold become the largest that
    they can. Raises Unsupported for a format that is not in `FORMATS` and where k is no multiple
    of its block, CheckpointError for numbers that are not finite and importances below 0.
    """
    if format not in FORMATS:
        raise Unsupported(f"weights cannot be quantized to {format}, only to {', '.join(FORMATS)}")
    (n, k), kind = weight.shape, GGML_BY_NAME[format]
    if k % kind.block:
        raise Unsupported(
            f"rows of {k} weights cannot be quantized to {format}, whose blocks have {kind.block}; "
            "choose a format with smaller blocks or leave the weight as it is"
        )
    rows = weight.reshape(-1, kind.block)
    w = None
    if importance is not None:
        w = relative(importance, k).to(weight.device).view(-1, kind.block)
    out = torch.empty(len(rows), kind.nbytes, dtype=torch.uint8, device=weight.device)
    step = CHUNK[weight.device.type] // kind.block
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step].float()
        refuse_infinite(chunk, start, k)
        at = torch.arange(start, start + len(chunk), device=weight.device)
        mine = None if w is None else w[at % len(w)]
        out[start : start + step] = encode(format, chunk, mine)
    return out.view(n, kind.row_bytes(k))


def relative(importance: Tensor, k: int) -> Tensor:
    """Importances as fractions of their mean, float32."""
    if importance.shape != (k,):
        raise CheckpointError(
            f"an importance has shape {list(importance.shape)}, expected [{k}]; it belongs to "
            "another model or tensor; quantize without it"
        )
    w = importance.double()
    if not bool((w.isfinite() & (w >= 0)).all()):
        raise CheckpointError(
            "an importance has values that are negative, NaN or Inf; measure it again, or quantize "
            "without it"
        )
    mean = w.mean()
    return (w / mean).clamp(min=UNIMPORTANT).float() if mean > 0 else torch.ones_like(w).float()


def refuse_infinite(rows: Tensor, start: int, k: int) -> None:
    """Raise CheckpointError for NaN or Inf in `rows`, the blocks from `start` on of a weight with k
    columns.
    """
    if bool(rows.isfinite().all()):
        return
    at = int((~rows.isfinite()).flatten().nonzero()[0])
    row, column = divmod(start * rows.shape[1] + at, k)
    raise CheckpointError(
        f"the weight in row {row}, column {column} is {rows.flatten()[at].item()}, which cannot be "
        "quantized; download or convert the checkpoint again, or leave this tensor as it is"
    )


def encode(format: str, rows: Tensor, w: Tensor | None) -> Tensor:
    """Blocks of weights and importances [b, weights per block] as bytes [b, bytes per block]."""
    scheme = FORMATS[format]

    def columns(values: Tensor) -> Tensor:
        return values.unflatten(1, (scheme.groups, -1)).permute(2, 1, 0).contiguous()

    rows = rows.clamp(*scheme.range)
    exponent = torch.frexp(rows.abs().amax(1)).exponent.clamp(-100, 127)
    unit = torch.ldexp(torch.ones_like(rows[:, 0]), exponent)
    x = columns(rows / unit[:, None])
    (d, s, m, t), q = search(x, None if w is None else columns(w), unit, scheme)
    levels = [each.to(torch.int16) for each in (q.permute(2, 1, 0).flatten(1), s.t(), t.t())]
    codes = blocks.Codes(levels[0], d * unit, levels[1], m * unit, levels[2])
    return blocks.write(format, codes)

"""Ostro's linears, embeddings, head and attention with the call signatures of transformers.

transformers calls `linear(x)` with x [1, T, k]; ostro's modules are called `(x, step)` with
x [T, k]. `Call` alone binds the step to them, for one call of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ostro import CacheSpec, Step, nn
from ostro.errors import Unsupported
from ostro.ops import Op, attention, kv_write


class Call:
    """The state of one call of the model: its step, and the hidden states for its head.

    `first` is the position of the first token.
    """

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.step: Step | None = None
        self.hidden: Tensor | None = None

    @contextmanager
    def bound(self, step: Step | None, hidden: Tensor | None = None) -> Iterator[None]:
        self.step, self.hidden = step, hidden
        try:
            yield
        finally:
            self.step = self.hidden = None

    @property
    def positions(self) -> Tensor:
        """The positions of the rows [1, T] int64."""
        assert self.step is not None, "a module of a body is called outside of the body"
        return self.step.positions[:1] + self.first

    def of_rows(self, count: int) -> Step:
        """The step, for a module that is called with `count` rows.

        Raises Unsupported if these are not the rows of the step and some rows have adapters.
        """
        assert self.step is not None, "a module of a body is called outside of the body"
        mixture = self.step.mixture
        # the mixture has one entry per row, so other rows cannot be matched to adapters
        if mixture is not None and len(mixture) != count:
            raise Unsupported(
                f"an adapter on this model: its transformers class hands a linear {count} rows "
                f"where the batch has {len(mixture)}; it wants a plugin"
            )
        return self.step


class Linear(nn.Linear):
    """A linear called without the step: x [..., k] -> [..., n]. For a meta tensor, the result is a
    meta tensor.
    """

    call: Call

    def forward(self, x: Tensor, step: Step | None = None) -> Tensor:
        if x.is_meta:
            return x @ x.new_empty(self.n_in, self.n_out)
        rows = x.flatten(0, -2)
        return super().forward(rows, self.call.of_rows(len(rows))).unflatten(0, x.shape[:-1])


class Head(Linear, nn.Head):
    """A head called without the step, with exactly the rows of the bound step."""


class Embedding(nn.Embedding):
    """An embedding called without the step: ids [...] -> [..., d]. For meta ids, the result is a
    float32 meta tensor.
    """

    call: Call

    def forward(self, ids: Tensor, step: Step | None = None) -> Tensor:
        if ids.is_meta:
            return ids.new_empty(*ids.shape, self.d, dtype=torch.float32)
        rows = ids.flatten()
        return super().forward(rows, self.call.of_rows(len(rows))).unflatten(0, ids.shape)


class ScaledEmbedding(Embedding):
    """An embedding whose rows are multiplied by `scale`, rounded to their dtype if `rounded`."""

    def __init__(self, n: int, d: int, *, scale: float, rounded: bool) -> None:
        super().__init__(n, d)
        self.scale, self.rounded = scale, rounded

    def forward(self, ids: Tensor, step: Step | None = None) -> Tensor:
        rows = super().forward(ids, step)
        # a 0-dimensional tensor of the rows' dtype, filled on their device, without a copy
        return rows * (rows.new_full((), self.scale) if self.rounded else self.scale)


class ExpertLinear(nn.ExpertLinear):
    """The stacked linears of experts, called without the step."""

    call: Call


class PagedCache(nn.CachedLayer):
    """The K/V cache of one attention module of the model, and the attention to it."""

    def __init__(self, layer: int, spec: CacheSpec, call: Call) -> None:
        super().__init__()
        self.layer, self.remembered, self.call = layer, spec, call
        self.write = Op(kv_write.KERNELS)
        self.attend = Op(attention.KERNELS, head_dim=spec.key_dim, window=spec.window)

    @property
    def spec(self) -> CacheSpec:
        return self.remembered

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float, **options: Any) -> Tensor:
        """q [1, h, T, d], k [1, kv, T, d], v [1, kv, T, dv] -> [1, T, h, dv]."""
        assert self.call.step is not None, "a body's attention is called outside of the body"
        pages = self.call.step.caches[self.layer]
        q, k, v = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
        self.write(k, v, pages.k, pages.v, pages.batch.slots)
        window = self.remembered.window
        y: Tensor = self.attend(q, pages.k, pages.v, pages.batch, scale, window=window, **options)
        return y[None]


MEMORY = "ostro_memory"
"""The attribute of an attention module with its cache."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """The function for transformers' attention interface. The trial has checked other arguments."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    memory = module.get_submodule(MEMORY)
    return memory(query, key, value, scale, softcap=softcap or 0.0, sinks=s_aux), None

"""What takes the places of a body's modules: ours, called as transformers calls its own.

transformers calls `linear(x)` with x [1, T, k]; ours are called `(x, step)` with x [T, k]. The step
is bound to them for the length of one call of the body, by `Call` alone.
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
    """What holds for one call of a body: its step, and hidden states that go to its head."""

    def __init__(self) -> None:
        self.step: Step | None = None
        self.hidden: Tensor | None = None

    @contextmanager
    def bound(self, step: Step, hidden: Tensor | None = None) -> Iterator[None]:
        self.step, self.hidden = step, hidden
        try:
            yield
        finally:
            self.step = self.hidden = None

    def of_rows(self, count: int) -> Step:
        """The step, for a module that sees `count` rows.

        Raises Unsupported where these are not the step's and adapters apply to some of them.
        """
        assert self.step is not None, "a module of a body is called outside of the body"
        mixture = self.step.mixture
        if mixture is not None and len(mixture) != count:
            raise Unsupported(
                f"an adapter on this model: its transformers class hands a linear {count} rows "
                f"where the batch has {len(mixture)}; it wants a plugin"
            )
        return self.step


class Linear(nn.Linear):
    """Called with x [..., k] alone -> [..., n]. A meta tensor asks for the shape only."""

    call: Call

    def forward(self, x: Tensor, step: Step | None = None) -> Tensor:
        if x.is_meta:
            return x @ x.new_empty(self.n_in, self.n_out)
        rows = x.flatten(0, -2)
        return super().forward(rows, self.call.of_rows(len(rows))).unflatten(0, x.shape[:-1])


class Head(Linear, nn.Head):
    """Called with the wanted rows alone: the step it is bound to has no others."""


class Embedding(nn.Embedding):
    """Called with ids [...] alone -> [..., d]. Meta ids ask for the shape only, in float32."""

    call: Call

    def forward(self, ids: Tensor, step: Step | None = None) -> Tensor:
        if ids.is_meta:
            return ids.new_empty(*ids.shape, self.d, dtype=torch.float32)
        rows = ids.flatten()
        return super().forward(rows, self.call.of_rows(len(rows))).unflatten(0, ids.shape)


class PagedCache(nn.CachedLayer):
    """The keys and values of one attention module of a body, and the attention to them."""

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
"""The name under which an attention module finds its memory."""


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
    """transformers' attention interface. What else it passes, the trial has looked at."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    memory = module.get_submodule(MEMORY)
    return memory(query, key, value, scale, softcap=softcap or 0.0, sinks=s_aux), None

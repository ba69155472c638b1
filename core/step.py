"""The `Step`: the inputs of one forward pass over a flat batch, decode and prefill rows mixed.

Every module with weights gets the step as an argument. No global context or module attribute has
any state of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The progress of a job after one slice, `done` of `total`.

    `arrays` are a preview, or the result in the last slice.
    """

    done: int
    total: int
    arrays: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Features:
    """Encoder outputs of images or sound, which replace placeholder embeddings.

    values [n, d]; rows [n] int64: the step's rows that they replace; levels: further [n, d] tensors
    that are added to the same rows after the first decoder layers (Qwen3-VL's deepstack).
    """

    values: Tensor
    rows: Tensor
    levels: Sequence[Tensor] = ()


@dataclass(slots=True)
class Medium:
    """An image, a video or a sound on the device: the arrays from its architecture's inputs.

    Floating arrays have the model's dtype, all others their own.
    """

    kind: str
    arrays: Mapping[str, Tensor]


@dataclass(slots=True)
class Step:
    """The inputs of the T rows of one forward pass.

    tokens [T] int64; positions [c, T] int64, c = 1, or 3 for multimodal rope; caches: per layer the
    `view` of its cache kind; mixture [T] int32, or [1] for all rows: the row of the adapters'
    mixture table that applies (0 = base alone), or None if no row has adapters; features: see
    `Features`; logits_indices [W] int64: the rows whose logits or hidden states are needed, or
    None for all; bounds: the first row of each sequence, and T, for models without a cache, whose
    rows attend to all of their sequence.
    """

    tokens: Tensor
    positions: Tensor
    caches: Sequence[Any] = ()
    mixture: Tensor | None = None
    features: Features | None = None
    logits_indices: Tensor | None = None
    bounds: Sequence[int] = ()

    def rows(self, index: Tensor) -> Step:
        """The step of other rows: those of `index` [R] int64, in that order.

        A module that selects or reorders rows before a linear (the head, experts, a vision tower)
        passes this step on. Only the mixture is kept; all else belongs to the original rows.
        """
        if self.mixture is None:
            return ROWS
        same = len(self.mixture) == 1
        return replace(ROWS, mixture=self.mixture if same else self.mixture[index])


ROWS = Step(tokens=None, positions=None)  # type: ignore[arg-type]
"""A step for linears alone, without adapters; it has no tokens."""

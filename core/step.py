"""One forward pass over a flat batch: the rows of many sequences, decode and prefill mixed.

The `Step` is handed explicitly to every module that holds weights. Nothing about a batch lives
anywhere else: no global context, no attribute poked into a module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor


@dataclass(slots=True)
class Features:
    """What encoders made of images or sound, to take the place of placeholder embeddings.

    values [n, d]; rows [n] int64: the step's rows they replace; levels: further [n, d] tensors that
    are added to the same rows after the first decoder layers (Qwen3-VL's deepstack).
    """

    values: Tensor
    rows: Tensor
    levels: Sequence[Tensor] = ()


@dataclass(slots=True)
class Medium:
    """An image, a video or a sound on the device: the arrays that its architecture's inputs made.

    Floating arrays come in the model's dtype, all others as they are.
    """

    kind: str
    arrays: Mapping[str, Tensor]


@dataclass(slots=True)
class Step:
    """What the T rows of one pass need.

    tokens [T] int64; positions [c, T] int64, c = 1, or 3 for multimodal rope; caches: per layer
    what its cache kind's `view` gives; mixture [T] int32, or [1] for all rows: which row of the
    adapters' mixture table applies (0 = base alone), or None when no row has any; features: see
    `Features`; wanted [W]
    int64: the rows whose logits or hidden states are asked for, or None for all; bounds: for models
    without a cache, whose rows see all of their sequence: where each sequence begins, and T.
    """

    tokens: Tensor
    positions: Tensor
    caches: Sequence[Any] = ()
    mixture: Tensor | None = None
    features: Features | None = None
    wanted: Tensor | None = None
    bounds: Sequence[int] = ()

    def rows(self, index: Tensor) -> Step:
        """What linears see of the step for other rows: those of `index` [R] int64, in that order.

        Whoever changes the rows that a linear sees (the head, experts, a tower) hands this on. All
        but the mixture belongs to the original rows and is left behind.
        """
        if self.mixture is None:
            return ROWS
        same = len(self.mixture) == 1
        return replace(ROWS, mixture=self.mixture if same else self.mixture[index])


ROWS = Step(tokens=None, positions=None)  # type: ignore[arg-type]  # no row has anything to say

"""What the engine asks of a model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import Module

from ostro.core.step import Step


class Model(Module):
    """The base of every architecture's model.

    The engine calls `hidden` and `logits`, and `encode` where there are media; nothing else.
    `layers` names the lists of layers, for placement, offload and per-layer measurements.
    """

    layers: ClassVar[tuple[str, ...]] = ("model.layers",)

    @abstractmethod
    def embed(self, step: Step) -> Tensor:
        """Embeddings of the step's rows, features put in their places: [T, d]."""

    @abstractmethod
    def hidden(self, step: Step) -> Tensor:
        """The last hidden states, after the final norm: [T, d]."""

    @abstractmethod
    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """hidden [T, d] -> [W, vocab]: logits of the wanted rows (all where none are named)."""

    def encode(self, items: Any, step: Step) -> Any:
        """Features of media items; only models that take media have it."""
        raise NotImplementedError(f"{type(self).__module__} takes no media")

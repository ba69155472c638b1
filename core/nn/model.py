"""The faces of a model: the methods that the engine calls for tokens, encodings and jobs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor
from torch.nn import Module

from ostro.core.step import Medium, Step

if TYPE_CHECKING:
    from ostro.core.engine.jobs import Slice
    from ostro.core.engine.request import JobRequest


class Model(Module):
    """The base of every architecture's model; derive from one of the three faces below.

    `layers` names the lists of layers, for placement, offload and per-layer measurements; `axes` is
    the number of positions of a token (3 for multimodal rope).
    `origin` is the architecture and its plugin in words, for errors; the loader sets it.
    """

    layers: ClassVar[tuple[str, ...]] = ("model.layers",)
    axes: ClassVar[int] = 1
    origin: str = "unknown architecture"

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Per medium its features [n, d], followed by further levels [n, d].

        Features replace the embeddings of the medium's placeholder rows; a level is added to the
        same rows after a decoder layer (`Features.levels`). Media that layers read through a cross
        cache give their states [length, d] instead. Raises NotImplementedError for a model without
        media.
        """
        raise NotImplementedError(f"{type(self).__module__} takes no media")

    def remember(self, states: Tensor, step: Step) -> None:
        """Write the cross caches of `step` for encoder states [T, d] of one medium or several."""
        raise NotImplementedError(f"{type(self).__module__} has no cross cache")


class EncoderModel(Model):
    """A model whose hidden states are the result: embeddings, or scores of a classifier."""

    @abstractmethod
    def embed(self, step: Step) -> Tensor:
        """Embeddings of the step's rows, features of media included: [T, d]."""

    @abstractmethod
    def hidden(self, step: Step) -> Tensor:
        """The last hidden states, after the final norm: [T, d]."""

    def scores(self, hidden: Tensor, step: Step) -> Tensor:
        """hidden [T, d] -> scores [inputs, labels]. Raises NotImplementedError without a head."""
        raise NotImplementedError(f"{type(self).__module__} has no classification head")


class TokenModel(EncoderModel):
    """A model that generates tokens. Its hidden states can serve as embeddings as well."""

    @abstractmethod
    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """hidden [T, d] -> [W, vocab]: logits of the wanted rows (all where none are named)."""


class JobModel(Model):
    """A model that answers a request in bounded slices of work: images, speech."""

    @abstractmethod
    def work(self, request: JobRequest, step: Step) -> Iterator[Slice]:
        """The slices of a job; the last one carries the result. `step` serves all its rows.

        Raises RequestError, before the first slice, for a request that cannot be computed.
        """

"""Base classes of models: the methods that the engine calls for tokens, encodings and jobs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor
from torch.nn import Module

from ostro.core.step import ROWS, Medium, Step

if TYPE_CHECKING:
    from ostro.core.messages.requests import JobRequest
    from ostro.core.step import Slice


class Model(Module):
    """The base of every architecture's model; derive from one of the three classes below.

    layers  paths of the lists of layers, for placement, offload and per-layer measurements
    axes    positions per token (3 for multimodal rope)
    origin  the architecture and its plugin, for error messages; the loader sets it
    """

    layers: ClassVar[tuple[str, ...]] = ("model.layers",)
    axes: ClassVar[int] = 1
    origin: str = "unknown architecture"

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Encode media: for each its features [n, d], followed by optional levels [n, d].

        Features replace the embeddings of the medium's placeholder rows. A level is added to the
        same rows after a decoder layer (`Features.levels`). For media in a cross cache, the result
        is the encoder states [length, d]. Raises NotImplementedError for a model without media.
        """
        raise NotImplementedError(f"{type(self).__module__} does not support media")

    def write_states(self, states: Tensor, step: Step) -> None:
        """Write the encoder states [T, d] of one or several media to the cross caches of `step`."""
        raise NotImplementedError(f"{type(self).__module__} has no cross cache")


class EncoderModel(Model):
    """A model whose hidden states are the result: embeddings, or scores of a classifier."""

    @abstractmethod
    def embed(self, step: Step) -> Tensor:
        """Embeddings of the step's rows, with the features of media: [T, d]."""

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
        """hidden [T, d] -> [W, vocab]: logits of the rows `step.logits_indices`, or of all rows."""


class MultiTokenHead(Module):
    """A head of a checkpoint that proposes tokens (multi-token prediction, MTP).

    Its first pass reads, for token i of a sequence, the hidden states of the model and the
    embedding of token i + 1, and predicts token i + 2. Further passes read its own hidden states in
    place of the model's. Its layers have the next indices after those of the model. In the tree of
    the model it is `mtp`.
    """

    @abstractmethod
    def forward(self, embeddings: Tensor, hidden: Tensor, step: Step) -> Tensor:
        """embeddings [T, d] of the next tokens, hidden states [T, d] of the model, after its final
        norm, or of this head -> hidden states [T, d].
        """

    def logits(self, model: TokenModel, hidden: Tensor) -> Tensor:
        """hidden states [T, d] of this head -> logits [T, vocab]; by default those of the model's
        own head.
        """
        return model.logits(hidden, ROWS)


class AssistantModel(Model):
    """A small checkpoint that proposes tokens for a model, its target, and reads its K/V (Gemma 4).

    It has no cache. Its first pass reads the embedding of the last token and the hidden states of
    the token before it; further passes read the token that was proposed and their own hidden
    states. All of them are at the position of the last token, whose K/V does not exist yet.
    """

    @abstractmethod
    def sources(self, target: Any) -> Sequence[int]:
        """The layers of a target with the config `target` whose K/V its layers read, in order.

        Raises ConfigError if it is an assistant of other models.
        """

    @abstractmethod
    def forward(self, embeddings: Tensor, hidden: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """embeddings [T, d] of the target, hidden states [T, d] of the target, after its final
        norm, or of this model -> the most likely next tokens [T] int64, hidden states [T, d].

        `step.caches` has the K/V that each layer reads.
        """


class JobModel(Model):
    """A model that processes a request in bounded slices of work: images, speech."""

    @abstractmethod
    def work(self, request: JobRequest, step: Step) -> Iterator[Slice]:
        """Yield after each slice of a job; the last `Slice` has the result.

        `step` is valid for all rows of the job. Raises RequestError before the first slice if the
        request is not supported.
        """

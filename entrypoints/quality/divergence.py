"""Compressed next-token log-probabilities of a reference, and how models diverge from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_FULL_VOCAB = 4096
"""Largest vocabulary whose log-probabilities are stored in full."""

TOP = 1024
"""Tokens stored of larger vocabularies: the most likely ones, plus the sum of all others."""

MIN_LOGPROB = -1e4
"""Replaces minus infinity, since infinity minus infinity is NaN."""


@dataclass(frozen=True)
class ReferenceLogprobs:
    """The reference's distributions at T positions, whose next tokens are `following` [T].

    logprobs: [T, outcomes] float32, of the whole vocabulary if `ids` is None; else of the tokens
    `ids` [T, TOP] int32, with the sum of all others in the last column. A position takes at most
    16 KB. Merging outcomes never increases a divergence, and decreases it only by what the
    reference's unlikely tokens contribute.
    """

    following: Tensor
    ids: Tensor | None
    logprobs: Tensor
    top1: Tensor
    losses: Tensor


@dataclass(frozen=True)
class Difference:
    """The divergence of a model from the reference at N positions; all fields have shape [N].

    kl: float64 in nats. same: bool, whether both have the same most likely token. losses: float64
    in nats. gains: the losses minus those of the reference.
    """

    kl: Tensor
    same: Tensor
    losses: Tensor
    gains: Tensor


def compress(logits: Tensor, following: Tensor) -> ReferenceLogprobs:
    """Compress the reference's logits [T, V], with the next tokens `following` int64 [T]."""
    ids = logits.topk(TOP, dim=-1).indices.int() if logits.shape[-1] > MAX_FULL_VOCAB else None
    logprobs = logits.double().log_softmax(-1)
    return ReferenceLogprobs(
        following,
        ids,
        select_outcomes(logprobs, ids),
        logprobs.argmax(-1),
        losses(logprobs, following),
    )


def compare(reference: ReferenceLogprobs, logits: Tensor) -> Difference:
    """Return the divergence of a model's logits [T, V] at the same positions."""
    logprobs = logits.double().log_softmax(-1)
    p, q = reference.logprobs.double(), select_outcomes(logprobs, reference.ids).double()
    kl = (p.exp() * (p - q)).sum(-1)
    lost = losses(logprobs, reference.following)
    return Difference(kl, logprobs.argmax(-1) == reference.top1, lost, lost - reference.losses)


def join(parts: Sequence[Difference]) -> Difference:
    """Concatenate differences along the positions."""
    kinds = ("kl", "same", "losses", "gains")
    return Difference(*(torch.cat([getattr(part, kind) for part in parts]) for kind in kinds))


def select_outcomes(logprobs: Tensor, ids: Tensor | None) -> Tensor:
    """Return log-probabilities float32 of all tokens, or of `ids` and of the sum of all others."""
    if ids is not None:
        index = ids.long()
        rest = logprobs.scatter(-1, index, -torch.inf).logsumexp(-1, keepdim=True)
        logprobs = torch.cat((logprobs.gather(-1, index), rest), -1)
    return logprobs.clamp(min=MIN_LOGPROB).float()


def losses(logprobs: Tensor, following: Tensor) -> Tensor:
    """Return -log p of the next token at each position, float64 [T]."""
    return -logprobs.gather(-1, following[:, None])[:, 0].clamp(min=MIN_LOGPROB)

"""What a reference says of the next tokens of a text, kept in few bytes, and how others differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

WHOLE = 4096
"""Vocabularies up to here are kept whole."""

TOP = 1024
"""Of larger ones the likeliest tokens are kept, and what all others have together."""

NEVER = -1e4
"""The logarithm of a probability that is none, so that nothing is infinity minus infinity."""


@dataclass(frozen=True)
class Truth:
    """What the reference says at T positions, whose next tokens are `following` [T].

    said [T, outcomes] float32 are log-probabilities: of the whole vocabulary where `ids` is None,
    or of `ids` [T, TOP] int32 and, in a last column, of all others together. A position takes 16 KB
    at most, whatever the vocabulary. Putting outcomes together makes a divergence smaller, never
    larger, by no more than what happens among tokens that the reference hardly ever says.
    """

    following: Tensor
    ids: Tensor | None
    said: Tensor
    best: Tensor
    losses: Tensor


@dataclass(frozen=True)
class Difference:
    """How a model differs at N positions: `kl` in nats and `losses` float64, `same` bool, all [N].

    `same` says that its likeliest token is the reference's; `gains` are its losses over those.
    """

    kl: Tensor
    same: Tensor
    losses: Tensor
    gains: Tensor


def keep(logits: Tensor, following: Tensor) -> Truth:
    """The truth of the reference's logits [T, V] and of the tokens that follow, int64 [T]."""
    ids = logits.topk(TOP, dim=-1).indices.int() if logits.shape[-1] > WHOLE else None
    said = logits.double().log_softmax(-1)
    return Truth(following, ids, outcomes(said, ids), said.argmax(-1), losses(said, following))


def differ(truth: Truth, logits: Tensor) -> Difference:
    """How a model's logits [T, V] at the same positions differ."""
    said = logits.double().log_softmax(-1)
    p, q = truth.said.double(), outcomes(said, truth.ids).double()
    kl = (p.exp() * (p - q)).sum(-1)
    lost = losses(said, truth.following)
    return Difference(kl, said.argmax(-1) == truth.best, lost, lost - truth.losses)


def join(parts: Sequence[Difference]) -> Difference:
    """The differences of several runs of positions, one after the other."""
    kinds = ("kl", "same", "losses", "gains")
    return Difference(*(torch.cat([getattr(part, kind) for part in parts]) for kind in kinds))


def outcomes(said: Tensor, ids: Tensor | None) -> Tensor:
    """Log-probabilities float32 of all tokens, or of `ids` and of all others together."""
    if ids is not None:
        index = ids.long()
        rest = said.scatter(-1, index, -torch.inf).logsumexp(-1, keepdim=True)
        said = torch.cat((said.gather(-1, index), rest), -1)
    return said.clamp(min=NEVER).float()


def losses(said: Tensor, following: Tensor) -> Tensor:
    """-log p of the token that follows each position, float64 [T]."""
    return -said.gather(-1, following[:, None])[:, 0].clamp(min=NEVER)

"""Sampling of the codes of a frame: guidance, filtering of end tokens, one sample per channel.

Classifier-free guidance is that of Ho & Salimans 2022, in the variant of Nari Labs, as in
transformers' DiaClassifierFreeGuidanceLogitsProcessor and DiaEOSChannelFilterLogitsProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ostro import nn
from ostro.architectures.dia.request import Speech
from ostro.ops import Op
from ostro.ops import sample as draw


@dataclass
class Rules:
    """The sampling parameters of one request; each channel is a row of the sampler."""

    guidance: float
    top_k: int
    draw: draw.Draw

    @classmethod
    def of(cls, request: Speech, channels: int, device: torch.device) -> Rules:
        def each(value: float, dtype: torch.dtype) -> Tensor:
            return torch.full((channels,), value, dtype=dtype, device=device)

        rules = draw.Draw(
            temperature=each(request.temperature, torch.float32),
            # effective without guidance only: with it, `guided` has already applied the top-k
            top_k=each(request.top_k, torch.int32),
            top_p=each(request.top_p, torch.float32),
            min_p=each(0.0, torch.float32),
            typical=each(1.0, torch.float32),
            seed=each(request.seed, torch.int64),
            position=torch.arange(channels, device=device),
            greedy=request.temperature == 0,
        )
        return cls(request.guidance, request.top_k, rules)


class Choice(nn.Module):
    """Samples codes; it has no weights."""

    def __init__(self, eos: int) -> None:
        super().__init__()
        self.eos = eos
        self.draw = Op(draw.KERNELS)

    def forward(self, logits: Tensor, rules: Rules) -> Tensor:
        """logits [n, channels, V], n = 2 with guidance -> codes [channels] int64.

        Every call advances the position of the sampler.
        """
        scores = logits.float()
        kept = guided(scores, rules) if len(scores) == 2 else scores[0]
        codes: Tensor = self.draw(self.ends(kept), rules.draw)
        # random numbers depend on seed and position, so no position may be used twice
        rules.draw.position = rules.draw.position + len(codes)
        return codes

    def ends(self, scores: Tensor) -> Tensor:
        """Mask the special codes of scores [channels, V].

        Only the first channel keeps its end code, and only if it has the highest score.
        """
        scores = scores.clone()
        scores[:, self.eos + 1 :] = -torch.inf
        scores[1:, self.eos] = -torch.inf
        is_end = scores[0].argmax() == self.eos
        unwanted = (torch.arange(scores.shape[1], device=scores.device) == self.eos) ^ is_end
        scores[0].masked_fill_(unwanted, -torch.inf)
        return scores


def guided(scores: Tensor, rules: Rules) -> Tensor:
    """Apply guidance to scores [2, channels, V], with and without the text -> [channels, V].

    With a top-k, guidance selects the k codes, which keep their scores with the text.
    """
    conditional, unconditional = scores
    far = conditional + rules.guidance * (conditional - unconditional)
    if not rules.top_k:
        return far
    # `far` ranks the codes only; the scores with the text give their probabilities
    best = far.topk(min(rules.top_k, far.shape[-1])).indices
    return torch.full_like(conditional, -torch.inf).scatter(-1, best, conditional.gather(-1, best))

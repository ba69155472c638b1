"""How Dia chooses the codes of a frame: guidance, which ends are taken, and a draw per channel.

Ho & Salimans 2022 for guidance without a classifier; what is done with it here follows Nari Labs,
as in transformers' DiaClassifierFreeGuidanceLogitsProcessor and DiaEOSChannelFilterLogitsProcessor.
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
    """How one speech is drawn. Each channel is a row of `draw`, at a position of its own."""

    guidance: float
    top_k: int
    draw: draw.Draw

    @classmethod
    def of(cls, asked: Speech, channels: int, device: torch.device) -> Rules:
        def each(value: float, dtype: torch.dtype) -> Tensor:
            return torch.full((channels,), value, dtype=dtype, device=device)

        rules = draw.Draw(
            temperature=each(asked.temperature, torch.float32),
            # Those of the guided logits are kept before; this is for speech without guidance.
            top_k=each(asked.top_k, torch.int32),
            top_p=each(asked.top_p, torch.float32),
            min_p=each(0.0, torch.float32),
            typical=each(1.0, torch.float32),
            seed=each(asked.seed, torch.int64),
            position=torch.arange(channels, device=device),
            greedy=asked.temperature == 0,
        )
        return cls(asked.guidance, asked.top_k, rules)


class Choice(nn.Module):
    """Draws codes; it has no weights."""

    def __init__(self, eos: int) -> None:
        super().__init__()
        self.eos = eos
        self.draw = Op(draw.KERNELS)

    def forward(self, logits: Tensor, rules: Rules) -> Tensor:
        """logits [n, channels, V], n = 2 where there is guidance -> codes [channels] int64.

        The place in the speech that is drawn counts up with every call.
        """
        scores = logits.float()
        kept = guided(scores, rules) if len(scores) == 2 else scores[0]
        codes: Tensor = self.draw(self.ends(kept), rules.draw)
        rules.draw.position = rules.draw.position + len(codes)
        return codes

    def ends(self, scores: Tensor) -> Tensor:
        """scores [channels, V] with the end of the first channel alone where it is the best.

        Nowhere else is an end left, and no other mark.
        """
        scores = scores.clone()
        scores[:, self.eos + 1 :] = -torch.inf
        scores[1:, self.eos] = -torch.inf
        is_end = scores[0].argmax() == self.eos
        unwanted = (torch.arange(scores.shape[1], device=scores.device) == self.eos) ^ is_end
        scores[0].masked_fill_(unwanted, -torch.inf)
        return scores


def guided(scores: Tensor, rules: Rules) -> Tensor:
    """scores [2, channels, V], with the text and without it -> [channels, V].

    What the text changes is exaggerated. With a top-k, that only says which k are kept, with the
    scores that they have with the text.
    """
    told, untold = scores
    far = told + rules.guidance * (told - untold)
    if not rules.top_k:
        return far
    best = far.topk(min(rules.top_k, far.shape[-1])).indices
    return torch.full_like(told, -torch.inf).scatter(-1, best, told.gather(-1, best))

"""RoBERTa and XLM-RoBERTa: BERT whose positions start after the id of the padding token.

Liu et al. 2019, Conneau et al. 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ostro import Step
from ostro.architectures.bert import model as bert
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    pad_token_id: int = 1

    @property
    def context_limit(self) -> int:
        """The positions after that of the padding."""
        return self.max_position_embeddings - self.pad_token_id - 1

    def check(self) -> None:
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise ConfigError(
                f"pad_token_id={self.pad_token_id} is not within 0..{self.vocab_size - 1}"
            )
        if self.context_limit < 1:
            raise ConfigError(
                f"max_position_embeddings={self.max_position_embeddings} leaves no position after "
                f"pad_token_id={self.pad_token_id}"
            )
        super().check()


class Embeddings(bert.Embeddings):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.padding = config.pad_token_id

    def places(self, step: Step) -> Tensor:
        """Padding tokens have the row of the padding, and positions do not count them."""
        real = (step.tokens != self.padding).long()
        counts, positions = real.cumsum(0), step.positions[0]
        # The first row of each token's sequence.
        start = torch.arange(len(real), device=real.device) - positions
        before = counts[start] - real[start]
        return (counts - before) * real + self.padding


class Model(bert.Model):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)


class Classifier(bert.Classifier):
    """Label scores of the first token's state, after a dense layer."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)

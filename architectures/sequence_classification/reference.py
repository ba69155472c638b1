"""The reference of Qwen2's reward model, whose class is not in transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor


class Reward(transformers.Qwen2PreTrainedModel):  # type: ignore[misc]
    """Qwen2Model with two linears on the state of the last token."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        d = config.hidden_size
        self.model = transformers.Qwen2Model(config)
        self.score = torch.nn.Sequential(
            torch.nn.Linear(d, d), torch.nn.ReLU(), torch.nn.Linear(d, config.num_labels)
        )
        self.post_init()

    def forward(self, input_ids: Tensor) -> Tensor:
        """input_ids [1, T] -> scores [1, labels]."""
        states = self.model(input_ids).last_hidden_state
        scores: Tensor = self.score(states[:, -1])
        return scores


Reward.__name__ = "Qwen2ForRewardModel"

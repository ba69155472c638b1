"""References of Qwen2's reward model and Qwen3's reranker, which transformers has no classes of."""

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


class Reranker(transformers.Qwen3ForCausalLM):  # type: ignore[misc]
    """Qwen3ForCausalLM, with the logits of two tokens at the last row."""

    def forward(self, input_ids: Tensor) -> Tensor:
        """input_ids [1, T] -> scores [1, 2]."""
        logits: Tensor = super().forward(input_ids).logits
        return logits[:, -1, list(self.config.label_token_ids)]


Reranker.__name__ = "Qwen3ForCausalLM"

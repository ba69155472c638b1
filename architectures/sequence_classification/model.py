"""Decoders with a head of label scores, which reads the state of the last token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.gemma import model as gemma
from ostro.architectures.llama import model as llama
from ostro.architectures.qwen2 import model as qwen2
from ostro.architectures.qwen3 import model as qwen3
from ostro.config import TextConfig, WindowConfig, check_sizes
from ostro.errors import ConfigError

PROCESS_REWARD = "Qwen2ForProcessRewardModel"


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(TextConfig):
    """`num_labels` is by default the length of id2label."""

    num_labels: int = 2
    pad_token_id: int | None = None

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        if raw.get("architectures") == [PROCESS_REWARD]:
            raise ConfigError(
                f"{PROCESS_REWARD} scores every row of a separator token; this architecture scores "
                "the last token alone"
            )
        values = super().derive(raw, values)
        names = raw.get("id2label")
        if names and not isinstance(names, Mapping):
            raise ConfigError(f"id2label={names!r:.80} is not an object")
        return {"num_labels": len(names), **values} if names else values

    def check(self) -> None:
        super().check()
        check_sizes(self, "num_labels")


class LastToken(nn.EncoderModel):
    """A mixin for decoders that score the last token that is no padding."""

    padding: int | None = None

    def hidden(self, step: Step) -> Tensor:
        # The second row of positions holds token types, which decoders do not have.
        return super().hidden(replace(step, positions=step.positions[:1]))  # type: ignore[safe-super]

    def last(self, step: Step) -> Tensor:
        """The row of the last token of each sequence [B], or its first if all are padding."""
        index = torch.arange(len(step.tokens), device=step.tokens.device)
        if self.padding is not None:
            index = index.where(step.tokens != self.padding, 0)
        ends = [index[start:stop].amax().clamp(min=start) for start, stop in pairwise(step.bounds)]
        return torch.stack(ends)


class LastTokenScores(LastToken):
    """Scores of the last token, in place of a decoder's logits.

    A mixin: `class Classifier(LastTokenScores, llama.Model)`.
    """

    def __init__(self, config: ScoreConfig) -> None:
        super().__init__(config)
        del self.lm_head
        self.padding = config.pad_token_id
        self.score = self.head(config)

    def head(self, config: ScoreConfig) -> nn.Module:
        """The module that computes scores from states, called with [B, d] and their step."""
        return nn.Linear(config.hidden_size, config.num_labels)

    def scores(self, hidden: Tensor, step: Step) -> Tensor:
        last = self.last(step)
        y: Tensor = self.score(hidden[last], step.rows(last))
        return y


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(ScoreConfig, llama.Config):
    pass


class Llama(LastTokenScores, llama.Model):
    pass


@dataclass(frozen=True, kw_only=True)
class MistralConfig(ScoreConfig, WindowConfig, llama.Config):
    sliding_window: int | None = 4096


class Mistral(LastTokenScores, llama.Model):
    pass


@dataclass(frozen=True, kw_only=True)
class Qwen2Config(ScoreConfig, qwen2.Config):
    pass


class Qwen2(LastTokenScores, qwen2.Model):
    pass


@dataclass(frozen=True, kw_only=True)
class Qwen3Config(qwen3.Config, ScoreConfig):
    pass


class Qwen3(LastTokenScores, qwen3.Model):
    pass


@dataclass(frozen=True, kw_only=True)
class GemmaConfig(gemma.Config, ScoreConfig):
    pad_token_id: int | None = 0


class Gemma(LastTokenScores, gemma.Model):
    pass


@dataclass(frozen=True, kw_only=True)
class RewardConfig(ScoreConfig, qwen2.Config):
    num_labels: int = 1


class RewardHead(nn.Module):
    """Two linears with a ReLU between them."""

    def __init__(self, d: int, labels: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(d, d, bias=True)
        self.fc2 = nn.Linear(d, labels, bias=True)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.fc2(F.relu(self.fc1(x, step)), step)


class Reward(LastTokenScores, qwen2.Model):
    """Qwen2.5's reward model for mathematics."""

    def head(self, config: ScoreConfig) -> nn.Module:
        return RewardHead(config.hidden_size, config.num_labels)


@dataclass(frozen=True, kw_only=True)
class RerankerConfig(qwen3.Config):
    """`label_token_ids` are the tokens "no" and "yes" in Qwen3's vocabulary."""

    label_token_ids: tuple[int, ...] = (2152, 9693)

    def check(self) -> None:
        super().check()
        ids = self.label_token_ids
        if len({*ids}) != 2 or not all(0 <= id < self.vocab_size for id in ids):
            raise ConfigError(
                f"label_token_ids={ids!r:.80} are not two token ids within 0..{self.vocab_size - 1}"
            )


class Reranker(LastToken, qwen3.Model):
    """Qwen3-Reranker: the scores are the logits of "no" and "yes" at the last token."""

    def __init__(self, config: RerankerConfig) -> None:
        super().__init__(config)
        self.label_token_ids = list(config.label_token_ids)

    def scores(self, hidden: Tensor, step: Step) -> Tensor:
        last = self.last(step)
        return self.logits(hidden[last], step.rows(last))[:, self.label_token_ids]

"""Gemma 4's assistants: a few of its layers without keys and values, which read the target's.

Reference class Gemma4AssistantForCausalLM of transformers. Tokens are proposed as in its
SinglePositionMultiTokenCandidateGenerator, without the K/V of rejected tokens that this one reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.gemma4 import config as gemma4
from ostro.architectures.gemma4.model import Decoder
from ostro.architectures.gemma4_assistant.config import Config
from ostro.errors import ConfigError


class OrderedEmbedding(nn.Module):
    """Clusters of tokens: only the logits of the nearest ones are computed.

    `token_ordering` lists the tokens of the first cluster, then those of the second, and so on.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.top = config.centroid_intermediate_top_k
        self.centroids = nn.Linear(config.hidden_size, config.num_centroids)
        ordering = torch.zeros(config.vocab_size, dtype=torch.int64)
        self.token_ordering = nn.Parameter(ordering, requires_grad=False)

    def most_likely(self, hidden: Tensor, table: nn.Embedding, step: Step) -> Tensor:
        """hidden [T, d], the embeddings that are the output head -> tokens [T] int64."""
        clusters = self.centroids(hidden, step).topk(self.top).indices
        tokens = self.token_ordering.view(self.centroids.n_out, -1)[clusters].flatten(1)
        # Of a damaged file: an index out of range would end all work on a GPU.
        tokens = tokens.clamp(0, table.n - 1)
        rows = table(tokens.flatten(), step).view(*tokens.shape, -1)
        best = (rows @ hidden[..., None]).argmax(1)
        return tokens.gather(1, best)[:, 0]


class Model(nn.AssistantModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        d, backbone = config.hidden_size, config.backbone_hidden_size
        self.model = Decoder(config)
        tied = self.model.embed_tokens if config.tie_word_embeddings else None
        self.lm_head = nn.Head(d, config.vocab_size, tied=tied)
        self.pre_projection = nn.Linear(2 * backbone, d)
        self.post_projection = nn.Linear(d, backbone)
        self.masked_embedding = OrderedEmbedding(config) if config.use_ordered_embeddings else None

    def sources(self, target: Any) -> Sequence[int]:
        text = getattr(target, "text", target)
        if not isinstance(text, gemma4.Config):
            raise ConfigError("they are models of Gemma 4")
        return self.config.sources(text)

    def forward(self, embeddings: Tensor, hidden: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        x = self.pre_projection(torch.cat((embeddings, hidden), -1), step)
        x = self.model(x, step)
        if self.masked_embedding is None:
            tokens = self.lm_head(x, step).argmax(-1)
        else:
            tokens = self.masked_embedding.most_likely(x, self.model.embed_tokens, step)
        return tokens, self.post_projection(x, step)

"""XLM-RoBERTa's names: BERT's, with another prefix in checkpoints with a head.

GGUF files hold these models as BERT, without the positions of the padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ostro import Names, Pair
from ostro.architectures.bert import names as bert
from ostro.architectures.xlm_roberta.model import Config

PREFIXED = bert.prefixed("roberta")
UNUSED = ("embeddings.position_ids", "pooler.{any}", "lm_head.{any}")


@dataclass(frozen=True)
class LaterRows:
    """GGUF files hold the rows of a table from `start` on; the others are read as zeros."""

    start: int
    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return torch.cat((tensor.new_zeros(self.start, tensor.shape[1]), tensor))

    def write(self, tensor: Tensor) -> Tensor:
        return tensor[self.start :]


def names(config: Config) -> Names:
    ignore = UNUSED + tuple(f"roberta.{name}" for name in UNUSED)
    table = "embeddings.position_embeddings"
    positions = Pair("position_embd", table, LaterRows(config.pad_token_id + 1))
    return Names(hub=bert.HUB + PREFIXED, gguf=(positions, *bert.GGUF), ignore=ignore)


def classifier_names(config: Config) -> Names:
    found = names(config)
    head = (Pair("classifier.dense", "pooler"), Pair("classifier.out_proj", "classifier"))
    return replace(found, hub=PREFIXED + head, gguf=(*bert.CLASSIFIER, *found.gguf))


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """As BERT's; positions begin at 0."""
    return {**bert.gguf_metadata(config, raw), "context_length": config.context_limit}

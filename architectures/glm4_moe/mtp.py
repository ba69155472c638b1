"""The multi-token head of GLM-4 MoE: a layer after those of the model.

Reference: `Glm4MoeForCausalLMNextN` of SGLang; transformers drops the head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ostro import Names, multi_token_names
from ostro.architectures.glm4_moe.model import Block
from ostro.architectures.glm4_moe.names import names
from ostro.architectures.llama.model import MultiTokenHead


class Head(MultiTokenHead):
    block = Block


def head_names(config: Any) -> Names:
    # The first of the multi-token layers is now one of the model's.
    further = max(config.num_mtp_layers - 1, 0)
    more = replace(Head.extended(config), num_mtp_layers=further)
    return multi_token_names(names(more), config.num_hidden_layers)

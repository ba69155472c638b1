"""The multi-token head of Qwen3.5: that of Qwen3-Next, with a layer of Qwen3.5.

Reference: `Qwen3_5MultiTokenPredictor` of vLLM. With the hidden states of the model before its
final norm fewer drafts are accepted: 1.8 in the place of 2.7 tokens per step of Qwen3.5 0.8B
(ModelTC/LightLLM #1402).
"""

from __future__ import annotations

from typing import Any

from ostro import Names
from ostro.architectures.qwen3_5.model import Block
from ostro.architectures.qwen3_5.names import names
from ostro.architectures.qwen3_next import mtp as qwen3_next


class Head(qwen3_next.Head):
    block = Block


def head_names(config: Any) -> Names:
    more = Head.extended(config)
    return qwen3_next.published_names(names(more), config.num_hidden_layers)

"""The multi-token head of DeepSeek-V3: a layer after those of the model.

Reference: `DeepseekV3ForCausalLMNextN` of SGLang; transformers drops the head.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ostro import Names, multi_token_names
from ostro.architectures.deepseek_v2 import model as v2
from ostro.architectures.deepseek_v2.names import names
from ostro.architectures.deepseek_v3 import deepseek2
from ostro.architectures.deepseek_v3.model import Block
from ostro.architectures.llama.model import MultiTokenHead


class Head(MultiTokenHead):
    block: ClassVar[type[v2.Block]] = Block


class GgufHead(Head):
    """The head in GGUF files."""

    block = deepseek2.Block


def head_names(config: Any) -> Names:
    return multi_token_names(names(Head.extended(config)), config.num_hidden_layers)

"""The multi-token head of GLM-4 MoE Lite: that of DeepSeek-V3, with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ostro import Names, multi_token_names
from ostro.architectures.deepseek_v2.names import names
from ostro.architectures.glm4_moe_lite.model import Block
from ostro.architectures.llama.model import MultiTokenHead


class Head(MultiTokenHead):
    block = Block

    @staticmethod
    def extended(config: Any) -> Any:
        types = config.mlp_layer_types
        return replace(
            config,
            num_hidden_layers=config.num_hidden_layers + 1,
            mlp_layer_types=types and (*types, "sparse"),
        )


def head_names(config: Any) -> Names:
    return multi_token_names(names(Head.extended(config)), config.num_hidden_layers)

"""The multi-token head of Qwen3-Next: a layer with attention, whatever the layers before have.

Reference: `Qwen3NextMultiTokenPredictor` of vLLM; transformers drops the head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ostro import Add, Names, Pair, multi_token_names
from ostro.architectures.llama.model import MultiTokenHead
from ostro.architectures.qwen3_next.model import Block
from ostro.architectures.qwen3_next.names import names

HUB = (
    Pair("mtp.fc", "mtp.eh_proj"),
    Pair("mtp.pre_fc_norm_embedding", "mtp.enorm", Add(1.0)),
    Pair("mtp.pre_fc_norm_hidden", "mtp.hnorm", Add(1.0)),
    Pair("mtp.norm", "mtp.norm", Add(1.0)),
)


class Head(MultiTokenHead):
    block = Block

    @staticmethod
    def extended(config: Any) -> Any:
        count = config.num_hidden_layers
        attends = (config.attends(i) for i in range(count))
        types = ("full_attention" if a else "linear_attention" for a in attends)
        return replace(config, num_hidden_layers=count + 1, layer_types=(*types, "full_attention"))


def head_names(config: Any) -> Names:
    return published_names(names(Head.extended(config)), config.num_hidden_layers)


def published_names(names: Names, layer: int, decoder: str = "model") -> Names:
    """As `multi_token_names`; the layer is `mtp.layers.0` on the hub.

    decoder: the path of the decoder on the hub.
    """
    return multi_token_names(names, layer, HUB, ("mtp.layers.0", f"{decoder}.layers.{layer}"))

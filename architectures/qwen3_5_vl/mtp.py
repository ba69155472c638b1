"""The multi-token head of Qwen3.5 with media. It reads the embeddings of the placeholders of media,
not their features.
"""

from __future__ import annotations

from dataclasses import replace

from ostro import Names
from ostro.architectures.qwen3_5 import mtp as qwen3_5
from ostro.architectures.qwen3_5.names import LANGUAGE
from ostro.architectures.qwen3_5_vl.model import Config, SparseConfig
from ostro.architectures.qwen3_5_vl.names import names
from ostro.architectures.qwen3_next.mtp import published_names


def head(config: Config | SparseConfig) -> qwen3_5.Head:
    return qwen3_5.Head(config.text)


def head_names(config: Config | SparseConfig) -> Names:
    more = replace(config, text=qwen3_5.Head.extended(config.text))
    return published_names(names(more), config.text.num_hidden_layers, LANGUAGE)

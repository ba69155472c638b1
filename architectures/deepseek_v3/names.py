"""DeepSeek-V3's names."""

from __future__ import annotations

from dataclasses import replace

from ostro import ExpertNames
from ostro.architectures.deepseek_v2 import names as v2
from ostro.architectures.deepseek_v3.model import Config


def names(config: Config) -> ExpertNames:
    """As V2; the multi-token prediction layers after the last layer are ignored."""
    last, found = config.num_hidden_layers, v2.names(config)
    further = (f"model.layers.{last}.{{any}}", f"blk.{last}.{{any}}")
    return replace(found, ignore=(*found.ignore, *further))

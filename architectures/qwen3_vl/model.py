"""Qwen3-VL: Qwen3 with interleaved mrope and deepstack vision features (Qwen team 2025).

Reference class Qwen3VLForConditionalGeneration of transformers.
"""

from __future__ import annotations

from itertools import chain, repeat

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.architectures.qwen2_5_vl import model as qwen2_5_vl
from ostro.architectures.qwen2_5_vl.config import RopeConfig
from ostro.architectures.qwen3 import model as qwen3
from ostro.architectures.qwen3_vl.config import Config as Config
from ostro.architectures.qwen3_vl.config import Text
from ostro.architectures.qwen3_vl.vision import Tower


def interleaved_rope(config: RopeConfig) -> nn.Rope:
    """The rope of a text config: the sections of mrope are interleaved."""
    rule, context = config.rope_parameters, config.max_position_embeddings
    return nn.Rope(rule, config.head_dim, context, sections=config.sections, woven=True)


class Block(qwen3.Block):
    @staticmethod
    def rope(config: Text) -> nn.Rope:
        return interleaved_rope(config)


class DeepFeatures(nn.TokenModel):
    """A decoder whose first layers add deepstack features to the rows of media."""

    model: llama.Decoder

    def hidden(self, step: Step) -> Tensor:
        x, residual = self.embed(step), None
        levels = step.features.levels if step.features is not None else ()
        for layer, level in zip(self.model.layers, chain(levels, repeat(None)), strict=False):
            x, residual = layer(x, residual, step)
            if level is not None:
                x = x.index_add(0, step.features.rows, level)
        return self.model.norm(x, residual)[0]


class Model(DeepFeatures, qwen2_5_vl.Sighted, qwen3.Model):
    block = Block

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)
        self.visual = Tower(config.vision)

"""Mllama: Llama with cross attention layers for images (Llama team 2024).

Reference class MllamaForConditionalGeneration of transformers. A row attends to the last image
before it. Rows before the first image skip cross attention, as in the original code of the models;
in the reference they attend to all images.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Medium, Names, Pair, Step, nn
from ostro.architectures.clip.vision import parameter
from ostro.architectures.llama import model as llama
from ostro.architectures.llava.model import TEXT
from ostro.architectures.mllama.config import EXTRA, Config, Text
from ostro.architectures.mllama.vision import Tower, opened


class CrossBlock(nn.Module):
    """A block of gated cross attention to an image."""

    def __init__(self, config: Text, layer: int, length: int) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(d, eps)
        self.cross_attn = nn.CrossAttention(
            d,
            config.num_attention_heads,
            layer,
            length=length,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            bias=False,
            norm_eps=eps,
        )
        self.cross_attn_attn_gate = parameter(1)
        self.post_attention_layernorm = nn.RMSNorm(d, eps)
        self.mlp = nn.GatedMLP(d, config.intermediate_size, config.hidden_act)
        self.cross_attn_mlp_gate = parameter(1)

    def forward(
        self, x: Tensor, residual: Tensor | None, step: Step
    ) -> tuple[Tensor, Tensor | None]:
        seen = self.cross_attn.rows_with_media(step)
        if seen is None:
            return x, residual
        x, residual = self.input_layernorm(x, residual)
        x = opened(self.cross_attn_attn_gate, self.cross_attn(x, step))
        x, residual = self.post_attention_layernorm(x, residual)
        return opened(self.cross_attn_mlp_gate, self.mlp(x, step)) * seen, residual


class Decoder(llama.Decoder):
    def __init__(self, config: Text, length: int) -> None:
        super().__init__(config, llama.Block)
        self.embed_tokens = nn.Embedding(config.vocab_size + EXTRA, config.hidden_size)
        for i in config.cross_attention_layers:
            self.layers[i] = CrossBlock(config, i, length)


class Model(llama.Model):
    layers = (
        "vision_model.transformer.layers",
        "vision_model.global_transformer.layers",
        "model.layers",
    )

    def __init__(self, config: Config) -> None:
        nn.Model.__init__(self)
        text = config.text
        self.model = Decoder(text, config.rows)
        self.lm_head = nn.Head(text.hidden_size, text.vocab_size)
        self.vision_model = Tower(config.vision)
        seen = config.vision.vision_output_dim
        self.multi_modal_projector = nn.Linear(seen, text.hidden_size, bias=True)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold "pixels" [tiles, 3, image_size, image_size] and "ratio" [1] int64: the index
        of the supported aspect ratio, from 1 on.
        """
        images = [medium.arrays["pixels"] for medium in media]
        ratios = torch.cat([medium.arrays["ratio"] for medium in media])
        states = self.vision_model(images, ratios, step)
        sizes = [len(state) for state in states]
        index = torch.arange(len(media), device=ratios.device)
        rows = step.rows(index.repeat_interleave(torch.tensor(sizes, device=ratios.device)))
        projected = self.multi_modal_projector(torch.cat(states), rows)
        return [(each,) for each in projected.split(sizes)]

    def write_states(self, states: Tensor, step: Step) -> None:
        for layer in self.model.layers:
            if isinstance(layer, CrossBlock):
                layer.cross_attn.write_states(states, step)

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """Logits, with the smallest value for prompt-only tokens."""
        logits = super().logits(hidden, step)
        return F.pad(logits, (0, EXTRA), value=torch.finfo(logits.dtype).min)


def names(config: Config) -> Names:
    """Checkpoints have the parts at the top level, the module tree of transformers 5 below
    `model`.
    """
    parts = ("vision_model", "multi_modal_projector")
    return Names(hub=(*(Pair(f"model.{part}", part) for part in parts), *TEXT))

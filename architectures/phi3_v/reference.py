"""The reference of Phi-3-vision: transformers' Phi-3 and CLIP, joined in plain torch.

Its names are those of published checkpoints.
"""

from __future__ import annotations

from dataclasses import asdict

import torch
import transformers
from torch import Tensor, nn

from ostro.architectures.phi3_v.config import Config

TEXT = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads hidden_act max_position_embeddings original_max_position_embeddings "
    "rms_norm_eps tie_word_embeddings sliding_window"
).split()
RULE = {"max_position_embeddings"}
"""Keys of ostro's rope rules that transformers' lack."""


class Tower(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        values = {k: v for k, v in asdict(config.vision_config).items() if k != "vocab_size"}
        encoder = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**values))
        self.vision_model = getattr(encoder, "vision_model", encoder)


class Images(nn.Module):
    """Features of one image after the other, with loops over lines of cells."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = 4 * config.vision_config.hidden_size
        d, self.size = config.hidden_size, config.vision_config.image_size
        self.layer = config.img_processor.get("layer_idx", -2)
        self.side = self.size // config.vision_config.patch_size
        self.img_processor = Tower(config)
        self.glb_GN = nn.Parameter(torch.zeros(1, 1, width))
        self.sub_GN = nn.Parameter(torch.zeros(1, 1, 1, width))
        self.img_projection = nn.Sequential(nn.Linear(width, d), nn.GELU(), nn.Linear(d, d))

    def patches(self, tile: Tensor) -> Tensor:
        """tile [3, size, size] -> [side, side, width]."""
        out = self.img_processor.vision_model(tile[None], output_hidden_states=True)
        return out.hidden_states[self.layer][0, 1:].view(self.side, self.side, -1)

    def lines(self, grid: Tensor) -> list[Tensor]:
        """The cells of a grid of patches, line by line, with a separator after each line."""
        found = []
        for y in range(0, grid.shape[0], 2):
            for x in range(0, grid.shape[1], 2):
                corners = (grid[y, x], grid[y, x + 1], grid[y + 1, x], grid[y + 1, x + 1])
                found.append(torch.cat(corners))
            found.append(self.sub_GN[0, 0, 0])
        return found

    def forward(self, pixels: Tensor, height: int, width: int) -> Tensor:
        """The whole image and its tiles [n, 3, size, size], possibly with padding tiles."""
        rows, columns = height // self.size, width // self.size
        tiles = [self.patches(tile) for tile in pixels[1 : 1 + rows * columns]]
        lines = [torch.cat(tiles[i * columns : (i + 1) * columns], 1) for i in range(rows)]
        found = self.lines(torch.cat(lines))
        found += [self.glb_GN[0, 0], *self.lines(self.patches(pixels[0]))]
        projected: Tensor = self.img_projection(torch.stack(found))
        return projected


class Reference(nn.Module):
    """Called with ids [1, T], images [n, 1 + tiles, 3, size, size], and the heights and widths of
    all tiles of each image [n, 2]; returns logits [1, T, V].
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        rule = {k: v for k, v in config.rope_parameters.items() if k not in RULE}
        text = {name: getattr(config, name) for name in TEXT}
        shape = transformers.Phi3Config(**text, rope_parameters=rule, pad_token_id=None)
        model = transformers.Phi3ForCausalLM(shape)
        self.mark = config.image_token_id
        self.model, self.lm_head = model.model, model.lm_head
        self.model.vision_embed_tokens = Images(config)

    def forward(
        self, ids: Tensor, pixel_values: Tensor | None = None, image_sizes: Tensor | None = None
    ) -> Tensor:
        x = self.model.embed_tokens(ids)
        if pixel_values is not None and image_sizes is not None:
            pairs = zip(pixel_values, image_sizes.tolist(), strict=True)
            rows = [self.model.vision_embed_tokens(each, *size) for each, size in pairs]
            x[ids == self.mark] = torch.cat(rows)
        logits: Tensor = self.lm_head(self.model(inputs_embeds=x).last_hidden_state)
        return logits

"""SmolLM3: Llama without rotation in every fourth layer, which may have a window instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ostro import nn
from ostro.architectures.llama import model as llama
from ostro.config import WindowConfig
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig, llama.Config):
    """no_rope_layers: 1 for a layer that rotates, 0 for one that does not."""

    tie_word_embeddings: bool = True
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int = 4
    use_sliding_window: bool = False
    default_theta: ClassVar[float] = 2000000.0

    def rotates(self, layer: int) -> bool:
        if self.no_rope_layers is not None:
            return bool(self.no_rope_layers[layer])
        return (layer + 1) % self.no_rope_layer_interval != 0

    def slides(self, layer: int) -> bool:
        return not self.rotates(layer)

    def window(self, layer: int) -> int:
        return super().window(layer) if self.use_sliding_window else 0

    def check(self) -> None:
        super().check()
        listed = self.no_rope_layers
        if listed is not None and len(listed) < self.num_hidden_layers:
            raise ConfigError(
                f"no_rope_layers lists {len(listed)} layers, "
                f"num_hidden_layers={self.num_hidden_layers}"
            )
        if self.no_rope_layer_interval < 1:
            raise ConfigError(
                f"no_rope_layer_interval={self.no_rope_layer_interval} is not positive"
            )


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        attention = super().attention(config, layer, rope, **more)
        assert isinstance(attention, nn.Attention)
        if not config.rotates(layer):
            attention.rope = None
        return attention


class Model(llama.Model):
    block = Block

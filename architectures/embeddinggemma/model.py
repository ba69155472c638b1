"""EmbeddingGemma: Gemma 3 with bidirectional attention (Google 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.gemma3 import model as gemma3
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(gemma3.Config):
    use_bidirectional_attention: bool = False
    unimplemented: ClassVar[Mapping[str, Any]] = {}

    def check(self) -> None:
        super().check()
        if not self.use_bidirectional_attention:
            raise ConfigError("use_bidirectional_attention=false is not an encoder; use gemma3")
        if self.attn_logit_softcapping:
            raise ConfigError(
                f"attn_logit_softcapping={self.attn_logit_softcapping} is not implemented"
            )

    def window(self, layer: int) -> int:
        """The window of a layer, half before and half after each token; 0 = no window."""
        whole = super().window(layer)
        return whole // 2 + 1 if whole else 0


class Block(gemma3.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        return nn.EncoderAttention(
            config.hidden_size,
            config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            scale=config.query_pre_attn_scalar**-0.5,
            norm_eps=config.rms_norm_eps,
            rope=rope,
            window=config.window(layer),
        )


class Decoder(gemma3.Decoder):
    block = Block


class Model(nn.EncoderModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = Decoder(config)

    def embed(self, step: Step) -> Tensor:
        return self.model.embed(step)

    def hidden(self, step: Step) -> Tensor:
        return self.model(self.embed(step), step)

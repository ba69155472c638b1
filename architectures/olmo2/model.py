"""OLMo 2: norms after attention and MLP, and of all of q and k. OLMo 3 adds sliding windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.config import WindowConfig

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig, llama.Config):
    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """One rope rule per layer type; layers with a window do not scale theirs."""
        values = super().derive(raw, values)
        rules = values["rope_parameters"]
        if not all(isinstance(rule, Mapping) for rule in rules.values()):
            rules = {FULL: rules, SLIDING: rules | {"rope_type": "default"}}
        default = {**next(iter(rules.values())), "rope_type": "default"}
        rules = {kind: rules.get(kind, default) for kind in (FULL, SLIDING)}
        return values | {"rope_parameters": rules}


@dataclass(frozen=True, kw_only=True)
class Olmo3Config(Config):
    """Every fourth layer has full attention."""

    sliding_window: int | None = 4096
    default_theta: ClassVar[float] = 500000.0

    def slides(self, layer: int) -> bool:
        return (layer + 1) % 4 != 0


class Block(llama.Block):
    """The norms of the branches' outputs, before their addition to the residual."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        super().__init__(config, layer, rope)
        del self.input_layernorm
        self.post_feedforward_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    @classmethod
    def ropes(cls, config: Config) -> Sequence[nn.Rope]:
        """The rope of each layer: one for layers with a window, one for the others."""
        shape = config.head_dim, config.max_position_embeddings
        full, local = (nn.Rope(config.rope_rule(kind), *shape) for kind in (FULL, SLIDING))
        return [local if config.window(i) else full for i in range(config.num_hidden_layers)]

    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        return super().attention(config, layer, rope, qk_norm="all", **more)

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x = x if residual is None else x + residual
        x = x + self.post_attention_layernorm(self.self_attn(x, step))[0]
        return self.post_feedforward_layernorm(self.mlp(x, step))[0], x


class Model(llama.Model):
    block = Block

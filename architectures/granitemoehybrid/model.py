"""Granite 4.0: Granite whose layers are Mamba 2 or attention, dense or with experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostro import nn
from ostro.architectures.bamba.model import HybridConfig
from ostro.architectures.granite import model as granite
from ostro.architectures.granitemoe.model import SharedMLP
from ostro.architectures.mamba2 import model as mamba2
from ostro.config import MAX_EXPERTS
from ostro.errors import ConfigError

KINDS = {"mamba": "linear_attention", "attention": "full_attention"}
"""Layer types of published files, and those of transformers 5."""


@dataclass(frozen=True, kw_only=True)
class Config(HybridConfig, granite.Config):
    """Without experts, num_local_experts is 0; the last two fields concern training only."""

    shared_intermediate_size: int = 1024
    position_embedding_type: str | None = None
    layer_types: tuple[str, ...] | None = None
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    output_router_logits: bool = False
    router_aux_loss_coef: float = 0.001

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        types = values.get("layer_types", raw.get("layers_block_type"))
        if isinstance(types, list | tuple):
            values["layer_types"] = tuple(KINDS.get(str(kind), kind) for kind in types)
        return values

    def check(self) -> None:
        super().check()
        if not 1 <= self.shared_intermediate_size <= 1 << 24:
            raise ConfigError(
                f"shared_intermediate_size={self.shared_intermediate_size} is not within 1..2^24"
            )
        if self.position_embedding_type not in (None, "nope", "rope"):
            raise ConfigError(
                f"position_embedding_type={self.position_embedding_type!r:.80} is not implemented; "
                "expected rope or nope"
            )
        experts, chosen = self.num_local_experts, self.num_experts_per_tok
        if not 0 <= experts <= MAX_EXPERTS:
            raise ConfigError(f"num_local_experts={experts} is not within 0..{MAX_EXPERTS}")
        if experts and not 1 <= chosen <= experts:
            raise ConfigError(f"num_experts_per_tok={chosen} is not within 1..{experts}")
        types = self.layer_types
        if types is not None and len(types) != self.num_hidden_layers:
            raise ConfigError(
                f"layer_types lists {len(types)} layers, num_hidden_layers={self.num_hidden_layers}"
            )
        for kind in types or ():
            if kind not in KINDS.values():
                raise ConfigError(f"layer_types has {kind!r:.80}, expected mamba or attention")

    def attends(self, layer: int) -> bool:
        return self.layer_types is not None and self.layer_types[layer] == "full_attention"


class Block(granite.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        if not config.attends(layer):
            return mamba2.Mixer(config.mixer(), layer)
        attention = super().attention(config, layer, rope, **more)
        assert isinstance(attention, nn.Attention)
        if config.position_embedding_type != "rope":
            attention.rope = None
        return attention

    def feed_forward(self, config: Any, layer: int) -> nn.Module:
        if config.num_local_experts:
            return SharedMLP(config)
        hidden = config.shared_intermediate_size
        return nn.GatedMLP(config.hidden_size, hidden, config.hidden_act)


class Model(granite.Model):
    block = Block

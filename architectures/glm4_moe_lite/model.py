"""GLM-4 MoE Lite: DeepSeek-V3 with a list of the layers with experts (Zhipu 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ostro import nn
from ostro.architectures.deepseek_v2 import model as v2
from ostro.architectures.llama import model as llama
from ostro.errors import ConfigError

LATENT_EPS = 1e-6
"""The epsilon of the norms of latents (Glm4MoeLiteRMSNorm)."""


@dataclass(frozen=True, kw_only=True)
class Config(v2.Config):
    """Without mlp_layer_types, the first first_k_dense_replace layers are dense."""

    rms_norm_eps: float = 1e-5
    routed_scaling_factor: float = 1.8
    n_shared_experts: int = 1
    first_k_dense_replace: int = 1
    n_group: int | None = 1
    topk_group: int | None = 1
    topk_method: str = "noaux_tc"
    norm_topk_prob: bool = True
    q_lora_rank: int | None = 768
    qk_nope_head_dim: int = 192
    v_head_dim: int = 256
    rope_interleave: bool = True
    mlp_layer_types: tuple[str, ...] | None = None
    unimplemented: ClassVar[Mapping[str, Any]] = {
        **v2.Config.unimplemented,
        "scoring_func": "sigmoid",
    }

    def check(self) -> None:
        super().check()
        types = self.mlp_layer_types
        if types is not None and len(types) != self.num_hidden_layers:
            raise ConfigError(
                f"mlp_layer_types lists {len(types)} layers, "
                f"num_hidden_layers={self.num_hidden_layers}"
            )
        for kind in types or ():
            if kind not in ("dense", "sparse"):
                raise ConfigError(f"mlp_layer_types names {kind!r:.80}, expected dense or sparse")

    def check_router(self) -> None:
        """norm_topk_prob is implemented."""

    def sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        if self.mlp_layer_types is not None:
            return self.mlp_layer_types[layer] == "sparse"
        return layer >= self.first_k_dense_replace


class Block(v2.Block):
    @staticmethod
    def rope(config: Config) -> nn.Rope:
        rope = v2.Block.rope(config)
        rope.interleaved = config.rope_interleave
        return rope

    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        """transformers' class norms the latents with its default epsilon, not rms_norm_eps."""
        attention = super().attention(config, layer, rope)
        assert isinstance(attention, nn.LatentAttention)
        attention.kv_a_layernorm.eps = LATENT_EPS
        if config.q_lora_rank:
            attention.q_a_layernorm.eps = LATENT_EPS
        return attention

    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        if config.sparse(layer):
            return v2.Mixture(config, v2.sigmoid_router(config))
        return llama.Block.feed_forward(self, config, layer)


class Model(v2.Model):
    block = Block

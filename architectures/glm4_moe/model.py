"""GLM-4 MoE: DeepSeek-V3's experts in a Llama that rotates half of each head (Zhipu 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ostro import nn
from ostro.architectures.deepseek_v2 import model as v2
from ostro.architectures.llama import model as llama
from ostro.errors import ConfigError

MAX_MTP_LAYERS = 64


@dataclass(frozen=True, kw_only=True)
class Config(v2.RoutedConfig, llama.Config):
    """attention_bias concerns q, k and v. num_mtp_layers: multi-token prediction layers in the
    checkpoint, see `mtp`; num_nextn_predict_layers is its older name.
    """

    rms_norm_eps: float = 1e-5
    n_shared_experts: int = 1
    first_k_dense_replace: int = 1
    n_group: int | None = 1
    topk_group: int | None = 1
    norm_topk_prob: bool = True
    use_qk_norm: bool = False
    num_mtp_layers: int = 1
    num_nextn_predict_layers: int | None = None

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive({"partial_rotary_factor": 0.5, **raw}, values)
        if values.get("num_nextn_predict_layers") is not None:
            values["num_mtp_layers"] = values["num_nextn_predict_layers"]
        return values

    def check(self) -> None:
        super().check()
        if not 0 <= self.num_mtp_layers <= MAX_MTP_LAYERS:
            raise ConfigError(
                f"num_mtp_layers={self.num_mtp_layers} is not within 0..{MAX_MTP_LAYERS}"
            )


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        bias = config.attention_bias
        qk_norm: Literal["head", ""] = "head" if config.use_qk_norm else ""
        return nn.Attention(config, layer, rope, bias=bias, qk_norm=qk_norm)

    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        if layer < config.first_k_dense_replace:
            return super().feed_forward(config, layer)
        return v2.Mixture(config, v2.sigmoid_router(config))


class Model(llama.Model):
    block = Block

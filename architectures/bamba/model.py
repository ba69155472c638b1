"""Bamba: layers of Mamba 2 and some of attention, each followed by a gated MLP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostro import nn
from ostro.architectures.llama import model as llama
from ostro.architectures.mamba2 import model as mamba2
from ostro.config import TextConfig
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class HybridConfig(TextConfig):
    """The fields of the Mamba 2 layers; mamba_chunk_size does not change the result."""

    mamba_n_heads: int = 128
    mamba_d_head: object = "auto"
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_chunk_size: int = 256
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: tuple[float, ...] = (0.0, math.inf)

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        if values.get("mamba_d_head", "auto") in ("auto", None):
            inner = values.get("mamba_expand", cls.mamba_expand) * values["hidden_size"]
            values["mamba_d_head"] = inner // (values.get("mamba_n_heads", cls.mamba_n_heads) or 1)
        return values

    def mixer(self) -> mamba2.Config:
        """The config of a Mamba 2 layer."""
        size = self.mamba_d_head
        if not isinstance(size, int) or isinstance(size, bool):
            raise ConfigError(f"mamba_d_head={size!r:.80} is not an integer")
        return mamba2.Config(
            vocab_size=self.vocab_size,
            num_hidden_layers=self.num_hidden_layers,
            hidden_size=self.hidden_size,
            hidden_act=self.hidden_act,
            rms_norm_eps=self.rms_norm_eps,
            intermediate_size=self.mamba_expand * self.hidden_size,
            num_attention_heads=self.mamba_n_heads,
            num_key_value_heads=self.mamba_n_heads,
            num_heads=self.mamba_n_heads,
            head_dim=size,
            n_groups=self.mamba_n_groups,
            state_size=self.mamba_d_state,
            conv_kernel=self.mamba_d_conv,
            use_bias=self.mamba_proj_bias,
            use_conv_bias=self.mamba_conv_bias,
            time_step_limit=self.time_step_limit,
        )

    def check(self) -> None:
        super().check()
        try:
            self.mixer().check()
        except ConfigError as error:
            raise ConfigError(f"a field mamba_*: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Config(HybridConfig, llama.Config):
    """num_logits_to_keep and z_loss_coefficient do not change the logits."""

    num_key_value_heads: int = 8
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-5
    attn_layer_indices: tuple[int, ...] | None = None
    num_logits_to_keep: int | None = 1
    z_loss_coefficient: float | None = 0.0

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        # as in the reference, half of a head is rotated whatever the file contains
        return super().derive({**raw, "partial_rotary_factor": 0.5}, values)

    def check(self) -> None:
        super().check()
        for layer in self.attn_layer_indices or ():
            if not 0 <= layer < self.num_hidden_layers:
                raise ConfigError(
                    f"attn_layer_indices has layer {layer}, which is not within "
                    f"0..{self.num_hidden_layers - 1}"
                )

    def attends(self, layer: int) -> bool:
        """Whether a layer is attention instead of Mamba 2."""
        return layer in (self.attn_layer_indices or ())


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        if config.attends(layer):
            return super().attention(config, layer, rope, **more)
        return mamba2.Mixer(config.mixer(), layer)


class Model(llama.Model):
    block = Block

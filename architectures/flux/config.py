"""FLUX's configs: one per component of the pipeline folder of diffusers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ostro.architectures.clip import model as clip
from ostro.architectures.t5 import model as t5
from ostro.config import ModelConfig, check_sizes
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The config of FluxTransformer2DModel, with FLUX.1's defaults; `in_channels` is of packed
    latents.
    """

    patch_size: int = 1
    in_channels: int = 64
    out_channels: int | None = None
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = False
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)

    @property
    def hidden_size(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    def check(self) -> None:
        super().check()
        check_sizes(
            self,
            "in_channels num_layers num_single_layers attention_head_dim num_attention_heads "
            "joint_attention_dim pooled_projection_dim",
        )
        if self.patch_size != 1 or self.out_channels not in (None, self.in_channels):
            raise ConfigError(
                f"patch_size={self.patch_size} and out_channels={self.out_channels} are not "
                "implemented: FLUX packs latents outside of the transformer"
            )
        axes = self.axes_dims_rope
        if len(axes) != 3 or sum(axes) != self.attention_head_dim or any(a % 2 for a in axes):
            raise ConfigError(
                f"axes_dims_rope={list(axes)} are not three even numbers that sum to "
                f"attention_head_dim={self.attention_head_dim}"
            )


@dataclass(frozen=True, kw_only=True)
class VAEConfig(ModelConfig):
    """The config of AutoencoderKL, without convolutions around the latents."""

    in_channels: int = 3
    out_channels: int = 3
    block_out_channels: tuple[int, ...] = (128, 256, 512, 512)
    layers_per_block: int = 2
    latent_channels: int = 16
    norm_num_groups: int = 32
    sample_size: int = 1024
    scaling_factor: float = 0.3611
    shift_factor: float = 0.1159
    act_fn: str = "silu"
    use_quant_conv: bool = False
    use_post_quant_conv: bool = False
    mid_block_add_attention: bool = True

    @property
    def factor(self) -> int:
        """Pixels per latent along each side."""
        return int(2 ** (len(self.block_out_channels) - 1))

    def check(self) -> None:
        super().check()
        check_sizes(self, "layers_per_block latent_channels norm_num_groups sample_size")
        plain = not self.use_quant_conv and not self.use_post_quant_conv
        if self.act_fn != "silu" or not plain or not self.mid_block_add_attention:
            raise ConfigError(
                f"a VAE with act_fn={self.act_fn!r}, use_quant_conv={self.use_quant_conv}, "
                f"use_post_quant_conv={self.use_post_quant_conv}, mid_block_add_attention="
                f"{self.mid_block_add_attention} is not FLUX's and not implemented"
            )
        widths = self.block_out_channels
        if not widths or any(w < 1 or w % self.norm_num_groups for w in widths):
            raise ConfigError(
                f"block_out_channels={list(widths)} are not multiples of "
                f"norm_num_groups={self.norm_num_groups}"
            )
        if (self.in_channels, self.out_channels) != (3, 3) or not self.scaling_factor > 0:
            raise ConfigError(
                f"in_channels={self.in_channels}, out_channels={self.out_channels}, "
                f"scaling_factor={self.scaling_factor} are not those of RGB images"
            )


UNUSED = (
    "invert_sigmas shift_terminal use_karras_sigmas use_exponential_sigmas use_beta_sigmas "
    "stochastic_sampling use_flow_sigmas"
).split()
"""Switches of the scheduler that FLUX does not use."""


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(ModelConfig):
    """The config of FlowMatchEulerDiscreteScheduler."""

    num_train_timesteps: int = 1000
    shift: float = 1.0
    use_dynamic_shifting: bool = False
    base_shift: float = 0.5
    max_shift: float = 1.15
    base_image_seq_len: int = 256
    max_image_seq_len: int = 4096
    time_shift_type: str = "exponential"

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        if found := [name for name in UNUSED if raw.get(name)]:
            raise ConfigError(f"the scheduler sets {', '.join(found)}, which is not implemented")
        return super().derive(raw, values)

    def check(self) -> None:
        super().check()
        if self.time_shift_type not in ("exponential", "linear"):
            raise ConfigError(f"time_shift_type={self.time_shift_type!r} is not implemented")
        if self.num_train_timesteps < 1 or self.shift <= 0:
            raise ConfigError(
                f"num_train_timesteps={self.num_train_timesteps} and shift={self.shift} must be "
                "positive"
            )
        if self.max_image_seq_len <= self.base_image_seq_len:
            raise ConfigError(
                f"max_image_seq_len={self.max_image_seq_len} is not above "
                f"base_image_seq_len={self.base_image_seq_len}"
            )


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """The config of a pipeline folder; every field is that of the component of that name."""

    transformer: TransformerConfig
    vae: VAEConfig
    text_encoder: clip.Config
    text_encoder_2: t5.Config
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    @property
    def cell(self) -> int:
        """Pixels per transformer row along each side; image sizes are multiples of it."""
        return 2 * self.vae.factor

    def check(self) -> None:
        super().check()
        transformer = self.transformer
        for ours, theirs, what in (
            (transformer.in_channels, 4 * self.vae.latent_channels, "packed latents of the VAE"),
            (transformer.pooled_projection_dim, self.text_encoder.hidden_size, "text_encoder"),
            (transformer.joint_attention_dim, self.text_encoder_2.d_model, "text_encoder_2"),
        ):
            if ours != theirs:
                raise ConfigError(f"the transformer has {ours} input channels, {what} has {theirs}")

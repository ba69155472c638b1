"""Qwen3.5: gated delta nets and gated attention, dense or with experts in every layer.

Reference classes Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.architectures.mixtral import model as mixtral
from ostro.architectures.qwen2_5_vl.config import RopeConfig
from ostro.architectures.qwen3_next import model as qwen3_next
from ostro.architectures.qwen3_vl.model import interleaved_rope
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DeltaConfig(qwen3_next.DeltaConfig):
    """Published files state that attention has an output gate."""

    attn_output_gate: bool = True

    def check(self) -> None:
        super().check()
        if not self.attn_output_gate:
            raise ConfigError("attn_output_gate=false is not implemented")


@dataclass(frozen=True, kw_only=True)
class Config(DeltaConfig, llama.Config):
    """The fields of transformers' Qwen3_5TextConfig."""


@dataclass(frozen=True, kw_only=True)
class EveryLayerConfig(qwen3_next.SharedConfig):
    """Every layer has experts, whose weights are renormalised."""

    num_local_experts: int = 256
    num_experts_per_tok: int = 8

    def check(self) -> None:
        super().check()
        fixed = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": ()}
        for name, value in fixed.items():
            if getattr(self, name) != value:
                raise ConfigError(f"{name}={getattr(self, name)!r:.80} is not implemented")


@dataclass(frozen=True, kw_only=True)
class SparseConfig(DeltaConfig, EveryLayerConfig, mixtral.SparseConfig, llama.Config):
    """The fields of transformers' Qwen3_5MoeTextConfig; no layer uses intermediate_size."""

    intermediate_size: int = 5632


class DeltaNet(qwen3_next.DeltaNet):
    """The delta net; one linear has all inputs, which checkpoints store in separate tensors."""

    def make_inputs(self, d: int) -> None:
        self.widths |= {"b": self.heads, "a": self.heads}
        self.in_proj = nn.Linear(d, {f"in_proj_{name}": n for name, n in self.widths.items()})

    def inputs(self, x: Tensor, step: Step) -> Sequence[Tensor]:
        sizes = (2 * self.keys + self.values, self.values, self.heads, self.heads)
        return self.in_proj(x, step).split(sizes, -1)


class Block(qwen3_next.Block):
    net = DeltaNet

    @staticmethod
    def rope(config: Any) -> nn.Rope:
        """With media, interleaved mrope on a part of each head."""
        if isinstance(config, RopeConfig):
            return interleaved_rope(config)
        return llama.Block.rope(config)


class Model(llama.Model):
    block = Block

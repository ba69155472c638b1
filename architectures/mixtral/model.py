"""Mixtral: Llama whose feed-forward is a sparse mixture of experts (Jiang et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.config import MAX_EXPERTS, TextConfig, WindowConfig, check_sizes
from ostro.errors import ConfigError
from ostro.ops import RoutingRule


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(TextConfig):
    """The fields of families with a mixture of experts; the last three concern training only.

    `num_experts` is another name of num_local_experts.
    """

    num_local_experts: int = 8
    num_experts: int | None = None
    num_experts_per_tok: int = 2
    output_router_logits: bool = False
    router_aux_loss_coef: float = 0.0
    router_jitter_noise: float = 0.0

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        if values.get("num_experts") is not None:
            values["num_local_experts"] = values["num_experts"]
        return values

    def check(self) -> None:
        super().check()
        experts, chosen = self.num_local_experts, self.num_experts_per_tok
        if not 0 < experts <= MAX_EXPERTS:
            raise ConfigError(f"the number of experts, {experts}, is not within 1..{MAX_EXPERTS}")
        if not 0 < chosen <= experts:
            raise ConfigError(f"num_experts_per_tok={chosen} is not within 1..{experts}")


@dataclass(frozen=True, kw_only=True)
class SparseConfig(ExpertsConfig):
    """The fields of Qwen's MoE families: the layers with experts, and their width."""

    moe_intermediate_size: int = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()

    def check(self) -> None:
        super().check()
        check_sizes(self, "moe_intermediate_size decoder_sparse_step")

    def sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0


@dataclass(frozen=True, kw_only=True)
class Config(ExpertsConfig, WindowConfig, llama.Config):
    rms_norm_eps: float = 1e-5
    default_theta: ClassVar[float] = 1000000.0


class SparseMLP(nn.Module):
    """A mixture of experts; the router selects the experts of each row."""

    def __init__(
        self, config: ExpertsConfig, hidden: int, *, renormalise: bool = True, bias: bool = False
    ) -> None:
        super().__init__()
        d, experts, top = config.hidden_size, config.num_local_experts, config.num_experts_per_tok
        self.gate = nn.Router(d, experts, RoutingRule(top, renormalise), bias=bias)
        self.experts = self.mixture(config, hidden)

    def mixture(self, config: ExpertsConfig, hidden: int) -> nn.Experts:
        """The experts; a family may override them."""
        return nn.Experts(config.num_local_experts, config.hidden_size, hidden, config.hidden_act)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        chosen, weights = self.gate.choose(x, step)
        return self.experts(x, chosen, weights, step)


class Block(llama.Block):
    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        return SparseMLP(config, config.intermediate_size)


class Model(llama.Model):
    block = Block

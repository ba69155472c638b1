"""Hunyuan with experts: the dense Hunyuan with routed experts and an MLP for all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.hunyuan_v1_dense import model as dense
from ostro.architectures.mixtral import model as mixtral
from ostro.errors import ConfigError
from ostro.ops import RoutingRule

LISTS = ("moe_topk", "num_experts", "moe_intermediate_size", "num_shared_expert")
"""Fields that are a number, or a list with one number per layer."""


@dataclass(frozen=True, kw_only=True)
class Config(mixtral.ExpertsConfig, dense.Config):
    """moe_topk: the number of experts per row, of each layer. Published files list the number of
    experts, their width and the number of shared experts per layer; these must be equal.
    """

    rms_norm_eps: float = 1e-5
    num_local_experts: int = 1
    num_experts_per_tok: int = 1
    moe_topk: tuple[int, ...] = (1,)
    moe_intermediate_size: tuple[int, ...] = ()
    num_shared_expert: tuple[int, ...] = (1,)
    moe_layer_num_skipped: int = 0
    use_mixed_mlp_moe: bool = True
    norm_topk_prob: bool = True

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        lists = {name: [raw[name]] for name in LISTS if isinstance(raw.get(name), int)}
        raw = {**raw, **lists}
        experts = raw.get("num_experts")
        if isinstance(experts, list | tuple):
            if not experts or any(count != experts[0] for count in experts):
                raise ConfigError(f"num_experts={experts!r:.80} differs between layers")
            raw["num_experts"] = experts[0]
        return super().from_hf(raw, allow=allow)

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        top = values.setdefault("moe_topk", (values.get("num_experts_per_tok", 1),))
        return values | {"num_experts_per_tok": max(top, default=0)}

    def check(self) -> None:
        layers, experts = self.num_hidden_layers, self.num_local_experts
        per_layer = len(self.moe_topk) in (1, layers)
        if not per_layer or not all(0 < top <= experts for top in self.moe_topk):
            raise ConfigError(
                f"moe_topk={self.moe_topk!r:.80} is not one number within 1..num_experts={experts} "
                f"or one per layer, num_hidden_layers={layers}"
            )
        super().check()
        for name, values, implemented in (
            ("moe_intermediate_size", self.moe_intermediate_size, self.intermediate_size),
            ("num_shared_expert", self.num_shared_expert, 1),
            ("moe_layer_num_skipped", (self.moe_layer_num_skipped,), 0),
            ("use_mixed_mlp_moe", (self.use_mixed_mlp_moe,), True),
            ("norm_topk_prob", (self.norm_topk_prob,), True),
        ):
            if any(value != implemented for value in values):
                raise ConfigError(f"{name}={values!r:.80} is not implemented, only {implemented}")

    def top(self, layer: int) -> int:
        """The number of experts per row of a layer."""
        return self.moe_topk[layer if len(self.moe_topk) > 1 else 0]


class Mixture(nn.Module):
    """Routed experts, and an MLP for all rows."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        d, hidden, act = config.hidden_size, config.intermediate_size, config.hidden_act
        experts, rule = config.num_local_experts, RoutingRule(config.top(layer), renormalise=True)
        self.gate = nn.Float32Router(d, experts, rule)
        self.experts = nn.Experts(experts, d, hidden, act)
        self.shared_mlp = nn.GatedMLP(d, hidden, act)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.experts(x, *self.gate.choose(x, step), step) + self.shared_mlp(x, step)


class Block(dense.Block):
    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        return Mixture(config, layer)


class Model(dense.Model):
    block = Block

"""Qwen3 with experts: in some layers or all, a sparse mixture takes the place of the MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostro import Container, ExpertNames, nn
from ostro.architectures.llama import names as llama_names
from ostro.architectures.mixtral import model as mixtral
from ostro.architectures.mixtral import names as mixtral_names
from ostro.architectures.qwen3 import model as qwen3
from ostro.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(mixtral.ExpertsConfig, qwen3.Config):
    """The experts are counted by `num_experts` in older files, by num_local_experts since
    transformers 5.
    """

    head_dim: int = 0
    num_experts: int | None = None
    num_local_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        if values.get("num_experts") is not None:
            values["num_local_experts"] = values["num_experts"]
        return values

    def slides(self, layer: int) -> bool:
        return self.use_sliding_window

    def sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0

    def check(self) -> None:
        super().check()
        for name in ("moe_intermediate_size", "decoder_sparse_step"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} is not positive")


class Block(qwen3.Block):
    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        if not config.sparse(layer):
            return super().feed_forward(config, layer)
        hidden = config.moe_intermediate_size
        return mixtral.SparseMLP(config, hidden, renormalise=config.norm_topk_prob)


class Model(qwen3.Model):
    block = Block


def names(config: Config) -> ExpertNames:
    """The hub has each expert under its own name; the converter leaves q and k as they are."""
    return ExpertNames(
        gguf=(mixtral_names.GATE, *llama_names.GGUF),
        experts=config.num_local_experts,
        stacks=mixtral_names.STACKS,
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Mixtral's keys and the experts' width; llama.cpp renormalises in every model of this kind."""
    width = container.metadata.get("qwen3moe.expert_feed_forward_length")
    fixed = {"moe_intermediate_size": width, "norm_topk_prob": True}
    return mixtral_names.gguf_config(container) | fixed

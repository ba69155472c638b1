"""Mutants of qwen2_vl: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.qwen2_5_vl.mutants import vision_mutants
from ostro.testing import SMALL, each, no_bias


def another_gelu(model: nn.TokenModel) -> None:
    each(model, nn.MLP, lambda mlp: setattr(mlp, "act", "gelu"))


def layer_norm_eps(model: nn.TokenModel) -> None:
    each(model, nn.LayerNorm, lambda norm: setattr(norm, "eps", 0.1))


def mutants() -> Iterator[Mutant]:
    yield from vision_mutants()
    yield Mutant(name="no biases on q, k, v", apply=no_bias)
    yield Mutant(name="tower: gelu instead of quick_gelu", apply=another_gelu)
    yield Mutant(name="tower: another epsilon in the norms", apply=layer_norm_eps, std=SMALL)

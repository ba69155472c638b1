"""Mutants of SigLIP's vision encoder: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ostro import Mutant, nn
from ostro.architectures.clip.model import MLP, Attention, Layer, quick_gelu
from ostro.architectures.siglip.model import Embeddings, Patches, VisionTower
from ostro.testing import SMALL, each


def scale(model: nn.Model) -> None:
    each(model, Attention, lambda a: setattr(a, "scale", a.scale * 1.1))


def causal(model: nn.Model) -> None:
    each(model, Attention, lambda a: setattr(a, "causal", True))


def another_gelu(model: nn.Model) -> None:
    each(model, MLP, lambda mlp: setattr(mlp, "act", quick_gelu))


def norm_eps(model: nn.Model) -> None:
    each(model, nn.LayerNorm, lambda n: setattr(n, "eps", 0.1))


def post_norm(model: nn.Model) -> None:
    def change(layer: Layer) -> None:
        layer.forward = lambda x, step: layer.layer_norm1(  # type: ignore[method-assign]
            layer.self_attn(x, step), x
        )[0]

    each(model, Layer, change)


def no_last_norm(model: nn.Model) -> None:
    each(
        model,
        VisionTower,
        lambda t: setattr(t.post_layernorm, "forward", lambda x, residual=None: (x, x)),
    )


def patches_by_columns(model: nn.Model) -> None:
    def turn(patches: Patches) -> None:
        forward = patches.forward
        patches.forward = lambda pixels: forward(pixels.mT)  # type: ignore[method-assign]

    each(model, Patches, turn)


def no_patch_bias(model: nn.Model) -> None:
    each(model, Patches, lambda p: p.bias.data.zero_())


def places_late(model: nn.Model) -> None:
    def roll(embeddings: Embeddings) -> None:
        table: Tensor = embeddings.position_embedding.weight.data
        embeddings.position_embedding.weight.data = table.roll(1, 0)

    each(model, Embeddings, roll)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="tower: scores scaled by 1.1", apply=scale)
    yield Mutant(name="tower: causal", apply=causal)
    yield Mutant(name="tower: layer norm epsilon 0.1", apply=norm_eps, std=SMALL)
    yield Mutant(name="tower: norm after instead of before", apply=post_norm)
    yield Mutant(name="tower: no last norm", apply=no_last_norm)
    yield Mutant(name="tower: patches column by column", apply=patches_by_columns)
    yield Mutant(name="tower: no bias on the patches", apply=no_patch_bias)
    yield Mutant(name="tower: positions one patch late", apply=places_late)
    yield Mutant(name="tower: quick_gelu instead of gelu", apply=another_gelu)

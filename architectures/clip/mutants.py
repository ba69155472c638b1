"""Mutants of CLIP: porting bugs that its parity test must detect."""

from collections.abc import Iterator

import torch.nn.functional as F

from ostro import Mutant, nn
from ostro.architectures.clip.model import MLP, Attention, Layer, Model, TextModel, quick_gelu
from ostro.architectures.clip.vision import Patches, VisionEmbeddings, VisionTower
from ostro.testing import SMALL, each


def scale(model: nn.Model) -> None:
    each(model, Attention, lambda a: setattr(a, "scale", a.scale * 1.1))


def direction(model: nn.Model) -> None:
    each(model, Attention, lambda a: setattr(a, "causal", not a.causal))


def activation(model: nn.Model) -> None:
    def swap(mlp: MLP) -> None:
        mlp.act = F.gelu if mlp.act is quick_gelu else quick_gelu

    each(model, MLP, swap)


def norm_eps(model: nn.Model) -> None:
    each(model, nn.LayerNorm, lambda n: setattr(n, "eps", 0.1))


def post_norm(model: nn.Model) -> None:
    def change(layer: Layer) -> None:
        layer.forward = lambda x, step: layer.layer_norm1(  # type: ignore[method-assign]
            layer.self_attn(x, step), x
        )[0]

    each(model, Layer, change)


def no_final_norm(model: nn.Model) -> None:
    def drop(text: TextModel) -> None:
        text.final_layer_norm.forward = lambda x, residual=None: (x, x)  # type: ignore[method-assign]

    each(model, TextModel, drop)


def positions_off(model: nn.Model) -> None:
    def shift(text: TextModel) -> None:
        table = text.embeddings.position_embedding
        forward = table.forward
        table.forward = lambda ids, step: forward(ids + 1, step)  # type: ignore[method-assign]

    each(model, TextModel, shift)


def last_row(model: Model) -> None:
    """Pool the last row (padding) instead of the end of the text."""
    model.ends = lambda step: step.tokens.new_tensor(step.bounds[1:]) - 1  # type: ignore[method-assign]


def shared() -> Iterator[Mutant]:
    """The mutants of text and vision encoder."""
    yield Mutant(name="scores scaled by 1.1", apply=scale)
    yield Mutant(name="causal exchanged with not causal", apply=direction)
    yield Mutant(name="gelu and quick_gelu exchanged", apply=activation)
    yield Mutant(name="layer norm epsilon 0.1", apply=norm_eps, std=SMALL)
    yield Mutant(name="norm after instead of before", apply=post_norm)


def mutants() -> Iterator[Mutant]:
    yield from shared()
    yield Mutant(name="no final norm", apply=no_final_norm)
    yield Mutant(name="positions off by one", apply=positions_off)


def no_class_token(model: nn.Model) -> None:
    each(model, VisionEmbeddings, lambda e: e.class_embedding.data.zero_())


def no_first_norm(model: nn.Model) -> None:
    def drop(tower: VisionTower) -> None:
        tower.pre_layrnorm.forward = lambda x, residual=None: (x, x)  # type: ignore[method-assign]

    each(model, VisionTower, drop)


def patches_by_columns(model: nn.Model) -> None:
    def turn(patches: Patches) -> None:
        forward = patches.forward
        patches.forward = lambda pixels: forward(pixels.mT)  # type: ignore[method-assign]

    each(model, Patches, turn)


def vision() -> Iterator[Mutant]:
    yield from shared()
    yield Mutant(name="no class token", apply=no_class_token)
    yield Mutant(name="no norm before the layers", apply=no_first_norm)
    yield Mutant(name="patches column by column", apply=patches_by_columns)

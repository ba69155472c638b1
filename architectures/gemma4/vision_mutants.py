"""Mutants of Gemma 4 with media: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ostro import Mutant, nn
from ostro.architectures.gemma3.vision_mutants import one_direction
from ostro.architectures.gemma4 import sound
from ostro.architectures.gemma4.model import Decoder
from ostro.architectures.gemma4.tower import Attention as TowerAttention
from ostro.architectures.gemma4.tower import BoundedLinear, PatchEmbedder, Tower
from ostro.architectures.gemma4.vision import Embedder
from ostro.architectures.llava.mutants import rows_late
from ostro.testing import each


def places_exchanged(model: nn.Model) -> None:
    """Look up the embeddings of rows by columns."""
    each(
        model,
        PatchEmbedder,
        lambda e: e.position_embedding_table.data.copy_(e.position_embedding_table.flip(0)),
    )


def rope_exchanged(model: nn.Model) -> None:
    """Rotate the first half of a head by rows."""

    def change(attention: TowerAttention) -> None:
        rotate = attention.rotate
        attention.rotate = lambda x, positions: rotate(x, positions.flip(0))  # type: ignore[method-assign]

    each(model, TowerAttention, change)


def no_bounds(model: nn.Model) -> None:
    each(model, BoundedLinear, lambda linear: setattr(linear, "bounded", False))


def outputs_unbounded(model: nn.Model) -> None:
    def change(linear: BoundedLinear) -> None:
        linear.output_min.data.fill_(-torch.inf)
        linear.output_max.data.fill_(torch.inf)

    each(model, BoundedLinear, change)


def stripes(model: nn.Model) -> None:
    """Pool consecutive patches instead of cells."""

    def change(tower: Tower) -> None:
        cell = tower.cell**2
        tower.pool = lambda x, grid: x.float().unflatten(0, (-1, cell)).mean(1)  # type: ignore[method-assign]

    each(model, Tower, change)


def raw_pixels(model: nn.Model) -> None:
    """Take pixels within 0..1 instead of -1..1."""

    def change(embedder: PatchEmbedder) -> None:
        forward = embedder.forward
        embedder.forward = lambda patches, step: forward(patches / 2 + 0.5, step)  # type: ignore[method-assign]

    each(model, PatchEmbedder, change)


def no_standardization(model: nn.Model) -> None:
    each(model, Tower, lambda tower: setattr(tower, "standardize", False))


def no_projector_norm(model: nn.Model) -> None:
    each(
        model,
        Embedder,
        lambda e: setattr(e.embedding_pre_projection_norm, "forward", lambda x: (x, x)),
    )


def value_norm(model: nn.Model) -> None:
    each(model, TowerAttention, lambda a: setattr(a.v_norm, "forward", lambda x: (x, x)))


def soft_token_inputs(model: nn.Model) -> None:
    """Look up the per-layer embeddings of placeholders."""
    each(model, Decoder, lambda decoder: setattr(decoder, "placeholders", ()))


def distances_reversed(model: nn.Model) -> None:
    def change(attention: sound.Attention) -> None:
        forward = attention.forward
        attention.forward = lambda x, places, step: forward(x, places.flip(0), step)  # type: ignore[method-assign]

    each(model, sound.Attention, change)


def wider_window(model: nn.Model) -> None:
    """Attend to `attention_context_left` rows instead of one fewer."""

    def change(module: sound.Attention | sound.Tower) -> None:
        module.window += 1

    each(model, sound.Attention, change)
    each(model, sound.Tower, change)


def whole_steps(model: nn.Model) -> None:
    """Add the results of feed-forward blocks without a factor."""
    each(model, sound.FeedForward, lambda block: setattr(block, "factor", 1.0))


def kernels_backwards(model: nn.Model) -> None:
    def change(convolution: sound.LightConvolution) -> None:
        kernel = convolution.depthwise_conv1d.weight
        kernel.data = kernel.flip(-1)

    each(model, sound.LightConvolution, change)


def keys_unscaled(model: nn.Model) -> None:
    each(model, sound.Attention, lambda attention: setattr(attention, "k_scale", 1.0))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="embeddings of rows and columns exchanged", apply=places_exchanged)
    yield Mutant(name="rope of rows and columns exchanged", apply=rope_exchanged)
    yield Mutant(name="linears without bounds", apply=no_bounds)
    yield Mutant(name="outputs of linears without bounds", apply=outputs_unbounded)
    yield Mutant(name="means of stripes instead of cells", apply=stripes)
    yield Mutant(name="pixels within 0..1", apply=raw_pixels)
    yield Mutant(name="features not standardized", apply=no_standardization)
    yield Mutant(name="no norm before the projection", apply=no_projector_norm)
    yield Mutant(name="values of the tower not normed", apply=value_norm)
    yield Mutant(name="per-layer embeddings of placeholders", apply=soft_token_inputs)
    yield Mutant(name="causal attention within an image", apply=one_direction)
    yield Mutant(name="features one row late", apply=rows_late)
    yield Mutant(name="distances in sound reversed", apply=distances_reversed)
    yield Mutant(name="window of sound one longer", apply=wider_window)
    yield Mutant(name="feed-forward of sound not halved", apply=whole_steps)
    yield Mutant(name="kernels of sound backwards", apply=kernels_backwards)
    yield Mutant(name="keys of sound not scaled", apply=keys_unscaled)

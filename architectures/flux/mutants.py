"""Mutants of FLUX: porting bugs that its parity test must detect."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.clip import mutants as clip
from ostro.architectures.flux.batch import Batch
from ostro.architectures.flux.model import Model
from ostro.architectures.flux.transformer import (
    Attention,
    AxesRope,
    Conditions,
    DoubleBlock,
    Embedder,
    Modulation,
    SingleBlock,
)
from ostro.architectures.flux.vae import Conv, Downsample
from ostro.architectures.t5 import mutants as t5
from ostro.testing import each


def axes_split(model: Model) -> None:
    each(model, AxesRope, lambda r: setattr(r, "sections", tuple(reversed(r.sections or ()))))


def rope_layout(model: Model) -> None:
    each(model, AxesRope, lambda r: setattr(r, "interleaved", False))


def exchanged(count: int) -> Callable[[Model], None]:
    """Exchange shift and scale in modulations with `count` vectors."""

    def change(modulation: Modulation) -> None:
        forward = modulation.forward

        def swap(vector: Tensor, step: Step) -> tuple[Tensor, ...]:
            first, second, *rest = forward(vector, step)
            return second, first, *rest

        if modulation.count == count:
            modulation.forward = swap  # type: ignore[method-assign]

    return lambda model: each(model, Modulation, change)


def no_gates(model: Model) -> None:
    def drop(block: DoubleBlock) -> None:
        add = block.gate_add.kernel
        block.gate_add.kernel = lambda x, y, gate: add(x, y, gate * 0 + 1)

    each(model, DoubleBlock, drop)


def no_guidance(model: Model) -> None:
    each(model, Conditions, lambda c: setattr(c, "guidance_embedder", None))


def scaled(time: float, guidance: float) -> Callable[[Model], None]:
    """Multiply time and guidance by factors."""

    def change(conditions: Any) -> None:
        forward = conditions.forward
        conditions.forward = lambda p, t, g, step: forward(p, t * time, g * guidance, step)

    return lambda model: each(model, Conditions, change)


def sines_first(model: Model) -> None:
    def turn(embedder: Embedder) -> None:
        forward = embedder.forward
        embedder.forward = lambda x, step: forward(x.roll(x.shape[1] // 2, 1), step)  # type: ignore[method-assign]

    turn(model.transformer.time_text_embed.timestep_embedder)


def silu_in_one(model: Model) -> None:
    each(model, SingleBlock, lambda block: setattr(block, "act", F.silu))


def silu_in_two(model: Model) -> None:
    def swap(mlp: nn.MLP) -> None:
        mlp.forward = lambda x, step: mlp.fc2(F.silu(mlp.fc1(x, step)), step)  # type: ignore[method-assign]

    each(model, nn.MLP, swap)


def no_head_norms(model: Model) -> None:
    def drop(attention: Attention) -> None:
        attention.norm_q.forward = lambda x, residual=None: (x, x)  # type: ignore[method-assign]

    each(model, Attention, drop)


def scale(model: Model) -> None:
    each(model, Attention, lambda a: setattr(a, "scale", a.scale * 1.1))


def seen(change: Callable[[Batch], None]) -> Callable[[Model], None]:
    """Change the batch of the transformer."""

    def apply(model: Model) -> None:
        transformer: Any = model.transformer
        forward = transformer.forward

        def other(*args: Any) -> Any:
            batch = replace(args[-1], positions=args[-1].positions.clone())
            change(batch)
            return forward(*args[:-1], batch)

        transformer.forward = other

    return apply


def sides(batch: Batch) -> None:
    batch.positions = batch.positions[[0, 2, 1]]


def counted_text(batch: Batch) -> None:
    batch.positions[0, : batch.text] += batch.positions.new_tensor(range(batch.text))


def packing(model: Model) -> None:
    """Pack latents position by position instead of channel by channel."""
    transformer: Any = model.transformer
    forward = transformer.forward

    def other(latents: Tensor, *rest: Any) -> Any:
        mixed = latents.unflatten(1, (-1, 4)).mT.flatten(1)
        return forward(mixed, *rest).unflatten(1, (4, -1)).mT.flatten(1)

    transformer.forward = other


def schedule(**changes: Any) -> Callable[[Model], None]:
    def apply(model: Model) -> None:
        config = model.config
        model.config = replace(config, scheduler=replace(config.scheduler, **changes))

    return apply


def no_shift(model: Model) -> None:
    model.vae.shift = 0.0


def no_scale(model: Model) -> None:
    model.vae.scale = 1.0


def even_padding(model: Model) -> None:
    """Pad the encoder's strided convolutions on all sides."""

    def change(down: Downsample) -> None:
        conv: Conv = down.conv
        down.forward = lambda x: conv(F.pad(x, (1, 1, 1, 1)))  # type: ignore[method-assign]

    each(model, Downsample, change)


def pooled_from_the_end(model: Model) -> None:
    clip.last_row(model.text_encoder)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="axes of the rope split in another order", apply=axes_split)
    yield Mutant(name="rope pairs halves instead of neighbours", apply=rope_layout)
    yield Mutant(name="height and width exchanged", apply=seen(sides))
    yield Mutant(name="text rows counted", apply=seen(counted_text))
    yield Mutant(name="shift and scale exchanged, two streams", apply=exchanged(6))
    yield Mutant(name="shift and scale exchanged, one stream", apply=exchanged(3))
    yield Mutant(name="shift and scale exchanged, at the end", apply=exchanged(2))
    yield Mutant(name="no gates", apply=no_gates)
    yield Mutant(name="no guidance embedding", apply=no_guidance)
    yield Mutant(name="time counted in whole units", apply=scaled(1e-3, 1))
    yield Mutant(name="guidance counted in whole units", apply=scaled(1, 1e-3))
    yield Mutant(name="sines before cosines", apply=sines_first)
    yield Mutant(name="another activation in one stream", apply=silu_in_one)
    yield Mutant(name="another activation in two streams", apply=silu_in_two)
    yield Mutant(name="no norms on queries", apply=no_head_norms)
    yield Mutant(name="scores scaled by 1.1", apply=scale)
    yield Mutant(name="packed position by position", apply=packing)
    yield Mutant(name="no shift by size", apply=schedule(use_dynamic_shifting=False))
    yield Mutant(name="another shift", apply=schedule(base_shift=1.15, max_shift=0.5))
    yield Mutant(name="linear shift", apply=schedule(time_shift_type="linear"))
    yield Mutant(name="latents not shifted", apply=no_shift)
    yield Mutant(name="latents not scaled", apply=no_scale)
    yield Mutant(name="encoder padded on all sides", apply=even_padding)
    yield Mutant(name="CLIP pooled from the last row", apply=pooled_from_the_end)
    yield Mutant(name="T5's buckets of a decoder", apply=lambda m: t5.one_direction(m))
    yield Mutant(name="T5 without bias", apply=lambda m: t5.no_bias(m))

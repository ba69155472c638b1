"""Mutants of Mllama: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.mllama.model import CrossBlock, Model
from ostro.architectures.mllama.vision import (
    Attention,
    Layer,
    PositionEmbedding,
    TileEmbedding,
    Tower,
)
from ostro.testing import SMALL, each


def open_gates(model: nn.Model) -> None:
    """Omit the tanh of gates."""

    def change(block: CrossBlock) -> None:
        for gate in (block.cross_attn_attn_gate, block.cross_attn_mlp_gate):
            gate.data = gate.data.clamp(-0.99, 0.99).atanh()

    each(model, CrossBlock, change)


def no_attention_gate(model: nn.Model) -> None:
    each(model, CrossBlock, lambda b: b.cross_attn_attn_gate.data.fill_(20.0))


def no_feed_forward_gate(model: nn.Model) -> None:
    each(model, CrossBlock, lambda b: b.cross_attn_mlp_gate.data.fill_(20.0))


def no_cross_norm(name: str) -> Any:
    def change(attention: nn.CrossAttention) -> None:
        getattr(attention, name).forward = lambda x: (x, x)

    return lambda model: each(model, nn.CrossAttention, change)


def cross_scale(model: nn.Model) -> None:
    each(model, nn.CrossAttention, lambda a: setattr(a, "scale", a.scale * 1.2))


def blind_rows_fed(model: nn.Model) -> None:
    """Apply the gated feed-forward also to rows without an image."""

    def change(attention: nn.CrossAttention) -> None:
        rows_with_media = attention.rows_with_media

        def see(step: Step) -> Tensor | None:
            seen = rows_with_media(step)
            return None if seen is None else torch.ones_like(seen)

        attention.rows_with_media = see  # type: ignore[method-assign]

    each(model, nn.CrossAttention, change)


def first_image(model: Model) -> None:
    """Let all rows with an image attend to the first image."""

    def change(attention: nn.CrossAttention) -> None:
        attend = attention.attend

        def one(q: Tensor, k: Tensor, v: Tensor, batch: Any, scale: float) -> Tensor:
            lengths, host = batch.lengths.tolist(), batch.host
            i = next(i for i, length in enumerate(lengths) if length)
            seen = [i if length else j for j, length in enumerate(lengths)]
            blocks = [host.blocks[j] for j in seen]
            changed = replace(
                batch,
                table=batch.table[seen],
                lengths=batch.lengths[seen],
                host=replace(host, lengths=[lengths[j] for j in seen], blocks=blocks, memo={}),
            )
            y: Tensor = attend(q, k, v, changed, scale)
            return y

        attention.attend = one  # type: ignore[assignment]

    each(model, nn.CrossAttention, change)


def tower_scale(model: nn.Model) -> None:
    each(model, Attention, lambda a: setattr(a, "scale", a.scale * 1.2))


def padding_unseen(model: nn.Model) -> None:
    """Exclude padding rows from attention."""

    def change(attention: Attention) -> None:
        def see(x: Tensor, step: Step) -> Tensor:
            q, k, v = attention.qkv(x, step).view(len(x), 3, attention.heads, -1).unbind(1)
            y = attention.attend(q, k, v, step.bounds, attention.scale)
            return attention.o_proj(y.flatten(1), step)

        attention.forward = see  # type: ignore[method-assign]

    each(model, Attention, change)


def no_tower_gates(model: nn.Model) -> None:
    def change(layer: Layer) -> None:
        layer.__dict__["_parameters"].update(gate_attn=None, gate_ffn=None)

    each(model, Layer, change)


def no_tile_places(name: str) -> Any:
    return lambda model: each(model, Tower, lambda t: getattr(t, name).gate.data.zero_())


def no_global_positions(model: nn.Model) -> None:
    each(model, PositionEmbedding, lambda p: p.gate.data.zero_())


def cuts_off_by_one(model: nn.Model) -> None:
    def change(embedding: TileEmbedding) -> None:
        forward = embedding.forward
        embedding.forward = lambda ratios, step: forward(ratios - 1, step)  # type: ignore[method-assign]

    each(model, TileEmbedding, change)


def middle_layers_late(model: nn.Model) -> None:
    each(model, Tower, lambda t: setattr(t, "taken", (1, *t.taken[1:])))


def middle_side_by_side(model: nn.Model) -> None:
    """Concatenate intermediate states instead of interleaving them."""

    def change(tower: Tower) -> None:
        forward, count = tower.forward, len(tower.taken)

        def weave(images: Any, ratios: Tensor, step: Step) -> list[Tensor]:
            out = []
            for x in forward(images, ratios, step):
                d = x.shape[1] // (count + 1)
                rest = x[:, d:].unflatten(1, (d, count)).mT.flatten(1)
                out.append(torch.cat((x[:, :d], rest), 1))
            return out

        tower.forward = weave  # type: ignore[method-assign]

    each(model, Tower, change)


def tower_eps(model: nn.Model) -> None:
    each(model, nn.LayerNorm, lambda n: setattr(n, "eps", 0.1))


def no_projector_bias(model: Model) -> None:
    model.multi_modal_projector.bias = None


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="gates without tanh", apply=open_gates)
    yield Mutant(name="no gate on the cross attention", apply=no_attention_gate)
    yield Mutant(name="no gate on the feed-forward behind it", apply=no_feed_forward_gate)
    yield Mutant(name="no norm on the cross queries", apply=no_cross_norm("q_norm"))
    yield Mutant(name="no norm on the cross keys", apply=no_cross_norm("k_norm"))
    yield Mutant(name="cross scores scaled by 1.2", apply=cross_scale)
    yield Mutant(name="rows without an image pass through the feed-forward", apply=blind_rows_fed)
    yield Mutant(name="all rows attend to the first image", apply=first_image)
    yield Mutant(name="tower: scores scaled by 1.2", apply=tower_scale)
    yield Mutant(name="tower: no attention to padding", apply=padding_unseen)
    yield Mutant(name="tower: no gates", apply=no_tower_gates)
    first, second = "pre_tile_positional_embedding", "post_tile_positional_embedding"
    yield Mutant(name="tower: tiles alike before", apply=no_tile_places(first))
    yield Mutant(name="tower: tiles alike between", apply=no_tile_places(second))
    yield Mutant(name="tower: no positions of tiles", apply=no_global_positions)
    yield Mutant(name="tower: cuts off by one", apply=cuts_off_by_one)
    yield Mutant(name="tower: other layers taken", apply=middle_layers_late)
    yield Mutant(name="tower: layers side by side", apply=middle_side_by_side)
    yield Mutant(name="tower: layer norm epsilon 0.1", apply=tower_eps, std=SMALL)
    yield Mutant(name="no bias on the projector", apply=no_projector_bias)

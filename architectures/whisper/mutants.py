"""Mutants of Whisper: porting bugs that its parity test must detect."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.whisper.encoder import Convolution, Encoder, EncoderLayer
from ostro.architectures.whisper.model import Attention, Decoder, DecoderLayer
from ostro.testing import SMALL, each


def scale(kind: type[nn.Module]) -> Callable[[nn.Model], None]:
    return lambda model: each(model, kind, lambda a: setattr(a, "scale", a.scale * 1.1))


def norm_eps(model: nn.Model) -> None:
    each(model, nn.LayerNorm, lambda n: setattr(n, "eps", 0.1))


def another_activation(model: nn.Model) -> None:
    def change(mlp: nn.MLP) -> None:
        mlp.forward = lambda x, step: mlp.fc2(mlp.fc1(x, step).relu(), step)  # type: ignore[method-assign]

    each(model, nn.MLP, change)


def spoil_positions(
    kind: type[Encoder] | type[Decoder], spoil: Callable[[Tensor], Tensor]
) -> Callable[[nn.Model], None]:
    def change(part: nn.Module) -> None:
        table = part.embed_positions
        forward = table.forward
        table.forward = lambda places, step: forward(spoil(places), step)

    return lambda model: each(model, kind, change)


def pass_on(norm: nn.LayerNorm) -> None:
    norm.forward = lambda x, residual=None: (x, x)  # type: ignore[method-assign]


def first_norm_missing(model: nn.Model) -> None:
    each(model, EncoderLayer, lambda layer: pass_on(layer.self_attn_layer_norm))


def last_norm_missing(model: nn.Model) -> None:
    each(model, Encoder, lambda encoder: pass_on(encoder.layer_norm))


def no_bias_on_v(model: nn.Model) -> None:
    def change(attention: nn.EncoderAttention | Attention) -> None:
        attention.qkv.bias.data[attention.qkv.span("v_proj")] = 0

    each(model, nn.EncoderAttention, change)
    each(model, Attention, change)


def filters_reversed(model: nn.Model) -> None:
    def change(convolution: Convolution) -> None:
        convolution.weight.data = convolution.weight.data.flip(-1)

    each(model, Convolution, change)


def frames_late(model: nn.Model) -> None:
    """Pad convolutions at the end only."""

    def change(convolution: Convolution) -> None:
        forward = convolution.forward
        convolution.forward = lambda x: forward(x.roll(-1, 1))  # type: ignore[method-assign]

    each(model, Convolution, change)


def no_cross_attention(model: nn.Model) -> None:
    def change(layer: DecoderLayer) -> None:
        silence = lambda x, step: torch.zeros_like(x)  # noqa: E731
        layer.encoder_attn.forward = silence  # type: ignore[method-assign]

    each(model, DecoderLayer, change)


def shared_cross_cache(model: nn.Model) -> None:
    """Let every layer read the cache of the first layer."""

    def change(decoder: Decoder) -> None:
        first = decoder.layers[0].encoder_attn.layer
        for layer in decoder.layers:
            layer.encoder_attn.layer = first
            layer.encoder_attn.write_states = skip
        del decoder.layers[0].encoder_attn.write_states

    def skip(states: Tensor, step: Step) -> None:
        """Write nothing."""

    each(model, Decoder, change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="scores of the encoder scaled by 1.1", apply=scale(nn.EncoderAttention))
    yield Mutant(name="scores of the decoder scaled by 1.1", apply=scale(Attention))
    yield Mutant(name="scores of the cross attention scaled by 1.1", apply=scale(nn.CrossAttention))
    yield Mutant(name="layer norm epsilon 0.1", apply=norm_eps, std=SMALL)
    yield Mutant(name="another activation", apply=another_activation)
    yield Mutant(
        name="positions of the encoder all zero",
        apply=spoil_positions(Encoder, torch.zeros_like),
    )
    yield Mutant(
        name="positions of the decoder off by one",
        apply=spoil_positions(Decoder, lambda places: places + 1),
    )
    yield Mutant(name="no norm before attention", apply=first_norm_missing)
    yield Mutant(name="no norm after the encoder", apply=last_norm_missing)
    yield Mutant(name="no bias on v", apply=no_bias_on_v)
    yield Mutant(name="convolutions backwards", apply=filters_reversed)
    yield Mutant(name="convolutions one frame late", apply=frames_late)
    yield Mutant(name="no cross attention", apply=no_cross_attention)
    yield Mutant(name="one cross attention cache for all layers", apply=shared_cross_cache)

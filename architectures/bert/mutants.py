"""Mutants of BERT: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.bert.model import Embeddings, Layer
from ostro.testing import SMALL, each


def scale(model: nn.Model) -> None:
    each(model, nn.EncoderAttention, lambda a: setattr(a, "scale", a.scale * 1.1))


def norm_eps(model: nn.Model) -> None:
    each(model, nn.LayerNorm, lambda n: setattr(n, "eps", 0.1))


def no_activation(model: nn.Model) -> None:
    def drop(mlp: nn.MLP) -> None:
        mlp.forward = lambda x, step: mlp.fc2(mlp.fc1(x, step), step)  # type: ignore[method-assign]

    each(model, nn.MLP, drop)


def pre_norm(model: nn.Model) -> None:
    def change(layer: Layer) -> None:
        layer.forward = lambda x, step: x + layer.mlp(layer.mlp_norm(x)[0], step)  # type: ignore[method-assign]

    each(model, Layer, change)


def no_token_types(model: nn.Model) -> None:
    def drop(embeddings: Embeddings) -> None:
        table = embeddings.token_type_embeddings
        forward = table.forward
        table.forward = lambda ids, step: 0 * forward(ids, step)  # type: ignore[method-assign]

    each(model, Embeddings, drop)


def positions_off(model: nn.Model) -> None:
    def shift(embeddings: Embeddings) -> None:
        table = embeddings.position_embeddings
        forward = table.forward
        table.forward = lambda ids, step: forward(ids + 1, step)  # type: ignore[method-assign]

    each(model, Embeddings, shift)


def causal(model: nn.Model) -> None:
    def change(attention: nn.EncoderAttention) -> None:
        attend = attention.attend.kernel
        attention.attend.kernel = lambda *args: attend(*args, causal=True)

    each(model, nn.EncoderAttention, change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="scores scaled by 1.1", apply=scale)
    yield Mutant(name="layer norm epsilon 0.1", apply=norm_eps, std=SMALL)
    yield Mutant(name="no activation", apply=no_activation)
    yield Mutant(name="norm before instead of after", apply=pre_norm)
    yield Mutant(name="no token type embedding", apply=no_token_types)
    yield Mutant(name="positions off by one", apply=positions_off)
    yield Mutant(name="causal attention", apply=causal)

"""Mutants of Qwen2-Audio: porting bugs that its parity test must detect."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.qwen2_audio.model import Model, Projector, Tower
from ostro.testing import each


def first_of_two(model: nn.Model) -> None:
    each(model, Tower, lambda tower: setattr(tower, "pool", lambda x: x[: len(x) // 2 * 2 : 2]))


def halves(model: nn.Model) -> None:
    """Pool rows that are half the audio apart."""

    def pool(x: Tensor) -> Tensor:
        return x[: len(x) // 2 * 2].unflatten(0, (2, -1)).mean(0)

    each(model, Tower, lambda tower: setattr(tower, "pool", pool))


def pass_on(x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return x, x


def norm_before_pooling(model: nn.Model) -> None:
    def change(tower: Tower) -> None:
        norm, pool = tower.layer_norm.forward, tower.pool
        tower.pool = lambda x: pool(norm(x)[0])  # type: ignore[method-assign]
        tower.layer_norm.forward = pass_on  # type: ignore[method-assign]

    each(model, Tower, change)


def attend_to_silence(model: nn.Model) -> None:
    """Attend to the silence after the audio."""

    def change(tower: Tower) -> None:
        forward = tower.forward

        def encode_all(spectra: Sequence[Tensor], step: Step, rows: Sequence[int]) -> list[Tensor]:
            return [x[: n // 2] for x, n in zip(forward(spectra, step), rows, strict=True)]

        tower.forward = encode_all  # type: ignore[assignment, method-assign]

    each(model, Tower, change)


def scale(model: nn.Model) -> None:
    each(model, nn.EncoderAttention, lambda a: setattr(a, "scale", a.scale * 1.1))


def no_projector_bias(model: nn.Model) -> None:
    each(model, Projector, lambda projector: setattr(projector.linear, "bias", None))


def rows_late(model: nn.Model) -> None:
    """Place features one row too late."""

    def change(audio_model: Model) -> None:
        encode = audio_model.encode
        audio_model.encode = lambda media, step: [  # type: ignore[method-assign]
            (x.roll(1, 0),) for (x,) in encode(media, step)
        ]

    each(model, Model, change)


def no_features(model: nn.Model) -> None:
    def change(audio_model: Model) -> None:
        embed = super(Model, audio_model).embed
        audio_model.embed = embed  # type: ignore[method-assign]

    each(model, Model, change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="the first of two rows instead of their mean", apply=first_of_two)
    yield Mutant(name="the mean of rows half the audio apart", apply=halves)
    yield Mutant(name="norm before pooling", apply=norm_before_pooling)
    yield Mutant(name="attention to silence", apply=attend_to_silence)
    yield Mutant(name="scores of the encoder scaled by 1.1", apply=scale)
    yield Mutant(name="no bias on the projector", apply=no_projector_bias)
    yield Mutant(name="features one row late", apply=rows_late)
    yield Mutant(name="embeddings of placeholders instead of features", apply=no_features)

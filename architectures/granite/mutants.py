"""Mutants of granite: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.granite.model import Block, Model
from ostro.testing import each


def no_embedding_factor(model: nn.Model) -> None:
    assert isinstance(model, Model)
    model.embedding_multiplier = 1.0


def no_logits_factor(model: nn.Model) -> None:
    assert isinstance(model, Model)
    model.logits_scaling = 1.0


def head_scale(model: nn.Model) -> None:
    """Scale scores by head_dim ** -0.5 instead of attention_multiplier."""
    each(model, nn.Attention, lambda a: setattr(a, "scale", a.head_dim**-0.5))


def no_residual_factor(model: nn.Model) -> None:
    each(model, Block, lambda block: setattr(block, "multiplier", 1.0))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="no factor on the embeddings", apply=no_embedding_factor)
    yield Mutant(name="no factor on the logits", apply=no_logits_factor)
    yield Mutant(name="scores scaled by head_dim", apply=head_scale)
    yield Mutant(name="no factor on the residual branches", apply=no_residual_factor)

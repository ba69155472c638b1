"""Mutants of hunyuan_v1_dense: porting bugs that its parity test must detect."""

from collections.abc import Iterator
from types import MethodType

from ostro import Mutant, nn
from ostro.architectures.hunyuan_v1_dense.model import Attention
from ostro.testing import each, retable


def norm_first(model: nn.Model) -> None:
    """Norm q and k before the rotation, as in Qwen3."""
    usual = nn.Attention.rotate_and_write
    each(model, Attention, lambda a: setattr(a, "rotate_and_write", MethodType(usual, a)))


def no_alpha(model: nn.Model) -> None:
    each(model, nn.Rope, lambda rope: retable(rope, rope_theta=10000.0))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="q and k normed before the rotation", apply=norm_first)
    yield Mutant(name="rope base without alpha", apply=no_alpha)

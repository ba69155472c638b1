"""Mutants of glm4: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant
from ostro.architectures.glm.mutants import mutants as glm
from ostro.architectures.glm4.model import Block
from ostro.testing import each


def exchange(first: str, second: str) -> Mutant:
    """Exchange two norms of each block."""

    def change(block: Block) -> None:
        held = getattr(block, first)
        setattr(block, first, getattr(block, second))
        setattr(block, second, held)

    return Mutant(name=f"{first} is {second}", apply=lambda model: each(model, Block, change))


def mutants() -> Iterator[Mutant]:
    yield exchange("post_self_attn_layernorm", "post_attention_layernorm")
    yield exchange("post_self_attn_layernorm", "post_mlp_layernorm")
    yield from glm()

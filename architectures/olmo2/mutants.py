"""Mutants of olmo2 and olmo3: porting bugs that their parity tests must detect."""

from collections.abc import Iterator
from types import MethodType

from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.olmo2.model import Block
from ostro.testing import all_windows, each


def norms_before(model: nn.Model) -> None:
    """Norm the inputs of attention and MLP, as in Llama, instead of their outputs."""

    def forward(
        block: Block, x: Tensor, residual: Tensor | None, step: Step
    ) -> tuple[Tensor, Tensor]:
        x = x if residual is None else x + residual
        x = x + block.self_attn(block.post_attention_layernorm(x)[0], step)
        return block.mlp(block.post_feedforward_layernorm(x)[0], step), x

    each(model, Block, lambda block: setattr(block, "forward", MethodType(forward, block)))


def norm_of_each_head(model: nn.Model) -> None:
    """Norm q and k of each head alone, with the weights of the first head."""

    def cut(attention: nn.Attention) -> None:
        for norm in (attention.q_norm, attention.k_norm):
            assert norm is not None
            norm.weight.data = norm.weight.data[: attention.head_dim].clone()

    each(model, nn.Attention, cut)


def windows_shifted(model: nn.Model) -> None:
    """Give each layer the window of the next layer."""
    attentions = [m for m in model.modules() if isinstance(m, nn.Attention)]
    widths = [a.window for a in attentions]
    for attention, width in zip(attentions, [*widths[1:], widths[0]], strict=True):
        attention.window = width


def rope(source: int, target: int) -> Mutant:
    """Use the rope of one layer type in layers of the other."""

    def change(model: nn.Model) -> None:
        attentions = [m for m in model.modules() if isinstance(m, nn.Attention)]
        kinds = [bool(a.window) for a in attentions]
        taken = attentions[kinds.index(bool(source))].rope
        for attention, slides in zip(attentions, kinds, strict=True):
            if slides == bool(target):
                attention.rope = taken

    what = "layers with a window" if target else "full layers"
    return Mutant(name=f"the other rope in {what}", apply=change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="norms before attention and MLP", apply=norms_before)
    yield Mutant(name="q and k normed per head", apply=norm_of_each_head)


def olmo3_mutants() -> Iterator[Mutant]:
    yield from mutants()
    yield Mutant(name="windows on all layers", apply=all_windows)
    yield Mutant(name="windows on the other layers", apply=windows_shifted)
    yield rope(source=0, target=1)
    yield rope(source=1, target=0)

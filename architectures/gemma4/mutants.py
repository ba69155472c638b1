"""Mutants of gemma4: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ostro import Mutant, nn
from ostro.architectures.gemma2.mutants import head_scale, no_logit_cap, windows_shifted
from ostro.architectures.gemma4.model import Attention, Block, Decoder, PerLayerInputs, Router
from ostro.architectures.mixtral.mutants import experts
from ostro.testing import each, embedding_scale


def no_value_norm(model: nn.Model) -> None:
    each(model, Attention, lambda a: setattr(a.v_norm, "forward", lambda x: (x, x)))


def no_layer_scalar(model: nn.Model) -> None:
    each(model, Block, lambda block: block.layer_scalar.data.fill_(1.0))


def partial_rope(model: nn.Model) -> None:
    """Rotate the first quarter of a head instead of a quarter of all pairs."""

    def change(attention: Attention) -> None:
        rope = attention.rope
        if rope is not None and rope.rule["rope_type"] == "proportional":
            rope.rule["rope_type"] = "default"
            rope.finalize(rope.context, rope.table.device)

    each(model, Attention, change)


def other_source(model: nn.Model) -> None:
    """Let layers with a window read the keys and values of the first such layer."""
    sliding = [a for a in model.modules() if isinstance(a, Attention) and a.window]
    for attention in sliding:
        if not attention.kv_heads:
            attention.layer = sliding[0].layer


def changed_inputs(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Model], None]:
    """Change the per-layer embeddings [T, layers, d]."""

    def spoil(decoder: Decoder) -> None:
        per_layer = decoder.per_layer

        def compute(x: Tensor, step: Any) -> PerLayerInputs:
            inputs = per_layer(x, step)
            assert inputs is not None
            return PerLayerInputs(change(inputs.values))

        decoder.per_layer = compute  # type: ignore[method-assign]

    return lambda model: each(model, Decoder, spoil)


def table_scale(model: nn.Model) -> None:
    """Do not scale the table of per-layer embeddings."""
    decoder = next(m for m in model.modules() if isinstance(m, Decoder))
    table, factor = decoder.embed_tokens_per_layer, decoder.shape[1] ** -0.5
    forward = table.forward
    table.forward = lambda ids, step: forward(ids, step) * factor  # type: ignore[method-assign]


def no_expert_scale(model: nn.Model) -> None:
    each(model, Router, lambda router: router.per_expert_scale.data.fill_(1.0))


def fewer_experts(model: nn.Model) -> None:
    def change(router: Router) -> None:
        rule = router.proj.rule
        router.proj.rule = rule._replace(top=rule.top - 1)

    each(model, Router, change)


def normed_router_input(model: nn.Model) -> None:
    """Route by the input of the experts instead of the residual."""

    def change(block: Block) -> None:
        choose, norm = block.router.choose, block.pre_feedforward_layernorm_2
        block.router.choose = lambda x, step: choose(norm(x)[0], step)  # type: ignore[method-assign]

    each(model, Block, change)


def keys_after_norm(model: nn.Model) -> None:
    """Take values from the normed keys."""

    def change(attention: Attention) -> None:
        project, norm = attention.project, attention.k_norm
        if attention.k_eq_v and norm is not None:

            def normed(x: Tensor, step: Any) -> tuple[Tensor, Tensor, Tensor]:
                q, k, _ = project(x, step)
                return q, k, norm(k)[0]

            attention.project = normed  # type: ignore[method-assign]

    each(model, Attention, change)


def shared() -> Iterator[Mutant]:
    """Mutants of models with and without experts."""
    yield Mutant(name="no cap on the logits", apply=no_logit_cap)
    yield Mutant(name="embeddings scaled by 1.05", apply=embedding_scale)
    yield Mutant(name="scores scaled by the head's size", apply=head_scale)
    yield Mutant(name="windows on other layers", apply=windows_shifted)
    yield Mutant(name="values not normed", apply=no_value_norm)
    yield Mutant(name="no factor at the end of a layer", apply=no_layer_scalar)
    yield Mutant(name="the first quarter of a head rotated", apply=partial_rope)


def mutants() -> Iterator[Mutant]:
    yield from shared()
    yield Mutant(name="keys and values of another layer", apply=other_source)
    yield Mutant(name="no per-layer embeddings", apply=changed_inputs(lambda x: x * 0))
    yield Mutant(
        name="per-layer embeddings of the next layer", apply=changed_inputs(lambda x: x.roll(-1, 1))
    )
    yield Mutant(name="table of per-layer embeddings not scaled", apply=table_scale)


def mutants_of_experts() -> Iterator[Mutant]:
    yield from shared()
    yield from experts()
    yield Mutant(name="one expert fewer", apply=fewer_experts)
    yield Mutant(name="no factor per expert", apply=no_expert_scale)
    yield Mutant(name="routed by the normed input", apply=normed_router_input)
    yield Mutant(name="values from normed keys", apply=keys_after_norm)

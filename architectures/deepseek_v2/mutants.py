"""Mutants of DeepSeek's models: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.deepseek_v2.model import Mixture
from ostro.testing import each


def set_rule(**values: float) -> Mutant:
    """Change fields of the routing rule."""
    name = ", ".join(f"{key} = {value}" for key, value in values.items())

    def change(router: nn.Float32Router) -> None:
        router.rule = router.rule._replace(**values)  # type: ignore[arg-type]

    return Mutant(name=f"router: {name}", apply=lambda m: each(m, nn.Float32Router, change))


def latent_without_norm(model: nn.Model) -> None:
    def drop(attention: nn.LatentAttention) -> None:
        attention.kv_a_layernorm.forward = lambda x, residual=None: (x, x)  # type: ignore[method-assign]

    each(model, nn.LatentAttention, drop)


def no_shared_experts(model: nn.Model) -> None:
    def drop(mixture: Mixture) -> None:
        mixture.shared_experts.forward = lambda x, step: 0 * x  # type: ignore[method-assign]

    each(model, Mixture, drop)


def no_correction_bias(model: nn.Model) -> None:
    each(model, nn.Float32Router, lambda router: setattr(router, "e_score_correction_bias", None))


def mixture() -> Iterator[Mutant]:
    """Mutants of families with routed and shared experts."""
    yield Mutant(name="no shared experts", apply=no_shared_experts)
    yield set_rule(top=2)
    yield set_rule(factor=1.0)
    yield set_rule(groups=1)


def sigmoid_routed() -> Iterator[Mutant]:
    """Mutants of families with `sigmoid_router`."""
    yield Mutant(name="no bias in the selection", apply=no_correction_bias)
    yield set_rule(renormalise=False)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="the latent is not normed", apply=latent_without_norm)
    yield from mixture()

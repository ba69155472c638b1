"""The grid of adapters: a model says under an adapter what it says with the adapter's weights.

Adapters here change every weight of a model at once: linears, experts, embeddings, heads, those of
towers. The truth is the same model with W + B A in the place of W, in floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt

import pytest
import torch
from torch import Tensor

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.delta import shape_of
from ostro.core.adapters.targets import TargetResolver
from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.core.engine.engine import Engine
from ostro.core.engine.request import AdapterRef
from ostro.core.load.model import LoadedModel
from ostro.core.nn import Embedding, Linear
from ostro.core.nn.experts import ExpertLinear
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.plugins.conformance.checks import answers, check
from ostro.plugins.conformance.decoder import ragged
from ostro.plugins.conformance.formats import densify, some, target_of, wide
from ostro.plugins.conformance.golden import Golden
from ostro.plugins.conformance.parity import BAR, RED, Subject, decodes, deviation, greedy

RANKS = (3, 17)
"""Of the adapters here: less than a page, and more than one."""

SHARE = 0.1
"""How large the output of an adapter's factors is, to that of inputs of size 1."""


@check(answers)
def adapters_match_merged_weights(tiny: Subject) -> None:
    """Plain, at another scale, and with DoRA's magnitudes; on every weight of the model."""
    for rank, scale, dora in (
        (RANKS[0], 1.0, False),
        (RANKS[1], 0.5, False),
        (RANKS[0], 0.7, True),
    ):
        loaded = tiny.load()
        weights = adapter_of(loaded, seed=rank, rank=rank, dora=dora)
        with opened(tiny, loaded, {"a": weights}) as engine:
            mixture = mixed(engine, a=scale)
            base = [tiny.answer(engine, example) for example in tiny.examples]
            said = [tiny.answer(engine, e, mixture=mixture) for e in tiny.examples]
            again = [tiny.answer(engine, example) for example in tiny.examples]
        assert all(torch.equal(a, b) for a, b in zip(base, again, strict=True)), "the base changed"
        merge(loaded, tiny.plugins, weights, scale)
        engine = tiny.engine(loaded)
        for ours, plain, example in zip(said, base, tiny.examples, strict=True):
            truth = tiny.answer(engine, example)
            off, effect = deviation(ours, truth), deviation(truth, plain)
            assert off <= BAR, f"{rank = }, {scale = }, {dora = }: {off:.1e} from merged weights"
            assert effect >= RED, f"{rank = }: the adapter changes next to nothing ({effect:.1e})"


@check(lambda record: answers(record) and record.wide is not None)
def adapters_on_quantized_weights_match_merged_floats(tiny: Subject) -> None:
    if isinstance(tiny.reference, Golden):
        pytest.skip("golden logits know the tiny config alone")
    with wide(tiny.plugins, tiny.record) as made:
        for format in some(made.plugins, made.name)[:1]:
            loaded = made.load(quant=format, exact=True)
            weights = adapter_of(loaded, seed=5, rank=RANKS[0], dora=True)
            with opened(made, loaded, {"a": weights}) as engine:
                said = made.answer(engine, mixture=mixed(engine, a=1.0))
            merge(loaded, made.plugins, weights, 1.0)
            off = deviation(said, made.answer(made.engine(loaded)))
            assert off <= BAR, f"{format}: {off:.1e} from merged dequantized weights"


@check(decodes)
def batch_rows_use_only_their_own_adapters(tiny: Subject) -> None:
    """The base, two adapters, one of them at two scales, and both; eagerly and captured."""
    loaded = tiny.load()
    known = {
        "a": adapter_of(loaded, seed=1, rank=RANKS[0]),
        "b": adapter_of(loaded, seed=2, rank=RANKS[1]),
    }
    asked = [{}, {"a": 1.0}, {"b": 1.0}, {"a": 0.3}, {"a": 0.5, "b": 0.7}]
    prompts = [*ragged(tiny)[3:8], *[example.prompt for example in tiny.examples][-1:]]
    asked = (asked * 2)[: len(prompts)]
    for replay in (False, True):
        with opened(tiny, loaded, known, rows=40, replay=replay) as engine:
            engine.runner.capture()
            mixtures = [mixed(engine, **each) for each in asked]
            together = greedy(engine, prompts, 8, mixtures)
            alone = [
                greedy(engine, [prompt], 8, [mixture])[0]
                for prompt, mixture in zip(prompts, mixtures, strict=True)
            ]
        assert together == alone, f"{replay = }"


@contextmanager
def opened(
    tiny: Subject,
    loaded: LoadedModel,
    adapters: dict[str, AdapterWeights],
    *,
    rows: int = 512,
    replay: bool = False,
) -> Iterator[Engine]:
    """An engine with these adapters; the model is left as it was."""
    engine = tiny.engine(loaded, rows=rows, replay=replay)
    assert engine.registry is not None, "engines have one"
    try:
        for name, weights in adapters.items():
            engine.registry.add(name, weights)
        yield engine
    finally:
        engine.close()


def mixed(engine: Engine, **scales: float) -> Mixture:
    """The mixture of adapters by name and scale."""
    if not scales or engine.registry is None:
        return EMPTY
    return engine.registry.mixture([AdapterRef(name=n, scale=s) for n, s in scales.items()])


def adapter_of(loaded: LoadedModel, *, seed: int, rank: int, dora: bool = False) -> AdapterWeights:
    """A random adapter on every weight; with `dora` magnitudes on all that are linears."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    weights = {}
    for slot in TargetResolver(loaded.model, loaded.names).slots.values():
        if slot.kind != "storage":
            continue
        n, k = slot.shape
        weights[slot.name] = LowRank(
            a=noise(rank, k) / sqrt(k),
            b=noise(n, rank) * (SHARE / sqrt(rank)),
            scale=0.75,
            magnitude=1 + 0.1 * noise(n).abs()
            if dora and isinstance(slot.module, Linear)
            else None,
        )
    return AdapterWeights(kind="test", weights=weights)


def merge(
    loaded: LoadedModel, plugins: PluginManager, weights: AdapterWeights, scale: float
) -> None:
    """Put floats in the place of a model's weights, an adapter's share of them added."""
    placed = TargetResolver(loaded.model, loaded.names).place(weights)
    densify(loaded.model, plugins)
    floats = resolve(plugins.get("quantizers", "dense").storage)

    def changed(weight: Tensor, each: LowRank | None) -> Tensor:
        if each is None:
            return weight
        whole = weight.double() + scale * each.scale * each.b.double() @ each.a.double()
        if each.magnitude is not None:
            whole *= (each.magnitude.double() / whole.norm(dim=-1))[:, None]
        return whole

    for module, factors in placed.factors.items():
        assert isinstance(module, Linear | Embedding | ExpertLinear), f"{module} holds no weights"
        parts, held = shape_of(module)[0], module.held
        whole = torch.cat([s.dequantize().view(-1, *s.shape[-2:]) for s in held], -2)
        made = [
            torch.cat([changed(w, factors.get((part, e))).to(whole.dtype) for part, w in each])
            for e, each in enumerate(split(whole, parts))
        ]
        storage = floats(torch.stack(made) if isinstance(module, ExpertLinear) else made[0])
        storage.finalize(target_of(storage), embedding=isinstance(module, Embedding))
        if isinstance(module, ExpertLinear):
            module.storages = [storage]
        elif isinstance(module, Embedding):
            module.storage = storage
        else:
            module.fused = storage


def split(whole: Tensor, parts: Mapping[str, int]) -> Iterator[Sequence[tuple[str, Tensor]]]:
    """whole [experts, n, k] -> per expert its parts' names and rows."""
    for each in whole:
        yield list(zip(parts, each.split(list(parts.values())), strict=True))

"""Checks of adapters: outputs with an adapter equal those of a model with merged weights.

The adapters change every weight of a model: linears, experts, embeddings, heads, encoders of media.
The expected output is that of the same model with float weights W + B A.
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
from ostro.core.load.model import LoadedModel
from ostro.core.messages.requests import AdapterRef
from ostro.core.nn import Embedding, Linear
from ostro.core.nn.experts import ExpertLinear
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.plugins.conformance.checks import check, has_outputs
from ostro.plugins.conformance.decoder import ragged
from ostro.plugins.conformance.formats import densify, sample_formats, target_of, wide
from ostro.plugins.conformance.golden import Golden
from ostro.plugins.conformance.parity import BAR, RED, Subject, decodes, deviation, greedy

RANKS = (3, 17)
"""Ranks of the adapters: less than one page, and more than one."""

OUTPUT_SCALE = 0.1
"""The scale of an adapter's output for inputs of unit variance."""


@check(has_outputs)
def adapters_match_merged_weights(tiny: Subject) -> None:
    """LoRA at two ranks and scales, and DoRA, on every weight of the model."""
    for rank, scale, dora in (
        (RANKS[0], 1.0, False),
        (RANKS[1], 0.5, False),
        (RANKS[0], 0.7, True),
    ):
        loaded = tiny.load()
        weights = adapter_of(loaded, seed=rank, rank=rank, dora=dora)
        with engine_with(tiny, loaded, {"a": weights}) as engine:
            mixture = mixture_of(engine, a=scale)
            base = [tiny.answer(engine, example) for example in tiny.examples]
            adapted = [tiny.answer(engine, e, mixture=mixture) for e in tiny.examples]
            again = [tiny.answer(engine, example) for example in tiny.examples]
        assert all(torch.equal(a, b) for a, b in zip(base, again, strict=True)), (
            "the base model's outputs changed"
        )
        merge(loaded, tiny.plugins, weights, scale)
        engine = tiny.engine(loaded)
        for ours, plain, example in zip(adapted, base, tiny.examples, strict=True):
            merged = tiny.answer(engine, example)
            off, effect = deviation(ours, merged), deviation(merged, plain)
            assert off <= BAR, (
                f"{rank = }, {scale = }, {dora = }: off by {off:.1e} from merged weights"
            )
            assert effect >= RED, f"{rank = }: the adapter changes the outputs by {effect:.1e} only"


@check(lambda record: has_outputs(record) and record.conformance.wide is not None)
def adapters_on_quantized_weights_match_merged_floats(tiny: Subject) -> None:
    if isinstance(tiny.reference, Golden):
        pytest.skip("golden logits exist for the tiny config only")
    with wide(tiny.plugins, tiny.record) as tested:
        for format in sample_formats(tested.plugins, tested.name)[:1]:
            loaded = tested.load(quant=format, exact=True)
            weights = adapter_of(loaded, seed=5, rank=RANKS[0], dora=True)
            with engine_with(tested, loaded, {"a": weights}) as engine:
                adapted = tested.answer(engine, mixture=mixture_of(engine, a=1.0))
            merge(loaded, tested.plugins, weights, 1.0)
            off = deviation(adapted, tested.answer(tested.engine(loaded)))
            assert off <= BAR, f"{format}: off by {off:.1e} from merged dequantized weights"


@check(decodes)
def batch_rows_use_only_their_own_adapters(tiny: Subject) -> None:
    """Rows with the base, two adapters, one of them at two scales, and both; eager and captured."""
    loaded = tiny.load()
    known = {
        "a": adapter_of(loaded, seed=1, rank=RANKS[0]),
        "b": adapter_of(loaded, seed=2, rank=RANKS[1]),
    }
    row_scales = [{}, {"a": 1.0}, {"b": 1.0}, {"a": 0.3}, {"a": 0.5, "b": 0.7}]
    prompts = [*ragged(tiny)[3:8], *[example.prompt for example in tiny.examples][-1:]]
    row_scales = (row_scales * 2)[: len(prompts)]
    with engine_with(tiny, loaded, known, rows=40) as engine:
        engine.runner.capture()
        mixtures = [mixture_of(engine, **each) for each in row_scales]
        together = greedy(engine, prompts, 8, mixtures)
        alone = [
            greedy(engine, [prompt], 8, [mixture])[0]
            for prompt, mixture in zip(prompts, mixtures, strict=True)
        ]
    assert together == alone
    with engine_with(tiny, loaded, known, rows=40, replay=True) as engine:
        engine.runner.capture()
        mixtures = [mixture_of(engine, **each) for each in row_scales]
        assert greedy(engine, prompts, 8, mixtures) == alone, "captured"


@contextmanager
def engine_with(
    tiny: Subject,
    loaded: LoadedModel,
    adapters: dict[str, AdapterWeights],
    *,
    rows: int = 512,
    replay: bool = False,
) -> Iterator[Engine]:
    """An engine with these adapters; closing it restores the model."""
    engine = tiny.engine(loaded, rows=rows, replay=replay)
    assert engine.registry is not None, "engines have a registry"
    try:
        for name, weights in adapters.items():
            engine.registry.add(name, weights)
        yield engine
    finally:
        engine.close()


def mixture_of(engine: Engine, **scales: float) -> Mixture:
    """The mixture of adapters with these names and scales."""
    if not scales or engine.registry is None:
        return EMPTY
    return engine.registry.mixture([AdapterRef(name=n, scale=s) for n, s in scales.items()])


def adapter_of(loaded: LoadedModel, *, seed: int, rank: int, dora: bool = False) -> AdapterWeights:
    """A random adapter on every weight; `dora` adds magnitudes on the linears."""
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
            b=noise(n, rank) * (OUTPUT_SCALE / sqrt(rank)),
            scale=0.75,
            magnitude=1 + 0.1 * noise(n).abs()
            if dora and isinstance(slot.module, Linear)
            else None,
        )
    return AdapterWeights(kind="test", weights=weights)


def merge(
    loaded: LoadedModel, plugins: PluginManager, weights: AdapterWeights, scale: float
) -> None:
    """Replace a model's weights by floats with an adapter merged into them."""
    targets = TargetResolver(loaded.model, loaded.names).resolve(weights)
    densify(loaded.model, plugins)
    floats = resolve(plugins.get("quantizers", "dense").storage)

    def merged_weight(weight: Tensor, each: LowRank | None) -> Tensor:
        if each is None:
            return weight
        merged = weight.double() + scale * each.scale * each.b.double() @ each.a.double()
        if each.magnitude is not None:
            merged *= (each.magnitude.double() / merged.norm(dim=-1))[:, None]
        return merged

    for module, factors in targets.factors.items():
        assert isinstance(module, Linear | Embedding | ExpertLinear), f"{module} holds no weights"
        parts, storages = shape_of(module)[0], module.active_storages
        whole = torch.cat([s.dequantize().view(-1, *s.shape[-2:]) for s in storages], -2)
        merged = [
            torch.cat(
                [merged_weight(w, factors.get((part, e))).to(whole.dtype) for part, w in each]
            )
            for e, each in enumerate(split(whole, parts))
        ]
        storage = floats(torch.stack(merged) if isinstance(module, ExpertLinear) else merged[0])
        storage.finalize(target_of(storage), embedding=isinstance(module, Embedding))
        if isinstance(module, ExpertLinear):
            module.storages = [storage]
        elif isinstance(module, Embedding):
            module.storage = storage
        else:
            module.fused = storage


def split(weight: Tensor, parts: Mapping[str, int]) -> Iterator[Sequence[tuple[str, Tensor]]]:
    """Split a weight [experts, n, k] into the names and rows of its parts, per expert."""
    for each in weight:
        yield list(zip(parts, each.split(list(parts.values())), strict=True))

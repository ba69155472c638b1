"""Mixtures of adapters: several adapters at once equal their successive merges, and the weights of
one adapter do not affect another.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ostro.core.adapters.weights import AdapterWeights
from ostro.core.nn import Head
from ostro.plugins.conformance.adapters import adapter_of, engine_with, merge, mixture_of
from ostro.plugins.conformance.formats import target_of
from ostro.plugins.conformance.parity import BAR, Subject, deviation

SCALES = {"dora": 0.7, "plain": 0.4}


@pytest.fixture(scope="module")
def both(llama: Subject) -> dict[str, AdapterWeights]:
    loaded = llama.load()
    return {
        "dora": adapter_of(loaded, seed=1, rank=3, dora=True),
        "plain": adapter_of(loaded, seed=2, rank=20),
    }


def said(made: Subject, adapters: dict[str, AdapterWeights], **scales: float) -> Tensor:
    with engine_with(made, made.load(), adapters) as engine:
        return made.answer(engine, mixture=mixture_of(engine, **scales))


@pytest.mark.parametrize("order", [("dora", "plain"), ("plain", "dora")])
def test_dora_and_lora_mix(
    llama: Subject, both: dict[str, AdapterWeights], order: tuple[str, str]
) -> None:
    """W + sum_i [(g_i - 1) W + g_i s_i B_i A_i]: DoRA's gain applies to its own weights only."""
    mixture = said(llama, both, **{name: SCALES[name] for name in order})
    merged = llama.load()
    for name in ("dora", "plain"):
        merge(merged, llama.plugins, both[name], SCALES[name])
    assert deviation(mixture, llama.answer(llama.engine(merged))) <= BAR


def test_two_doras_mix(llama: Subject, both: dict[str, AdapterWeights]) -> None:
    """(W1 - W) + (W2 - W) + W, with each DoRA merged separately."""
    other = adapter_of(llama.load(), seed=9, rank=4, dora=True)
    mixture = said(llama, {**both, "other": other}, dora=0.5, other=0.8)
    base, *ones = (llama.load() for _ in range(3))
    for one, weights, scale in zip(ones, (both["dora"], other), (0.5, 0.8), strict=True):
        merge(one, llama.plugins, weights, scale)
    merge(base, llama.plugins, AdapterWeights(kind="none", weights={}), 0)
    modules = [dict(each.model.named_modules()) for each in (base, *ones)]
    for path, module in modules[0].items():
        if getattr(module, "active_storages", None):
            (into,), (first,), (second,) = (m[path].active_storages for m in modules)
            whole = first.dequantize() + second.dequantize() - into.dequantize()
            made = type(into)(whole.reshape(into.shape))
            made.finalize(target_of(made), embedding=True)
            if isinstance(getattr(module, "storage", None), type(into)):
                module.storage = made
            else:
                module.fused = made
    assert deviation(mixture, llama.answer(llama.engine(base))) <= BAR


def test_whole_weights_and_biases_are_an_adapters_own(llama: Subject) -> None:
    loaded = llama.load()
    (path, head), *_ = [(p, m) for p, m in loaded.model.named_modules() if isinstance(m, Head)]
    other = torch.randn(head.n_out, head.n_in, generator=torch.Generator().manual_seed(3))
    plain = adapter_of(loaded, seed=4, rank=2)
    weights = replace(plain, whole={f"{path}.weight": other})
    with engine_with(llama, loaded, {"whole": weights, "plain": plain}) as engine:
        base = llama.answer(engine)
        whole = llama.answer(engine, mixture=mixture_of(engine, whole=1.0))
        beside = llama.answer(engine, mixture=mixture_of(engine, plain=1.0))
        assert torch.equal(llama.answer(engine), base)
        assert engine.registry is not None
        with pytest.raises(Exception, match="must have scale 1"):
            mixture_of(engine, whole=0.5)
    merged = llama.load()
    module = dict(merged.model.named_modules())[path]
    merge(merged, llama.plugins, AdapterWeights(kind="none", weights={}), 0)
    made = type(module.active_storages[0])(other.clone())
    made.finalize(target_of(made), embedding=True)
    module.tied, module.fused = (), made
    merge(merged, llama.plugins, plain, 1.0)
    assert deviation(whole, llama.answer(llama.engine(merged))) <= BAR
    assert deviation(beside, whole) > 0.1

"""The grid of formats: a quantized model gives the logits of its dequantized weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from math import prod

import pytest
from torch import Tensor
from torch.nn import Module

from ostro.core.load.model import LoadedModel
from ostro.core.load.quantize import makers
from ostro.core.nn import Embedding, Linear, Router, Storage
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, resolve
from ostro.plugins.conformance.checks import answers, check
from ostro.plugins.conformance.golden import Golden
from ostro.plugins.conformance.parity import SMALL, Subject, deviation, subject

SAME = 1e-5
"""The most that logits may differ from those of dequantized weights, as a share of their standard
deviation: both multiply the same numbers, in another order."""

STD = SMALL
"""The spread of weights: activations stay small at inner dimensions of 256, and so does rounding,
less than half of `SAME` in models of two layers."""

FEW = 3
"""Formats of the quick grid, others for every architecture."""


@check(lambda record: answers(record) and record.wide is not None)
def quantized_models_match_dequantized_weights(tiny: Subject) -> None:
    if isinstance(tiny.reference, Golden):
        pytest.skip("golden logits know the tiny config alone")
    with wide(tiny.plugins, tiny.record) as subject:
        for format in some(tiny.plugins, tiny.name):
            assert_grid(subject, format)


def wide(plugins: PluginManager, record: Architecture) -> AbstractContextManager[Subject]:
    """The subject whose rows are of whole blocks of every format."""
    return subject(plugins, record.name, config=record.wide, std=STD)


def formats(plugins: PluginManager) -> list[str]:
    """Every format that weights can be brought to, most bits first."""
    known = makers(plugins)
    return sorted(known, key=lambda name: (-known[name].format.bits, name))


def some(plugins: PluginManager, name: str) -> list[str]:
    """A few formats, such that architectures together have all of them."""
    every = formats(plugins)
    first = sum(name.encode()) % len(every) if every else 0
    return [(every * 2)[(first + i * len(every) // FEW) % len(every)] for i in range(FEW)][
        : len(every)
    ]


def assert_grid(wide: Subject, format: str) -> float:
    """One cell: nothing stays as it was, and the logits are those of the dequantized weights.

    Returns how far they are from the float model's.
    """
    loaded = wide.load(quant=format, exact=True)

    def hear() -> list[Tensor]:
        return [wide.answer(wide.engine(loaded), example) for example in wide.examples]

    said = assert_same(loaded, wide.plugins, format, hear)
    return max(deviation(ours, truth) for ours, (_, truth) in zip(said, wide.cases, strict=True))


def assert_same(
    loaded: LoadedModel,
    plugins: PluginManager,
    format: str,
    hear: Callable[[], Sequence[Tensor]],
    most: float = SAME,
) -> Sequence[Tensor]:
    """What `hear` hears of a model brought to a format, which is what it hears of its floats.

    `most` is what deeper models than those of two layers may differ.
    """
    fallbacks = [line for line in loaded.explain if line.startswith("quantize: ")]
    assert not fallbacks, f"{format}: {fallbacks}"
    left = [path for path, storage in storages(loaded.model) if stayed(storage)]
    assert not left, f"{format}: {left} stayed as they were"
    said, off = against_floats(loaded, plugins, hear)
    assert off <= most, f"{format}: {off:.1e} from its own dequantized weights"
    return said


def against_floats(
    loaded: LoadedModel, plugins: PluginManager, hear: Callable[[], Sequence[Tensor]]
) -> tuple[Sequence[Tensor], float]:
    """What `hear` hears of a model, and how far it is from what it hears of its floats.

    It is asked twice; the model is left with the dequantized weights.
    """
    said = hear()
    densify(loaded.model, plugins)
    return said, max(deviation(ours, plain) for ours, plain in zip(said, hear(), strict=True))


def stayed(storage: Storage) -> bool:
    """Whether a storage holds floats, under whatever name: no format takes as many bits, of rows
    that kernels may fill up to sixteens.
    """
    *experts, n, k = storage.shape
    return storage.format == "dense" or storage.nbytes >= 2 * prod(experts) * -(-n // 16) * 16 * k


def storages(model: Module) -> Iterator[tuple[str, Storage]]:
    """Every storage that quantization at load should have quantized."""
    for path, module in model.named_modules():
        if isinstance(module, Linear | Embedding | ExpertLinear) and not isinstance(module, Router):
            yield from ((path, storage) for storage in module.held)


def densify(model: Module, plugins: PluginManager) -> None:
    """Put the dequantized weight in the place of every storage."""
    floats = resolve(plugins.get("quantizers", "dense").storage)
    made: dict[int, Storage] = {}

    def dense(storage: Storage) -> Storage:
        if id(storage) not in made:
            plain = floats(storage.dequantize().reshape(storage.shape).clone())
            plain.finalize(target_of(plain))
            made[id(storage)] = plain
        return made[id(storage)]

    for module in model.modules():
        if isinstance(module, Linear):
            module.storages = {part: dense(s) for part, s in module.storages.items()}
            module.fused = None if module.fused is None else dense(module.fused)
        elif isinstance(module, Embedding) and module.storage is not None:
            module.storage = dense(module.storage)
        elif isinstance(module, ExpertLinear):
            module.storages = [dense(storage) for storage in module.storages]


def target_of(storage: Storage, *, deterministic: bool = False, exact: bool = False) -> Target:
    """What to finalize a storage for, on the device and in the dtype that it has."""
    return Target(
        device=storage.device, dtype=storage.dtype, deterministic=deterministic, exact=exact
    )


def falls_with_bits(errors: Sequence[tuple[float, float]]) -> bool:
    """Whether errors of (bits, error) grow where bits fall, by more than a tenth of noise."""
    ordered = sorted(errors, reverse=True)
    return all(
        more[1] <= 1.1 * fewer[1]
        for i, more in enumerate(ordered)
        for fewer in ordered[i + 1 :]
        if more[0] > fewer[0] + 0.75
    )

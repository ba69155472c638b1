"""The check of quantization: a quantized model's outputs equal those of dequantized weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from math import prod

import pytest
from torch import Tensor
from torch.nn import Module

from ostro.core.load.model import LoadedModel
from ostro.core.load.quantize import makers
from ostro.core.nn import Embedding, Linear, Router
from ostro.core.nn.experts import ExpertLinear
from ostro.core.nn.storage import Storage
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, resolve
from ostro.plugins.conformance.checks import check, has_outputs
from ostro.plugins.conformance.golden import Golden
from ostro.plugins.conformance.parity import SMALL, Subject, deviation, subject

SAME = 2e-5
"""The largest deviation from the outputs with dequantized weights: the same products, summed in
another order, which depends on the CPU."""

STD = SMALL
"""The standard deviation of weights: small enough that rounding at inner dimensions of 256 stays
below half of `SAME` in models of two layers."""

QUICK_FORMATS = 3
"""Formats per architecture in the quick tests; architectures together cover all formats."""


@check(lambda record: has_outputs(record) and record.conformance.wide is not None)
def quantized_models_match_dequantized_weights(tiny: Subject) -> None:
    if isinstance(tiny.reference, Golden):
        pytest.skip("golden logits exist for the tiny config only")
    with wide(tiny.plugins, tiny.record) as subject:
        for format in sample_formats(tiny.plugins, tiny.name):
            assert_grid(subject, format)


def wide(plugins: PluginManager, record: Architecture) -> AbstractContextManager[Subject]:
    """The subject with the config `wide`, whose rows are whole blocks of every format."""
    return subject(plugins, record.name, config=record.conformance.wide, std=STD)


def formats(plugins: PluginManager) -> list[str]:
    """All formats that quantizers can write, most bits first."""
    known = makers(plugins)
    return sorted(known, key=lambda name: (-known[name].format.bits, name))


def sample_formats(plugins: PluginManager, name: str) -> list[str]:
    """`QUICK_FORMATS` formats, chosen by the name of the architecture."""
    every = formats(plugins)
    first = sum(name.encode()) % len(every) if every else 0
    return [
        (every * 2)[(first + i * len(every) // QUICK_FORMATS) % len(every)]
        for i in range(QUICK_FORMATS)
    ][: len(every)]


def assert_grid(wide: Subject, format: str) -> float:
    """Assert that every weight is quantized and that outputs match the dequantized weights.

    Returns the deviation from the float model.
    """
    loaded = wide.load(quant=format, exact=True)

    def run() -> list[Tensor]:
        return [wide.answer(wide.engine(loaded), example) for example in wide.examples]

    quantized = assert_matches_dequantized(loaded, wide.plugins, format, run)
    return max(
        deviation(ours, expected) for ours, (_, expected) in zip(quantized, wide.cases, strict=True)
    )


def assert_matches_dequantized(
    loaded: LoadedModel,
    plugins: PluginManager,
    format: str,
    run: Callable[[], Sequence[Tensor]],
    tolerance: float = SAME,
) -> Sequence[Tensor]:
    """Assert that `run` returns the same for a quantized model and its dequantized weights.

    `tolerance` is the largest deviation; deep models need more than `SAME`. Returns the outputs of
    the quantized model.
    """
    fallbacks = [line for line in loaded.explain if line.startswith("quantize: ")]
    assert not fallbacks, f"{format}: {fallbacks}"
    floats = [path for path, storage in storages(loaded.model) if is_float(storage)]
    assert not floats, f"{format}: {floats} were not quantized"
    outputs, off = compare_with_dequantized(loaded, plugins, run)
    assert off <= tolerance, f"{format}: off by {off:.1e} from its dequantized weights"
    return outputs


def compare_with_dequantized(
    loaded: LoadedModel, plugins: PluginManager, run: Callable[[], Sequence[Tensor]]
) -> tuple[Sequence[Tensor], float]:
    """The outputs of `run`, and their deviation from those with dequantized weights.

    The model keeps the dequantized weights.
    """
    outputs = run()
    densify(loaded.model, plugins)
    return outputs, max(deviation(a, b) for a, b in zip(outputs, run(), strict=True))


def is_float(storage: Storage) -> bool:
    """Whether a storage holds floats, of any format name, judged by its size.

    No quantized format takes 16 bits per weight, with rows padded to multiples of 16.
    """
    *experts, n, k = storage.shape
    return storage.format == "dense" or storage.nbytes >= 2 * prod(experts) * -(-n // 16) * 16 * k


def storages(model: Module) -> Iterator[tuple[str, Storage]]:
    """Every storage that quantization at load applies to, by path."""
    for path, module in model.named_modules():
        if isinstance(module, Linear | Embedding | ExpertLinear) and not isinstance(module, Router):
            yield from ((path, storage) for storage in module.active_storages)


def densify(model: Module, plugins: PluginManager) -> None:
    """Replace every storage by a dense one with its dequantized weight."""
    floats = resolve(plugins.get("quantizers", "dense").storage)
    converted: dict[int, Storage] = {}

    def dense(storage: Storage) -> Storage:
        if id(storage) not in converted:
            plain = floats(storage.dequantize().reshape(storage.shape).clone())
            plain.finalize(target_of(plain))
            converted[id(storage)] = plain
        return converted[id(storage)]

    for module in model.modules():
        if isinstance(module, Linear):
            module.storages = {part: dense(s) for part, s in module.storages.items()}
            module.fused = None if module.fused is None else dense(module.fused)
        elif isinstance(module, Embedding) and module.storage is not None:
            module.storage = dense(module.storage)
        elif isinstance(module, ExpertLinear):
            module.storages = [dense(storage) for storage in module.storages]


def target_of(storage: Storage, *, deterministic: bool = False, exact: bool = False) -> Target:
    """The target of a storage's own device and dtype."""
    return Target(
        device=storage.device, dtype=storage.dtype, deterministic=deterministic, exact=exact
    )


def falls_with_bits(errors: Sequence[tuple[float, float]]) -> bool:
    """Whether errors, of pairs (bits, error), grow as bits fall, within 10 % of noise."""
    ordered = sorted(errors, reverse=True)
    return all(
        more[1] <= 1.1 * fewer[1]
        for i, more in enumerate(ordered)
        for fewer in ordered[i + 1 :]
        if more[0] > fewer[0] + 0.75
    )

"""The grid of formats can be red: storages that lie about what they hold, and how they multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.load.quantize import makers
from ostro.core.nn.storage import Storage
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.plugins.conformance import formats
from ostro.plugins.conformance.architecture import all_plugins
from ostro.plugins.conformance.formats import assert_grid, falls_with_bits, sample_formats, wide
from ostro.plugins.conformance.parity import Subject, subject

OUTSIDE = Path(__file__).parents[3] / "docs" / "examples" / "plugins"
PATHS = ("ostro-arch-arcee/ostro_arch_arcee", "ostro-quant-int8-rows/ostro_quant_int8_rows")
FORMAT = "int8-rows"
GROUP = 64

Quantize = Callable[..., Storage]


@pytest.fixture(scope="module")
def plugins() -> PluginManager:
    return all_plugins(tuple(str(OUTSIDE / path) for path in PATHS))


@pytest.fixture(scope="module")
def llama(plugins: PluginManager) -> Iterator[Subject]:
    with wide(plugins, plugins.get("architectures", "llama")) as made:
        yield made


@pytest.fixture(scope="module")
def mixtral(plugins: PluginManager) -> Iterator[Subject]:
    with wide(plugins, plugins.get("architectures", "mixtral")) as made:
        yield made


@pytest.fixture
def spoil(plugins: PluginManager, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Have afq's storages made by what is given: a function of the right maker and its arguments.

    Of a maker's arguments the first is the weight, the second the name of the format.
    """
    cls = resolve(makers(plugins)["afq4"].quantizer.storage)
    right: Quantize = cls.quantize

    def change(make: Callable[..., Storage]) -> None:
        monkeypatch.setattr(cls, "quantize", lambda *args: make(right, *args))

    return change


def of_class(change: Callable[[type], type]) -> Callable[..., Storage]:
    """A maker whose storages are of a class derived from the right one, the same for all."""
    derived: dict[type, Any] = {}

    def make(right: Quantize, *args: Any) -> Storage:
        made: Any = right(*args)
        cls = type(made)
        made.__class__ = derived.setdefault(cls, change(cls))
        return made  # type: ignore[no-any-return]

    return make


def wrong_matmul(cls: Any) -> type:
    """The first group of the first row has twice its scale, where rows are multiplied."""

    class Wrong(cls):  # type: ignore[misc]
        def matmul(self, x: Tensor) -> Tensor:
            y: Tensor = super().matmul(x)
            y[..., 0] += x[..., :GROUP] @ self.dequantize(0, 1)[0, :GROUP]
            return y

    return Wrong


def wrong_rows(cls: Any) -> type:
    """The first group of every other row has twice its scale, where rows are read."""

    class Wrong(cls):  # type: ignore[misc]
        def rows(self, ids: Tensor) -> Tensor:
            y: Tensor = super().rows(ids)
            y[..., :GROUP] *= torch.where(ids % 2 > 0, 2, 1)[:, None]
            return y

    return Wrong


def wrong_grouped(cls: Any) -> type:
    """The first group of the last expert's first row has twice its scale."""

    class Wrong(cls):  # type: ignore[misc]
        def grouped(self, x: Tensor, expert_of_row: Tensor) -> Tensor:
            y: Tensor = super().grouped(x, expert_of_row)
            last = self.shape[0] - 1
            first = last * self.shape[1]
            group = self.dequantize(first, first + 1)[0, :GROUP]
            y[:, 0] += (x[:, :GROUP] @ group) * (expert_of_row == last)
            return y

    return Wrong


def test_the_grid_is_green(llama: Subject, mixtral: Subject) -> None:
    assert assert_grid(llama, "afq4") > 10 * formats.SAME
    assert assert_grid(mixtral, "afq4") > 10 * formats.SAME


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "change"),
    [("llama", wrong_matmul), ("llama", wrong_rows), ("mixtral", wrong_grouped)],
    ids=["matmul", "rows", "grouped"],
)
def test_one_wrong_scale_is_detected(
    name: str, change: Any, spoil: Callable[[Any], None], request: pytest.FixtureRequest
) -> None:
    spoil(of_class(change))
    with pytest.raises(AssertionError, match=r"afq4: off by .* from its dequantized weights"):
        assert_grid(request.getfixturevalue(name), "afq4")


@pytest.mark.parametrize("called", ["dense", "AFQ4"])
def test_weights_that_stay_floats_are_detected(
    called: str, llama: Subject, spoil: Callable[[Any], None]
) -> None:
    def floats(right: Quantize, weight: Tensor, format: str, *rest: Any) -> Storage:
        if weight.shape != (256, 512):
            return right(weight, format, *rest)
        made: Storage = resolve(llama.plugins.get("quantizers", "dense").storage)(weight.clone())
        made.format = called
        return made

    spoil(floats)
    with pytest.raises(AssertionError, match=r"afq4: \[.*layers.0.mlp.down_proj.*\] were not"):
        assert_grid(llama, "afq4")


def test_a_weight_that_does_not_fit_a_format_is_detected(plugins: PluginManager) -> None:
    record = plugins.get("architectures", "llama")
    shape = {**record.conformance.wide, "intermediate_size": 96}
    with (
        subject(plugins, "llama", config=shape) as odd,
        pytest.raises(AssertionError, match="96 columns are not a multiple"),
    ):
        assert_grid(odd, "afq4")


def test_bits_without_a_gain_in_quality_are_detected(
    llama: Subject, plugins: PluginManager, spoil: Callable[[Any], None]
) -> None:
    names = [name for name in formats.formats(plugins) if name.startswith("afq")]

    def errors() -> list[tuple[float, float]]:
        known = makers(plugins)
        return [(known[name].format.bits, assert_grid(llama, name)) for name in names]

    def coarse(right: Quantize, weight: Tensor, format: str, *rest: Any) -> Storage:
        if format == "afq8":
            weight = right(weight, "afq2", *rest).dequantize()
        return right(weight, format, *rest)

    assert falls_with_bits(errors())
    spoil(coarse)
    assert not falls_with_bits(errors())


def test_a_format_from_outside_is_in_the_grid(plugins: PluginManager) -> None:
    records = plugins.collect("architectures").values()
    wide = [record.name for record in records if record.conformance.wide]
    assert FORMAT in formats.formats(plugins)
    assert FORMAT not in formats.formats(all_plugins())
    assert any(FORMAT in sample_formats(plugins, name) for name in wide)


@pytest.mark.parametrize("format", [FORMAT, "q4k"])
def test_an_architecture_from_outside_is_in_the_grid(plugins: PluginManager, format: str) -> None:
    with wide(plugins, plugins.get("architectures", "arcee")) as arcee:
        assert_grid(arcee, format)

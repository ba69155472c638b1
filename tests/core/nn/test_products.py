"""Wrong products of a quantizer's storage name the class of the storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.failure import Failures
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.nn.embedding import Embedding
from ostro.core.nn.experts import ExpertLinear
from ostro.core.nn.linear import Linear
from ostro.core.nn.storage import Storage
from ostro.core.results import InvalidResult
from ostro.core.step import ROWS
from ostro.plugins.conformance.parity import Subject

N, K, ROWS_OF_X = 6, 4, 3
CHANGES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "few columns": (lambda y: y[..., :-1], r"\[.*\] float32"),
    "few rows": (lambda y: y[:-1], r"\[.*\] float32"),
    "one more axis": (lambda y: y[None], r"\[1, .*\] float32"),
    "another dtype": (lambda y: y.double(), r"\[.*\] float64"),
    "none": (lambda y: None, "None"),
    "a list": (lambda y: y.tolist(), "a value of type list"),
}


class Weight(Storage):
    """A float weight, one of whose operations returns a changed result."""

    format, device, dtype, nbytes = "test", torch.device("cpu"), torch.float32, 0

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.weight = torch.arange(float(torch.Size(shape).numel())).view(-1, shape[-1])

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        return self.weight[start:stop]

    def save(self) -> dict[str, Tensor]:
        return {}


def changed(operation: str, change: Callable[[Tensor], Any], *shape: int) -> Weight:
    """A weight with a wrong result of one operation."""

    def method(self: Weight, *arguments: Any) -> Any:
        return change(getattr(Weight, operation)(self, *arguments))

    names = {operation: method, "__module__": __name__}
    return type("Wrong", (Weight,), names)(shape)  # type: ignore[no-any-return]


def filled(storage: Weight, parts: int = 1) -> Linear:
    linear = Linear(K, {f"p{i}": N for i in range(parts)})
    linear.storages = {part: storage for part in linear.parts}
    linear.fused = storage if parts == 1 else None
    return linear


def use(operation: str, storage: Weight, parts: int) -> None:
    """Use an operation as a model does."""
    x = torch.ones(ROWS_OF_X, K)
    if operation == "rows":
        embedding = Embedding(N, K)
        embedding.storage = storage
        embedding(torch.tensor([0, 5, 1]), ROWS)
    elif operation == "grouped":
        experts = ExpertLinear(2, K, {"": N})
        experts.storages = [storage] * parts
        experts(x, torch.tensor([0, 0, 1]), ROWS)
    elif operation == "matmul_t":
        filled(storage).matmul_t(torch.ones(ROWS_OF_X, 2, N // 2), ROWS)
    elif operation == "matmul_h":
        filled(storage).matmul_h(torch.ones(ROWS_OF_X, 2, K), ROWS)
    else:
        filled(storage, parts)(x, ROWS)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "operation", ["matmul", "dequantize", "rows", "grouped", "matmul_t", "matmul_h"]
)
def test_a_wrong_product_names_the_class(operation: str, parts: int, change: str) -> None:
    shape = (2, N, K) if operation == "grouped" else (N, K)
    use(operation, Weight(shape), parts)  # the right one
    wrong, returned = CHANGES[change]
    with pytest.raises(InvalidResult) as raised:
        use(operation, changed(operation, wrong, *shape), parts)
    pattern = rf"^{__name__}\.Wrong\.{operation} returned {returned}, expected \[.*\] float32$"
    assert raised.match(pattern)


@pytest.mark.parametrize("operation", ["matmul_t", "matmul_h", "rows", "grouped"])
def test_default_products_check_the_dequantized_rows(operation: str) -> None:
    shape = (2, N, K) if operation == "grouped" else (N, K)
    with pytest.raises(InvalidResult, match=r"Wrong.dequantize returned \[\d+, 3\] float32"):
        use(operation, changed("dequantize", lambda y: y[:, :3], *shape), 1)


def test_results_are_checked_once() -> None:
    """Each step would pay for it otherwise."""
    calls = list[str]()

    class Counted(Weight):
        def check(self, operation: str, *arguments: Any) -> None:
            calls.append(operation)

        def matmul(self, x: Tensor) -> Tensor:
            return x @ self.weight.t()

    linear = filled(Counted((N, K)))
    for _ in range(3):
        linear(torch.ones(2, K), ROWS)
    assert calls == ["matmul"]


def test_a_request_names_the_storage_and_the_module(llama: Subject) -> None:
    engine = llama.engine()
    linear: Any = engine.runner.model.get_submodule("model.layers.0.mlp.down_proj")
    wrong = changed("matmul", lambda y: y[..., :-1], linear.n_out, linear.n_in)
    linear.fused, linear.storages = wrong, {"": wrong}
    linear.checked.clear()
    engine.failures = Failures(llama.plugins.explain)
    engine.submit(TokenRequest(id="a", tokens=[3, 4], sampling=Sampling(max_tokens=1)))
    error = engine.step()[-1].error or ""
    assert f"Wrong.matmul returned [2, {linear.n_out - 1}] float32" in error
    assert " in model.layers.0.mlp" in error and "raised in" not in error

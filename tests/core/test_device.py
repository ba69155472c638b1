"""Devices: names, the current device of calls, dtypes and precision. CUDA is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ostro.core.device import choose_device, compute_in_float32, current_device
from ostro.core.engine.location import runs_model
from ostro.core.load.describe import choose_dtype, explain_dtype
from ostro.core.nn import Model
from ostro.core.placement.placement import Placement
from ostro.core.settings import Settings

SECOND = torch.device("cuda", 1)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The stack of current devices of a stand-in for CUDA with two devices."""
    devices = [torch.device("cuda", 0)]

    @contextmanager
    def enter(device: torch.device) -> Iterator[None]:
        devices.append(device)
        try:
            yield
        finally:
            devices.pop()

    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: devices[-1].index)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return devices


def test_a_device_has_an_index(
    current: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_device("cuda") == torch.device("cuda", 0) and choose_device("cuda:1") == SECOND
    for available, name in ((True, "cuda:0"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=available: found)
        assert choose_device("auto") == torch.device(name)


def test_the_device_of_a_model_is_current_while_it_runs(current: list[torch.device]) -> None:
    class Runner:
        device, model = SECOND, Model()

        @runs_model
        def run(self, fails: bool) -> torch.device:
            if fails:
                raise ValueError
            return current[-1]

    assert Runner().run(False) == SECOND
    with pytest.raises(ValueError):
        Runner().run(True)
    assert len(current) == 1
    with current_device(torch.device("cpu")):
        assert len(current) == 1


def test_the_device_of_a_module_is_current_while_its_weights_are_used(
    current: list[torch.device],
) -> None:
    model = Model()
    placement = Placement(model, SECOND)
    with placement.on_device(model):
        assert current[-1] == SECOND
    assert len(current) == 1


def container(format: str) -> Any:
    return SimpleNamespace(tensors={"w": SimpleNamespace(format=format, nbytes=8)})


@pytest.mark.parametrize(
    ("name", "raw", "stored", "capability", "expected"),
    [
        ("auto", {"dtype": "float32"}, "F32", (9, 0), BF16),
        ("auto", {"torch_dtype": "bfloat16"}, "BF16", (8, 0), BF16),
        ("auto", {"dtype": "float16"}, "F16", (9, 0), FP16),
        ("auto", {}, "Q4_K", (9, 0), BF16),
        ("auto", {}, "Q4_K", (7, 5), FP16),
        ("auto", {"dtype": "float32"}, "F32", (7, 5), FP16),
        ("auto", {"dtype": "bfloat16"}, "BF16", (7, 5), FP16),
        ("float32", {"dtype": "bfloat16"}, "BF16", (9, 0), FP32),
    ],
)
def test_a_gpu_computes_in_16_bits(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    raw: dict[str, str],
    stored: str,
    capability: tuple[int, int],
    expected: torch.dtype,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_dtype(name, raw, container(stored), SECOND) == expected


@pytest.mark.parametrize(("name", "dtype", "count"), [("auto", BF16, 1), ("bf16", BF16, 0)])
def test_a_dtype_in_the_place_of_the_stored_one_is_explained(
    name: str, dtype: torch.dtype, count: int
) -> None:
    found: Any = SimpleNamespace(raw_config={}, container=container("F32"), dtype=dtype)
    lines = explain_dtype(found, Settings(dtype=name))
    assert lines == ["dtype: bfloat16 in the place of float32; --dtype chooses another"][:count]


def test_matmuls_of_a_gpu_compute_in_float32() -> None:
    flags = torch.backends.cuda.matmul
    before = (
        flags.allow_bf16_reduced_precision_reduction,
        flags.allow_fp16_reduced_precision_reduction,
        torch.backends.cudnn.allow_tf32,
    )
    try:
        compute_in_float32(torch.device("cpu"))
        assert flags.allow_bf16_reduced_precision_reduction == before[0]
        compute_in_float32(SECOND)
        assert not flags.allow_bf16_reduced_precision_reduction
        assert not flags.allow_fp16_reduced_precision_reduction
        assert not torch.backends.cudnn.allow_tf32
    finally:
        flags.allow_bf16_reduced_precision_reduction = before[0]
        flags.allow_fp16_reduced_precision_reduction = before[1]
        torch.backends.cudnn.allow_tf32 = before[2]

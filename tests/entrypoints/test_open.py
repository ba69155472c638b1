"""What the headers of a model's files state."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.pipeline import CheckpointSummary
from ostro.core.records import Settings, TensorInfo
from ostro.entrypoints.open import summary_of

GPTQ = {"quantization_config": {"quant_method": "gptq"}}


def tensor(name: str, shape: tuple[int, ...], format: str, nbytes: int) -> TensorInfo:
    return TensorInfo(name=name, shape=shape, format=format, nbytes=nbytes)


WEIGHT = tensor("weight", (4, 32), "Q4_K", 72)
NORM = tensor("norm", (32,), "F32", 128 // 4)
PACKED = tensor("qweight", (4, 4), "I32", 64)


@pytest.mark.parametrize(
    ("tensors", "raw", "quant", "quantization", "parameters"),
    [
        ([WEIGHT, NORM], {}, None, "Q4_K", 160),
        ([WEIGHT, NORM], {}, "Q8_0", "Q8_0", 160),
        ([PACKED, NORM], GPTQ, None, "gptq", None),
        ([], {}, None, "", 0),
    ],
)
def test_summary(
    tensors: list[TensorInfo],
    raw: dict[str, Any],
    quant: str | None,
    quantization: str,
    parameters: int | None,
    tmp_path: Path,
) -> None:
    container: Any = SimpleNamespace(path=tmp_path, tensors={each.name: each for each in tensors})
    nbytes = sum(each.nbytes for each in tensors)
    expected = CheckpointSummary(
        format="safetensors", nbytes=nbytes, quantization=quantization, parameters=parameters
    )
    assert summary_of(container, raw, Settings(quant=quant)) == expected
    container.path = tmp_path / "m.gguf"
    container.path.touch()
    assert summary_of(container, raw, Settings(quant=quant)).format == "gguf"

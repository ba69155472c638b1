"""The plain ggml unpacking equals gguf's, bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter

from ostro.core.errors import Unsupported
from ostro.core.load.ggml import BY_NAME
from ostro.plugins.checkpoints.gguf.reader import open_gguf
from ostro.quant.gguf.naive import FORMATS, dequantize


def bits(array: np.ndarray) -> np.ndarray:
    """A float32 array's bits, with every NaN the same."""
    return np.where(np.isnan(array), np.float32(np.nan), array).view(np.uint32)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [(1,), (7,), (3, 5), (0,)])
def test_any_bytes_unpack_as_gguf_unpacks_them(format: str, rows: tuple[int, ...]) -> None:
    kind = BY_NAME[format]
    data = np.random.default_rng(0).integers(0, 256, (*rows, 4 * kind.nbytes), dtype=np.uint8)
    ours = dequantize(format, torch.from_numpy(data))
    assert ours.dtype == torch.float32 and ours.shape == (*rows, 4 * kind.block)
    if data.size:
        with np.errstate(invalid="ignore"):
            theirs = gguf.dequantize(data, GGMLQuantizationType[format])
        np.testing.assert_array_equal(bits(ours.numpy()), bits(theirs))


def test_rows_that_begin_at_any_byte_are_unpacked() -> None:
    kind = BY_NAME["Q8_0"]
    data = torch.randint(0, 256, (4, 2 * kind.nbytes + 1), dtype=torch.uint8)
    ours = dequantize("Q8_0", data[:, 1:])
    assert torch.equal(ours.nan_to_num(), dequantize("Q8_0", data[:, 1:].clone()).nan_to_num())


def test_a_written_q8_0_tensor_comes_back_within_its_step(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(6, 96)).astype(np.float32)
    packed = gguf.quantize(weight, GGMLQuantizationType.Q8_0)
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", packed, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    container = open_gguf(tmp_path / "m.gguf")
    assert container.tensors["w"].shape == (6, 96)
    ours = dequantize("Q8_0", container.read("w")).numpy()
    step = np.abs(weight).reshape(6, 3, 32).max(-1).repeat(32, -1) / 127
    assert np.all(np.abs(ours - weight) <= step * 0.51)


def test_what_cannot_be_unpacked_is_refused() -> None:
    with pytest.raises(Unsupported, match="GGUF format IQ1_S is not supported; supported are F32"):
        dequantize("IQ1_S", torch.zeros(1, 50, dtype=torch.uint8))
    with pytest.raises(ValueError, match="whole 34-byte blocks"):
        dequantize("Q8_0", torch.zeros(1, 35, dtype=torch.uint8))
    with pytest.raises(ValueError, match="wants uint8"):
        dequantize("Q8_0", torch.zeros(1, 34))

"""The plain ggml unpacking equals gguf's and llama.cpp's, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import load_file

from ostro.core.errors import Unsupported
from ostro.plugins.checkpoints.gguf.ggml import GGML_BY_NAME
from ostro.plugins.checkpoints.gguf.reader import open_gguf
from ostro.quant.gguf import grids
from ostro.quant.gguf.naive import BLOCKS, FLOATS, dequantize

GOLDEN = load_file(Path(__file__).parent / "blocks.safetensors")
"""What llama.cpp says of the formats that gguf cannot unpack: see tests/peers/ggml_blocks.py."""
BY_LLAMA = sorted({name.split(".")[0] for name in GOLDEN})
BY_GGUF = [format for format in (*FLOATS, *BLOCKS) if format not in BY_LLAMA]


def bits(array: np.ndarray) -> np.ndarray:
    """A float32 array's bits, with every NaN the same."""
    return np.where(np.isnan(array), np.float32(np.nan), array).view(np.uint32)


def random_bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_every_format_of_weights_is_unpacked() -> None:
    assert set(GGML_BY_NAME) - set(BLOCKS) - set(FLOATS) == {"I8", "I16", "I32", "I64", "F64"}


@pytest.mark.parametrize("format", BY_GGUF)
@pytest.mark.parametrize("rows", [(1,), (400,), (3, 5), (0,)])
def test_any_bytes_unpack_as_gguf_unpacks_them(format: str, rows: tuple[int, ...]) -> None:
    kind = GGML_BY_NAME[format]
    data = random_bytes(*rows, 4 * kind.nbytes)
    ours = dequantize(format, torch.from_numpy(data))
    assert ours.dtype == torch.float32 and ours.shape == (*rows, 4 * kind.block)
    if data.size:
        with np.errstate(all="ignore"):
            theirs = gguf.dequantize(data, GGMLQuantizationType[format])
        np.testing.assert_array_equal(bits(ours.numpy()), bits(theirs))


@pytest.mark.parametrize("format", BY_LLAMA)
def test_what_gguf_cannot_unpack_is_as_llama_cpp_unpacks_it(format: str) -> None:
    ours = dequantize(format, GOLDEN[f"{format}.blocks"])
    theirs = GOLDEN[f"{format}.weights"]
    assert ours.shape == theirs.shape and theirs.isfinite().all() and len(theirs.unique()) > 3
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("format", "scales"), [("MXFP4", 1), ("NVFP4", 4)])
def test_scales_of_every_byte(format: str, scales: int) -> None:
    data = random_bytes(256, GGML_BY_NAME[format].nbytes)
    data[:, :scales] = np.arange(256)[:, None]
    with np.errstate(over="ignore"):
        theirs = gguf.dequantize(data, GGMLQuantizationType[format])
    ours = dequantize(format, torch.from_numpy(data))
    np.testing.assert_array_equal(bits(ours.numpy()), bits(theirs))


@pytest.mark.parametrize("name", grids.GRIDS)
def test_grids_hold_the_vectors_of_gguf(name: str) -> None:
    theirs: Any = getattr(gguf.quants, "IQ1_S" if name == "IQ1" else name)
    theirs.init_grid()
    expected = torch.from_numpy(theirs.grid[0, 0])
    values = torch.tensor(grids.GRIDS[name].values, dtype=torch.float32)
    assert torch.equal(values[grids.vectors(name).long()], expected)


def test_rows_that_begin_at_any_byte_are_unpacked() -> None:
    for format in BY_GGUF:
        data = torch.from_numpy(random_bytes(4, 2 * GGML_BY_NAME[format].nbytes + 1))
        ours = dequantize(format, data[:, 1:])
        assert torch.equal(ours.nan_to_num(), dequantize(format, data[:, 1:].clone()).nan_to_num())


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
    with pytest.raises(Unsupported, match="GGUF format I64 is not supported; supported are F32"):
        dequantize("I64", torch.zeros(1, 50, dtype=torch.uint8))
    with pytest.raises(ValueError, match="a multiple of 34 bytes"):
        dequantize("Q8_0", torch.zeros(1, 35, dtype=torch.uint8))
    with pytest.raises(ValueError, match="must be uint8"):
        dequantize("Q8_0", torch.zeros(1, 34))

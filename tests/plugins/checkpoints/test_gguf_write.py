"""Whose metadata a written GGUF file has: the text's, whatever lies beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from ostro.plugins.checkpoints.gguf.copy import metadata
from ostro.plugins.checkpoints.gguf.filetypes import file_type
from ostro.plugins.checkpoints.gguf.reader import open_gguf


def made(path: Path, arch: str, said: str, tensors: int = 2, split: int = 0) -> Path:
    """A GGUF file of a few tensors, or as many as it was split into, that says a word."""
    writer = GGUFWriter(path, arch, split_max_tensors=split)
    writer.add_string("said", said)
    for i in range(tensors):
        writer.add_tensor(f"blk.{i}.w", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_folders_metadata_is_not_its_projectors(tmp_path: Path) -> None:
    made(tmp_path / "mmproj-F16.gguf", "llama", "projector")
    file = made(tmp_path / "model.gguf", "llama", "text")
    for path in (tmp_path, file):
        (said,) = (key for key in metadata(open_gguf(path)) if b"said" in key)
        assert said.endswith(b"text")


@pytest.mark.parametrize("named", ["", "model-00001-of-00003.gguf", "model-00003-of-00003.gguf"])
def test_a_split_models_metadata_is_its_first_files(named: str, tmp_path: Path) -> None:
    made(tmp_path / "mmproj-F16.gguf", "llama", "projector")
    made(tmp_path / "model.gguf", "llama", "text", tensors=3, split=1)
    keys = metadata(open_gguf(tmp_path / named))
    assert [key for key in keys if b"said" in key and key.endswith(b"text")]
    assert not any(b"split." in key for key in keys)


@pytest.mark.parametrize(
    ("most", "name", "number"),
    [
        ("Q5_0", "Q4_K_M", 15),  # as llama-quantize numbers Gemma 3 270M
        ("Q4_K", "Q4_K_M", 15),
        ("Q4_1", "q4k", 3),
        ("Q4_K", "q4k", 14),
        ("BF16", "BF16", 32),
    ],
)
def test_a_mixture_has_its_number_whatever_its_formats(most: str, name: str, number: int) -> None:
    assert file_type(most, name) == number

"""Fixtures: a trained tokenizer, and a model folder with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.vocabularies import train, write


@pytest.fixture(scope="session")
def trained() -> str:
    return train().to_str()


@pytest.fixture
def folder(tmp_path: Path, trained: str) -> Path:
    """A model folder with special tokens in its config."""
    (tmp_path / "tokenizer.json").write_text(trained)
    write(tmp_path / "tokenizer_config.json", bos_token="<s>", eos_token={"content": "</s>"})
    return tmp_path

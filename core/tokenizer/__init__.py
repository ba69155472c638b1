"""Tokenizers of model folders, tokenizer.json files, SentencePiece models and GGUF headers.

All are built on the `tokenizers` library; torch and transformers are not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostro.core.errors import TokenizerError
from ostro.core.tokenizer.detokenizer import Detokenizer
from ostro.core.tokenizer.folder import read_folder, read_json_file
from ostro.core.tokenizer.gguf import tokenizer_from_gguf
from ostro.core.tokenizer.sentencepiece import read_sentencepiece
from ostro.core.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "load_tokenizer", "tokenizer_from_gguf"]


def load_tokenizer(path: Path, *, metadata: Mapping[str, Any] | None = None) -> Tokenizer:
    """Load the tokenizer at `path`: a model folder, tokenizer.json, *.model or *.gguf.

    `metadata` is the header of a GGUF file, read by its checkpoint plugin, since the core does not
    open containers. Raises TokenizerError if the tokenizer is missing or malformed.
    """
    path = Path(path)
    if metadata is not None:
        return tokenizer_from_gguf(metadata, source=path.name)
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():
        raise TokenizerError(f"no tokenizer: {path} does not exist")
    if path.suffix == ".json":
        return read_json_file(path)
    if path.suffix == ".model":
        return read_sentencepiece(path)
    if path.suffix == ".gguf":
        raise TokenizerError(f"{path.name}: a GGUF tokenizer requires the file's metadata")
    raise TokenizerError(
        f"{path.name}: not a tokenizer; expected a model folder, tokenizer.json, *.model or *.gguf"
    )

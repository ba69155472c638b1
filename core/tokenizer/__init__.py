"""Tokenizers: text to token ids and back, read through the installed tokenizer formats.

All are built on the `tokenizers` library; torch and transformers are not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostro.core.errors import TokenizerError
from ostro.core.plugins.manager import PluginManager, installed_plugins
from ostro.core.records import TokenizerFormat, TokenizerSource, resolve
from ostro.core.tokenizer.detokenizer import Detokenizer
from ostro.core.tokenizer.errors import tokenizer_errors
from ostro.core.tokenizer.folder import build_tokenizer, read_json
from ostro.core.tokenizer.tokenizer import Tokenizer, TokenizerLoader

__all__ = ["Detokenizer", "Tokenizer", "build_tokenizer", "load_tokenizer"]


def load_tokenizer(
    path: Path,
    *,
    metadata: Mapping[str, Any] | None = None,
    plugins: PluginManager | None = None,
) -> Tokenizer:
    """Load the tokenizer at `path`: a model folder, or one file of an installed format.

    `metadata` is the header of a container, such as GGUF, which its checkpoint plugin reads.
    `plugins` offer the formats; None takes the installed ones. Raises TokenizerError if the
    tokenizer is missing or malformed.
    """
    path = Path(path)
    plugins = plugins or installed_plugins()
    with tokenizer_errors(f"{path.name}: malformed tokenizer"):
        source = find_source(path, metadata)
        found: TokenizerFormat | None = plugins.claimant(
            "tokenizers", lambda record: record.claims(source), f"the tokenizer {path.name}"
        )
        if found is None:
            raise missing(source, plugins)
        load: TokenizerLoader = resolve(found.load)
        return load(source)


def find_source(path: Path, metadata: Mapping[str, Any] | None) -> TokenizerSource:
    """Describe the tokenizer files at `path`.

    Raises TokenizerError if there are none and for a malformed tokenizer_config.json.
    """
    if metadata is not None:
        return TokenizerSource(root=path.parent, file=path.name, metadata=metadata)
    if not path.exists():
        raise TokenizerError(f"no tokenizer: {path} does not exist")
    root, file = (path, None) if path.is_dir() else (path.parent, path.name)
    config = read_json(root / "tokenizer_config.json")
    stated = config.get("tokenizer_class")
    if stated is not None and not isinstance(stated, str):
        raise TokenizerError(
            f"{root.name}/tokenizer_config.json: tokenizer_class is {stated!r:.40}, expected a "
            "string"
        )
    return TokenizerSource(root=root, file=file, config=config)


def missing(source: TokenizerSource, plugins: PluginManager) -> TokenizerError:
    """The error for files that no format claims."""
    usages = ", ".join(record.usage for record in plugins.collect("tokenizers").values())
    if source.suffix == ".gguf":
        return TokenizerError(f"{source.file}: a GGUF tokenizer requires the file's metadata")
    if source.file is not None:
        return TokenizerError(f"{source.file}: not a tokenizer; expected a model folder, {usages}")
    found = ", ".join(sorted(path.name for path in source.root.iterdir())[:20]) or "nothing"
    return TokenizerError(
        f"{source.root.name}: no tokenizer; expected {usages} (found: {found}); set --tokenizer"
    )

"""Reads the vocabulary of a loaded model, for logits processors."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from ostro.core.errors import TokenizerError
from ostro.core.load.model import LoadedModel
from ostro.core.load.open import open_container
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.core.tokenizer import Tokenizer, load_tokenizer
from ostro.core.tokenizer.vocabulary import Vocabulary

log = logging.getLogger(__name__)


def read_vocabulary(
    loaded: LoadedModel, settings: Settings, plugins: PluginManager, eos_ids: Iterable[int]
) -> Vocabulary:
    """The vocabulary of --tokenizer, or of the model's own files.

    Without a tokenizer that has the bytes of each token, it has no tokens but their number.
    """
    size = int(loaded.config.vocab_size)
    try:
        tokenizer = open_tokenizer(loaded, settings, plugins)
        return Vocabulary.from_tokenizer(tokenizer, size, eos_ids)
    except TokenizerError as error:
        log.info("logits processors get no tokens: %s", error)
        return Vocabulary(size, eos_ids=frozenset(eos_ids))


def open_tokenizer(loaded: LoadedModel, settings: Settings, plugins: PluginManager) -> Tokenizer:
    """The tokenizer of a model; the engine process needs it for this alone."""
    path = Path(settings.tokenizer) if settings.tokenizer else loaded.path
    metadata = None
    if path == loaded.path:
        metadata = loaded.container.metadata
    elif path.suffix == ".gguf":
        with closing(open_container(path, plugins)) as container:
            metadata = container.metadata
    if path.suffix != ".gguf":
        metadata = None
    return load_tokenizer(path, metadata=metadata, plugins=plugins)

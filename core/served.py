"""A model as a pipeline sees it: in the process that speaks to users, without torch or weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ostro.core.chat import ChatTemplate
from ostro.core.engine.request import DEFAULT
from ostro.core.errors import CheckpointError
from ostro.core.ipc.client import AsyncEngine
from ostro.core.media.worker import MediaWorker
from ostro.core.records import Architecture
from ostro.core.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a pipeline is made of.

    `name` is what users call the model, `model` what the engine calls it; `raw` is its parsed
    config.json; `sampling` what its generation config suggests; `context` and `vocab` are in
    tokens, as the engine counts them.
    """

    engine: AsyncEngine
    architecture: Architecture
    path: Path
    name: str
    model: str = DEFAULT
    raw: Mapping[str, Any] = field(default_factory=dict)
    words: Tokenizer | None = None
    template: ChatTemplate | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    context: int = 0
    vocab: int = 0

    @cached_property
    def media_worker(self) -> MediaWorker | None:
        """Where its media are prepared; None where it takes none. It starts with the first."""
        inputs = self.architecture.inputs
        return None if inputs is None else MediaWorker(inputs, self.raw, self.path)

    def close(self) -> None:
        """End what it has started; who waits for it is refused."""
        if self.media_worker is not None:
            self.media_worker.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer. Raises CheckpointError where the model's files hold none."""
        if self.words is None:
            raise CheckpointError(
                f"{self.name} has no tokenizer.json; fetch it from where the model came from"
            )
        return self.words

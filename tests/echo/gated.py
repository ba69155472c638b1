"""An engine without models whose adapters take as long to read as a file is missing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ostro.core.adapters.adapter import LoadedAdapter
from ostro.core.adapters.registry import Registry
from ostro.core.adapters.store import AdapterStore
from ostro.core.engine.models.model_engines import ModelEngines
from ostro.core.engine.models.multi_model import MultiModelEngine
from ostro.core.errors import AdapterError
from ostro.core.messages.commands import FromEngine, ModelSpec
from ostro.core.messages.outputs import Stats


class GatedLoader:
    """Reading an adapter waits for the file that its reference names, and then fails."""

    def read(self, reference: str) -> LoadedAdapter:
        while not Path(reference).exists():
            time.sleep(0.005)
        raise AdapterError("the gate is open")


class GatedEngine(MultiModelEngine):
    """`stats().steps` counts the passes of the loop that drives this engine."""

    def __init__(self) -> None:
        pool: Any = SimpleNamespace(detach=lambda: None)
        loader: Any = GatedLoader()
        store = AdapterStore(pool, lambda adapter: None, host_bytes=1 << 20)
        self.registry = Registry(loader, store, max_adapters=8)
        self.passes = 0
        super().__init__({"m": ModelEngines(registry=self.registry)})

    def events(self) -> list[FromEngine]:
        self.passes += 1
        return super().events()

    def stats(self) -> Stats:
        return Stats(steps=self.passes)


def open_engine(
    models: Sequence[ModelSpec], plugins: Any, report: Any
) -> tuple[MultiModelEngine, list[str]]:
    return GatedEngine(), []

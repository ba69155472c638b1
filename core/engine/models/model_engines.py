"""A loaded model with its engines, by kind of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from msgspec.structs import replace

from ostro.core.adapters.adapter import Mixture
from ostro.core.adapters.registry import Registry
from ostro.core.engine.blocks import CacheGroup
from ostro.core.engine.engine import Engine
from ostro.core.engine.jobs import JobEngine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.errors import Unsupported
from ostro.core.load.model import LoadedModel
from ostro.core.messages.commands import ModelInfo, ModelSpec
from ostro.core.messages.outputs import Output, Stats
from ostro.core.messages.requests import PoolingRequest, Request, TokenRequest


class SubEngine(Protocol):
    """An engine of a model, for one kind of requests; `ModelEngines` adds them."""

    @property
    def busy(self) -> bool:
        """Whether a request is unfinished."""
        ...

    def abort(self, id: str, index: int | None = None) -> Sequence[Output]:
        """Drop a request, or one choice of it; return the last output of each dropped choice.

        Unknown ones are ignored.
        """
        ...

    def step(self) -> Sequence[Output]:
        """Run a part of the work, and return what it has completed."""
        ...

    def stats(self) -> Stats:
        """The current counters."""
        ...

    def close(self) -> None:
        """Drop all requests."""
        ...


REQUEST_COUNTERS = (
    "running waiting steps prompt_tokens generated_tokens cached_tokens preemptions proposals "
    "drafted_tokens accepted_tokens"
).split()
"""The counters that each engine of a model has for its own requests; the cache is that of all."""


@dataclass(frozen=True)
class ModelEngines:
    """One loaded model and its engines by kind of work; None for work that it does not support.

    `spec` is the message that it was loaded from.
    """

    tokens: Engine | None = None
    reader: PoolingEngine | None = None
    jobs: JobEngine | None = None
    registry: Registry | None = None
    loaded: LoadedModel | None = None
    spec: ModelSpec | None = None

    @property
    def info(self) -> ModelInfo:
        """The description of the model for clients."""
        if self.tokens is not None:
            ids = sorted(self.tokens.eos_ids)
            return ModelInfo(context=self.tokens.context, vocab=self.tokens.vocab, eos_ids=ids)
        if self.reader is not None:
            return ModelInfo(context=self.reader.context, vocab=self.reader.vocab)
        return ModelInfo()

    @property
    def parts(self) -> list[SubEngine]:
        """The engines of the model."""
        engines: Sequence[SubEngine | None] = (self.tokens, self.reader, self.jobs)
        return [engine for engine in engines if engine is not None]

    def submit(
        self, request: Request, mixture: Mixture, prepared: Mapping[str, Any] | None = None
    ) -> None:
        """Add a request to the engine of its kind; see `Engine.submit`. Raises Unsupported."""
        if isinstance(request, TokenRequest):
            if self.tokens is not None:
                return self.tokens.submit(request, mixture, prepared)
        elif isinstance(request, PoolingRequest):
            if self.reader is not None:
                return self.reader.submit(request, mixture)
        elif self.jobs is not None:
            return self.jobs.submit(request, mixture)
        raise cannot_serve(request)

    @property
    def busy(self) -> bool:
        """Whether a request or an adapter command of the model is unfinished."""
        reads = self.registry is not None and self.registry.busy
        return reads or any(part.busy for part in self.parts)

    @property
    def explain(self) -> list[str]:
        """The lines of `--explain`."""
        return [] if self.loaded is None else self.loaded.explain

    @property
    def groups(self) -> Sequence[CacheGroup]:
        """The groups of cache blocks."""
        engine = self.tokens or self.reader
        return () if engine is None else engine.runner.blocks.all

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of cache blocks on the CPU that were never used."""
        groups = [group for group in self.groups if group.kind.device.type == "cpu"]
        return sum(group.kind.bytes(group.pool.size - group.pool.peak) for group in groups)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return 0 if self.loaded is None else self.loaded.nbytes

    def stats(self) -> Stats | None:
        """The counters of the model's engines, and its memory; None without engines."""
        if not self.parts:
            return None
        counted = [part.stats() for part in self.parts]
        sums = {name: sum(getattr(x, name) for x in counted) for name in REQUEST_COUNTERS}
        total = replace(counted[0], **sums)
        if self.loaded is None:
            return total
        pool = None if self.registry is None else self.registry.store.adapter_pool
        return replace(
            total,
            weight_bytes=self.weight_bytes,
            cache_capacity_bytes=sum(each.kind.bytes(each.pool.size) for each in self.groups),
            adapter_bytes=0 if pool is None else pool.nbytes,
        )

    def close(self) -> None:
        """Abort all requests, stop reading adapters, and close the model's files."""
        for part in self.parts:
            part.close()
        if self.registry is not None:
            self.registry.close()
        if self.loaded is not None:
            self.loaded.close()


def cannot_serve(request: Request) -> Unsupported:
    """The error of a request for work that its model does not support."""
    return Unsupported(f"{request.model} does not support {type(request).__name__}")

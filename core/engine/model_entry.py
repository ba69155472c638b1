"""A loaded model with its engines, by kind of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from ostro.core.adapters.registry import Registry
from ostro.core.engine.blocks import CacheGroup
from ostro.core.engine.engine import Engine
from ostro.core.engine.jobs import JobEngine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.load.model import LoadedModel
from ostro.core.messages.commands import ModelInfo, ModelSpec
from ostro.core.messages.outputs import Stats
from ostro.core.messages.requests import JobRequest, PoolingRequest, Request, TokenRequest

SubEngine = Engine | PoolingEngine | JobEngine

REQUEST_COUNTERS = (
    "running waiting steps prompt_tokens generated_tokens cached_tokens preemptions drafted_tokens "
    "accepted_tokens"
).split()
"""The counters that each engine of a model has for its own requests; the cache is that of all."""


@dataclass(frozen=True)
class ModelEntry:
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
    def engines(self) -> dict[type[Request], SubEngine | None]:
        """The engines of the model by the requests that they serve."""
        return {TokenRequest: self.tokens, PoolingRequest: self.reader, JobRequest: self.jobs}

    @property
    def parts(self) -> list[SubEngine]:
        """The engines of the model."""
        return [engine for engine in self.engines.values() if engine is not None]

    @property
    def busy(self) -> bool:
        """Whether a request or an adapter command of the model is unfinished."""
        registries = [] if self.registry is None else [self.registry]
        return any(each.busy for each in (*self.parts, *registries))

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
            self.loaded.container.close()

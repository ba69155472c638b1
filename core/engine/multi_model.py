"""One device loop over all that is loaded: tokens, vectors and jobs of one model or several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from ostro.core.adapters.adapter import EMPTY
from ostro.core.adapters.registry import Registry, WaitingRequest
from ostro.core.engine.engine import Engine
from ostro.core.engine.jobs import JobEngine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.engine.request import (
    DEFAULT,
    AdapterRef,
    JobRequest,
    Output,
    PoolingRequest,
    Request,
    Stats,
    TokenRequest,
)
from ostro.core.errors import AdapterNotFound, NotFound, OstroError, Unsupported
from ostro.core.ipc.loop import ProgressCallback
from ostro.core.ipc.messages import (
    AdapterCommand,
    AdapterResult,
    Failed,
    FromEngine,
    ModelInfo,
    Requantize,
)
from ostro.core.load.model import LoadedModel

SubEngine = Engine | PoolingEngine | JobEngine

PAUSE = 0.002
"""Seconds between two looks at whether an adapter has been read, while nothing else is done."""


@dataclass(frozen=True)
class ModelEntry:
    """One loaded model: its engines by kind of work, None for work that it does not do."""

    tokens: Engine | None = None
    reader: PoolingEngine | None = None
    jobs: JobEngine | None = None
    requantize: Callable[[Requantize, ProgressCallback], list[str]] | None = None
    registry: Registry | None = None
    loaded: LoadedModel | None = None

    @property
    def facts(self) -> ModelInfo:
        """What a client is told of it."""
        if self.tokens is not None:
            ids = sorted(self.tokens.eos_ids)
            return ModelInfo(context=self.tokens.context, vocab=self.tokens.vocab, eos_ids=ids)
        if self.reader is not None:
            return ModelInfo(context=self.reader.context, vocab=self.reader.vocab)
        return ModelInfo()

    @property
    def parts(self) -> Iterator[SubEngine]:
        for part in (self.tokens, self.reader, self.jobs):
            if part is not None:
                yield part


class MultiModelEngine:
    """Routes requests to models and gives each part that has work a turn in every pass."""

    def __init__(self, entries: Mapping[str, ModelEntry]) -> None:
        """The first entry also answers for the name `DEFAULT`."""
        self.entries = dict(entries)
        self.parts: list[SubEngine] = [part for t in entries.values() for part in t.parts]
        self.registries = [t.registry for t in entries.values() if t.registry is not None]
        self.waiting: dict[str, tuple[Registry, WaitingRequest]] = {}
        self.unsent: list[FromEngine] = []

    @property
    def first(self) -> ModelEntry:
        return next(iter(self.entries.values()))

    @property
    def facts(self) -> dict[str, ModelInfo]:
        """What a client is told of each model."""
        return {name: entry.facts for name, entry in self.entries.items()}

    @property
    def busy(self) -> bool:
        return any(each.busy for each in (*self.parts, *self.registries))

    def entry(self, model: str) -> ModelEntry:
        """The model of that name. Raises NotFound."""
        entry = self.first if model == DEFAULT else self.entries.get(model)
        if entry is None:
            known = ", ".join(self.entries)
            raise NotFound(f"there is no model {model!r:.100}; there are {known}")
        return entry

    def requantize(self, message: Requantize, report: ProgressCallback) -> list[str]:
        """Bring a model's weights to other formats while nothing runs; see `Requantize`.

        Raises NotFound or UsageError before anything has changed.
        """
        entry = self.entry(message.model)
        assert entry.requantize is not None, f"{message.model = } was not loaded here"
        return entry.requantize(message, report)

    def submit(self, request: Request) -> None:
        """Take a request in, now or when its adapters have been read. Raises an OstroError where
        its model cannot do it.
        """
        entry = self.entry(request.model)
        submit = partial(self.hand, entry, request)
        if not request.adapters:
            submit()
            return
        if entry.registry is None:
            raise AdapterNotFound(f"{request.model} takes no adapters", param="adapters")

        def fail(error: Exception) -> None:
            self.waiting.pop(request.id, None)
            self.unsent.append(Failed.of(error, request.id))

        def go() -> None:
            if self.waiting.pop(request.id, None) is None:
                submit()
                return
            try:
                submit()
            except Exception as error:
                fail(error)

        waiting = entry.registry.ask(request.adapters, go, fail)
        if waiting is not None:
            self.waiting[request.id] = entry.registry, waiting

    def hand(self, entry: ModelEntry, request: Request) -> None:
        """Hand a request, whose adapters are read, to the part of a model that does it."""
        mixture = EMPTY
        if entry.registry is not None and request.adapters:
            tokens = request.tokens if isinstance(request, TokenRequest) else ()
            mixture = entry.registry.mixture(request.adapters, tokens)
        if isinstance(request, TokenRequest) and entry.tokens is not None:
            entry.tokens.submit(request, mixture)
        elif isinstance(request, PoolingRequest) and entry.reader is not None:
            entry.reader.submit(request, mixture)
        elif isinstance(request, JobRequest) and entry.jobs is not None:
            entry.jobs.submit(request, mixture)
        else:
            raise Unsupported(f"{request.model} does no {type(request).__name__}")

    def adapt(self, message: AdapterCommand) -> None:
        """Do what a message says; the answer is among the events. Raises AdapterError."""
        registry = self.entry(message.model).registry
        if registry is None:
            raise AdapterNotFound(f"{message.model} takes no adapters")

        def done(error: OstroError | None) -> None:
            told = AdapterResult(message.id, registry.facts()) if error is None else None
            self.unsent.append(told or Failed.of(error or OstroError(""), message.id))

        if message.do == "load":
            registry.load(
                message.name,
                message.reference,
                done,
                inplace=message.inplace,
                expected=message.expected,
                pinned=message.pinned,
            )
            return
        if message.do == "read":
            registry.ask([AdapterRef(name=message.name)], partial(done, None), done)
            return
        if message.do == "unload":
            registry.unload(message.name, message.expected)
        if message.do == "register":
            registry.register(
                message.name,
                message.reference,
                generation=message.expected or None,
                pinned=message.pinned,
            )
        done(None)

    def events(self) -> list[FromEngine]:
        """What has come up beside outputs since this was last asked."""
        events, self.unsent = self.unsent, []
        return events

    def abort(self, id: str, index: int | None = None) -> list[Output]:
        """Drop a request, or one choice of it; unknown ones are ignored."""
        found = list[Output]()
        if id in self.waiting:
            registry, waiting = self.waiting.pop(id)
            registry.forget(waiting)
        for part in self.parts:
            found += part.abort(id, index) if isinstance(part, Engine) else part.abort(id)
        return found

    def step(self) -> list[Output]:
        """One pass: a step of every part that has something to do."""
        for registry in self.registries:
            registry.poll()
        if not any(part.busy for part in self.parts):
            time.sleep(PAUSE)
        return [output for part in self.parts if part.busy for output in part.step()]

    def stats(self) -> Stats:
        """The counters of all models, added up."""
        counting = [entry.tokens or entry.reader for entry in self.entries.values()]
        every = [part.stats() for part in counting if part is not None]
        if len(every) == 1:
            return every[0]
        names = Stats.__struct_fields__
        return Stats(**{name: sum(getattr(stats, name) for stats in every) for name in names})

    def close(self) -> None:
        """Drop everything."""
        for part in (*self.parts, *self.registries):
            part.close()

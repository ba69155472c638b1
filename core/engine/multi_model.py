"""The engine of one or several models: routes requests to their engines and steps these in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ostro.core.adapters.adapter import EMPTY
from ostro.core.adapters.registry import ReadResult, Registry
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
    TokenOutput,
    TokenRequest,
)
from ostro.core.errors import AdapterNotFound, NotFound, Unsupported
from ostro.core.ipc.messages import (
    AdapterCommand,
    AdapterResult,
    Failed,
    FromEngine,
    ModelInfo,
    Requantize,
)
from ostro.core.load.model import LoadedModel
from ostro.core.records import ProgressCallback

SubEngine = Engine | PoolingEngine | JobEngine


@dataclass(frozen=True)
class ModelEntry:
    """One loaded model and its engines by kind of work; None for work that it does not support."""

    tokens: Engine | None = None
    reader: PoolingEngine | None = None
    jobs: JobEngine | None = None
    requantize: Callable[[Requantize, ProgressCallback], list[str]] | None = None
    registry: Registry | None = None
    loaded: LoadedModel | None = None

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


@dataclass(frozen=True)
class WaitingRequest:
    """A request whose adapters are being read, its model, and the choices aborted meanwhile."""

    request: Request
    entry: ModelEntry
    registry: Registry
    aborted: set[int] = field(default_factory=set)


class MultiModelEngine:
    """Routes requests to models, and steps each engine (`parts`) that has work in every pass.

    `waiting` are the requests whose adapters are being read; `unsent` are messages for `events`.
    """

    def __init__(self, entries: Mapping[str, ModelEntry]) -> None:
        """The first entry is also the model `DEFAULT`."""
        self.entries = dict(entries)
        self.parts: list[SubEngine] = [part for t in entries.values() for part in t.parts]
        self.registries = [t.registry for t in entries.values() if t.registry is not None]
        self.waiting: dict[str, WaitingRequest] = {}
        self.unsent: list[FromEngine] = []
        self.read_ended = threading.Event()
        self.notify: Callable[[], None] = lambda: None
        for registry in self.registries:
            registry.wake = self.wake

    @property
    def first(self) -> ModelEntry:
        """The default model."""
        return next(iter(self.entries.values()))

    @property
    def infos(self) -> dict[str, ModelInfo]:
        """The descriptions of all models for clients, by name."""
        return {name: entry.info for name, entry in self.entries.items()}

    @property
    def busy(self) -> bool:
        """Whether a request or command is under way, reads of adapters included."""
        return any(each.busy for each in (*self.parts, *self.registries))

    @property
    def runnable(self) -> bool:
        """Whether `step` has something to do now, rather than to wait for the end of a read."""
        return any(part.busy for part in self.parts) or any(r.has_finished for r in self.registries)

    def set_wake(self, notify: Callable[[], None]) -> None:
        """Have `notify` called, in another thread, whenever the read of an adapter ends."""
        self.notify = notify

    def wake(self) -> None:
        """Called in a reader thread when the read of an adapter ends."""
        self.read_ended.set()
        self.notify()

    def entry(self, model: str) -> ModelEntry:
        """The model of that name. Raises NotFound."""
        entry = self.first if model == DEFAULT else self.entries.get(model)
        if entry is None:
            known = ", ".join(self.entries)
            raise NotFound(f"there is no model {model!r:.100}; loaded are {known}")
        return entry

    def requantize(self, message: Requantize, report: ProgressCallback) -> list[str]:
        """Convert a model's weights to other formats while no request runs; see `Requantize`.

        Returns the lines of `--explain`. Raises NotFound or UsageError before a weight has changed.
        """
        entry = self.entry(message.model)
        assert entry.requantize is not None, f"{message.model = } was not loaded here"
        return entry.requantize(message, report)

    def submit(self, request: Request) -> None:
        """Add a request, now or once its adapters have been read. Raises an OstroError if its model
        cannot do it.
        """
        entry = self.entry(request.model)
        if request.adapters and entry.registry is None:
            raise AdapterNotFound(f"{request.model} supports no adapters", param="adapters")
        if entry.registry is None or entry.registry.ensure_read(request.id, request.adapters):
            self.dispatch(entry, request)
        else:
            self.waiting[request.id] = WaitingRequest(request, entry, entry.registry)

    def finish_read(self, registry: Registry, result: ReadResult) -> None:
        """Go on with the request or command that waited for a read; an error fails it alone."""
        waiting = self.waiting.pop(result.id, None)
        # Commands wait for reads as well, under ids of their own.
        if waiting is None:
            self.answer(registry, result)
            return
        try:
            if result.error is not None:
                raise result.error
            self.dispatch(waiting.entry, waiting.request)
        except Exception as error:
            self.unsent.append(Failed.of(error, result.id))
            return
        for index in waiting.aborted:
            # The last output of the choice was sent when it was aborted.
            self.abort(result.id, index)

    def answer(self, registry: Registry, result: ReadResult) -> None:
        """Answer an adapter command with all adapters of its model, or with its error."""
        if result.error is None:
            self.unsent.append(AdapterResult(result.id, registry.infos()))
        else:
            self.unsent.append(Failed.of(result.error, result.id))

    def dispatch(self, entry: ModelEntry, request: Request) -> None:
        """Submit a request, whose adapters have been read, to the engine of its kind."""
        # Here, not at submission: the adapter may have been replaced while the request waited.
        mixture = EMPTY
        if entry.registry is not None and request.adapters:
            tokens = request.tokens if isinstance(request, TokenRequest) else ()
            mixture = entry.registry.mixture(request.adapters, tokens)
        engine: Any = entry.engines[type(request)]
        if engine is None:
            raise Unsupported(f"{request.model} does not support {type(request).__name__}")
        engine.submit(request, mixture)

    def adapt(self, message: AdapterCommand) -> None:
        """Execute a command; its result is among the events, now or later. Raises AdapterError."""
        registry = self.entry(message.model).registry
        if registry is None:
            raise AdapterNotFound(f"{message.model} supports no adapters")

        if message.do == "load":
            registry.load(
                message.id,
                message.name,
                message.reference,
                inplace=message.inplace,
                expected=message.expected,
                pinned=message.pinned,
            )
            return
        if message.do == "read":
            if not registry.ensure_read(message.id, [AdapterRef(name=message.name)]):
                return
        elif message.do == "unload":
            registry.unload(message.name, message.expected)
        elif message.do == "register":
            registry.register(
                message.name,
                message.reference,
                generation=message.expected or None,
                pinned=message.pinned,
            )
        self.answer(registry, ReadResult(message.id))

    def events(self) -> list[FromEngine]:
        """Return and clear the pending messages: results of commands, and failures."""
        events, self.unsent = self.unsent, []
        return events

    def abort(self, id: str, index: int | None = None) -> list[Output]:
        """Drop a request, or one choice of it; unknown ones are ignored.

        Returns the last output of each choice that was dropped, except for a whole request whose
        adapters are being read.
        """
        if id in self.waiting:
            return self.abort_waiting(self.waiting[id], index)
        found = list[Output]()
        for part in self.parts:
            found += part.abort(id, index) if isinstance(part, Engine) else part.abort(id)
        return found

    def abort_waiting(self, waiting: WaitingRequest, index: int | None) -> list[Output]:
        """Drop a request whose adapters are being read, or note that a choice of it is aborted."""
        id = waiting.request.id
        outputs = list[Output]()
        if index is not None and isinstance(waiting.request, TokenRequest):
            choices = range(waiting.request.sampling.n)
            if index not in choices or index in waiting.aborted:
                return []
            # Choices share one submission: the choice is dropped after it, if others are left.
            waiting.aborted.add(index)
            outputs = [TokenOutput(id=id, index=index, finish="abort")]
            if len(waiting.aborted) < len(choices):
                return outputs
        del self.waiting[id]
        waiting.registry.cancel(id)
        return outputs

    def step(self) -> list[Output]:
        """One pass: handle ended reads, then run a step of every engine that has work.

        If all that is under way waits for adapters, block until a read ends.
        """
        if self.busy and not self.runnable:
            self.read_ended.wait()
        # Cleared before the queues are read: a read that ends from here on sets the event again.
        self.read_ended.clear()
        for registry in self.registries:
            for result in registry.poll():
                self.finish_read(registry, result)
        return [output for part in self.parts if part.busy for output in part.step()]

    def stats(self) -> Stats:
        """The sums of the counters of all models, and those of each model."""
        parts = {name: entry.parts[0] for name, entry in self.entries.items() if entry.parts}
        total = Stats(models={name: part.stats() for name, part in parts.items()})
        for name in Stats.__struct_fields__[:-1]:
            setattr(total, name, sum(getattr(each, name) for each in total.models.values()))
        return total

    def close(self) -> None:
        """Abort all requests, and stop reading adapters."""
        for part in (*self.parts, *self.registries):
            part.close()

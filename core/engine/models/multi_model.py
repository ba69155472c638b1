"""The engine of one or several models: routes requests to their engines and steps these in turn."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

from ostro.core.adapters.adapter import EMPTY
from ostro.core.adapters.registry import ReadResult, Registry
from ostro.core.engine.models.model_engines import ModelEngines, SubEngine, cannot_serve
from ostro.core.engine.models.model_loader import BetweenSteps, Build, ModelLoader
from ostro.core.engine.models.preparation import Prepared, RequestPreparer
from ostro.core.errors import AdapterError, AdapterNotFound, NotFound, OstroError, Unsupported
from ostro.core.messages.commands import (
    AdapterCommand,
    AdapterResult,
    Failed,
    FromEngine,
    LoadAdapter,
    LoadModel,
    ModelCommand,
    ModelInfo,
    ModelResult,
    ModelSpec,
    ReadAdapter,
    RegisterAdapter,
    RequantizeModel,
    UnloadAdapter,
    UnloadModel,
)
from ostro.core.messages.outputs import Output, Stats, TokenOutput
from ostro.core.messages.requests import DEFAULT_MODEL, AdapterRef, Request, TokenRequest
from ostro.core.settings import ProgressCallback

log = logging.getLogger(__name__)


@dataclass
class WaitingRequest:
    """A request that is prepared, or whose adapters are being read.

    `prepared` is the result of its preparation, `aborted` are the choices aborted meanwhile.
    """

    request: Request
    entry: ModelEngines
    prepared: Prepared | None = None
    aborted: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class RetiringModel:
    """A model that gets no more requests; it is freed once its requests have ended.

    `id` is the unload command that waits for that, None for a model that was replaced.
    """

    entry: ModelEngines
    id: str | None = None


class MultiModelEngine:
    """Routes requests to models, and steps each engine (`parts`) that has work in every pass.

    `waiting` are the requests that are prepared, or whose adapters are being read; `unsent` are
    messages for `events`.
    """

    def __init__(self, entries: Mapping[str, ModelEngines], build: Build | None = None) -> None:
        """The first entry is also the model `DEFAULT`. `build` loads further models."""
        self.entries = dict(entries)
        self.loader = ModelLoader(build or cannot_load, self.send)
        self.loader.wake = self.wake
        self.retiring: list[RetiringModel] = []
        self.waiting: dict[str, WaitingRequest] = {}
        self.preparer = RequestPreparer(self.wake)
        self.unsent: list[FromEngine] = []
        self.read_ended = threading.Event()
        self.notify: Callable[[], None] = lambda: None
        self.collect_parts()

    def collect_parts(self) -> None:
        """Update `parts` and `registries` after a change of the models."""
        models = [*self.entries.values(), *(each.entry for each in self.retiring)]
        self.parts: list[SubEngine] = [part for model in models for part in model.parts]
        self.registries = [model.registry for model in models if model.registry is not None]
        for registry in self.registries:
            registry.wake = self.wake

    @property
    def first(self) -> ModelEngines:
        """The default model."""
        return self.entry(DEFAULT_MODEL)

    @property
    def infos(self) -> dict[str, ModelInfo]:
        """The descriptions of all models for clients, by name."""
        return {name: entry.info for name, entry in self.entries.items()}

    @property
    def busy(self) -> bool:
        """Whether a request or command is under way, reads of adapters and models included."""
        if self.retiring or self.loader.busy or self.preparer.busy:
            return True
        return any(part.busy for part in self.parts) or any(r.busy for r in self.registries)

    @property
    def runnable(self) -> bool:
        """Whether `step` has something to do now, rather than to wait for the end of a read."""
        if any(part.busy for part in self.parts) or self.loader.has_finished:
            return True
        if self.preparer.has_finished or self.idle:
            return True
        return any(registry.has_finished for registry in self.registries)

    def set_wake(self, notify: Callable[[], None]) -> None:
        """Have `notify` called, in another thread, when the read of an adapter or model ends."""
        self.notify = notify

    def wake(self) -> None:
        """Called in the thread that ends a preparation, or the read of an adapter or a model."""
        self.read_ended.set()
        self.notify()

    def entry(self, model: str) -> ModelEngines:
        """The model of that name. Raises NotFound."""
        return self.entries[self.name_of(model)]

    def name_of(self, model: str) -> str:
        """The name of a model in `entries`; `DEFAULT` is the first one. Raises NotFound."""
        name = next(iter(self.entries), None) if model == DEFAULT_MODEL else model
        if name is None or name not in self.entries:
            # Without the names of the others: the caller may not be allowed to use them.
            raise NotFound(f"the model {model!r:.100} is not loaded", param="model")
        return name

    # Models

    def change_models(self, message: ModelCommand) -> None:
        """Execute a command; its result is among the events, now or later. Raises NotFound."""
        match message:
            case UnloadModel():
                entry = self.entries.pop(self.name_of(message.model))
                self.retiring.append(RetiringModel(entry, message.id))
                self.collect_parts()
                return
            case LoadModel(spec=ModelSpec()):
                name, spec = message.model, message.spec
            case LoadModel() | RequantizeModel():
                name = self.name_of(message.model)
                spec = self.entries[name].spec
        assert spec is not None, f"{name} was not loaded from a spec"
        if isinstance(message, RequantizeModel):
            quantized = replace(spec.settings, quant=message.quant, topology=message.topology)
            spec = ModelSpec(quantized, spec.eos_ids)
        self.loader.load(name, spec, partial(self.finish_load, message.id, name))

    def finish_load(self, id: str, name: str, loaded: ModelEngines | OstroError) -> None:
        """Let a loaded model serve the requests of a name from now on, or report the error.

        A model of this name keeps its requests until they end. Its adapters are registered with the
        new one.
        """
        if isinstance(loaded, OstroError):
            self.unsent.append(Failed.of(loaded, id))
            return
        if (before := self.entries.get(name)) is not None:
            copy_adapters(before, loaded)
            self.retiring.append(RetiringModel(before))
        self.entries[name] = loaded
        self.collect_parts()
        self.unsent.append(ModelResult(id, self.infos, loaded.explain))

    @property
    def idle(self) -> list[RetiringModel]:
        """The models that get no more requests and have none."""
        if not self.retiring:
            return []
        awaited = [id(waiting.entry) for waiting in self.waiting.values()]
        return [r for r in self.retiring if not r.entry.busy and id(r.entry) not in awaited]

    def free_idle(self) -> None:
        """Free the models that get no more requests and have none."""
        if not (idle := self.idle):
            return
        self.retiring = [each for each in self.retiring if each not in idle]
        self.collect_parts()
        entries, ids = [each.entry for each in idle], [each.id for each in idle if each.id]
        idle.clear()  # the list `entries` must have the last references
        self.loader.free(entries, partial(self.finish_unload, ids))

    def finish_unload(self, ids: Sequence[str]) -> None:
        """Answer the unload commands of models that have been freed."""
        self.unsent += [ModelResult(id, self.infos) for id in ids]

    # Requests

    def submit(self, request: Request) -> None:
        """Add a request: now, or once it is prepared and its adapters have been read.

        Raises an OstroError if its model cannot do it.
        """
        entry = self.entry(request.model)
        if request.adapters and entry.registry is None:
            raise AdapterNotFound(f"{request.model} supports no adapters", param="adapters")
        waiting = WaitingRequest(request, entry)
        if not isinstance(request, TokenRequest) or not request.sampling.processors:
            self.read_adapters(waiting)
        elif entry.tokens is not None:
            entry.tokens.check_processors(request.sampling)
            self.waiting[request.id] = waiting
            work = partial(entry.tokens.prepare, request.sampling)
            self.preparer.start(request.id, request.owner, work)
        else:
            raise cannot_serve(request)

    def finish_preparation(self, id: str, prepared: Future[Prepared]) -> None:
        """Go on with the request that was prepared; an error fails it alone."""
        waiting = self.waiting.pop(id)
        try:
            waiting.prepared = prepared.result()
            self.read_adapters(waiting)
        except Exception as error:
            self.unsent.append(Failed.of(error, id))
            return
        if id not in self.waiting:
            self.abort_choices(waiting)

    def read_adapters(self, waiting: WaitingRequest) -> None:
        """Submit a request to its engine, now or once its adapters have been read."""
        request, registry = waiting.request, waiting.entry.registry
        if registry is None or registry.ensure_read(request.id, request.adapters):
            self.dispatch(waiting)
        else:
            self.waiting[request.id] = waiting

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
            self.dispatch(waiting)
        except Exception as error:
            self.unsent.append(Failed.of(error, result.id))
            return
        self.abort_choices(waiting)

    def abort_choices(self, waiting: WaitingRequest) -> None:
        """Abort the choices of a submitted request that were aborted while it waited."""
        for index in waiting.aborted:
            # The last output of the choice was sent when it was aborted.
            self.abort(waiting.request.id, index)

    def answer(self, registry: Registry, result: ReadResult) -> None:
        """Answer an adapter command with all adapters of its model, or with its error."""
        if result.error is None:
            self.unsent.append(AdapterResult(result.id, registry.infos()))
        else:
            self.unsent.append(Failed.of(result.error, result.id))

    def dispatch(self, waiting: WaitingRequest) -> None:
        """Submit a request, whose adapters have been read, to the engine of its kind."""
        entry, request = waiting.entry, waiting.request
        # Here, not at submission: the adapter may have been replaced while the request waited.
        mixture = EMPTY
        if entry.registry is not None and request.adapters:
            tokens = request.tokens if isinstance(request, TokenRequest) else ()
            mixture = entry.registry.mixture(request.adapters, tokens)
        entry.submit(request, mixture, waiting.prepared)

    def adapt(self, message: AdapterCommand) -> None:
        """Execute a command; its result is among the events, now or later. Raises AdapterError."""
        registry = self.entry(message.model).registry
        if registry is None:
            raise AdapterNotFound(f"{message.model} supports no adapters")
        match message:
            case LoadAdapter():
                registry.load(
                    message.id,
                    message.name,
                    message.reference,
                    inplace=message.inplace,
                    expected=message.expected,
                    pinned=message.pinned,
                )
                return
            case ReadAdapter():
                if not registry.ensure_read(message.id, [AdapterRef(name=message.name)]):
                    return
            case UnloadAdapter():
                registry.unload(message.name, message.expected)
            case RegisterAdapter():
                registry.register(
                    message.name,
                    message.reference,
                    generation=message.generation,
                    pinned=message.pinned,
                )
        self.answer(registry, ReadResult(message.id))

    def send(self, message: FromEngine) -> None:
        """Add a message to the events."""
        self.unsent.append(message)

    def events(self) -> list[FromEngine]:
        """Return and clear the pending messages: results of commands, and failures."""
        events, self.unsent = self.unsent, []
        return events

    def abort(self, id: str, index: int | None = None) -> list[Output]:
        """Drop a request, or one choice of it; unknown ones are ignored.

        Returns the last output of each choice that was dropped, except for a whole request that
        has not been submitted yet.
        """
        if id in self.waiting:
            return self.abort_waiting(self.waiting[id], index)
        return [output for part in self.parts for output in part.abort(id, index)]

    def abort_waiting(self, waiting: WaitingRequest, index: int | None) -> list[Output]:
        """Drop a request that is not submitted yet, or note that a choice of it is aborted."""
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
        self.preparer.cancel(id)
        if waiting.entry.registry is not None:
            waiting.entry.registry.cancel(id)
        return outputs

    def step(self) -> list[Output]:
        """One pass: handle ended reads, then run a step of every engine that has work.

        If all that is under way waits for threads, block until one ends.
        """
        if self.busy and not self.runnable:
            self.read_ended.wait()
        # Cleared before the queues are read: a read that ends from here on sets the event again.
        self.read_ended.clear()
        for registry in self.registries:
            for result in registry.poll():
                self.finish_read(registry, result)
        for id, prepared in self.preparer.poll():
            self.finish_preparation(id, prepared)
        self.loader.poll()
        self.free_idle()
        return [output for part in self.parts if part.busy for output in part.step()]

    def stats(self) -> Stats:
        """The sums of the counters of all models, and those of each model."""
        found = {name: entry.stats() for name, entry in self.entries.items()}
        total = Stats(models={name: stats for name, stats in found.items() if stats is not None})
        for each in total.models.values():
            total.add(each)
        return total

    def close(self) -> None:
        """Abort all requests, and stop reading adapters and models."""
        self.preparer.close()
        self.loader.close()
        for entry in (*self.entries.values(), *(each.entry for each in self.retiring)):
            entry.close()


def copy_adapters(before: ModelEngines, after: ModelEngines) -> None:
    """Register the adapters of a model with the one that replaces it."""
    if before.registry is None or after.registry is None:
        return
    for alias in before.registry.aliases.values():
        if alias.name not in after.registry.aliases:
            generation, pinned = alias.generation, alias.pinned
            try:
                after.registry.register(
                    alias.name, alias.reference, generation=generation, pinned=pinned
                )
            except AdapterError as error:  # a smaller --max-adapters
                log.warning("%s", error)


def cannot_load(spec: ModelSpec, report: ProgressCallback, between: BetweenSteps) -> ModelEngines:
    """The builder of an engine whose models never change."""
    raise Unsupported("this engine loads no further models")

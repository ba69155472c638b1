"""Loads and unloads the models of a server while others serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from ostro.core.errors import (
    AdapterNotFound,
    InsufficientMemory,
    NotFound,
    OstroError,
    Overloaded,
)
from ostro.core.messages.commands import (
    LoadModel,
    ModelInfo,
    ModelResult,
    ModelSpec,
    Progress,
    UnloadModel,
)
from ostro.core.pipeline import ServedModel
from ostro.core.settings import Settings
from ostro.core.tasks import TaskPipeline
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.operations.models.tool_checks import check_tools
from ostro.entrypoints.serve_config import ModelOptions

log = logging.getLogger(__name__)

State = Literal["loaded", "loading", "unloaded", "failed"]

Find = Callable[[Settings], Awaitable[ServedModel]]
"""Finds the files of a model and reads all but its weights."""

Pipelines = Callable[[ServedModel], Mapping[str, TaskPipeline]]
"""Makes the pipelines of a loaded model, by task."""


@dataclass(eq=False)
class ManagedModel:
    """A model of the server.

    found: the model without its weights, None if its files have not been found. error: that of the
    last load. used: `time.monotonic()` of the last request. change: the load or unload under way.
    """

    name: str
    options: ModelOptions
    found: ServedModel | None = None
    error: OstroError | None = None
    used: float = 0.0
    change: asyncio.Task[list[str]] | None = None

    @property
    def on_demand(self) -> bool:
        """Whether a request loads the model."""
        return self.options.load == "on demand"


class ModelManager:
    """The models of a server by name, and the changes of which are loaded."""

    def __init__(
        self,
        service: Service,
        models: Sequence[ModelOptions],
        find: Find,
        pipelines: Pipelines,
        known_tasks: Collection[str],
    ) -> None:
        """models: in the order of the names of the service. known_tasks: those with pipelines."""
        self.known_tasks = known_tasks
        self.service, self.find, self.pipelines = service, find, pipelines
        self.models: dict[str, ManagedModel] = {}
        self.on_loaded: Callable[[ModelInfo], None] = lambda info: None
        self.started = False
        for name, options in zip(service.names, models, strict=True):
            self.models[name] = ManagedModel(name, options)
            service.aliases |= dict.fromkeys(options.aliases, name)
        service.manager = self

    def get(self, name: str) -> ManagedModel:
        """The model of a name or an alias. Raises NotFound."""
        return self.models[self.service.model(name)]

    def state(self, name: str) -> State:
        """Whether a model is loaded. A model that is being replaced still serves."""
        managed = self.models[name]
        if name in self.service.models:
            return "loaded"
        if managed.change is not None or not (self.started or managed.on_demand):
            return "loading"
        return "failed" if managed.error is not None else "unloaded"

    def progress(self, name: str) -> Progress | None:
        """The progress of a load, None without one."""
        return self.service.engine.loading.get(name)

    def tasks(self, name: str) -> tuple[str, ...]:
        """The tasks of a model that is loaded on demand, () for others."""
        managed = self.models[name]
        if not managed.on_demand or managed.found is None:
            return ()
        return tuple(task for task in managed.found.tasks if task in self.known_tasks)

    @property
    def max_context(self) -> int | None:
        """The largest context of the models, None before each of them has been loaded once."""
        found = [each.found for each in self.models.values() if each.found is not None]
        is_known = len(found) == len(self.models) and self.started
        if not is_known or any(each.name not in self.service.served for each in found):
            return None
        return max(each.context for each in found)

    # Start

    async def find_all(self) -> list[ServedModel]:
        """Find all models; return those that are loaded when the server starts.

        Raises the error of the first model if none is found. With other models, a model that is not
        found is one that has failed.
        """
        for managed in self.models.values():
            try:
                managed.found = await self.find(managed.options.settings)
                self.note_media(managed.found)
            except OstroError as error:
                managed.error = error
                if len(self.models) > 1:
                    log.error("the model %r was not found: %s", managed.name, error)
        self.raise_if_all_failed()
        at_start = (each for each in self.models.values() if not each.on_demand)
        return [each.found for each in at_start if each.found is not None]

    async def start(self, found: Sequence[ServedModel], infos: Mapping[str, ModelInfo]) -> None:
        """Serve the models that the engine has loaded, and load the others, each by itself.

        Raises the error of the first model if none can be served.
        """
        for model in found:
            if model.name in infos:
                self.serve(model, infos[model.name])
                await check_tools(self.service, model.name)
            else:
                with suppress(OstroError):  # which is logged
                    await self.load(model.name)
        self.raise_if_all_failed()
        self.started = True

    def raise_if_all_failed(self) -> None:
        """Raise the error of the first model if no model can be served."""
        errors = [each.error for each in self.models.values() if each.error is not None]
        if len(errors) == len(self.models):
            raise errors[0]

    @property
    def specs(self) -> list[ModelSpec]:
        """The loaded models, for an engine that is restarted."""
        return [self.service.served[name].load for name in self.service.models]

    def close(self) -> None:
        """End the changes under way, and stop the processes that prepare media."""
        for managed in self.models.values():
            if managed.change is not None:
                managed.change.cancel()
        for model in self.service.served.values():
            model.close()

    # Changes

    async def ensure(self, name: str) -> None:
        """Load a model on demand, for a request: it may have been unloaded since its admission.

        Raises Overloaded if it cannot serve now.
        """
        managed = self.models.get(name)
        if managed is None or name in self.service.models:
            return
        if not managed.on_demand:
            raise Overloaded(f"the model {name!r:.100} is {self.state(name)}", param="model")
        try:
            async with asyncio.timeout(self.service.engine.max_wait):
                await self.until_loaded(managed)
        except TimeoutError:
            message = f"the model {name!r:.100} is being loaded; try again later"
            raise Overloaded(message, param="model") from None
        except InsufficientMemory:
            raise Overloaded(
                f"the model {name!r:.100} does not fit beside the models in use; try again later",
                param="model",
            ) from None
        except OstroError as error:
            if self.service.engine.fault is not None:
                raise
            # Without the reason: it may name paths of the server.
            log.warning("%s", error)
            raise Overloaded(
                f"the model {name!r:.100} could not be loaded; see its status", param="model"
            ) from None

    async def load(self, name: str) -> list[str]:
        """Load a model, or load it again; return the lines of `--explain`.

        A load under way is joined. Raises the error of the load.
        """
        return await self.until_loaded(self.get(name), again=True)

    async def until_loaded(self, managed: ManagedModel, *, again: bool = False) -> list[str]:
        """Load a model, a loaded one too with `again`; return the lines of `--explain`."""
        explain = list[str]()
        while again or managed.name not in self.service.models:
            again = False
            # The change under way may be an unload: then the next one is the load.
            explain = await asyncio.shield(self.begin(managed))
        return explain

    async def add(self, name: str, settings: Settings) -> list[str]:
        """Add a model and load it, or load one with other settings. Raises as `load`."""
        managed = await after_change(self.models, name)
        if managed is not None:
            return await asyncio.shield(self.begin(managed, settings))
        managed = ManagedModel(name, ModelOptions(settings=settings))
        self.models[name] = managed
        self.service.names = (*self.service.names, name)
        return await asyncio.shield(self.run(managed, self._add(managed)))

    async def requantize(self, name: str, quant: str | None, topology: str | None) -> list[str]:
        """Load a model in other formats; see `Settings`. Raises as `load`."""
        managed = await after_change(self.models, self.get(name).name)
        if managed is None:
            raise self.service.unknown(name)
        settings = replace(managed.options.settings, quant=quant, topology=topology)
        return await asyncio.shield(self.begin(managed, settings))

    async def unload(self, name: str) -> None:
        """Unload a model once its requests have ended; new requests are rejected at once.

        Raises NotFound if it is not loaded.
        """
        managed = await after_change(self.models, self.get(name).name)
        if managed is None:
            raise self.service.unknown(name)
        if managed.name not in self.service.models:
            message = f"the model {managed.name!r:.100} is {self.state(managed.name)}, not loaded"
            raise NotFound(message, param="model")
        managed.error = None
        del self.service.models[managed.name]
        await asyncio.shield(self.run(managed, self._unload(managed)))

    def begin(self, managed: ManagedModel, settings: Settings | None = None) -> Any:
        """The load of a model under way, or a new one."""
        # One that has ended stays here until its callbacks run: to wait for it would not suspend.
        if managed.change is not None and not managed.change.done():
            return managed.change
        return self.run(managed, self._load(managed, settings or managed.options.settings))

    def run(self, managed: ManagedModel, work: Any) -> asyncio.Task[list[str]]:
        """Run a change of a model; it goes on if its client disconnects."""
        task = managed.change = asyncio.get_running_loop().create_task(work)

        def end(task: asyncio.Task[list[str]]) -> None:
            if managed.change is task:
                managed.change = None
            if not task.cancelled():
                task.exception()  # a client that has left does not retrieve it

        task.add_done_callback(end)
        return task

    async def _add(self, managed: ManagedModel) -> list[str]:
        """Load a new model, or remove it: here, since the client of its request may leave."""
        try:
            return await self._load(managed, managed.options.settings)
        except BaseException:
            name = managed.name
            if name not in self.service.models:
                del self.models[name]
                self.service.names = tuple(each for each in self.service.names if each != name)
            raise

    async def _load(self, managed: ManagedModel, settings: Settings) -> list[str]:
        try:
            # Again: the files may have changed.
            found = replace(await self.find(settings), name=managed.name)
            result = await self._load_or_evict(managed.name, found)
        except OstroError as error:
            managed.error = error
            log.warning("the model %r was not loaded: %s", managed.name, error)
            raise
        managed.options, managed.error = replace(managed.options, settings=settings), None
        before = self.service.served.get(managed.name)
        self.serve(found, result.models[managed.name])
        log.info("the model %r is loaded", managed.name)
        await check_tools(self.service, managed.name)
        with suppress(AdapterNotFound):  # the model does not support adapters
            await self.service.adapters.refresh(managed.name)
        if before is not None:
            before.close()
        return result.explain

    async def _load_or_evict(self, name: str, found: ServedModel) -> ModelResult:
        """Load a model in the engine; unload idle ones that are loaded on demand if necessary."""
        load = LoadModel(model=name, spec=found.load)
        while True:
            try:
                return await self.service.engine.change_models(load)
            except InsufficientMemory:
                if (idle := self.least_recently_used(name)) is None:
                    raise
                log.warning("unloading the model %r for %r", idle.name, name)
                await self.unload(idle.name)

    def least_recently_used(self, besides: str) -> ManagedModel | None:
        """The model to unload for another one, None if all are in use or loaded at the start."""
        idle = [
            each
            for name, each in self.models.items()
            if name in self.service.models and each.on_demand and each.change is None
            if name != besides and not self.service.held[name]
        ]
        return min(idle, key=lambda each: each.used, default=None)

    async def _unload(self, managed: ManagedModel) -> list[str]:
        name = managed.name
        try:
            await self.service.engine.change_models(UnloadModel(model=name))
        finally:
            self.service.adapters.known.pop(name, None)
            self.service.served[name].close()
        log.info("the model %r is unloaded", name)
        return []

    def serve(self, model: ServedModel, info: ModelInfo) -> None:
        """Let requests use a model that the engine has loaded."""
        ready = model.ready(info)
        self.models[model.name].found = ready
        self.service.models[model.name] = self.pipelines(ready)
        self.service.served[model.name] = ready
        self.note_media(ready)
        self.on_loaded(info)

    def note_media(self, model: ServedModel) -> None:
        """Let chats contain media if a model supports them."""
        if "text" in model.tasks and model.architecture.inputs is not None:
            self.service.takes_media = True


async def after_change(models: Mapping[str, ManagedModel], name: str) -> ManagedModel | None:
    """The model of a name once no change of it is under way; None if there is no such model.

    A model that was being added is removed if its load fails.
    """
    while (managed := models.get(name)) is not None and managed.change is not None:
        await asyncio.wait([managed.change])
    return managed

"""The stored documents of a server: files, uploads, batches, and those of API families."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ostro.entrypoints.operations.documents.batch_runner import BatchRunner, Execute
from ostro.entrypoints.operations.documents.batches import Batches
from ostro.entrypoints.operations.documents.files import Files
from ostro.entrypoints.operations.documents.jobs import JobRunner
from ostro.entrypoints.operations.documents.request_batches import RequestBatches
from ostro.entrypoints.operations.documents.state import State
from ostro.entrypoints.operations.documents.uploads import Uploads
from ostro.entrypoints.operations.models.service import EVERY_NAME, Service

Store = TypeVar("Store")


class Documents:
    """The stored documents of a server, and the runners of their jobs."""

    def __init__(
        self,
        state: State,
        service: Service,
        execute: Execute,
        max_body: Callable[[str], int],
        knows: Callable[[str], bool],
    ) -> None:
        """execute: runs a request of a batch. max_body: as in `BatchRunner`. knows: as in
        `JobRunner`.
        """
        self.state, self.service, self.knows = state, service, knows
        self.files = Files(state)
        self.uploads = Uploads(state, self.files)
        self.batch_runner = BatchRunner(state, self.files, execute, max_body=max_body)
        self.models = partial(names_of, service)
        self.batches = Batches(state, self.batch_runner.notify, models=self.models)
        self.runners = list[JobRunner]()
        self.add_runner(self.batch_runner)
        self._stores: dict[type, Any] = {}
        self._running: list[asyncio.Task[None]] = []

    def add(self, store: object) -> None:
        """Add a store of an API family, an object whose methods read and write documents."""
        self._stores[type(store)] = store

    def get(self, kind: type[Store]) -> Store:
        """Return the store of this class, which its API family has added."""
        store: Store = self._stores[kind]
        return store

    def add_runner(self, runner: JobRunner) -> None:
        """Add a runner of jobs, before `run_jobs`."""
        runner.knows, runner.serves = self.knows, partial(serves, self.service)
        self.runners.append(runner)

    def batches_of(self, kind: str) -> RequestBatches:
        """Return the batches of a kind that needs no files; `kind` starts their ids."""
        return RequestBatches(self.state, self.batch_runner.notify, kind, self.models)

    async def start(self) -> None:
        """Open the store. Raises UsageError as `State.start`."""
        await self.state.start()

    def run_jobs(self) -> None:
        """Begin to run batches and other jobs, once the models are loaded."""
        if self.state.enabled and not self._running:
            self._running = [asyncio.create_task(runner.run()) for runner in self.runners]

    async def stop_jobs(self) -> None:
        """Stop the jobs. What is unfinished runs after the next start."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def close(self) -> None:
        """Stop the jobs and close the store."""
        await self.stop_jobs()
        await self.state.close()


def names_of(service: Service) -> list[str]:
    """Return the names and aliases of all models, but "*"."""
    return [*service.names, *(alias for alias in service.aliases if alias != EVERY_NAME)]


def serves(service: Service, name: str) -> bool:
    """Whether there is a model of this name or alias."""
    return name in service.names or not service.aliases.keys().isdisjoint((name, EVERY_NAME))

"""The operations on stored documents: files, uploads, batches, responses and conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ostro.entrypoints.operations.batch_runner import BatchRunner, Execute
from ostro.entrypoints.operations.batches import Batches
from ostro.entrypoints.operations.files import Files
from ostro.entrypoints.operations.request_batches import RequestBatches
from ostro.entrypoints.operations.responses.responses import Responses
from ostro.entrypoints.operations.responses.runner import Acting, ResponseRunner
from ostro.entrypoints.operations.service import EVERY_NAME, Service
from ostro.entrypoints.operations.state import State
from ostro.entrypoints.operations.stored_chats import StoredChats
from ostro.entrypoints.operations.text_operations import TextOperations
from ostro.entrypoints.operations.uploads import Uploads


class Documents:
    """The stored documents of a server."""

    def __init__(
        self,
        state: State,
        execute: Execute,
        operations: TextOperations,
        acting: Acting,
        max_body: Callable[[str], int],
        knows: Callable[[str], bool],
    ) -> None:
        """execute: runs a request of a batch. operations: generate responses. acting: the context
        of a response in the background. max_body: as in `BatchRunner`. knows: as in `JobRunner`.
        """
        service = operations.service
        self.state = state
        self.files = Files(state)
        self.uploads = Uploads(state, self.files)
        self.runner = BatchRunner(state, self.files, execute, max_body=max_body)
        self.models = partial(names_of, service)
        self.batches = Batches(state, self.runner.notify, models=self.models)
        self.chats = StoredChats(state)
        self.responses = Responses(state, operations)
        self.response_runner = ResponseRunner(self.responses, acting)
        for runner in (self.runner, self.response_runner):
            runner.knows, runner.serves = knows, partial(serves, service)
        self.responses.notify = self.response_runner.notify
        self.conversations = self.responses.conversations
        self._running: list[asyncio.Task[None]] = []

    def batches_of(self, kind: str) -> RequestBatches:
        """Return the batches of a kind that needs no files; `kind` starts their ids."""
        return RequestBatches(self.state, self.runner.notify, kind, self.models)

    async def start(self) -> None:
        """Open the store. Raises UsageError as `State.start`."""
        await self.state.start()

    def run_jobs(self) -> None:
        """Begin to run batches and responses in the background, once the models are loaded."""
        if self.state.enabled and not self._running:
            runners = (self.runner, self.response_runner)
            self._running = [asyncio.create_task(runner.run()) for runner in runners]

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

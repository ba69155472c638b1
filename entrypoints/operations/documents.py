"""The operations on stored documents: files, uploads and batches."""

from __future__ import annotations

import asyncio

from ostro.entrypoints.operations.batch_runner import BatchRunner, Execute
from ostro.entrypoints.operations.batches import Batches
from ostro.entrypoints.operations.files import Files
from ostro.entrypoints.operations.state import State
from ostro.entrypoints.operations.uploads import Uploads


class Documents:
    """The stored documents of a server."""

    def __init__(self, state: State, execute: Execute) -> None:
        """execute: runs a request of a batch."""
        self.state = state
        self.files = Files(state)
        self.uploads = Uploads(state, self.files)
        self.runner = BatchRunner(state, self.files, execute)
        self.batches = Batches(state, self.runner.notify)
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the store. Raises UsageError as `State.start`."""
        await self.state.start()

    def run_batches(self) -> None:
        """Begin to run batches, once the models are loaded."""
        if self.state.enabled and self._running is None:
            self._running = asyncio.create_task(self.runner.run())

    async def stop_batches(self) -> None:
        """Stop running batches. Their unfinished requests run after the next start."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def close(self) -> None:
        """Stop running batches and close the store."""
        await self.stop_batches()
        await self.state.close()

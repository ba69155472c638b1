"""Batches whose requests arrive with the request that creates them, as in Anthropic's API.

The blob of a batch's document has its requests, and after its end their results. So such a batch is
one document; clients see no files.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable

import msgspec

from ostro.core.errors import RequestError
from ostro.core.store import new_id
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents.batch_lines import BatchResult, Line, read_lines
from ostro.entrypoints.operations.documents.batches import ENDED, Batch, Batches, BatchPage
from ostro.entrypoints.operations.documents.state import not_found


class RequestBatches(Batches):
    """The batches of callers of one kind. Methods raise as `State`."""

    async def submit(
        self,
        url: str,
        requests: Iterable[tuple[str, dict[str, msgspec.Raw]]],
        caller: Caller = ANYONE,
    ) -> Batch:
        """Begin a batch. requests: unique names and bodies for the route `POST url`."""
        total = 0
        await self.state.room(caller.name)
        async with self.state.writing_blob() as blob:
            for id, body in requests:
                raw = msgspec.Raw(msgspec.json.encode(body))
                line = Line(custom_id=id, method="POST", url=url, body=raw)
                await blob.write(msgspec.json.encode(line) + b"\n")
                total += 1
        batch = Batch(id=new_id(f"{self.kind}_"), created=int(time.time()), total=total)
        try:
            return await self.begin(batch.to("in_progress"), caller, blob)
        except BaseException:
            await self.state.discard_blob(blob)
            raise

    async def page(
        self,
        after: str | None = None,
        before: str | None = None,
        limit: int = 20,
        caller: Caller = ANYONE,
    ) -> BatchPage:
        """Return batches, newest first: those after an id, or those directly before an id."""
        page = await self.state.list(
            caller.name,
            self.kind,
            Batch,
            after=before or after,
            limit=limit,
            descending=before is None,
        )
        found = [each.value for each in page.items]
        return BatchPage(found if before is None else found[::-1], page.has_more)

    async def results(self, id: str, caller: Caller = ANYONE) -> AsyncIterator[BatchResult]:
        """Return the results of a batch. Raises RequestError for a batch that has not ended."""
        found = await self.state.get(caller.name, self.kind, id, Batch)
        if found.value.status not in ENDED:
            raise RequestError("the batch has not ended; its results are not available yet")
        return decoded(read_lines(await self.state.open_blob(found.document)))

    async def delete(self, id: str, caller: Caller = ANYONE) -> None:
        """Delete a batch with its results. Raises RequestError for a batch that has not ended."""
        if (await self.get(id, caller)).status not in ENDED:
            raise RequestError("the batch has not ended; cancel it before you delete it")
        if not await self.state.delete(caller.name, self.kind, id):
            raise not_found(id)


async def decoded(lines: AsyncIterator[tuple[int, bytes]]) -> AsyncIterator[BatchResult]:
    """Yield the results in lines."""
    async for _, data in lines:
        yield msgspec.json.decode(data, type=BatchResult)

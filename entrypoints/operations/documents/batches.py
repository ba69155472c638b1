"""Batches: files of requests that run at low priority, and the files of their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from ostro.core.errors import DocumentNotFound, RequestError
from ostro.core.store import new_id
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents.files import KIND as FILE_KIND
from ostro.entrypoints.operations.documents.files import ExpiresAfter, File
from ostro.entrypoints.operations.documents.jobs import Job
from ostro.entrypoints.operations.documents.metadata import Metadata
from ostro.entrypoints.operations.documents.state import AsyncBlob, State

KIND, JOB_KIND = "batch", "batch_job"
WINDOW_SECONDS = 86400
"""Time in which a batch must end: 24 hours."""
MAX_PAGE = 100
"""Limit on the batches of a page."""
Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
    "cancelled",
]  # fmt: skip
ENDED: tuple[Status, ...] = ("failed", "completed", "expired", "cancelled")
Endpoint = Literal[
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/images/generations",
    "/v1/responses",
]  # fmt: skip
"""The routes whose requests a batch may contain."""


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch to run: the id of a file of requests, and the route that they are for."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchListRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a list of batches, as of `FileListRequest`."""

    after: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = 20


class BatchFault(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a batch failed as a whole; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of the requests that succeeded."""

    input: int = 0
    cached: int = 0
    output: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. `times` has the seconds since 1970 at which it reached each status.

    `request` names the file of its requests. It is None for a batch of `RequestBatches`: the blob
    of the document has the requests, and their results after the end. total, completed and failed
    count requests; `unrun` counts those that failed because the batch was cancelled or expired.
    `model` is that of the first response, `models` are those of the server that got the batch, by
    all their names.
    """

    id: str
    request: BatchRequest | None = None
    created: int
    status: Status = "validating"
    times: Mapping[str, int] = msgspec.field(default_factory=dict)
    total: int = 0
    completed: int = 0
    failed: int = 0
    unrun: int = 0
    usage: BatchUsage = BatchUsage()
    model: str | None = None
    models: Sequence[str] = ()
    faults: Sequence[BatchFault] = ()
    output_file: str | None = None
    error_file: str | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.status in ENDED

    @property
    def expires(self) -> int:
        """The time by which it must end, in seconds since 1970."""
        return self.created + WINDOW_SECONDS

    def to(self, status: Status, **fields: object) -> Batch:
        """Return the batch with another status and the current time, and with other fields."""
        times = {**self.times, status: int(time.time())}
        return msgspec.structs.replace(self, status=status, times=times, **fields)


@dataclass(frozen=True)
class BatchPage:
    """A part of a list of batches, and whether more follow."""

    batches: list[Batch]
    has_more: bool


def kind_of(id: str) -> str:
    """Return the kind of the document of a batch."""
    return id.rpartition("_")[0]


class Batches:
    """The batches of callers. Methods raise as `State`; a caller finds its own batches only."""

    def __init__(
        self,
        state: State,
        notify: Callable[[], None] = lambda: None,
        kind: str = KIND,
        models: Callable[[], Sequence[str]] = list,
    ) -> None:
        """notify: called after a batch is created or cancelled. kind: that of the documents, and
        the start of their ids before an underscore. models: returns the names of the models.
        """
        self.state, self.notify, self.kind, self.models = state, notify, kind, models

    async def create(self, request: BatchRequest, caller: Caller = ANYONE) -> Batch:
        """Begin a batch. Raises DocumentNotFound without its file, RequestError for its purpose."""
        try:
            file = (await self.state.get(caller.name, FILE_KIND, request.input_file_id, File)).value
        except DocumentNotFound as error:
            raise DocumentNotFound(f"input_file_id: {error}", param="input_file_id") from None
        if file.purpose != "batch":
            raise RequestError(
                f"the file has the purpose {file.purpose!r}, expected 'batch'",
                param="input_file_id",
            )
        batch = Batch(id=new_id(f"{self.kind}_"), request=request, created=int(time.time()))
        return await self.begin(batch, caller)

    async def begin(self, batch: Batch, caller: Caller, blob: AsyncBlob | None = None) -> Batch:
        """Store a batch and its job. blob: its requests."""
        batch = msgspec.structs.replace(batch, models=self.models())
        await self.state.put(caller.name, self.kind, batch.id, batch, blob=blob, limited=True)
        await self.state.put(caller.name, JOB_KIND, batch.id, Job())
        self.notify()
        return batch

    async def list(self, request: BatchListRequest, caller: Caller = ANYONE) -> BatchPage:
        """Return a page of batches, newest first. Raises RequestError for an invalid cursor."""
        page = await self.state.list(
            caller.name, self.kind, Batch, after=request.after, limit=request.limit
        )
        return BatchPage([each.value for each in page.items], page.has_more)

    async def get(self, id: str, caller: Caller = ANYONE) -> Batch:
        """Return a batch."""
        return (await self.state.get(caller.name, self.kind, id, Batch)).value

    async def cancel(self, id: str, caller: Caller = ANYONE) -> Batch:
        """Cancel a batch. The results of its finished requests become available.

        Raises RequestError for a batch that has ended.
        """

        def cancel(batch: Batch) -> Batch:
            if batch.status in ENDED:
                raise RequestError(f"the batch is {batch.status}")
            if batch.status in ("cancelling", "finalizing"):
                return batch
            return batch.to("cancelling")

        cancelled = await self.state.change(caller.name, self.kind, id, Batch, cancel)
        self.notify()
        return cancelled

"""OpenAI's routes for batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.routes import RequestBody, Route
from ostro.entrypoints.api.openai.pages import MAX_JSON, ListPage, make_page
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.documents.batches import (
    Batch,
    BatchListRequest,
    BatchRequest,
    Endpoint,
    Status,
)
from ostro.entrypoints.operations.operations import Operations


class BatchErrorObject(msgspec.Struct, kw_only=True):
    """The reason why a batch failed."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(msgspec.Struct, kw_only=True):
    """The reasons why a batch failed."""

    data: list[BatchErrorObject]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, kw_only=True):
    """The number of requests of a batch, and of those that succeeded and failed."""

    total: int
    completed: int
    failed: int


class CachedTokens(msgspec.Struct, kw_only=True):
    """Prompt tokens that came from the prefix cache."""

    cached_tokens: int


class ReasoningTokens(msgspec.Struct, kw_only=True):
    """Tokens of reasoning, which are not counted apart."""

    reasoning_tokens: Literal[0] = 0


class BatchUsageObject(msgspec.Struct, kw_only=True):
    """The tokens of the requests that succeeded."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch; times are in seconds since 1970."""

    id: str
    endpoint: Endpoint
    input_file_id: str
    status: Status
    created_at: int
    expires_at: int
    request_counts: RequestCounts
    usage: BatchUsageObject
    metadata: Mapping[str, str] | None
    errors: BatchErrors | None
    output_file_id: str | None
    error_file_id: str | None
    model: str | UnsetType = UNSET
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    completion_window: Literal["24h"] = "24h"
    object: Literal["batch"] = "batch"


class BatchList(ListPage, kw_only=True):
    """A page of batches."""

    data: list[BatchObject]


async def create_batch(
    operations: Operations, caller: Caller, request: BatchRequest
) -> BatchObject:
    """Run the requests in a file."""
    return batch_object(await operations.documents.batches.create(request, caller))


async def list_batches(
    operations: Operations, caller: Caller, request: BatchListRequest
) -> BatchList:
    """List batches, newest first."""
    page = await operations.documents.batches.list(request, caller)
    data = [batch_object(batch) for batch in page.batches]
    return make_page(BatchList, data, page.has_more)


async def get_batch(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> BatchObject:
    """Describe a batch."""
    return batch_object(await operations.documents.batches.get(id, caller))


async def cancel_batch(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> BatchObject:
    """Cancel a batch."""
    return batch_object(await operations.documents.batches.cancel(id, caller))


def batch_object(batch: Batch) -> BatchObject:
    assert batch.request is not None
    used = batch.usage
    faults = [
        BatchErrorObject(code=each.code, message=each.message, param=each.param, line=each.line)
        for each in batch.faults
    ]
    return BatchObject(
        id=batch.id,
        endpoint=batch.request.endpoint,
        input_file_id=batch.request.input_file_id,
        status=batch.status,
        created_at=batch.created,
        expires_at=batch.expires,
        request_counts=RequestCounts(
            total=batch.total, completed=batch.completed, failed=batch.failed
        ),
        usage=BatchUsageObject(
            input_tokens=used.input,
            input_tokens_details=CachedTokens(cached_tokens=used.cached),
            output_tokens=used.output,
            output_tokens_details=ReasoningTokens(),
            total_tokens=used.input + used.output,
        ),
        metadata=batch.request.metadata,
        errors=BatchErrors(data=faults) if faults else None,
        output_file_id=batch.output_file,
        error_file_id=batch.error_file,
        model=UNSET if batch.model is None else batch.model,
        in_progress_at=batch.times.get("in_progress"),
        finalizing_at=batch.times.get("finalizing"),
        completed_at=batch.times.get("completed"),
        failed_at=batch.times.get("failed"),
        expired_at=batch.times.get("expired"),
        cancelling_at=batch.times.get("cancelling"),
        cancelled_at=batch.times.get("cancelled"),
    )


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /v1/batches",
        error_statuses=(400, 404, 503, 507),
        handler=create_batch,
        request=BatchRequest,
        body=RequestBody(max_bytes=MAX_JSON),
        response=BatchObject,
        cancel_on_disconnect=False,
    ),
    Route(
        name="GET /v1/batches",
        error_statuses=(400, 503),
        handler=list_batches,
        request=BatchListRequest,
        response=BatchList,
    ),
    Route(name="GET /v1/batches/{id}", handler=get_batch, response=BatchObject),
    Route(
        name="POST /v1/batches/{id}/cancel",
        handler=cancel_batch,
        response=BatchObject,
        cancel_on_disconnect=False,
    ),
)

"""Message batches: requests that run at low priority, and their results as JSONL."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Raw

from ostro.errors import RequestError
from ostro.http import Batch, BatchResult, Caller, Content, Operations, RequestBatches, base_url
from ostro.plugins.apis.anthropic.responses import AnthropicError, AnthropicErrorDetail
from ostro.plugins.apis.anthropic.schema import UNSUPPORTED, Strict

URL = "/v1/messages"
"""The route of the requests."""
KIND = "msgbatch"
"""The start of the ids."""
MAX_REQUESTS = 100_000
JSONL = "application/x-jsonl"
NOT_RUN = {"batch_expired": "expired", "batch_cancelled": "canceled"}
"""Results of requests that did not run, by the code of their error."""


class BatchRequestParam(Strict, kw_only=True):
    """A request of a batch. `params` are those of `POST /v1/messages`, checked when it runs."""

    custom_id: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Raw]


class MessageBatchRequest(Strict, kw_only=True):
    """A batch to run. The `custom_id` of each request is unique."""

    unsupported: ClassVar[dict[str, str]] = {
        name: UNSUPPORTED[name] for name in ("user_profile_id", "workspace_id")
    }

    requests: Annotated[list[BatchRequestParam], Meta(min_length=1, max_length=MAX_REQUESTS)]


class MessageBatchListParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of a page: what follows `after_id`, or what precedes `before_id`."""

    after_id: str | None = None
    before_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


class MessageBatchRequestCounts(msgspec.Struct, kw_only=True):
    """The requests of a batch. All are `processing` until the batch has ended."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(msgspec.Struct, kw_only=True):
    """A batch. Times are in RFC 3339; batches are not archived."""

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchRequestCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None = None
    results_url: str | None


class MessageBatchPage(msgspec.Struct, kw_only=True):
    """A page of batches, newest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(msgspec.Struct, kw_only=True):
    """The confirmation of a deletion."""

    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


class SucceededResult(msgspec.Struct, kw_only=True, tag_field="type", tag="succeeded"):
    """The answer to a request, an `AssistantMessage`."""

    message: Raw


class ErroredResult(msgspec.Struct, kw_only=True, tag_field="type", tag="errored"):
    """The error of a request, an `AnthropicError`."""

    error: Raw


class CanceledResult(msgspec.Struct, kw_only=True, tag_field="type", tag="canceled"):
    """The request did not run because the batch was cancelled."""


class ExpiredResult(msgspec.Struct, kw_only=True, tag_field="type", tag="expired"):
    """The request did not run because the time of the batch was over."""


class MessageBatchIndividualResponse(msgspec.Struct, kw_only=True):
    """The result of a request: a line of the results."""

    custom_id: str | None
    result: SucceededResult | ErroredResult | CanceledResult | ExpiredResult


async def create_batch(
    operations: Operations, caller: Caller, body: MessageBatchRequest
) -> MessageBatch:
    """Run several requests at low priority."""
    [(id, count)] = Counter(each.custom_id for each in body.requests).most_common(1)
    if count > 1:
        raise RequestError(
            f"requests: the custom_id {id!r} occurs {count} times, expected unique ones",
            param="requests",
        )
    lines = ((each.custom_id, each.params) for each in body.requests)
    return message_batch(await batches_of(operations).submit(URL, lines, caller))


async def list_batches(
    operations: Operations, caller: Caller, params: MessageBatchListParams
) -> MessageBatchPage:
    """List batches, newest first."""
    after, before = params.after_id, params.before_id
    if after is not None and before is not None:
        raise RequestError("before_id: expected only one of after_id and before_id")
    try:
        page = await batches_of(operations).page(after, before, params.limit, caller)
    except RequestError as error:
        name, cursor = ("after_id", after) if before is None else ("before_id", before)
        raise RequestError(f"{name}: {cursor!r:.80} is not an id of this list") from error
    data = [message_batch(batch) for batch in page.batches]
    return MessageBatchPage(
        data=data,
        has_more=page.has_more,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )


async def get_batch(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> MessageBatch:
    """Describe a batch."""
    return message_batch(await batches_of(operations).get(id, caller))


async def cancel_batch(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> MessageBatch:
    """Cancel a batch. Requests that have not run get the result `canceled`."""
    return message_batch(await batches_of(operations).cancel(id, caller))


async def delete_batch(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> DeletedMessageBatch:
    """Delete a batch that has ended, with its results."""
    await batches_of(operations).delete(id, caller)
    return DeletedMessageBatch(id=id)


async def get_results(operations: Operations, caller: Caller, request: None, *, id: str) -> Content:
    """Return the results of a batch that has ended, in the order of its requests."""
    results = await batches_of(operations).results(id, caller)
    return Content(data=encoded(results), media_type=JSONL)


async def encoded(results: AsyncIterator[BatchResult]) -> AsyncIterator[bytes]:
    """Yield results as lines of JSON."""
    async for each in results:
        yield msgspec.json.encode(individual_response(each)) + b"\n"


def batches_of(operations: Operations) -> RequestBatches:
    """Return the batches of the server."""
    return operations.documents.batches_of(KIND)


def individual_response(found: BatchResult) -> MessageBatchIndividualResponse:
    """Return a result in Anthropic's form."""
    kind = NOT_RUN.get(found.error.code, "errored") if found.error else ""
    result: SucceededResult | ErroredResult | CanceledResult | ExpiredResult
    if found.response is not None:
        body = found.response.body
        result = SucceededResult(message=body) if found.ok else ErroredResult(error=body)
    elif kind == "expired":
        result = ExpiredResult()
    elif kind == "canceled":
        result = CanceledResult()
    else:
        message = found.error.message if found.error else ""
        detail = AnthropicErrorDetail(type="invalid_request_error", message=message)
        error = AnthropicError(error=detail, request_id=None)
        result = ErroredResult(error=Raw(msgspec.json.encode(error)))
    return MessageBatchIndividualResponse(custom_id=found.custom_id, result=result)


def message_batch(batch: Batch) -> MessageBatch:
    """Return a batch in Anthropic's form."""
    times = batch.times
    url = f"{base_url()}{URL.lstrip('/')}/batches/{batch.id}/results"
    status: Literal["in_progress", "canceling", "ended"] = "in_progress"
    if batch.ended:
        status = "ended"
    elif batch.status == "cancelling":
        status = "canceling"
    return MessageBatch(
        id=batch.id,
        processing_status=status,
        request_counts=counts_of(batch),
        created_at=rfc3339(batch.created),
        expires_at=rfc3339(batch.expires),
        ended_at=rfc3339(times[batch.status]) if batch.ended else None,
        cancel_initiated_at=rfc3339(times["cancelling"]) if "cancelling" in times else None,
        results_url=url if batch.ended else None,
    )


def counts_of(batch: Batch) -> MessageBatchRequestCounts:
    """Return the counts of a batch."""
    if not batch.ended:
        return MessageBatchRequestCounts(processing=batch.total)
    return MessageBatchRequestCounts(
        succeeded=batch.completed,
        errored=batch.failed - batch.unrun,
        canceled=batch.unrun if batch.status == "cancelled" else 0,
        expired=batch.unrun if batch.status == "expired" else 0,
    )


def rfc3339(seconds: int) -> str:
    """Return a time in seconds since 1970 as text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")

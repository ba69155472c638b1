"""OpenAI's routes for batches, and the execution of their requests by the routes they name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Message

from ostro.core.errors import OstroError, StepFailed
from ostro.core.records import Route
from ostro.core.store import new_id
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.budget import BODY_KEY, BodyBudget, HeldBody
from ostro.entrypoints.http.context import REQUEST_ID, caller_of, documents_of
from ostro.entrypoints.http.errors import (
    BUSY,
    error_content,
    on_bug,
    on_http,
    respond,
    respond_error,
    respond_to,
)
from ostro.entrypoints.http.files import MAX_JSON
from ostro.entrypoints.http.pages import ListPage, make_page
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.http.request_record import record_of
from ostro.entrypoints.operations.admission import claim
from ostro.entrypoints.operations.batch_runner import Busy, Execute
from ostro.entrypoints.operations.batches import (
    Batch,
    BatchListRequest,
    BatchRequest,
    Endpoint,
    Status,
)
from ostro.entrypoints.operations.caller import Caller, Forbidden
from ostro.entrypoints.operations.keys import KeyRing
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.quotas import Quota, Quotas
from ostro.entrypoints.operations.responses.runner import Acting
from ostro.entrypoints.operations.store_limits import StoreLimitReached

FINAL = (StepFailed, StoreLimitReached)
"""Errors that a repetition is likely to meet again."""
log = logging.getLogger(__name__)
LOW_PRIORITY = 1000
"""Priority of a batch's requests: behind all others."""


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


async def create_batch(request: Request) -> Response:
    """Run the requests in a file."""
    wanted = await read_request(request, BatchRequest, limit=MAX_JSON)
    batch = await documents_of(request).batches.create(wanted, caller_of(request))
    return respond(200, batch_object(batch))


async def list_batches(request: Request) -> Response:
    """List batches, newest first."""
    wanted = parse_query(request, BatchListRequest)
    page = await documents_of(request).batches.list(wanted, caller_of(request))
    data = [batch_object(batch) for batch in page.batches]
    return respond(200, make_page(BatchList, data, page.has_more))


async def get_batch(request: Request) -> Response:
    """Describe a batch."""
    batches = documents_of(request).batches
    return respond(
        200, batch_object(await batches.get(request.path_params["id"], caller_of(request)))
    )


async def cancel_batch(request: Request) -> Response:
    """Cancel a batch."""
    batches = documents_of(request).batches
    return respond(
        200, batch_object(await batches.cancel(request.path_params["id"], caller_of(request)))
    )


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


def make_executor(app: Starlette, ring: KeyRing, quotas: Quotas) -> Execute:
    """Return a function that handles the requests of batches as requests of HTTP clients.

    They have the permissions and limits that the key has when they run, and a low priority. Their
    routes are those of the application, so that plugins can have batches of their own.
    """
    budget = BodyBudget(app)

    async def execute(path: str, body: Mapping[str, Any], name: str) -> tuple[int, bytes]:
        held = HeldBody(budget)
        request = make_request(app, path, msgspec.json.encode(body), held)
        token = REQUEST_ID.set(request.state.request_id)
        try:
            found = ring.named(name)
            if found is None:
                message = f"the API key {name!r} of the batch is no longer valid"
                content = error_content(401, message, "invalid_api_key")
                response = respond_error(401, content, request.scope)
            else:
                request.state.caller = low(found[0])
                response = await handle(request, quotas.of(name, found[1]))
        except OstroError as error:
            if error.status in BUSY and not isinstance(error, FINAL):
                raise Busy(getattr(error, "retry_after", None)) from error
            response = respond_to(error, request.scope)
        except HTTPException as error:
            if error.status_code in BUSY:
                raise Busy from error
            response = await on_http(request, error)
        except Exception as error:
            log.exception("a request of a batch has failed")
            response = await on_bug(request, error)
        finally:
            REQUEST_ID.reset(token)
            held.release()
        return response.status_code, bytes(response.body)

    return execute


async def handle(request: Request, quota: Quota) -> Response:
    """Handle a request of a batch within the limits of its key. Raises as the route."""
    caller, record = caller_of(request), record_of(request.scope)
    if record is None or not callable(record.endpoint):
        raise HTTPException(404)
    caller.require(record.scope)
    with claim(caller, quota) as own:
        try:
            response: Response = await record.endpoint(request)
        except OstroError as error:
            if error.status in BUSY:
                own.give_back()
            raise
        return response


def make_acting(ring: KeyRing, quotas: Quotas) -> Acting:
    """Return the function that gives responses in the background the caller of a name."""

    @contextmanager
    def acting(name: str) -> Iterator[Caller]:
        found = ring.named(name)
        if found is None:
            raise Forbidden(f"the API key {name!r} of the response is no longer valid")
        caller, key = found
        caller.require("infer")
        with claim(caller, quotas.of(name, key)):
            yield caller

    return acting


def low(caller: Caller) -> Caller:
    """Return a caller whose requests run behind those of all others."""
    return msgspec.structs.replace(caller, priority=max(LOW_PRIORITY, caller.priority or 0))


def make_request(app: Starlette, path: str, data: bytes, held: HeldBody) -> Request:
    """Return a request without a socket; its client does not disconnect."""
    messages = [{"type": "http.request", "body": data}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    scope: dict[str, Any] = {
        "type": "http",
        "app": app,
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "state": {"request_id": new_id("")},
        BODY_KEY: held,
    }
    found = (route for route in app.routes if route.matches(scope)[0] is Match.FULL)
    scope["route"] = next(found, None)
    return Request(scope, receive)


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    return [
        Route(
            name="POST /v1/batches",
            endpoint=create_batch,
            request=BatchRequest,
            response=BatchObject,
        ),
        Route(
            name="GET /v1/batches",
            error_statuses=(400, 503),
            endpoint=list_batches,
            request=BatchListRequest,
            response=BatchList,
        ),
        Route(name="GET /v1/batches/{id}", endpoint=get_batch, response=BatchObject),
        Route(name="POST /v1/batches/{id}/cancel", endpoint=cancel_batch, response=BatchObject),
    ]

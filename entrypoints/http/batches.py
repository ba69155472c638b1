"""OpenAI's routes for batches, and the execution of their requests by the routes they name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from ostro.core.errors import OstroError
from ostro.core.pipeline import parse
from ostro.core.records import Route
from ostro.core.store import new_id
from ostro.entrypoints.http import openai, vectors
from ostro.entrypoints.http.body import read_json
from ostro.entrypoints.http.budget import BODY_KEY, BodyBudget, HeldBody
from ostro.entrypoints.http.context import caller_of, documents_of
from ostro.entrypoints.http.errors import error_content, on_bug, on_http, respond, respond_to
from ostro.entrypoints.http.files import MAX_JSON, parse_query
from ostro.entrypoints.operations.admission import claim
from ostro.entrypoints.operations.batch_runner import Execute
from ostro.entrypoints.operations.batches import (
    Batch,
    BatchListRequest,
    BatchRequest,
    Endpoint,
    Status,
)
from ostro.entrypoints.operations.caller import Caller
from ostro.entrypoints.operations.keys import KeyRing
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.quotas import Quotas

log = logging.getLogger(__name__)
LOW_PRIORITY = 1000
"""Priority of a batch's requests: behind all others."""
ENDPOINTS: Mapping[Endpoint, Callable[[Request], Awaitable[Response]]] = {
    "/v1/chat/completions": openai.chat,
    "/v1/completions": openai.completions,
    "/v1/embeddings": vectors.embeddings,
}
"""The functions that handle the requests of batches."""


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


class BatchList(msgspec.Struct, kw_only=True):
    """A page of batches. `last_id` is the cursor of the next page."""

    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


async def create_batch(request: Request) -> Response:
    """Run the requests in a file."""
    wanted = parse(await read_json(request, MAX_JSON), BatchRequest)
    batch = await documents_of(request).batches.create(wanted, caller_of(request))
    return respond(200, batch_object(batch))


async def list_batches(request: Request) -> Response:
    """List batches, newest first."""
    wanted = parse_query(request, BatchListRequest)
    page = await documents_of(request).batches.list(wanted, caller_of(request))
    data = [batch_object(batch) for batch in page.batches]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return respond(200, BatchList(data=data, has_more=page.has_more, first_id=first, last_id=last))


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

    They have the permissions and limits that the key has when they run, and a low priority.
    """
    budget = BodyBudget(app)

    async def execute(path: str, body: Mapping[str, Any], name: str) -> tuple[int, bytes]:
        key = next((each for each in ring.keys.values() if each.name == name), None)
        if ring.locked if key is None else ring.expired(key):
            message = f"the API key {name!r} of the batch is no longer valid"
            refusal = respond(401, error_content(401, message, "invalid_api_key"))
            return refusal.status_code, bytes(refusal.body)
        caller = low(ring.anonymous() if key is None else ring.caller(key))
        held = HeldBody(budget)
        request = make_request(app, path, msgspec.json.encode(body), caller, held)
        try:
            caller.require("infer")
            with claim(caller, quotas.of(name, key)):
                response = await ENDPOINTS[cast(Endpoint, path)](request)
        except OstroError as error:
            response = respond_to(error)
        except HTTPException as error:
            response = await on_http(request, error)
        except Exception as error:
            log.exception("a request of a batch has failed")
            response = await on_bug(request, error)
        finally:
            held.release()
        return response.status_code, bytes(response.body)

    return execute


def low(caller: Caller) -> Caller:
    """Return a caller whose requests run behind those of all others."""
    return msgspec.structs.replace(caller, priority=max(LOW_PRIORITY, caller.priority or 0))


def make_request(app: Starlette, path: str, data: bytes, caller: Caller, held: HeldBody) -> Request:
    """Return a request without a socket; its client does not disconnect."""
    messages = [{"type": "http.request", "body": data}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    scope = {
        "type": "http",
        "app": app,
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "state": {"caller": caller, "request_id": new_id("")},
        BODY_KEY: held,
    }
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
            endpoint=list_batches,
            request=BatchListRequest,
            response=BatchList,
        ),
        Route(name="GET /v1/batches/{id}", endpoint=get_batch, response=BatchObject),
        Route(name="POST /v1/batches/{id}/cancel", endpoint=cancel_batch, response=BatchObject),
    ]

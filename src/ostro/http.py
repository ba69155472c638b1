"""HTTP APIs of plugins: the operations of a server, readers of requests, and writers of responses.

A plugin yields `ostro.Route` records from `ostro_routes(server)`; `server` is an `Operations`. An
endpoint reads a request (`read_request`), converts it to the request of an operation, runs it for
the caller (`caller_of`), and writes the result (`respond`, `EventStream`).

`Application` is the whole server as an ASGI application.
"""

from __future__ import annotations

from ostro.entrypoints.http.asgi import Application
from ostro.entrypoints.http.body import read_form, read_json, read_request
from ostro.entrypoints.http.context import batches_of, caller_of, operations_of, request_id
from ostro.entrypoints.http.errors import ErrorForm, error_content_of, respond
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.http.stream import EventStream, unless_disconnected
from ostro.entrypoints.operations.batch_lines import LineResult as BatchResult
from ostro.entrypoints.operations.batches import Batch
from ostro.entrypoints.operations.caller import Caller, Forbidden
from ostro.entrypoints.operations.models import ModelEntry
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.request_batches import RequestBatches
from ostro.entrypoints.operations.text import Choice as CompletionChoice
from ostro.entrypoints.operations.text import Completion, Generation, ToolCall
from ostro.entrypoints.operations.tokens import DetokenizeRequest, TokenizeRequest, Tokens
from ostro.entrypoints.operations.vectors import (
    MAX_INPUTS,
    Classification,
    ClassifyRequest,
    EmbeddingRequest,
    Embeddings,
    Pooled,
    PoolRequest,
    RankedDocument,
    Ranking,
    RerankRequest,
    Rows,
    ScoreRequest,
    Scores,
)

__all__ = [
    "MAX_INPUTS",
    "Application",
    "Batch",
    "BatchResult",
    "Caller",
    "Classification",
    "ClassifyRequest",
    "Completion",
    "CompletionChoice",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "Embeddings",
    "ErrorForm",
    "EventStream",
    "Forbidden",
    "Generation",
    "ModelEntry",
    "Operations",
    "PoolRequest",
    "Pooled",
    "RankedDocument",
    "Ranking",
    "RequestBatches",
    "RerankRequest",
    "Rows",
    "ScoreRequest",
    "Scores",
    "TokenizeRequest",
    "Tokens",
    "ToolCall",
    "batches_of",
    "caller_of",
    "error_content_of",
    "operations_of",
    "parse_query",
    "read_form",
    "read_json",
    "read_request",
    "request_id",
    "respond",
    "unless_disconnected",
]

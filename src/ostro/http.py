"""HTTP APIs of plugins: the operations of a server, readers of requests, and writers of responses.

A plugin yields `ostro.Route` records from `ostro_routes()`. A handler gets the `Operations` of the
server, converts a request to that of an operation, runs it for the caller, and returns what is sent
as JSON, a generator of events, or a `Content`. WebSockets, and routes that read their requests
themselves, have an endpoint of Starlette in its place (`read_form`, `read_request`, `respond`,
`EventStream`).

`Application` is the whole server as an ASGI application.
"""

from __future__ import annotations

from ostro.core.routes import FORM, Content, EventFormat, Handler, RequestBody
from ostro.core.uploaded_file import UploadedFile
from ostro.entrypoints.api.openai.bodies import ChatBody, CompletionBody, read_logprobs
from ostro.entrypoints.api.openai.tools import read_tools
from ostro.entrypoints.http.asgi import Application
from ostro.entrypoints.http.body import read_form, read_json, read_request
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.http.stream import EventStream, unless_disconnected
from ostro.entrypoints.operations.access.caller import Caller, Forbidden
from ostro.entrypoints.operations.documents.batch_lines import BatchResult
from ostro.entrypoints.operations.documents.batches import Batch
from ostro.entrypoints.operations.documents.request_batches import RequestBatches
from ostro.entrypoints.operations.models.models import ModelEntry
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.decoding import convert_aside, decode
from ostro.entrypoints.operations.requests.errors import ErrorForm, error_content_of
from ostro.entrypoints.operations.requests.event_formats import (
    DATA_EVENTS,
    JSON_LINES,
    NAMED_EVENTS,
    OPENAI_EVENTS,
)
from ostro.entrypoints.operations.requests.ignored import ignore
from ostro.entrypoints.operations.requests.model_body import ModelBody
from ostro.entrypoints.operations.requests.request_context import base_url, request_id
from ostro.entrypoints.operations.tasks.media import (
    ImageEvent,
    ImageRequest,
    Speech,
    SpeechRequest,
    TranscriptEvent,
    TranscriptionRequest,
)
from ostro.entrypoints.operations.tasks.text import Completion, CompletionChoice, Generation
from ostro.entrypoints.operations.tasks.tokens import DetokenizeRequest, TokenizeRequest, Tokens
from ostro.entrypoints.operations.tasks.truncation import oldest_to_drop
from ostro.entrypoints.operations.tasks.vectors import (
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
    "DATA_EVENTS",
    "FORM",
    "JSON_LINES",
    "MAX_INPUTS",
    "NAMED_EVENTS",
    "OPENAI_EVENTS",
    "Application",
    "Batch",
    "BatchResult",
    "Caller",
    "ChatBody",
    "Classification",
    "ClassifyRequest",
    "Completion",
    "CompletionBody",
    "CompletionChoice",
    "Content",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "Embeddings",
    "ErrorForm",
    "EventFormat",
    "EventStream",
    "Forbidden",
    "Generation",
    "Handler",
    "ImageEvent",
    "ImageRequest",
    "ModelBody",
    "ModelEntry",
    "Operations",
    "PoolRequest",
    "Pooled",
    "RankedDocument",
    "Ranking",
    "RequestBatches",
    "RequestBody",
    "RerankRequest",
    "Rows",
    "ScoreRequest",
    "Scores",
    "Speech",
    "SpeechRequest",
    "TokenizeRequest",
    "Tokens",
    "TranscriptEvent",
    "TranscriptionRequest",
    "UploadedFile",
    "base_url",
    "caller_of",
    "convert_aside",
    "decode",
    "error_content_of",
    "ignore",
    "oldest_to_drop",
    "operations_of",
    "parse_query",
    "read_form",
    "read_json",
    "read_logprobs",
    "read_request",
    "read_tools",
    "request_id",
    "respond",
    "unless_disconnected",
]

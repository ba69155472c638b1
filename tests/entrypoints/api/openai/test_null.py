"""A field that is null counts as absent, on every route and at every level."""

from __future__ import annotations

import importlib
import json
from pkgutil import walk_packages
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from ostro.core.messages.target import AdapterChoice
from ostro.core.pipeline import parse_request
from ostro.entrypoints import http, operations
from ostro.entrypoints.api import openai
from ostro.entrypoints.api import server as server_api
from ostro.entrypoints.api.openai.bodies import (
    ChatBody,
    CompletionBody,
    PromptCacheOptions,
    StreamOptions,
)
from ostro.entrypoints.api.openai.chat_store import ChatListRequest
from ostro.entrypoints.api.openai.constraints import (
    Grammar,
    NamedSchema,
    ResponseFormat,
    StructuredOutputs,
)
from ostro.entrypoints.api.openai.custom_tools import AnyInput
from ostro.entrypoints.api.openai.image_bodies import ImageBody
from ostro.entrypoints.api.openai.messages import ContentPart, FilePart, FunctionCall, Message
from ostro.entrypoints.api.openai.models import ModelListRequest
from ostro.entrypoints.api.openai.responses import client_items, items, parts
from ostro.entrypoints.api.openai.responses.conversations import (
    ConversationRequest,
    ItemsRequest,
    MetadataRequest,
)
from ostro.entrypoints.api.openai.responses.items import ItemListRequest
from ostro.entrypoints.api.openai.responses.request import (
    CacheOptions,
    ConversationReference,
    ReasoningOptions,
    ResponseRequest,
    StreamSettings,
    TextFormat,
    TextOptions,
)
from ostro.entrypoints.api.openai.responses.routes import RetrieveRequest
from ostro.entrypoints.api.openai.responses.tool_types import (
    AllowedTools,
    ApplyPatchChoice,
    ApplyPatchTool,
    CustomChoice,
    CustomTool,
    FunctionChoice,
    FunctionTool,
    GrammarInput,
    LocalEnvironment,
    LocalShellChoice,
    LocalShellTool,
    LocalSkill,
    NamespaceTool,
    ShellChoice,
    ShellTool,
    ToolSearchChoice,
    ToolSearchTool,
)
from ostro.entrypoints.api.openai.speech import SpeechBody, VoiceId, VoicesRequest
from ostro.entrypoints.api.openai.stored_chats import MessageListRequest
from ostro.entrypoints.api.openai.thinking import ReasoningConfig
from ostro.entrypoints.api.server.adapters import LoadRequest, UnloadRequest
from ostro.entrypoints.api.server.models import (
    IsqRequest,
    LoadModelRequest,
    ModelRequest,
    RequantizeRequest,
)
from ostro.entrypoints.operations.documents.batches import BatchListRequest, BatchRequest
from ostro.entrypoints.operations.documents.files import ExpiresAfter, FileListRequest, FileRequest
from ostro.entrypoints.operations.documents.uploads import CompleteUploadRequest, UploadRequest
from ostro.entrypoints.operations.requests.decoding import decode
from ostro.entrypoints.operations.tasks.media import (
    ImageRequest,
    SpeechRequest,
    TranscriptionRequest,
)
from ostro.entrypoints.operations.tasks.tokens import DetokenizeRequest, TokenizeRequest
from ostro.entrypoints.operations.tasks.vectors import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolRequest,
    RerankRequest,
    ScoreRequest,
)

REQUESTS: dict[type[msgspec.Struct], dict[str, Any]] = {
    ChatBody: {"messages": "hi"},
    CompletionBody: {"prompt": "hi"},
    EmbeddingRequest: {"input": "hi"},
    RerankRequest: {"query": "hi", "documents": ["a"]},
    ClassifyRequest: {"input": "hi"},
    ScoreRequest: {"queries": ["hi"], "documents": ["a"]},
    PoolRequest: {"input": "hi"},
    TokenizeRequest: {"text": "hi"},
    DetokenizeRequest: {"tokens": [1]},
    ImageBody: {"prompt": "hi"},
    ImageRequest: {"prompt": "hi"},
    SpeechBody: {"input": "hi"},
    SpeechRequest: {"text": "hi"},
    TranscriptionRequest: {},
    VoicesRequest: {},
    ConversationRequest: {},
    MetadataRequest: {"metadata": None},
    ItemsRequest: {"items": []},
    ItemListRequest: {},
    ResponseRequest: {},
    RetrieveRequest: {},
    ChatListRequest: {},
    MessageListRequest: {},
    FileRequest: {"filename": "a", "purpose": "batch"},
    FileListRequest: {},
    UploadRequest: {
        "filename": "a",
        "purpose": "batch",
        "bytes": 1,
        "mime_type": "application/jsonl",
    },
    CompleteUploadRequest: {"part_ids": ["a"]},
    BatchRequest: {
        "input_file_id": "a",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    BatchListRequest: {},
    ModelListRequest: {},
    LoadRequest: {"lora_name": "a", "lora_path": "b"},
    UnloadRequest: {"lora_name": "a"},
    LoadModelRequest: {"model": "a"},
    ModelRequest: {"model": "a"},
    RequantizeRequest: {},
    IsqRequest: {"ggml_type": "q8_0"},
}
WITHOUT_OPTIONAL = (IsqRequest, ItemsRequest, MetadataRequest, ModelListRequest, ModelRequest)
ECHOED = {
    AnyInput,
    CustomTool,
    FunctionTool,
    GrammarInput,
    LocalEnvironment,
    LocalSkill,
    NamespaceTool,
    ShellTool,
    TextFormat,
    ToolSearchTool,
}
"""Types of which null is kept, since a response repeats it."""
NESTED: dict[type[msgspec.Struct], dict[str, Any]] = {
    AllowedTools: {"mode": "auto", "tools": []},
    ApplyPatchChoice: {},
    ApplyPatchTool: {},
    CacheOptions: {"mode": "implicit", "ttl": "30m"},
    ConversationReference: {"id": "conv_a"},
    CustomChoice: {"name": "f"},
    FunctionChoice: {"name": "f"},
    LocalShellChoice: {},
    LocalShellTool: {},
    ReasoningOptions: {},
    ShellChoice: {},
    StreamSettings: {},
    TextOptions: {"format": TextFormat()},
    ToolSearchChoice: {},
    AdapterChoice: {},
    FilePart: {},
    FunctionCall: {"name": "f", "arguments": "{}"},
    Grammar: {"type": "regex", "value": "a"},
    NamedSchema: {},
    PromptCacheOptions: {},
    ReasoningConfig: {},
    ResponseFormat: {"type": "text"},
    StreamOptions: {},
    StructuredOutputs: {},
    ContentPart: {"type": "text"},
    Message: {"role": "user"},
    VoiceId: {"id": "a"},
    ExpiresAfter: {"anchor": "created_at", "seconds": 3600},
}


def request_types() -> set[type[msgspec.Struct]]:
    """The requests of the operations and of the modules of the routes."""
    names = [
        module.name
        for package in (http, operations, openai, server_api)
        for module in walk_packages(package.__path__, f"{package.__name__}.")
    ]
    modules = map(importlib.import_module, names)
    structs = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
        if value.__module__ == module.__name__ and value.__name__.endswith("Request")
    }
    return {
        kind
        for kind in structs
        if not any(each.__name__.endswith("Request") for each in kind.__subclasses__())
    }


def test_every_type_of_a_route_is_listed_here() -> None:
    bodies = {ChatBody, CompletionBody, ImageBody, SpeechBody}
    assert request_types() | bodies == REQUESTS.keys()


def test_every_type_inside_of_a_request_is_listed_here() -> None:
    def structs(info: Any) -> set[type[msgspec.Struct]]:
        if isinstance(info, inspect.StructType):
            inner = [structs(field.type) for field in info.fields]
            return {info.cls}.union(*inner)
        parts = [getattr(info, name, ()) for name in ("types", "item_type", "value_type")]
        flat = [part for each in parts for part in (each if isinstance(each, tuple) else (each,))]
        return set[type[msgspec.Struct]]().union(*map(structs, flat))

    found = set[type[msgspec.Struct]]().union(*(structs(inspect.type_info(k)) for k in REQUESTS))
    modules = [module.__name__ for module in (client_items, items, parts)]
    inner = {kind for kind in found if kind.__module__ not in modules}
    assert inner - REQUESTS.keys() - ECHOED == NESTED.keys()


def test_null_in_an_item_counts_as_absent() -> None:
    given = [{"role": "user", "content": [{"type": "input_text", "text": "a"}], "id": None}]
    nulls = [{**given[0], "phase": None, "status": None}]
    [message] = items.read_items(
        [msgspec.Raw(msgspec.json.encode(each)) for each in nulls], "input"
    )
    [plain] = items.read_items([msgspec.Raw(msgspec.json.encode(each)) for each in given], "input")
    assert message == plain and message.id is msgspec.UNSET


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_null_is_the_default(kind: type[msgspec.Struct]) -> None:
    required = REQUESTS[kind]
    optional = set(kind.__struct_fields__) - required.keys()
    assert optional or kind in WITHOUT_OPTIONAL, "others have optional fields"
    for name in optional:
        nulls = {**required, name: None}
        assert (
            parse_request(nulls, kind)
            == decode(json.dumps(nulls).encode(), kind)
            == parse_request(required, kind)
        )


@pytest.mark.parametrize("kind", NESTED, ids=lambda kind: kind.__name__)
def test_null_inside_of_a_field(kind: type[msgspec.Struct]) -> None:
    fields = dict.fromkeys(kind.__struct_fields__)
    assert msgspec.convert({**fields, **NESTED[kind]}, kind) == kind(**NESTED[kind])


def test_null_is_not_a_value_of_a_required_field(server: Any) -> None:
    for path, field in (("chat/completions", "messages"), ("completions", "prompt")):
        response = server.post(f"/v1/{path}", **{field: None})
        assert response.status_code == 400 and response.json()["error"]["param"] == field


def test_null_in_messages_and_options(server: Any) -> None:
    """What is null reaches no template, where it would be written out."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": None}}}
    nulls = {**tool, "strict": None, "function": {**tool["function"], "description": None}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [{"type": "text", "text": "hi", "image_url": None, "cache_control": None}]
    absent: dict[str, Any] = {
        "tools": [tool],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ],
    }
    given: dict[str, Any] = {
        "tools": [nulls],
        "messages": [
            {"role": "user", "content": parts, "name": None, "tool_calls": None},
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [
                    {**call, "index": None, "function": {**call["function"], "strict": None}}
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "42", "reasoning_content": None},
        ],
        "response_format": None,
        "adapters": None,
        "suffix": None,
        "guided_json": None,
        "no_such_field": None,
    }
    first, second = (
        server.post("/v1/chat/completions", **absent),
        server.post("/v1/chat/completions", **given),
    )
    texts = [r.json()["choices"][0]["message"]["content"] for r in (first, second)]
    assert texts[0] == texts[1]
    assert '"default": null' in texts[0]
    options = {"include_usage": None, "continuous_usage_stats": None}
    events = server.events("/v1/chat/completions", **given, stream_options=options)
    assert not any(event.get("usage") for event in events)


def test_tool_calls_without_content_reach_a_template_that_reads_content(server: Any) -> None:
    """OpenAI's clients send null beside tool calls, and langchain leaves the field out."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "tool_calls": [call]}
    for content in ({}, {"content": None}, {"content": ""}):
        messages = [
            {"role": "user", "content": "hi"},
            {**turn, **content},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ]
        response = server.post("/v1/chat/completions", messages=messages)
        assert response.status_code == 200, response.text


def test_null_scale_of_an_adapter() -> None:
    from ostro.entrypoints.operations.models.adapters import adapter_ref

    assert adapter_ref(AdapterChoice(name="sql", scale=None), "adapter").scale == 1.0

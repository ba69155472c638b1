"""All API families make the same request of one chat, as far as they can state it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ostro.core.messages.text_requests import (
    ChatRequest,
    Constraint,
    JsonSchema,
    MediaPart,
    Message,
    TextPart,
    Tool,
    ToolCall,
)
from ostro.entrypoints.api.openai.bodies import ChatBody
from ostro.entrypoints.api.openai.responses.request import (
    ResponseBody,
    chat_request,
    read_response_request,
)
from ostro.entrypoints.operations.models.models import ModelEntry
from ostro.entrypoints.operations.requests.decoding import decode
from ostro.entrypoints.python.requests import make_request
from ostro.plugins.apis.anthropic import conversation
from ostro.plugins.apis.anthropic.schema import MessagesRequest
from ostro.plugins.apis.ollama import conversion
from ostro.plugins.apis.ollama.schema import OllamaChatRequest

DATA = "aGVsbG8="
IMAGE = f"data:image/png;base64,{DATA}"
ARGUMENTS = {"place": "Malmö", "zoom": 2}
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
SCHEMA = {"type": "object", "properties": {"animal": {"enum": ["cat", "dog"]}}}
FUNCTION = {
    "name": "look",
    "description": "Looks closer.",
    "parameters": PARAMETERS,
    "strict": True,
}
SAMPLING: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "seed": 7}

REQUEST = ChatRequest(
    model="echo",
    messages=[
        Message(role="system", content="Be brief."),
        Message(role="user", content=[MediaPart("image", IMAGE), TextPart("Which animal?")]),
        Message(
            role="assistant",
            content="I look.",
            reasoning="It is small.",
            tool_calls=[ToolCall(name="look", arguments=json.dumps(ARGUMENTS), id="call_1")],
        ),
        Message(role="tool", content="It has whiskers.", tool_call_id="call_1"),
    ],
    tools=[Tool("look", PARAMETERS, True, "Looks closer."), Tool("wait", PARAMETERS)],
    tool_choice="required",
    allowed_tools=["look"],
    parallel_tool_calls=False,
    constraint=Constraint(JsonSchema(SCHEMA), "response_format"),
    max_tokens=50,
    stop=["END"],
    logprobs=2,
    **SAMPLING,
)
"""What OpenAI's chats can state."""


CALL = {"name": "look", "arguments": json.dumps(ARGUMENTS)}
CALLED: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "It is small.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "It has whiskers."},
]
OPENAI: dict[str, Any] = {
    "tools": [
        {"type": "function", "function": FUNCTION},
        {"type": "function", "function": {"name": "wait", "parameters": PARAMETERS}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
}
"""Messages and fields in OpenAI's form, which HTTP and Python share."""


def bytes_of(body: dict[str, Any]) -> bytes:
    return json.dumps({"model": "echo", **body}).encode()


def openai_request() -> tuple[ChatRequest, ChatRequest]:
    body: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": IMAGE}},
                    {"type": "text", "text": "Which animal?"},
                ],
            },
            *CALLED,
        ],
        **OPENAI,
        "max_completion_tokens": 50,
        "stop": "END",
        "logprobs": True,
        "top_logprobs": 2,
        **SAMPLING,
    }
    return decode(bytes_of(body), ChatBody).to_request(), REQUEST


def responses_request() -> tuple[ChatRequest, ChatRequest]:
    """Responses have no stop strings."""
    call = {"name": "look", "arguments": json.dumps(ARGUMENTS)}
    body: dict[str, Any] = {
        "instructions": "Be brief.",
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_image", "image_url": IMAGE},
                    {"type": "input_text", "text": "Which animal?"},
                ],
            },
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "It is small."}],
            },
            {"type": "message", "role": "assistant", "content": "I look."},
            {"type": "function_call", "call_id": "call_1", **call},
            {"type": "function_call_output", "call_id": "call_1", "output": "It has whiskers."},
        ],
        "tools": [
            {"type": "function", **FUNCTION},
            {"type": "function", "name": "wait", "parameters": PARAMETERS},
        ],
        "tool_choice": {"type": "function", "name": "look"},
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
        "max_output_tokens": 50,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        **SAMPLING,
    }
    given = read_response_request(decode(bytes_of(body), ResponseBody))
    items: Any = given.input
    constraint = Constraint(JsonSchema(SCHEMA), "text.format")
    request = asyncio.run(chat_request(given, items))
    return request, replace(REQUEST, constraint=constraint, stop=())


def anthropic_request() -> tuple[ChatRequest, ChatRequest]:
    """Anthropic's API has no log probabilities."""
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "It has whiskers."}
    body: dict[str, Any] = {
        "system": "Be brief.",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": source},
                    {"type": "text", "text": "Which animal?"},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "It is small.", "signature": ""},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "call_1", "name": "look", "input": ARGUMENTS},
                ],
            },
            {"role": "user", "content": [result]},
        ],
        "tools": [
            {
                "name": "look",
                "description": "Looks closer.",
                "input_schema": PARAMETERS,
                "strict": True,
            },
            {"name": "wait", "input_schema": PARAMETERS},
        ],
        "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "max_tokens": 50,
        "stop_sequences": ["END"],
        **SAMPLING,
    }
    constraint = Constraint(JsonSchema(SCHEMA), "output_config.format")
    request = conversation.chat_request(decode(bytes_of(body), MessagesRequest))
    return request, replace(REQUEST, constraint=constraint, logprobs=None)


def ollama_request() -> tuple[ChatRequest, ChatRequest]:
    """Ollama's API states no type of an image and no choice of tools; results name their tool."""
    body: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Which animal?", "images": [DATA]},
            {
                "role": "assistant",
                "content": "I look.",
                "thinking": "It is small.",
                "tool_calls": [
                    {"id": "call_1", "function": {"name": "look", "arguments": ARGUMENTS}}
                ],
            },
            {"role": "tool", "tool_name": "look", "content": "It has whiskers."},
        ],
        "tools": [
            {"type": "function", "function": FUNCTION},
            {"type": "function", "function": {"name": "wait", "parameters": PARAMETERS}},
        ],
        "format": SCHEMA,
        "options": {"num_predict": 50, "stop": ["END"], **SAMPLING},
        "logprobs": True,
        "top_logprobs": 2,
    }
    system, user, assistant, tool = REQUEST.messages
    image = MediaPart("image", f"data:application/octet-stream;base64,{DATA}")
    expected = replace(
        REQUEST,
        messages=[
            system,
            replace(user, content=[image, TextPart("Which animal?")]),
            assistant,
            replace(tool, name="look"),
        ],
        constraint=Constraint(JsonSchema(SCHEMA), "format"),
        tool_choice=None,
        allowed_tools=None,
        parallel_tool_calls=None,
    )
    entry = ModelEntry(id="echo", created=0, context=4096)
    given = decode(bytes_of(body), OllamaChatRequest)
    return conversion.chat_request(given, entry), expected


def python_request() -> tuple[ChatRequest, ChatRequest]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image", "image": IMAGE}, "Which animal?"]},
        *CALLED,
    ]
    arguments: dict[str, Any] = {
        **OPENAI,
        "max_tokens": 50,
        "stop": "END",
        "logprobs": 2,
        **SAMPLING,
    }
    request = make_request(messages, arguments)
    assert isinstance(request, ChatRequest)
    return request, replace(REQUEST, model=None)


def plain(request: ChatRequest) -> Any:
    """A request as JSON, with the arguments of calls as objects."""
    fields = msgspec.json.decode(msgspec.json.encode(request))
    fields["continue_final_message"] = bool(request.continue_final_message)
    for message in fields["messages"]:
        for call in message["tool_calls"]:
            call["arguments"] = json.loads(call["arguments"])
    return fields


@pytest.mark.parametrize(
    "convert",
    [openai_request, responses_request, anthropic_request, ollama_request, python_request],
)
def test_one_chat_is_one_request(convert: Callable[[], tuple[ChatRequest, ChatRequest]]) -> None:
    request, expected = convert()
    assert type(request) is ChatRequest
    assert plain(request) == plain(expected)

"""Anthropic's API: the official client, and requests by hand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from echo.model import TEMPLATE
from echo.server import Start

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
USER = {"role": "user", "content": "hi"}
SAID = "user\nhi\nassistant\n"
"""What the echo engine makes of the message "hi": the prompt without control tokens."""
VERSION = {"anthropic-version": "2023-06-01"}
CALL = {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": "three"}


def client_of(server: Any, kind: Any = anthropic.Anthropic, **options: Any) -> Any:
    """A client that validates the responses."""
    options = {"api_key": "none", "max_retries": 0, **options}
    return kind(base_url=server.url, _strict_response_validation=True, **options)


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Any]:
    with client_of(server) as found:
        yield found


def ask(server: Any, *messages: Any, **fields: Any) -> Any:
    """Post a request."""
    body = {"model": "echo", "max_tokens": 400, "messages": list(messages or [USER]), **fields}
    return server.http.post(MESSAGES, json=body, headers=VERSION)


def prompt(server: Any) -> str:
    """The last prompt of the engine, without control tokens."""
    return bytes(token for token in server.echo.seen[-1].tokens if token < 256).decode()


def refused(answer: Any, status: int, kind: str, *words: str) -> str:
    """Check an error, and return its message."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["request_id"] == answer.headers["request-id"]
    message: str = body["error"]["message"]
    assert all(word in message for word in words), message
    return message


def test_the_client_creates_a_message(server: Any, client: Any) -> None:
    found = client.messages.create(model="echo", max_tokens=400, messages=[USER])
    [block] = found.content
    assert (block.type, block.text) == ("text", SAID)
    assert block.text == server.chat("hi").json()["choices"][0]["message"]["content"]
    assert (found.role, found.model, found.stop_reason) == ("assistant", "echo", "end_turn")
    length = len(server.echo.seen[-1].tokens)
    assert found.usage.input_tokens + found.usage.cache_read_input_tokens == length
    assert found.usage.cache_read_input_tokens == length // 2
    assert found.usage.output_tokens == length
    assert found.id == f"msg_{found._request_id}"


def test_the_client_streams(client: Any) -> None:
    body = {"model": "echo", "max_tokens": 400, "messages": [USER]}
    events = list(client.messages.create(**body, stream=True))
    assert events[0].type == "message_start" and events[-1].type == "message_stop"
    pieces = [e.delta.text for e in events if e.type == "content_block_delta"]
    assert "".join(pieces) == SAID
    with client.messages.stream(**body) as stream:
        assert "".join(stream.text_stream) == SAID
        final = stream.get_final_message()
    whole = client.messages.create(**body)
    assert final.content[0].text == whole.content[0].text
    assert (final.usage, final.stop_reason) == (whole.usage, whole.stop_reason)
    again = client.messages.create(**{**body, "messages": [USER, whole.to_param(), USER]})
    assert again.content[0].text.startswith(f"user\nhi\nassistant\n{SAID}")


def test_the_tool_runner_of_the_client_sends_all_messages(server: Any, client: Any) -> None:
    """It asks for a stored thread first, and continues without one after the rejection."""
    tool = anthropic.beta_tool(f)
    run = client.beta.messages.tool_runner(
        model="echo", max_tokens=400, messages=[USER], tools=[tool]
    )
    assert SAID in run.until_done().content[0].text
    answer = ask(server, thread={"type": "create"})
    refused(answer, 400, "invalid_request_error", "thread")
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


def f(a: int) -> str:
    """A tool."""
    return str(a)


def test_text_arrives_while_it_is_generated(
    server: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine waits before the second character until the client has read the first one."""
    step, read = server.echo.step, threading.Event()
    made: list[int] = []

    def wait_and_step() -> Any:
        if any(token < 256 for token in made):
            read.wait(60)
        outputs = step()
        made.extend(token for output in outputs for token in output.tokens)
        return outputs

    monkeypatch.setattr(server.echo, "step", wait_and_step)
    try:
        with client.messages.stream(model="echo", max_tokens=400, messages=[USER]) as stream:
            assert next(stream.text_stream) == SAID[0]
            read.set()
            assert "".join(stream.text_stream) == SAID[1:]
    finally:
        read.set()


def test_the_asynchronous_client(server: Any) -> None:
    async def run() -> tuple[str, int]:
        async with client_of(server, anthropic.AsyncAnthropic) as client:
            body = {"model": "echo", "messages": [USER]}
            async with client.messages.stream(max_tokens=400, **body) as stream:
                text = await stream.get_final_text()
            return text, (await client.messages.count_tokens(**body)).input_tokens

    assert asyncio.run(run()) == (SAID, len(server.echo.seen[-1].tokens))


def test_count_tokens_counts_what_a_message_needs(server: Any, client: Any) -> None:
    body = {
        "model": "echo",
        "system": "be brief",
        "messages": [USER],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    }
    count = client.messages.count_tokens(**body).input_tokens
    usage = client.messages.create(max_tokens=1, **body).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens


def test_models_have_anthropics_form(server: Any, client: Any) -> None:
    [found] = list(client.models.list())
    assert (found.id, found.lifecycle, found.max_input_tokens) == ("echo", "active", 4096)
    assert client.models.retrieve("echo") == found
    assert list(client.models.list(lifecycle=["retired"])) == []
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        client.models.retrieve("nothing")
    with pytest.raises(anthropic.BadRequestError, match="after_id"):
        client.models.list(after_id="nothing")
    assert server.http.get("/v1/models").json()["object"] == "list"
    assert "error" in server.http.get("/v1/models/nothing").json()


def test_pages_of_models(start: Any) -> None:
    from ostro.plugins.apis.anthropic.models import ModelEntry, ModelListParams, page

    entries = [ModelEntry(id=id, created=0, context=None) for id in "abcd"]

    def ids(**query: Any) -> tuple[str, bool]:
        found = page(entries, ModelListParams(**query))
        return "".join(model.id for model in found.data), found.has_more

    assert ids() == ("abcd", False)
    assert ids(limit=3) == ("abc", True)
    assert ids(limit=3, after_id="c") == ("d", False)
    assert ids(limit=2, before_id="d") == ("bc", True)


def test_stop_sequences(server: Any) -> None:
    found = ask(server, stop_sequences=["\nassi", "never"]).json()
    assert found["content"][0]["text"] == "user\nhi"
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "\nassi")


def test_the_context_limits_max_tokens(server: Any) -> None:
    for max_tokens in (4096, 10**6):
        found = ask(server, max_tokens=max_tokens).json()
        assert found["content"][0]["text"] == SAID and found["stop_reason"] == "end_turn"
        sampling, tokens = server.echo.seen[-1].sampling, server.echo.seen[-1].tokens
        assert sampling.max_tokens == 4096 - len(tokens)
    assert ask(server, max_tokens=3).json()["stop_reason"] == "max_tokens"
    long = {"role": "user", "content": "x" * 5000}
    refused(ask(server, long), 400, "invalid_request_error", "context")


def test_a_final_message_of_the_assistant_is_continued(server: Any) -> None:
    final = {"role": "assistant", "content": [{"type": "text", "text": "The answer is"}]}
    found = ask(server, USER, final)
    assert found.status_code == 200, found.text
    assert prompt(server) == "user\nhi\nassistant\nThe answer is"
    assert found.json()["content"][0]["text"] == prompt(server)


def test_sampling_reaches_the_engine(server: Any) -> None:
    assert ask(server, temperature=0.5, top_p=0.25, top_k=7, seed=3).status_code == 200
    rules = server.echo.seen[-1].sampling
    assert (rules.temperature, rules.top_p, rules.top_k, rules.seed) == (0.5, 0.25, 7, 3)


def test_a_conversation_with_system_documents_and_tools(start: Start) -> None:
    server = start(template=TEMPLATE)  # with parsers
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    plain = {"type": "text", "media_type": "text/plain", "data": "inside"}
    nested = {"type": "content", "content": [{"type": "text", "text": "nested"}]}
    answer = ask(
        server,
        {"role": "user", "content": [{"type": "text", "text": "one", **cached}]},
        {
            "role": "user",
            "content": [
                {"type": "document", "title": "Title", "context": "why", "source": plain},
                {"type": "document", "source": nested, "citations": {"enabled": False}},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "two"}, CALL]},
        {"role": "user", "content": [{**RESULT, "is_error": True}, {"type": "text", "text": "x"}]},
        system=[{"type": "text", "text": "a"}, {"type": "text", "text": "b", **cached}],
        tools=[{"name": "f", "input_schema": {"type": "object"}, **cached}],
        tool_choice={"type": "auto"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "low"},
        metadata={"user_id": "u"},
        service_tier="auto",
        max_tokens=2000,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["service_tier"] == "standard"
    seen = prompt(server)
    assert seen.startswith("tools\n") and '"name": "f"' in seen
    assert "system\na\nb\nuser\none\nTitle\nwhy\ninside\nnested\nassistant\ntwo\n" in seen
    assert seen.endswith("tool\nError:\nthree\nuser\nx\nassistant\n<think>")
    budget = server.echo.seen[-1].sampling.processors["reasoning_budget"]
    assert (budget["tokens"], budget["open"]) == (1024, True)
    ask(server, thinking={"type": "disabled"})
    assert "<think>" not in prompt(server)
    assert not server.echo.seen[-1].sampling.processors


def test_disabled_thinking_ends_at_once_without_a_switch(start: Start) -> None:
    server = start(template="{{ messages[-1].content }}<think>")
    assert ask(server, thinking={"type": "disabled"}).status_code == 200
    budget = server.echo.seen[-1].sampling.processors["reasoning_budget"]
    assert (budget["tokens"], budget["open"]) == (0, True)
    ask(server)
    assert not server.echo.seen[-1].sampling.processors


def test_thinking_returns_to_the_template_and_redacted_thinking_does_not() -> None:
    from ostro.pipelines import MediaPart, Message, ToolCall, parse_request
    from ostro.plugins.apis.anthropic.conversation import chat_messages
    from ostro.plugins.apis.anthropic.schema import CountTokensRequest

    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "text", "text": "yes"},
        CALL,
    ]
    image = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    body = {
        "model": "m",
        "messages": [
            {"role": "assistant", "content": content},
            {
                "role": "user",
                "content": [{**RESULT, "content": [{"type": "image", "source": image}]}],
            },
        ],
    }
    said, result = chat_messages(parse_request(body, CountTokensRequest))
    assert said == Message(
        role="assistant",
        content="yes",
        reasoning="hm",
        tool_calls=[ToolCall(id="call_1", name="f", arguments='{"a": 1}')],
    )
    assert result.content == [MediaPart("image", "data:image/png;base64,AA==")]


BILLING = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=a1b2c;"


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ([BILLING, "Be kind."], "Be kind."),
        ([BILLING + "\n", "Be kind.", "Be brief."], "Be kind.\nBe brief."),
        ([BILLING], None),
        (BILLING, None),
        (["Be kind.", BILLING], f"Be kind.\n{BILLING}"),
        ([BILLING, BILLING], BILLING),
        ([f"{BILLING}\nBe kind."], f"{BILLING}\nBe kind."),
        ([f"{BILLING}\r\nBe kind."], f"{BILLING}\r\nBe kind."),
        ([f" {BILLING}", "Be kind."], f" {BILLING}\nBe kind."),
        ([BILLING.upper(), "Be kind."], f"{BILLING.upper()}\nBe kind."),
        (["x-anthropic-billing-header", "Be kind."], "x-anthropic-billing-header\nBe kind."),
        (["x-anthropic-billing-headers: a", "b"], "x-anthropic-billing-headers: a\nb"),
    ],
)
@pytest.mark.parametrize("counts", [True, False])
def test_a_billing_line_is_not_part_of_the_prompt(
    counts: bool, system: Any, said: str | None
) -> None:
    from ostro.pipelines import Message, parse_request
    from ostro.plugins.apis.anthropic.conversation import chat_messages
    from ostro.plugins.apis.anthropic.schema import CountTokensRequest, MessagesRequest

    if isinstance(system, list):
        system = [{"type": "text", "text": text} for text in system]
    body = {"model": "m", "system": system, "messages": [USER]}
    if counts:
        request = parse_request(body, CountTokensRequest)
    else:
        request = parse_request({**body, "max_tokens": 8}, MessagesRequest)
    *systems, user = chat_messages(request)
    assert user == Message(role="user", content="hi")
    assert systems == ([] if said is None else [Message(role="system", content=said)])


def test_the_prompt_stays_the_same_with_another_billing_line(server: Any) -> None:
    counts, prompts = [], []
    for hash in ("a1b2c", "f00d5e"):
        line = BILLING.replace("a1b2c", hash)
        system = [{"type": "text", "text": line}, {"type": "text", "text": "Be kind."}]
        assert ask(server, system=system).status_code == 200
        prompts.append(server.echo.seen[-1].tokens)
        body = {"model": "echo", "system": system, "messages": [USER]}
        counts.append(server.post(COUNT, **body).json()["input_tokens"])
    assert prompts[0] == prompts[1] and counts == [len(prompts[0])] * 2


def nest(depth: int) -> Any:
    """Arguments with nested objects."""
    found: Any = {}
    for _ in range(depth):
        found = {"a": found}
    return found


def with_block(block: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [block]}]}


def with_call(result: Any, call: Any = CALL) -> dict[str, Any]:
    talk = [USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return {"messages": talk}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"model": None}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    (with_block({"type": "text", "text": ""}), "messages[0].content[0]"),
    (with_block({"type": "video", "source": {}}), "'video'"),
    (with_block({"type": "server_tool_use", "id": "1"}), "'server_tool_use'"),
    (with_block({"type": "text", "text": "a", "colour": 1}), "colour"),
    (with_block({"text": "a"}), "type"),
    (with_block(CALL), "tool_use"),
    (with_block({"type": "thinking", "thinking": "a", "signature": ""}), "thinking"),
    (
        with_block({"type": "document", "source": {"type": "base64", "data": "AA=="}}),
        "PDF documents",
    ),
    (with_block({"type": "image", "source": {"type": "file", "file_id": "f"}}), "Files API"),
    (with_block(RESULT), "tool_use_id"),
    ({"messages": [USER, {"role": "assistant", "content": [CALL]}]}, "tool_use"),
    ({"stop_sequences": ["x"] * 1000}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    (with_call({**RESULT, "tool_use_id": "call_2"}), "messages[2].content[0].tool_use_id"),
    (with_call({**RESULT, "content": [{"type": "search_result"}]}), "source"),
    (with_call({**RESULT, "content": [{"type": "tool_use"}]}), "'tool_use'"),
    (with_call(RESULT, {**CALL, "input": nest(100)}), "nested"),
    ({"messages": [{"role": "assistant", "content": [RESULT]}, USER]}, "tool_result"),
    ({"colour": "red"}, "colour"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"system": [{"type": "image"}]}, "system"),
    ({"tools": [{"type": "web_search_20250305", "name": "w", "max_uses": 1}]}, "web_search"),
    ({"tools": [{"name": "f"}]}, "input_schema"),
    ({"tools": [{"name": "f", "input_schema": {}, "strict": True}]}, "tools[0].strict"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    (
        {
            "tools": [{"name": "f", "input_schema": {}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        },
        "parallel_tool_calls",
    ),
    ({"thinking": {"type": "enabled"}}, "budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 4000}}, "budget_tokens"),
    ({"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 2000}}, "budget_tokens"),
    ({"thinking": {"type": "between_tools"}}, "between_tools"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "yaml", "schema": {}}}}, "output_config.format.type"),
    ({"output_format": {"type": "json_schema", "schema": {}}}, "use output_config.format"),
    ({"output_config": {"effort": "banana"}}, "effort"),
    ({"user": "u"}, "user"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"speed": "fast"}, "speed"),
    ({"container": "c"}, "container"),
    ({"mcp_servers": []}, "mcp_servers"),
    ({"inference_geo": "us"}, "inference_geo"),
    ({"diagnostics": {"previous_message_id": 1}}, "diagnostics"),
    ({"tools": [{"type": "bash_20990101", "name": "bash"}]}, "'bash_20990101'"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "'web_search_20250305'"),
    (with_block({"type": "tool_reference", "tool_name": "f"}), "'tool_reference'"),
]


@pytest.mark.parametrize(("fields", "word"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_refused_by_name(server: Any, fields: dict[str, Any], word: str) -> None:
    body = {"model": "echo", "max_tokens": 30, "messages": [USER], **fields}
    answer = server.http.post(MESSAGES, json=body)
    refused(answer, 400, "invalid_request_error", word)
    assert ask(server, max_tokens=1).status_code == 200


def test_every_parameter_of_the_client_is_accepted_or_refused_by_name() -> None:
    from anthropic.types import message_count_tokens_params, message_create_params

    from ostro.plugins.apis.anthropic.schema import CountTokensRequest, MessagesRequest

    create = message_create_params.MessageCreateParamsStreaming.__annotations__
    create |= message_create_params.MessageCreateParamsBase.__annotations__
    count = message_count_tokens_params.MessageCountTokensParams.__annotations__
    for kind, names in ((MessagesRequest, create), (CountTokensRequest, count)):
        assert len(names) > 5
        assert names.keys() <= {*kind.__struct_fields__, *kind.unsupported}


def test_errors_of_the_middleware_and_of_the_router(start: Any) -> None:
    server = start(keys=["secret"])
    refused(ask(server), 401, "authentication_error", "API key")
    with client_of(server) as client, pytest.raises(anthropic.AuthenticationError):
        client.models.list()
    with client_of(server, api_key="secret") as client:
        assert client.messages.create(model="echo", max_tokens=9, messages=[USER]).content
        with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
            client.messages.create(model="nothing", max_tokens=1, messages=[USER])
        with pytest.raises(anthropic.BadRequestError, match="--store"):
            client.messages.batches.list()
    key = {"x-api-key": "secret"}
    refused(server.http.get(MESSAGES, headers=key), 405, "invalid_request_error")
    text = server.http.post(MESSAGES, content=b"x", headers=key)
    refused(text, 415, "invalid_request_error", "Content-Type")


def test_a_server_that_loads_is_overloaded(start: Any) -> None:
    server = start(loading=True)
    answer = ask(server)
    refused(answer, 529, "overloaded_error")
    assert answer.headers["retry-after"]
    with client_of(server) as client, pytest.raises(anthropic.OverloadedError):
        client.messages.create(model="echo", max_tokens=1, messages=[USER])


def test_the_generation_ends_when_the_client_leaves(server: Any, client: Any) -> None:
    server.echo.step_seconds, made = 0.05, server.echo.stats().generated_tokens
    long = {"role": "user", "content": "x" * 1500}  # 75 seconds of steps
    try:
        with client.messages.stream(model="echo", max_tokens=2000, messages=[long]) as stream:
            next(stream.text_stream)
        deadline = time.monotonic() + 120
        while server.echo.live:
            assert time.monotonic() < deadline, "the engine goes on"
            time.sleep(0.05)
    finally:
        server.echo.step_seconds = 0
    assert server.echo.stats().generated_tokens - made < 1500


def test_adapters(start: Any, tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "adapter_config.json").write_text("{}")
    server = start(adapter_root=tmp_path)
    assert server.post("/v1/load_lora_adapter", lora_name="sql", lora_path="sql").is_success
    with client_of(server) as client:
        assert [model.id for model in client.models.list()] == ["echo", "sql"]
        found = client.messages.create(model="sql", max_tokens=400, messages=[USER])
    assert found.model == "sql" and found.content[0].text == SAID
    chat = server.chat("hi", model="sql").json()
    assert found.adapter_generations == chat["adapter_generations"]
    named = ask(server, adapter={"name": "sql", "scale": 0.5}).json()
    assert named["adapter_generations"] == found.adapter_generations
    assert server.echo.seen[-1].adapters[0].scale == 0.5

"""Ollama's routes: names, options, adapters, bad input, and what ends a stream."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from echo.generation import ScriptedGeneration
from echo.server import Running, Start
from tiny.adapter_routes import last, load

from ostro.core.errors import Overloaded, RequestError
from ostro.core.pipeline import CheckpointSummary
from ostro.http import ModelEntry
from ostro.pipelines import (
    ChoiceEnd,
    Event,
    MediaPart,
    Reasoning,
    Text,
    TextPart,
    ToolCallArguments,
    ToolCallStart,
    fetch_all,
)
from ostro.plugins.apis.ollama.answers import Clock, chat_form, generate_form, lines, whole
from ostro.plugins.apis.ollama.catalogue import digest_of
from ostro.plugins.apis.ollama.conversion import chat_messages
from ostro.plugins.apis.ollama.schema import OllamaFunction, OllamaMessage, OllamaToolCall

CHAT, GENERATE = "/api/chat", "/api/generate"
HI: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
RAW: dict[str, Any] = {"model": "echo", "prompt": "hi", "raw": True, "stream": False}


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("path", "bad", "status", "message"),
    [
        (CHAT, {"messages": HI["messages"]}, 400, "the field model is missing"),
        (CHAT, {**HI, "model": "none"}, 404, "model 'none' not found"),
        (CHAT, {**HI, "model": ""}, 404, "model '' not found"),
        (CHAT, {**HI, "message": "hi"}, 400, "unknown field 'message'; nearest: messages"),
        (CHAT, {**HI, "messages": "hi"}, 400, "messages: Expected `array | null`, got `str`"),
        (CHAT, {**HI, "stream": "yes"}, 400, "stream: Expected `bool`"),
        (CHAT, {**HI, "tools": nested(100)}, 400, "nested deeper than 64 levels"),
        (CHAT, {**HI, "format": "yaml"}, 400, "format: 'yaml' is unknown; expected json"),
        (CHAT, {**HI, "format": 1}, 400, "format: Expected `str | object`"),
        (CHAT, {**HI, "think": "banana"}, 400, "think='banana' is not a boolean or one of"),
        (CHAT, {**HI, "think": "low"}, 400, "think='low': the chat template of echo reads no"),
        (CHAT, {**HI, "top_logprobs": 2}, 400, "top_logprobs needs logprobs=true"),
        (CHAT, {**HI, "options": {"num_predikt": 1}}, 400, "unknown field 'options.num_predikt'"),
        (CHAT, {**HI, "options": {"top_p": "1"}}, 400, "options.top_p: Expected `float | null`"),
        (CHAT, {**HI, "options": {"top_p": 2}}, 400, "top_p=2.0 is not within 0..1"),
        (CHAT, {**HI, "options": {"repeat_penalty": 0}}, 400, "options.repeat_penalty=0.0 is not"),
        (CHAT, {**HI, "options": {"mirostat": 1}}, 400, "options.mirostat=1: Mirostat sampling"),
        (CHAT, {**HI, "options": {"tfs_z": 0.5}}, 400, "options.tfs_z=0.5: tail-free sampling"),
        (CHAT, {**HI, "options": {"repeat_last_n": 64}}, 400, "a window of penalties"),
        (CHAT, {**HI, "options": {"penalize_newline": False}}, 400, "use true or leave it out"),
        (CHAT, {**HI, "options": {"logit_bias": {"a": 1}}}, 400, "options.logit_bias"),
        (CHAT, {**HI, "options": {"logit_bias": {"1": 200}}}, 400, "options.logit_bias: the bias"),
        (CHAT, {**HI, "options": {"reasoning_effort": "much"}}, 400, "Invalid enum value 'much'"),
        (CHAT, {**HI, "options": {"grammar": "x"}}, 400, "options.grammar: a grammar is not"),
        (CHAT, {**HI, "options": {"num_ctx": 0}}, 400, "options.num_ctx=0 is not positive"),
        (GENERATE, {**RAW, "template": "x"}, 400, "template: a template in a request"),
        (GENERATE, {**RAW, "context": [1]}, 400, "context: token ids of an earlier response"),
        (GENERATE, {**RAW, "width": 8}, 400, "width: image generation is not supported"),
        (GENERATE, {**RAW, "suffix": "x"}, 400, "suffix"),
        (GENERATE, {**RAW, "system": "x"}, 400, "system: not supported with raw or suffix"),
        (GENERATE, {**RAW, "raw": False, "images": ["?"]}, 400, "images[0] is not base64"),
        (GENERATE, {**RAW, "raw": False, "images": ["aGk="]}, 400, "echo accepts text only"),
        ("/api/show", {}, 400, "model is missing"),
        ("/api/show", {"model": "echo", "verbose": 1}, 400, "verbose: Expected `bool | null`"),
        (
            "/api/embed",
            {"model": "echo", "input": "a", "truncate": False, "options": {"num_ctx": 9}},
            400,
            "options.num_ctx: not supported with truncate=false",
        ),
        ("/api/embed", {"model": "echo"}, 400, "the field input is missing"),
        ("/api/embed", {"model": "echo", "input": 1}, 400, "input: Expected `str | array`"),
        ("/api/nothing", {}, 404, "unknown route"),
    ],
)
def test_bad_requests(
    server: Running, path: str, bad: dict[str, Any], status: int, message: str
) -> None:
    answer = server.post(path, **bad)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert message in (error if path != "/api/nothing" else error["message"])
    assert server.post(GENERATE, **RAW).json()["response"] == "hi"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "user", "content": "a", "images": ["aGk"]}], "messages[0].images[0] is not"),
        ([{"role": "user", "text": "a"}], "unknown field 'messages[0].text'"),
        ([{"content": "a"}], ".role is missing"),
        ([{"role": "poet", "content": "a"}], "unknown role 'poet'"),
        ([{"role": "tool", "content": "3"}], "messages[0]: no message before it has a tool call"),
    ],
)
def test_bad_messages(server: Running, messages: list[Any], message: str) -> None:
    answer = server.post(CHAT, **{**HI, "messages": messages})
    assert answer.status_code == 400 and message in answer.json()["error"], answer.text


def test_images_precede_the_text() -> None:
    address = "data:application/octet-stream;base64,aGk="
    (message,) = chat_messages([OllamaMessage(role="user", content="what?", images=["aGk="])])
    assert message.content == [MediaPart("image", address), TextPart("what?")]
    assert fetch_all([address]) == [b"hi"]


def test_results_belong_to_their_calls() -> None:
    calls = [OllamaToolCall(function=OllamaFunction(name=name)) for name in ("a", "b", "a")]
    given = [
        OllamaMessage(role="assistant", tool_calls=[*calls]),
        OllamaMessage(role="tool", content="1", tool_name="b"),
        OllamaMessage(role="tool", content="2"),
        OllamaMessage(role="tool", content="3", tool_call_id="call_0_2"),
    ]
    assistant, *results = chat_messages(given)
    assert [call.id for call in assistant.tool_calls] == ["call_0_0", "call_0_1", "call_0_2"]
    assert [result.tool_call_id for result in results] == ["call_0_1", "call_0_0", "call_0_2"]
    assert [result.name for result in results] == ["b", "a", "a"]
    with pytest.raises(RequestError, match=r"messages\[4\]: no message before it has a tool call"):
        chat_messages([*given, OllamaMessage(role="tool", content="4", tool_name="a")])


def test_results_name_ids_that_their_calls_lack() -> None:
    """litellm makes an id for each call, and sends it with the result only."""
    calls = [OllamaToolCall(function=OllamaFunction(name=name)) for name in ("a", "b", "c")]
    given = [
        OllamaMessage(role="assistant", tool_calls=[*calls]),
        OllamaMessage(role="tool", content="1", tool_call_id="x", tool_name="b"),
        OllamaMessage(role="tool", content="2", tool_call_id="y"),
        OllamaMessage(role="tool", content="3", tool_call_id="z"),
    ]
    _, *results = chat_messages(given)
    assert [result.name for result in results] == ["b", "a", "c"]
    calls[0].id = "i"
    with pytest.raises(RequestError, match=r"messages\[1\]: no message .* tool call of 'j'"):
        chat_messages([given[0], OllamaMessage(role="tool", tool_call_id="j", tool_name="a")])


def test_bad_bodies(server: Running) -> None:
    kind = {"content-type": "application/json"}
    page = {"content-type": "text/plain", "origin": "http://example.com"}
    for content, headers, status in ((b"{", kind, 400), (b"{}", page, 415), (b"[]", kind, 400)):
        answer = server.http.post(CHAT, content=content, headers=headers)
        assert answer.status_code == status and isinstance(answer.json()["error"], str)
    wrong = server.http.get(CHAT)
    assert wrong.status_code == 405 and "does not accept GET" in wrong.json()["error"]


def test_clients_other_than_browsers_need_not_declare_json(server: Running) -> None:
    """As `curl -d` in the examples of Ollama's documentation."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    content = b'{"model": "echo", "prompt": "hi", "stream": false}'
    answer = server.http.post("/api/generate", content=content, headers=form)
    assert answer.status_code == 200 and answer.json()["done"]
    assert server.http.post("/v1/completions", content=content, headers=form).status_code == 415


def test_options_become_sampling(server: Running) -> None:
    options = {
        "num_predict": 5,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "seed": 7,
        "stop": ["x"],
        "repeat_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.75,
    }
    neutral = {"mirostat": 0, "tfs_z": 1, "repeat_last_n": -1, "penalize_newline": True}
    neutral["logit_bias"] = {"104": 5}
    runner = {"num_ctx": 4096, "num_gpu": 1, "use_mmap": True, "num_thread": 4, "num_keep": 4}
    asked = {**options, **neutral, **runner, "numa": None}
    assert server.post(GENERATE, **RAW, options=asked).status_code == 200
    found = server.echo.seen[-1].sampling
    assert (found.max_tokens, found.repetition_penalty) == (5, 1.5)
    same = options.keys() - {"num_predict", "repeat_penalty", "stop"}
    assert {name: getattr(found, name) for name in same} == {name: options[name] for name in same}
    assert found.logit_bias == {104: 5}


@pytest.mark.parametrize(
    ("text", "biases"),
    [("5:1", {5: 1}), (" 5 : 1,17:-2.5", {5: 1, 17: -2.5}), ("5:1,5:2", {5: 2}), (" ", {})],
)
def test_biases_as_a_text(server: Running, text: str, biases: dict[int, float]) -> None:
    """Open WebUI sends them so."""
    assert server.post(GENERATE, **RAW, options={"logit_bias": text}).status_code == 200
    assert server.echo.seen[-1].sampling.logit_bias == biases


@pytest.mark.parametrize("text", ["5", "5:", "a:1", "5:1,", "5:1 17:2", "-5:1", "5:nan", "5:1:2"])
def test_malformed_biases_are_refused(server: Running, text: str) -> None:
    answer = server.post(GENERATE, **RAW, options={"logit_bias": text})
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]
    assert message.startswith("options.logit_bias: ") and "5:1, 17:-2" in message


def test_options_that_tune_sampling_otherwise_are_ignored_by_name(start: Start) -> None:
    server = start(strict_fields=False)
    tuning = {"mirostat": 2, "tfs_z": 0.5, "repeat_last_n": 64, "penalize_newline": False}
    for name, value in {**tuning, "num_gqa": 8}.items():
        options = {name: value, "repeat_penalty": 1.5}
        answer = server.post(GENERATE, **RAW, options=options)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ostro-ignored"] == f"options.{name}"
        assert server.echo.seen[-1].sampling.repetition_penalty == 1.5
    assert server.post(GENERATE, **RAW, options={"grammar": "x"}).status_code == 400
    neutral = {"mirostat": 0, "tfs_z": 1, "repeat_last_n": -1, "penalize_newline": True}
    unset = {"num_ctx": None, "stop": None, "temperature": None}
    answer = server.post(GENERATE, **RAW, options={**neutral, **unset, "mirostat_tau": 5.0})
    assert answer.status_code == 200 and "x-ostro-ignored" not in answer.headers


def test_no_tokens_in_the_window_of_penalties_turn_them_off(server: Running) -> None:
    penalties = {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.5}
    for window, expected in ((-1, (1.5, 0.5, 0.5)), (0, (1.0, 0.0, 0.0))):
        options = {**penalties, "repeat_last_n": window}
        assert server.post(GENERATE, **RAW, options=options).status_code == 200
        sampling = server.echo.seen[-1].sampling
        names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        assert tuple(getattr(sampling, name) for name in names) == expected


def test_the_context_bounds_num_ctx(server: Running) -> None:
    for path, fields in ((GENERATE, RAW), (CHAT, {**HI, "stream": False})):
        answer = server.post(path, **fields, options={"num_ctx": 131072})
        assert answer.status_code == 200, answer.text
        whole = server.post(path, **fields).json()
        assert answer.json()["eval_count"] == whole["eval_count"]


def test_efforts_in_options(start: Start) -> None:
    server = start(
        template="{{ messages[-1].content }} {{ reasoning_effort }}", strict_fields=False
    )
    body = {**HI, "stream": False, "options": {"reasoning_effort": "high"}}
    for fields, text in (({}, "hi high"), ({"think": "low"}, "hi low"), ({"think": False}, "hi ")):
        answer = server.post(CHAT, **body, **fields)
        assert answer.json()["message"]["content"] == text
        assert "x-ostro-ignored" not in answer.headers
    raw = server.post(GENERATE, **RAW, options={"reasoning_effort": "high"})
    assert raw.headers["x-ostro-ignored"] == "options.reasoning_effort"
    server = start(template="{{ messages[-1].content }}", strict_fields=False)
    answer = server.post(CHAT, **body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ostro-ignored"] == "options.reasoning_effort"
    refused = start(template="{{ messages[-1].content }}").post(CHAT, **body)
    assert refused.status_code == 400, refused.text
    assert 'options.reasoning_effort="high": ' in refused.json()["error"]


def test_num_ctx_limits_prompt_and_output(server: Running) -> None:
    for path, fields in ((GENERATE, RAW), (CHAT, {**HI, "stream": False})):
        whole = server.post(path, **fields).json()
        size = whole["prompt_eval_count"]
        for predict in (None, 1, 90):
            options = {"num_ctx": size + 2, "num_predict": predict, "seed": 1}
            assert server.post(path, **fields, options=options).status_code == 200
            assert server.echo.seen[-1].sampling.max_tokens == (1 if predict == 1 else 2)
        refused = server.post(path, **fields, options={"num_ctx": size})
        assert refused.status_code == 400 and f"{size} tokens" in refused.json()["error"]


def test_stop_strings(server: Running) -> None:
    answer = server.post(GENERATE, **{**RAW, "prompt": "abcd"}, options={"stop": ["c"]}).json()
    assert answer["response"] == "ab" and answer["done_reason"] == "stop"


def test_adapters_are_models(start: Start, tmp_path: Path) -> None:
    for name in ("sql", "latest"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    server = start(adapter_root=tmp_path)
    info = load(server, "sql")
    for name in ("sql", "sql:latest", "echo:sql"):
        answer = server.post(GENERATE, **{**RAW, "model": name}).json()
        assert answer["model"] == name and last(server) == [("sql", 1.0)]
    server.post(GENERATE, **RAW, adapter={"name": "sql", "scale": 0.5})
    assert last(server) == [("sql", 0.5)]
    listed = server.http.get("/api/tags").json()["models"]
    assert [each["name"] for each in listed] == ["echo", "sql"]
    assert listed[1]["details"]["parent_model"] == "echo"
    assert listed[1]["digest"] == info["generation"] != listed[0]["digest"]
    shown = server.post("/api/show", name="sql").json()
    assert server.post("/api/show", name="sql", verbose=True).json() == shown
    assert shown["modelfile"].startswith("FROM echo\nADAPTER sql"), info
    assert server.post(GENERATE, **{**RAW, "model": "echo:latest"}).json()["model"] == "echo:latest"
    assert last(server) == []
    load(server, "latest")
    server.post(GENERATE, **{**RAW, "model": "echo:latest"})
    assert last(server) == [("latest", 1.0)]


def test_keys(start: Start) -> None:
    server = start(keys=["secret"])
    denied = server.post(CHAT, **HI)
    assert denied.status_code == 401 and "API key" in denied.json()["error"]
    allowed = server.http.post(CHAT, json=HI, headers={"authorization": "Bearer secret"})
    assert allowed.status_code == 200
    assert server.http.get("/").status_code == 200


def test_a_loading_server(start: Start) -> None:
    server = start(loading=True)
    for body in (HI, {"model": "echo"}, {**HI, "think": True}):
        answer = server.post(CHAT, **body)
        assert answer.status_code == 503 and "loading" in answer.json()["error"], answer.text
    (listed,) = server.http.get("/api/tags").json()["models"]
    assert listed["size"] == 0 and server.http.get("/api/ps").json() == {"models": []}
    assert re.fullmatch("[0-9a-f]{64}", listed["digest"])


def test_a_stream_is_lines_of_json(server: Running) -> None:
    with server.http.stream("POST", CHAT, json=HI) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        found = [json.loads(line) for line in response.iter_lines()]
    assert "".join(each["message"]["content"] for each in found) == "user\nhi\nassistant\n"
    assert [each["done"] for each in found] == [False] * (len(found) - 1) + [True]
    assert len(found[0]["created_at"]) == len("2025-01-01T00:00:00.123456789Z")


def test_an_error_in_a_stream_is_a_line(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.echo, "step_seconds", 0.01)
    body = {**HI, "messages": [{"role": "user", "content": "a" * 4000}]}
    with server.http.stream("POST", CHAT, json=body) as answer:
        found = answer.iter_lines()
        assert not json.loads(next(found))["done"]
        server.service.engine.abort_all(Overloaded("it is over"))
        *_, end = found
    assert json.loads(end) == {"error": "it is over"}


def test_a_client_that_leaves_aborts_its_request(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 100 s in all: the prompt leaves room for an answer as long as itself.
    monkeypatch.setattr(server.echo, "step_seconds", 0.05)
    body = {**HI, "messages": [{"role": "user", "content": "a" * 2000}]}
    with server.http.stream("POST", CHAT, json=body) as answer:
        first = next(answer.iter_lines())
        assert server.echo.live, first
    begin = time.monotonic()
    while server.echo.live:
        assert time.monotonic() - begin < 120, "the request goes on"
        time.sleep(0.01)


def test_a_template_without_a_switch_ends_reasoning_at_once(start: Start) -> None:
    server = start(template="{{ messages[-1].content }}<think>")
    server.post(CHAT, **HI, think=False)
    budget = server.echo.seen[-1].sampling.processors["reasoning_budget"]
    assert (budget["tokens"], budget["open"]) == (0, True)
    server.post(CHAT, **HI)
    assert not server.echo.seen[-1].sampling.processors


def streamed(*events: Event) -> list[dict[str, Any]]:
    """The lines of a stream of these events."""

    async def main() -> list[dict[str, Any]]:
        found = lines(ScriptedGeneration(events), Clock(), "m", chat_form)  # type: ignore[arg-type]
        return [msgspec.to_builtins(line) async for line in found]

    return asyncio.run(main())


EVENTS = (
    Reasoning(text="easy"),
    Text(text="I call"),
    ToolCallStart(call=0, id="a1", name="add"),
    ToolCallArguments(call=0, text='{"a": 1,'),
    ToolCallArguments(call=0, text=' "b": 2}'),
    ToolCallStart(call=1, id="a2", name="now"),
    ChoiceEnd(finish="stop"),
)


def test_reasoning_and_tool_calls() -> None:
    found = streamed(*EVENTS)
    messages = [each["message"] for each in found]
    assert messages[0] == {"role": "assistant", "content": "", "thinking": "easy"}
    assert messages[1] == {"role": "assistant", "content": "I call"}
    (add,), (now,) = messages[2]["tool_calls"], messages[3]["tool_calls"]
    assert add["function"] == {"name": "add", "arguments": {"a": 1, "b": 2}, "index": 0}
    assert now["id"] == "a2" and now["function"]["arguments"] == {}
    assert len(found) == 5 and found[-1]["done_reason"] == "stop" and found[-1]["eval_count"] == 2
    whole_of = whole(ScriptedGeneration(EVENTS), Clock(), "m", chat_form)  # type: ignore[arg-type]
    message = asyncio.run(whole_of).message  # type: ignore[attr-defined]
    assert (message.thinking, message.content, len(message.tool_calls)) == ("easy", "I call", 2)
    text_of = whole(ScriptedGeneration(EVENTS[:2]), Clock(), "m", generate_form)  # type: ignore[arg-type]
    text = asyncio.run(text_of)
    assert (text.response, text.thinking) == ("I call", "easy")  # type: ignore[attr-defined]


def test_arguments_that_are_no_json_stay_text() -> None:
    found = streamed(
        ToolCallStart(call=0, id="a", name="add"),
        ToolCallArguments(call=0, text='{"a": '),
        ChoiceEnd(finish="length"),
    )
    assert found[0]["message"]["content"] == 'add({"a": )' and found[1]["done_reason"] == "length"


def entry_of(id: str, digest: str = "", **fields: Any) -> ModelEntry:
    """A listed model, whose files have a digest."""
    checkpoint = CheckpointSummary(
        format="gguf", nbytes=1, quantization="Q4_K", parameters=None, digest=digest
    )
    served: Any = SimpleNamespace(checkpoint=checkpoint if digest else None)
    return ModelEntry(id=id, created=0, context=None, served=served, **fields)


def test_digests() -> None:
    files, weights = "ab" * 32, "cd" * 32
    assert digest_of(entry_of("m", files)) == files
    assert digest_of(entry_of("a", files, parent="m", generation=weights)) == weights
    others = [
        entry_of("m"),
        entry_of("n"),
        entry_of("a", files, parent="m"),
        entry_of("b", files, parent="m"),
        entry_of("a", "ef" * 32, parent="m"),
    ]
    digests = {digest_of(each) for each in others}
    assert len(digests) == len(others) and files not in digests
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in digests)

"""Messages of chats: fields that clients send back, files, and final messages to continue."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.operations.access.keys import KeyRing, sha256_of
from ostro.entrypoints.operations.documents.state import open_state

USER = {"role": "user", "content": "hi"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def part(text: str, kind: str = "text/plain", **fields: Any) -> dict[str, Any]:
    """A file as a data URL."""
    data = base64.b64encode(text.encode()).decode()
    return {"type": "file", "file": {"file_data": f"data:{kind};base64,{data}", **fields}}


def refused(response: Any) -> str:
    """The code and the message of an error."""
    assert response.status_code == 400, response.text[:300]
    error = response.json()["error"]
    return f"{error['code']}: {error['param']}: {error['message']}"


def said(response: Any) -> str:
    assert response.status_code == 200, response.text[:300]
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([USER, {"role": "assistant", "refusal": "no", "annotations": []}, USER], "assistant\nno"),
        (
            [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, USER],
            "assistant\nno",
        ),
        (
            [
                USER,
                {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "42"},
            ],
            "tool\n42",
        ),
        ([USER, {"role": "assistant", "content": "a", "reasoning": "b"}, USER], "assistant\na"),
        ([{"role": "user", "content": [part("of a file", filename="a.txt")]}], "File a.txt:\n\nof"),
        ([{"role": "user", "content": [part("{}", "application/json")]}], "user\n{}"),
    ],
)
def test_messages(server: Any, messages: Any, text: str) -> None:
    assert text in said(server.chat(messages=messages))


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([USER, {"role": "tool", "tool_call_id": "1", "content": "42"}], "no earlier message"),
        ([USER, CALLED, {"role": "tool", "tool_call_id": "2", "content": "42"}], "'2'"),
        ([USER, {"role": "function", "name": "f", "content": "42"}], "no earlier message"),
        ([USER, CALLED, {"role": "function", "content": "42"}], "needs name"),
        ([{**USER, "tool_calls": [CALL]}], "belongs to the role assistant"),
        ([{**USER, "mood": "good"}], "mood"),
        ([USER, {"role": "assistant", "content": "a", "refusal": "b"}, USER], "excludes content"),
        ([USER, {"role": "assistant", "audio": {"id": "1"}}, USER], "audio answers"),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}], "x"),
        ([{"role": "user", "content": [{"type": "file"}]}], "either file_id or file_data"),
        ([{"role": "user", "content": [{"type": "file", "file": {}}]}], "either file_id"),
        ([{"role": "user", "content": [part("a", "application/pdf")]}], "PDF"),
        ([{"role": "user", "content": [part("%PDF-1.7")]}], "PDF"),
        ([{"role": "user", "content": [part("a", "image/png")]}], "accepts text only"),
        ([{"role": "user", "content": [{"type": "file", "file": {"file_data": "?"}}]}], "base64"),
        (
            [{"role": "user", "content": [{"type": "file", "file": {"file_data": "/w=="}}]}],
            "neither UTF-8 text nor",
        ),
    ],
)
def test_malformed_messages(server: Any, messages: Any, words: str) -> None:
    assert words in refused(server.chat(messages=messages))


def test_a_final_message_is_continued(server: Any) -> None:
    """The prompt is the text of the conversation up to the end of that message."""
    messages = [USER, {"role": "assistant", "content": "Once upon "}]
    chat = said(server.chat(messages=messages, continue_final_message=True))
    tokens = server.echo.seen[-1].tokens
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nOnce upon "
    assert tokens == server.service.models["echo"]["text"].tokenizer.encode(
        text, special=False, parse_special=True
    )
    assert chat == "user\nhi\nassistant\nOnce upon "
    parts = [USER, {"role": "assistant", "content": [{"type": "text", "text": "Once upon "}]}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    assert said(server.chat(messages=parts, **fields)) == chat


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [USER]},
        {"messages": [USER, CALLED]},
        {"messages": [USER, {"role": "assistant", "content": "a"}], "add_generation_prompt": True},
    ],
)
def test_messages_that_cannot_be_continued(server: Any, fields: dict[str, Any]) -> None:
    error = refused(server.chat(continue_final_message=True, **fields))
    assert "continue_final_message" in error


SAID = {"role": "assistant", "content": "Stop."}
TURN = "<|im_start|>assistant\n"
NEW, CONTINUED = f"{TURN}Stop.<|im_end|>\n{TURN}", f"{TURN}Stop."


@pytest.mark.parametrize(
    ("path", "field", "end"),
    [
        ("/v1/chat/completions", "messages", NEW),
        ("/v1/responses", "input", NEW),
        ("/v1/messages", "messages", CONTINUED),
        ("/api/chat", "messages", CONTINUED),
    ],
)
def test_a_final_message_of_the_assistant(server: Any, path: str, field: str, end: str) -> None:
    """A new one follows, as from OpenAI, or it is continued, as by Anthropic and Ollama."""
    more = {"max_tokens": 400} if path == "/v1/messages" else {}
    answer = server.post(path, model="echo", stream=False, **{field: [USER, SAID]}, **more)
    assert answer.status_code == 200, answer.text
    tokenizer = server.service.models["echo"]["text"].tokenizer
    prompt = tokenizer.decode(server.echo.seen[-1].tokens, skip_special=False)
    assert prompt.endswith(f"hi<|im_end|>\n{end}")


RESPONSES_CALL = {"call_id": "1", "name": "f", "arguments": "{}"}
OLLAMA_CALL = {"function": {"name": "f", "arguments": {}}}
OWN_CALL = {"type": "tool_use", "id": "1", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER, CALLED]}),
        ("/v1/responses", {"input": [USER, {"type": "function_call", **RESPONSES_CALL}]}),
        ("/v1/messages", {"messages": [USER, {"role": "assistant", "content": [OWN_CALL]}]}),
        ("/api/chat", {"messages": [USER, {"role": "assistant", "tool_calls": [OLLAMA_CALL]}]}),
    ],
)
def test_final_calls_without_their_results(server: Any, path: str, body: dict[str, Any]) -> None:
    more = {"max_tokens": 400} if path == "/v1/messages" else {}
    answer = server.post(path, model="echo", **body, **more)
    assert answer.status_code == 400 and "result" in answer.text


def test_uploaded_files(start: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.touch(mode=0o600)
    entries = [f'[[keys]]\nname = "{n}"\nsha256 = "{sha256_of(n)}"\n' for n in ("alice", "bob")]
    keys.write_text("".join(entries))
    plugins = PluginManager()
    plugins.load()
    state = open_state(str(tmp_path / "store"), 86400.0, plugins)
    server = start(ring=KeyRing(file=keys), state=state)

    def upload(key: str, name: str, content: bytes) -> str:
        response = server.http.post(
            "/v1/files",
            files={"file": (name, content)},
            data={"purpose": "user_data"},
            headers={"x-api-key": key},
        )
        assert response.status_code == 200, response.text
        id: str = response.json()["id"]
        return id

    def ask(key: str, id: str) -> Any:
        content = [{"type": "file", "file": {"file_id": id}}]
        body = {"messages": [{"role": "user", "content": content}]}
        return server.http.post("/v1/chat/completions", json=body, headers={"x-api-key": key})

    id = upload("alice", "notes.txt", b"buy milk")
    assert "File notes.txt:\n\nbuy milk" in said(ask("alice", id))
    assert "PDF" in refused(ask("alice", upload("alice", "a.pdf", b"%PDF-1.4")))
    absent = ask("bob", id)
    assert absent.status_code == 404
    error = absent.json()["error"]
    assert error["param"] == "messages[0].content" and error["code"] == "not_found"
    assert error["message"].startswith("messages[0].content: there is no 'file-")
    server.http.delete(f"/v1/files/{id}", headers={"x-api-key": "alice"})
    assert ask("alice", id).status_code == 404

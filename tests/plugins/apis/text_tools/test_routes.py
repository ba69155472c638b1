"""Token ids and prompts over HTTP: the forms of vLLM and llama.cpp."""

from __future__ import annotations

from typing import Any

import pytest
from echo.model import END_ID, START_ID

TOKENIZE, DETOKENIZE, TEMPLATE = "/tokenize", "/detokenize", "/apply-template"
COUNT = "/v1/chat/completions/input_tokens"
MESSAGES = [{"role": "user", "content": "hé"}]
PROMPT = "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n"
TOOL = {"type": "function", "function": {"name": "look"}}
ROUTES: dict[str, dict[str, Any]] = {
    TOKENIZE: {"prompt": "hi"},
    DETOKENIZE: {"tokens": [104, 105]},
    TEMPLATE: {"messages": MESSAGES},
    COUNT: {"messages": MESSAGES},
}
"""A good request for each route."""


def post(server: Any, path: str, **body: Any) -> Any:
    """The JSON of a successful response."""
    response = server.post(path, **body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_text_as_at_vllm(server: Any) -> None:
    found = post(server, TOKENIZE, prompt="hé", return_token_strs=True)
    length = server.http.get("/v1/models").json()["data"][0]["max_model_len"]
    assert found == {
        "count": 3,
        "max_model_len": length,
        "tokens": [104, 195, 169],
        "token_strs": ["h", "Ã", "©"],
    }
    assert post(server, DETOKENIZE, tokens=found["tokens"])["prompt"] == "hé"
    assert post(server, TOKENIZE, prompt="<|im_end|>")["tokens"] == [END_ID]
    plain = post(server, TOKENIZE, prompt="<|im_end|>", parse_special=False)
    assert plain["tokens"] == list(b"<|im_end|>")
    assert post(server, TOKENIZE, prompt="")["count"] == 0


def test_a_text_as_at_llama_cpp(server: Any) -> None:
    found = post(server, TOKENIZE, content="hé<|im_end|>", with_pieces=True)
    assert found["tokens"] == [
        {"id": 104, "piece": "h"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
        {"id": END_ID, "piece": "<|im_end|>"},
    ]
    plain = post(server, TOKENIZE, content="<|im_end|>", add_special=True, parse_special=False)
    assert plain["tokens"] == list(b"<|im_end|>")
    assert post(server, DETOKENIZE, tokens=[104, START_ID])["content"] == "h<|im_start|>"


def test_the_tokens_of_a_chat_are_those_of_its_completion(server: Any) -> None:
    for more in ({}, {"tools": [TOOL]}, {"chat_template_kwargs": {"enable_thinking": True}}):
        chat = {"messages": MESSAGES, **more}
        found = post(server, TOKENIZE, **chat)
        completion = post(server, "/v1/chat/completions", **chat, max_tokens=1)
        assert server.echo.seen[-1].tokens == found["tokens"]
        assert completion["usage"]["prompt_tokens"] == found["count"]
        counted = post(server, COUNT, **chat)
        assert counted == {"object": "response.input_tokens", "input_tokens": found["count"]}
        rendered = post(server, TEMPLATE, **chat)
        assert post(server, DETOKENIZE, tokens=found["tokens"])["prompt"] == rendered["prompt"]
    assert post(server, TEMPLATE, messages=MESSAGES) == {"prompt": PROMPT}
    open_prompt = post(server, TEMPLATE, messages=MESSAGES, add_generation_prompt=False)
    assert open_prompt["prompt"] == PROMPT.removesuffix("<|im_start|>assistant\n")
    continued = [*MESSAGES, {"role": "assistant", "content": "ha"}]
    found = post(
        server,
        TOKENIZE,
        messages=continued,
        continue_final_message=True,
        add_generation_prompt=False,
    )
    assert post(server, DETOKENIZE, tokens=found["tokens"])["prompt"] == f"{PROMPT}ha"


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        (TOKENIZE, {}, "prompt", "expected one of prompt, content and messages, got none"),
        (TOKENIZE, {"prompt": "a", "messages": MESSAGES}, "prompt", "got prompt and messages"),
        (TOKENIZE, {"prompt": "a", "tools": [TOOL]}, "tools", "tools is for messages"),
        (TOKENIZE, {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens", ""),
        (TOKENIZE, {"prompt": "a", "chat_template": "b"}, "chat_template", "not supported"),
        (TOKENIZE, {"prompt": ["a"]}, "prompt", "Expected `str"),
        (TOKENIZE, {"prompt": "a", "return_token_str": 1}, "return_token_str", "token_strs"),
        (TOKENIZE, {"messages": []}, "messages", "messages: got 0"),
        (TOKENIZE, {"messages": [{"role": "no", "content": ""}]}, "messages[0].role", "role"),
        (TOKENIZE, {"messages": [{"content": ""}]}, "messages[0].role", "role"),
        (TOKENIZE, {"prompt": "a\0"}, None, "U+0000"),
        (TOKENIZE, {"prompt": "a", "model": "no"}, "model", "'no' not found"),
        (TOKENIZE, {"prompt": "a", "adapter": "no"}, None, "no"),
        (DETOKENIZE, {}, "tokens", "missing"),
        (DETOKENIZE, {"tokens": "a"}, "tokens", "Expected `array`"),
        (DETOKENIZE, {"tokens": [1, -1]}, "tokens", "tokens[1]=-1 is not within"),
        (DETOKENIZE, {"tokens": [1, 2**70]}, "tokens", "is not within"),
        (DETOKENIZE, {"tokens": [999_999]}, "tokens", "is not within"),
        (TEMPLATE, {"messages": MESSAGES, "tool": []}, "tool", "unknown field"),
        (TEMPLATE, {"messages": 5}, "messages", "Expected"),
        (COUNT, {"messages": []}, "messages", "messages: got 0"),
        (COUNT, {"messages": MESSAGES, "chat_template_kwargs": {"a": 1}}, None, "not an option"),
    ],
)
def test_bad_then_good(
    server: Any, path: str, body: dict[str, Any], param: str | None, message: str
) -> None:
    response = server.post(path, **body)
    error = response.json()["error"]
    assert response.status_code == (404 if "no" in body.values() else 400), response.text
    assert message in error["message"] and (param is None or error["param"] == param), error
    post(server, path, **ROUTES[path])


@pytest.mark.parametrize("path", ROUTES)
def test_a_body_that_is_nested_too_deeply(server: Any, path: str) -> None:
    body = b'{"messages": ' + b"[" * 100 + b"]" * 100 + b"}"
    headers = {"content-type": "application/json"}
    response = server.http.post(path, content=body, headers=headers)
    assert response.status_code == 400 and "nested" in response.json()["error"]["message"]
    post(server, path, **ROUTES[path])


def test_a_long_text_is_refused(server: Any) -> None:
    length = post(server, TOKENIZE, prompt="a")["max_model_len"]
    assert post(server, TOKENIZE, prompt="a" * (length + 1))["count"] == length + 1
    response = server.post(TOKENIZE, prompt="a" * (8 * length + 1))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_an_adapter_s_template(start: Any, tmp_path: Any) -> None:
    folder = tmp_path / "pirate"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("arr {{ messages[0].content }}")
    server = start(adapter_root=tmp_path)
    load = server.post("/v1/load_lora_adapter", lora_name="pirate", lora_path="pirate")
    assert load.status_code == 200, load.text
    chat = {"messages": MESSAGES, "adapter": "pirate"}
    assert post(server, TEMPLATE, **chat)["prompt"] == "arr hé"
    assert post(server, COUNT, **chat)["input_tokens"] == 7
    assert post(server, TOKENIZE, **chat)["tokens"] == list("arr hé".encode())
    assert post(server, TEMPLATE, messages=MESSAGES)["prompt"] == PROMPT

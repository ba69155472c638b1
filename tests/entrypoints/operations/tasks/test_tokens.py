"""Tokenization without HTTP: counting, rendering, token ids and back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from echo.model import END_ID, START_ID, make_model, served_echo

from ostro.core.errors import (
    ContextLengthExceeded,
    NotFound,
    RequestError,
    TemplateError,
    Unsupported,
)
from ostro.core.messages.commands import ModelInfo
from ostro.core.messages.text_requests import ChatRequest, MediaPart, Message, Tool
from ostro.core.tokenizer import load_tokenizer
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.tasks.tokens import DetokenizeRequest, TokenizeRequest
from ostro.plugins.pipelines.text.pipeline import Text
from ostro.plugins.pipelines.vectors.pipeline import Vectors

CONTEXT = 32
T = TypeVar("T")


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Operations:
    """The operations of a text model with a template, one without, and an embedding model."""
    tokenizer = load_tokenizer(make_model(tmp_path_factory.mktemp("echo")))
    engine: Any = SimpleNamespace(admit=lambda: None)
    service = Service(engine, "base", "vectors", "echo")
    info = ModelInfo(context=CONTEXT, vocab=300)
    echo, base = (
        served_echo(tokenizer, **fields).ready(info) for fields in ({}, {"template": None})
    )
    service.models["base"] = {"text": Text(base, engine)}
    service.models["vectors"] = {"embed": Vectors(echo, engine)}
    service.models["echo"] = {"text": Text(echo, engine)}
    return Operations(service)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def chat(text: str, **more: Any) -> ChatRequest:
    fields = {"model": "echo", "messages": [Message(role="user", content=text)], **more}
    return ChatRequest(**fields)


def test_a_conversation_is_rendered_and_counted(operations: Operations) -> None:
    request = chat("hé")
    prompt = "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n"
    assert run(operations.render(request)) == prompt
    found = run(operations.tokenize(request))
    assert (found.model, found.context) == ("echo", CONTEXT)
    assert found.tokens[0] == START_ID and END_ID in found.tokens
    assert run(operations.detokenize(DetokenizeRequest(tokens=found.tokens))) == prompt
    assert run(operations.count(request)) == len(found.tokens) == 22
    longer = chat("hé", tools=[Tool("look")], add_generation_prompt=False)
    assert '"name": "look"' in run(operations.render(longer))
    assert not run(operations.render(longer)).endswith("assistant\n")


def test_a_count_may_exceed_the_context(operations: Operations) -> None:
    assert run(operations.count(chat("a" * 200))) == 219 > CONTEXT
    for longer in (chat("a" * 250), TokenizeRequest(text="a" * 269)):
        count = operations.tokenize(longer)
        with pytest.raises(ContextLengthExceeded, match=f"is {CONTEXT} tokens.* 8 times") as raised:
            run(count)
        assert (raised.value.context, raised.value.prompt_tokens) == (CONTEXT, 269)
    assert run(operations.count(chat("a"))) == 20


def test_control_tokens_in_texts(operations: Operations) -> None:
    text = "<|im_start|>"
    assert run(operations.tokenize(TokenizeRequest(text=text))).tokens == [START_ID]
    plain = TokenizeRequest(text=text, parse_special=False)
    assert run(operations.tokenize(plain)).tokens == list(text.encode())
    assert START_ID not in run(operations.tokenize(chat(text))).tokens[1:-11]


def test_any_model_with_a_tokenizer_tokenizes(operations: Operations) -> None:
    found = run(operations.tokenize(TokenizeRequest(text="hi", model="vectors")))
    assert (found.model, found.tokens) == ("vectors", [104, 105])
    assert run(operations.detokenize(DetokenizeRequest(model="vectors", tokens=[104]))) == "h"
    with pytest.raises(Unsupported, match="vectors supports embed, not text"):
        run(operations.count(chat("hi", model="vectors")))
    with pytest.raises(NotFound, match="'nothing' not found"):
        run(operations.tokenize(TokenizeRequest(text="hi", model="nothing")))


@pytest.mark.parametrize("token", [-1, 300])
def test_ids_outside_of_the_vocabulary(operations: Operations, token: int) -> None:
    with pytest.raises(RequestError, match=rf"tokens\[1\]={token} is not within 0..299") as error:
        run(operations.detokenize(DetokenizeRequest(tokens=[1, token])))
    assert error.value.param == "tokens"
    assert run(operations.detokenize(DetokenizeRequest(tokens=[104, 299, 105]))) == "hi"


def test_a_model_without_a_template(operations: Operations) -> None:
    request = chat("hi", model="base")
    for work in (operations.render(request), operations.count(request)):
        with pytest.raises(TemplateError, match="no chat template"):
            run(work)
    assert run(operations.tokenize(TokenizeRequest(text="hi", model="base"))).tokens == [104, 105]


def test_media_are_refused_by_a_text_model(operations: Operations) -> None:
    image = MediaPart("image", "data:image/png;base64,AAAA")
    request = chat("", messages=[Message(role="user", content=[image])])
    for work in (operations.render(request), operations.count(request)):
        with pytest.raises(Unsupported, match="accepts text only, not image"):
            run(work)

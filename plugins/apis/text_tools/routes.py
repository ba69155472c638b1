"""Routes that convert texts and conversations to token ids and prompts, and token ids to text.

`/tokenize` and `/detokenize` accept the fields of vLLM and those of llama.cpp; `/apply-template` is
llama.cpp's.
"""

from __future__ import annotations

from ostro import Route
from ostro.http import Caller, ChatBody, DetokenizeRequest, Operations, convert_aside
from ostro.plugins.apis.text_tools.schema import (
    PromptResponse,
    TokenizeBody,
    TokenizeResponse,
    chat_of,
    has_messages,
    pieces_of,
    text_of,
)


async def tokenize(operations: Operations, caller: Caller, body: TokenizeBody) -> TokenizeResponse:
    """Convert a text or a conversation to token ids."""
    chat = has_messages(body)
    request = await convert_aside(chat_of, body) if chat else text_of(body)
    tokens = await operations.tokenize(request, caller)
    response = TokenizeResponse(
        count=len(tokens.tokens),
        max_model_len=tokens.context,
        tokens=pieces_of(tokens) if body.with_pieces else [*tokens.tokens],
    )
    if body.return_token_strs:
        response.token_strs = [tokens.tokenizer.token(token) for token in tokens.tokens]
    return response


async def detokenize(
    operations: Operations, caller: Caller, body: DetokenizeRequest
) -> PromptResponse:
    """Convert token ids to text."""
    text = await operations.detokenize(body, caller)
    return PromptResponse(prompt=text, content=text)


async def apply_template(operations: Operations, caller: Caller, body: ChatBody) -> PromptResponse:
    """Return the prompt of a chat as text."""
    request = await convert_aside(body.to_request)
    return PromptResponse(prompt=await operations.render(request, caller))


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /tokenize",
        handler=tokenize,
        request=TokenizeBody,
        response=TokenizeResponse,
        example={"prompt": "hello world"},
    ),
    Route(
        name="POST /detokenize",
        handler=detokenize,
        request=DetokenizeRequest,
        response=PromptResponse,
        example={"tokens": [1, 2]},
    ),
    Route(
        name="POST /apply-template",
        handler=apply_template,
        request=ChatBody,
        response=PromptResponse,
        example={"messages": [{"role": "user", "content": "hello"}]},
    ),
)

"""The operations on text: chats, completions and their tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from ostro.core.errors import ContextLengthExceeded, Unsupported
from ostro.core.messages.text_requests import ChatRequest, CompletionRequest
from ostro.core.pipeline import TextPipeline
from ostro.core.preparation import PREPARATION_EXECUTOR
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents.files import Files
from ostro.entrypoints.operations.models.service import ResolvedTarget, Service
from ostro.entrypoints.operations.requests.ignored import ignore
from ostro.entrypoints.operations.tasks.text import Generation
from ostro.entrypoints.operations.tasks.tokens import (
    MAX_CONTEXTS,
    TOKENIZING,
    DetokenizeRequest,
    TokenizeRequest,
    Tokens,
    decode,
)

EFFORT = "reasoning_effort"
T = TypeVar("T")


class TextOperations:
    """What a server does with text.

    `files` are those that chats may refer to, None without a store.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.files: Files | None = None

    async def chat(self, request: ChatRequest, caller: Caller = ANYONE) -> Generation:
        """Continue a conversation."""
        admitted = await self.service.admit(request, "text", caller)
        template = await self.service.template(admitted)
        request = await self._with_files(request, admitted, caller)
        chat = partial(admitted.pipeline.chat, adapters=admitted.adapters, template=template)
        answer = await with_known_effort(chat, request)
        return Generation(answer, admitted.name, admitted.pipeline)

    async def _with_files(
        self, request: ChatRequest, admitted: ResolvedTarget[TextPipeline], caller: Caller
    ) -> ChatRequest:
        """The request with the contents of its files in their places."""

        async def read(id: str, limit: int) -> tuple[str, bytes]:
            if self.files is None:
                raise Unsupported("a server without a store has no files", param="file_id")
            return await self.files.read(id, limit, caller)

        return await admitted.pipeline.attach_files(request, read)

    async def complete(
        self,
        request: CompletionRequest,
        caller: Caller = ANYONE,
        *,
        default_max_tokens: int | None = None,
    ) -> Generation:
        """Continue prompts.

        default_max_tokens: that of a request without `max_tokens`; None: as many as fit.
        """
        admitted = await self.service.admit(request, "text", caller)
        answer = await admitted.pipeline.complete(
            request, adapters=admitted.adapters, default_max_tokens=default_max_tokens
        )
        return Generation(answer, admitted.name, admitted.pipeline)

    async def count(self, request: ChatRequest, caller: Caller = ANYONE) -> int:
        """Count the prompt tokens of a chat, those of its media included."""
        return len((await self.tokenize(request, caller)).tokens)

    async def render(self, request: ChatRequest, caller: Caller = ANYONE) -> str:
        """Return the prompt of a chat as text, with a placeholder for each medium."""
        admitted = await self.service.admit(request, "text", caller)
        template = await self.service.template(admitted)
        request = await self._with_files(request, admitted, caller)
        return await with_known_effort(
            partial(admitted.pipeline.render, template=template), request
        )

    async def tokenize(
        self, request: TokenizeRequest | ChatRequest, caller: Caller = ANYONE
    ) -> Tokens:
        """Convert a text, or a conversation, to token ids.

        Raises ContextLengthExceeded for more than `MAX_CONTEXTS` times the context.
        """
        if isinstance(request, ChatRequest):
            return await self._tokenize_chat(request, caller)
        task = self.service.task_of(request, TOKENIZING, caller)
        admitted = await self.service.admit(request, task, caller)
        await self.service.template(admitted)  # raises an error for an unknown adapter
        model = admitted.pipeline.model
        tokenizer, context = model.require_tokenizer(), model.context
        work = partial(
            tokenizer.encode,
            request.text,
            special=request.add_special_tokens,
            parse_special=request.parse_special,
            limit=MAX_CONTEXTS * context,
        )
        with naming_context(context):
            tokens = await PREPARATION_EXECUTOR.run(len(request.text), work)
        return Tokens(model=admitted.name, context=context, tokens=tokens, tokenizer=tokenizer)

    async def _tokenize_chat(self, request: ChatRequest, caller: Caller) -> Tokens:
        admitted = await self.service.admit(request, "text", caller)
        template = await self.service.template(admitted)
        pipeline = admitted.pipeline
        tokenizer, context = pipeline.model.require_tokenizer(), pipeline.model.context
        request = await self._with_files(request, admitted, caller)
        limit = MAX_CONTEXTS * context
        with naming_context(context):
            tokenize = partial(pipeline.tokenize, template=template, limit=limit)
            tokens = await with_known_effort(tokenize, request)
        return Tokens(model=admitted.name, context=context, tokens=tokens, tokenizer=tokenizer)

    async def detokenize(self, request: DetokenizeRequest, caller: Caller = ANYONE) -> str:
        """Convert token ids to text. Raises RequestError for ids outside of the vocabulary."""
        task = self.service.task_of(request, TOKENIZING, caller)
        admitted = await self.service.admit(request, task, caller)
        await self.service.template(admitted)  # raises an error for an unknown adapter
        model = admitted.pipeline.model
        tokenizer = model.require_tokenizer()
        vocab = model.vocab or tokenizer.vocab_size
        work = partial(decode, tokenizer, vocab, request.tokens)
        return await PREPARATION_EXECUTOR.run(len(request.tokens), work)


async def with_known_effort(
    prepare: Callable[[ChatRequest], Awaitable[T]], request: ChatRequest
) -> T:
    """Prepare a chat. A reasoning effort that its chat template cannot honour is ignored by name.

    Coding agents send one to every model.
    """
    try:
        return await prepare(request)
    except Unsupported as error:
        if error.param != EFFORT or not ignore(EFFORT):
            raise
    return await prepare(replace(request, reasoning_effort=None))


@contextmanager
def naming_context(context: int) -> Iterator[None]:
    """Let the error of a prompt beyond `MAX_CONTEXTS` contexts state the context."""
    try:
        yield
    except ContextLengthExceeded as error:
        if error.prompt_tokens is None:
            raise
        raise ContextLengthExceeded.of(
            context,
            error.prompt_tokens,
            counted=error.counted,
            reason=f"a count may reach {MAX_CONTEXTS} times the context",
            param=error.param or "prompt",
        ) from None

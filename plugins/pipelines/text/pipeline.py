"""The text pipeline: prepares requests in threads, merges the outputs of their prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

import msgspec

from ostro import Prompt
from ostro.pipelines import (
    PREPARATION_EXECUTOR,
    AdapterRef,
    AsyncEngine,
    ChatRequest,
    ChoiceEnd,
    CompletionRequest,
    Event,
    MediaPart,
    MediaSource,
    Message,
    ReadFile,
    ServedModel,
    TextPart,
    Usage,
    fetch_all,
)
from ostro.plugins.pipelines.text.best import best_choices
from ostro.plugins.pipelines.text.continuation import PromptContinuation
from ostro.plugins.pipelines.text.conversation import has_media
from ostro.plugins.pipelines.text.files import attach_files
from ostro.plugins.pipelines.text.prepare import Preparer

ID_BYTES = 8
"""Typical bytes of a token id as JSON, with what separates it from the next."""
PART_BYTES = 32
"""Bytes of a part of a message without its text."""
T = TypeVar("T")


class Text(Preparer):
    """Generates chat and text completions. See `ostro.core.pipeline.TextPipeline`."""

    def __init__(self, model: ServedModel, engine: AsyncEngine) -> None:
        super().__init__(model)
        self.engine, self.name, self.context = engine, model.name, model.context

    async def chat(
        self,
        request: ChatRequest,
        *,
        adapters: Sequence[AdapterRef] = (),
        template: str | None = None,
    ) -> TextAnswer:
        """Continue a conversation with adapters; `template` is the source of a chat template that
        replaces the model's own. Raises RequestError before generation starts.
        """
        work = partial(
            self.prepare_chat, request, self.fetch_media, adapters=adapters, template=template
        )
        return TextAnswer(self.engine, [await self.run(request, work)])

    async def tokenize(
        self, request: ChatRequest, *, template: str | None = None, limit: int | None = None
    ) -> list[int]:
        """Token ids of a conversation's prompt, its media included.

        Raises what `chat` raises, and ContextLengthExceeded for more than `limit` tokens.
        """

        def work() -> list[int]:
            chat = self.understand(request, template)
            prompt = self.chat_prompt(chat, self.fetch_media, limit=limit)
            prompt.drop()
            return list(prompt.tokens)

        return await self.run(request, work)

    async def render(self, request: ChatRequest, *, template: str | None = None) -> str:
        """The text of a conversation's prompt. Raises what `chat` raises."""
        work = partial(self.render_chat, request, template)
        return await PREPARATION_EXECUTOR.run(size_of_chat(request), work)

    async def run(self, request: ChatRequest, work: Callable[[], T]) -> T:
        """Run work on a conversation in a thread: in one of the media worker for media."""
        if has_media(request) and (media_worker := self.model.media_worker) is not None:
            return await media_worker.run(work)
        return await PREPARATION_EXECUTOR.run(size_of_chat(request), work)

    async def attach_files(self, request: ChatRequest, read: ReadFile) -> ChatRequest:
        """The request with the contents of its files in their places. See `files.py`."""
        return await attach_files(request, read)

    async def complete(
        self,
        request: CompletionRequest,
        *,
        adapters: Sequence[AdapterRef] = (),
        default_max_tokens: int | None = None,
    ) -> TextAnswer:
        """Continue prompts with adapters. Raises RequestError before generation starts."""
        work = partial(
            self.prepare_completion,
            request,
            adapters=adapters,
            default_max_tokens=default_max_tokens,
        )
        size = sum(map(size_of_prompt, request.prompts))
        return TextAnswer(self.engine, await PREPARATION_EXECUTOR.run(size, work))

    def fetch_media(
        self,
        tokens: Sequence[int],
        media: Sequence[MediaPart],
        check: Callable[[int], object] = lambda length: None,
    ) -> Prompt:
        """The prompt with its media, fetched here and prepared in the media worker process.

        check: raises an error for a prompt of too many tokens; called before media are decoded.
        """
        media_worker = self.model.media_worker
        assert media_worker is not None, "`check_media` refuses media for text-only models"
        found = fetch_all([medium.value for medium in media])
        sources = [MediaSource(m.kind, data) for m, data in zip(media, found, strict=True)]
        return media_worker.prepare(tokens, sources, check)


class TextAnswer:
    """A response in progress, see `ostro.core.pipeline.Answer`.

    Choices are numbered in the order of their prompts.
    """

    def __init__(self, engine: AsyncEngine, prompts: Sequence[PromptContinuation]) -> None:
        self._engine, self._prompts = engine, prompts
        self.choices = sum(prompt.returned for prompt in prompts)
        sources = [self._choices(prompt) for prompt in prompts]
        self._events = sources[0] if len(sources) == 1 else merged(sources)

    @property
    def usage(self) -> Usage:
        """Tokens of all prompts and their choices so far."""
        each = [prompt.usage for prompt in self._prompts]
        fields = Usage.__struct_fields__
        return Usage(**{name: sum(getattr(usage, name) for usage in each) for name in fields})

    @property
    def generations(self) -> list[str] | None:
        """The generations of the applied adapters, None for a request without adapters."""
        if not self._prompts[0].request.adapters:
            return None
        return list(dict.fromkeys(g for prompt in self._prompts for g in prompt.generations))

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def aclose(self) -> None:
        """Stop generation; the engine frees the resources of the request."""
        await self._events.aclose()

    def _choices(self, prompt: PromptContinuation) -> AsyncGenerator[Event, None]:
        """The events of the choices of one prompt that are returned."""
        events = self._generate(prompt)
        ranks = prompt.returned < len(prompt.choices)
        return best_choices(prompt, events) if ranks else events

    async def _generate(self, prompt: PromptContinuation) -> AsyncGenerator[Event, None]:
        """The events of one prompt."""
        async with aclosing(self._engine.generate(prompt.request)) as outputs:
            async for output in outputs:
                events = prompt.add(output)
                ended = any([isinstance(event, ChoiceEnd) for event in events])
                if ended and output.finish is None:
                    # The engine does not match stop strings.
                    self._engine.abort(output.id, output.index)
                for event in events:
                    yield event
                if ended and prompt.done:
                    return


def size_of_chat(request: ChatRequest) -> int:
    """About the bytes of a conversation as JSON."""
    schemas = [tool.parameters for tool in request.tools]
    return sum(map(size_of_message, request.messages)) + len(msgspec.json.encode(schemas))


def size_of_message(message: Message) -> int:
    """About the bytes of a message's content as JSON."""
    if message.content is None or isinstance(message.content, str):
        return len(message.content or "")
    texts = (part.text if isinstance(part, TextPart) else "" for part in message.content)
    return sum(PART_BYTES + len(text) for text in texts)


def size_of_prompt(prompt: str | Sequence[int] | Prompt) -> int:
    """About the bytes of a prompt as JSON; a text counts by its characters."""
    if isinstance(prompt, str):
        return len(prompt)
    return ID_BYTES * len(prompt.tokens if isinstance(prompt, Prompt) else prompt)


async def merged(
    sources: Sequence[AsyncGenerator[Event, None]],
) -> AsyncGenerator[Event, None]:
    """The items of several generators, each as soon as it is available."""
    pending = {asyncio.ensure_future(anext(source)): source for source in sources}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = pending.pop(task)
                try:
                    event = task.result()
                except StopAsyncIteration:
                    continue
                pending[asyncio.ensure_future(anext(source))] = source
                yield event
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for source in sources:
            await source.aclose()

"""The text pipeline: prepares requests in threads, merges the outputs of their prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from ostro import Prompt
from ostro.pipelines import PREPARATION_EXECUTOR as EXECUTOR
from ostro.pipelines import (
    AdapterRef,
    AsyncEngine,
    MediaSource,
    ServedModel,
    TextDelta,
    Usage,
    fetch_all,
)
from ostro.pipelines import RequestMedium as Medium
from ostro.plugins.pipelines.text.continuation import PromptContinuation
from ostro.plugins.pipelines.text.conversation import has_media
from ostro.plugins.pipelines.text.prepare import Preparer
from ostro.plugins.pipelines.text.schema import ChatRequest, CompletionRequest


class Text(Preparer):
    """Generates chat and text completions. See `ostro.core.pipeline.TextPipeline`."""

    chat_request = ChatRequest
    completion_request = CompletionRequest

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
        if has_media(request) and (media_worker := self.model.media_worker) is not None:
            one = await asyncio.get_running_loop().run_in_executor(media_worker.threads, work)
        else:
            one = await EXECUTOR.run(len(msgspec.json.encode(request)), work)
        return TextAnswer(self.engine, [one])

    async def complete(
        self, request: CompletionRequest, *, adapters: Sequence[AdapterRef] = ()
    ) -> TextAnswer:
        """Continue prompts with adapters. Raises RequestError before generation starts."""
        work = partial(self.prepare_completion, request, adapters=adapters)
        return TextAnswer(self.engine, await EXECUTOR.run(len(msgspec.json.encode(request)), work))

    def fetch_media(self, tokens: Sequence[int], media: Sequence[Medium]) -> Prompt:
        """The prompt with its media, fetched here and prepared in the media worker process."""
        media_worker = self.model.media_worker
        assert media_worker is not None, "`check_media` refuses media for text-only models"
        found = fetch_all([medium.value for medium in media])
        sources = [MediaSource(m.kind, data) for m, data in zip(media, found, strict=True)]
        return media_worker.prepare(tokens, sources)


class TextAnswer:
    """A response in progress, see `ostro.core.pipeline.Answer`.

    Choices are numbered in the order of their prompts.
    """

    def __init__(self, engine: AsyncEngine, prompts: Sequence[PromptContinuation]) -> None:
        self._engine, self._prompts = engine, prompts
        self.choices = sum(len(prompt.choices) for prompt in prompts)
        self._deltas = merged([self._generate(prompt) for prompt in prompts])

    @property
    def usage(self) -> Usage:
        """Tokens of all prompts and their choices so far."""
        each = [prompt.usage for prompt in self._prompts]
        return Usage(
            prompt=sum(usage.prompt for usage in each),
            completion=sum(usage.completion for usage in each),
            cached=sum(usage.cached for usage in each),
        )

    @property
    def generations(self) -> list[str] | None:
        """The generations of the applied adapters, None for a request without adapters."""
        if not self._prompts[0].request.adapters:
            return None
        return list(dict.fromkeys(g for prompt in self._prompts for g in prompt.generations))

    def __aiter__(self) -> AsyncIterator[TextDelta]:
        return self._deltas

    async def aclose(self) -> None:
        """Stop generation; the engine frees the resources of the request."""
        await self._deltas.aclose()

    async def _generate(self, prompt: PromptContinuation) -> AsyncGenerator[TextDelta, None]:
        """The deltas of one prompt."""
        async with aclosing(self._engine.generate(prompt.request)) as outputs:
            async for output in outputs:
                deltas = prompt.add(output)
                if output.finish is None and any(delta.finish for delta in deltas):
                    self._engine.abort(
                        output.id, output.index
                    )  # the engine does not match stop strings
                for delta in deltas:
                    yield delta
                if prompt.done:
                    return


async def merged(
    sources: Sequence[AsyncGenerator[TextDelta, None]],
) -> AsyncGenerator[TextDelta, None]:
    """The items of several generators, each as soon as it is available."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for delta in only:
                yield delta
        return
    pending = {asyncio.ensure_future(anext(source)): source for source in sources}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = pending.pop(task)
                try:
                    delta = task.result()
                except StopAsyncIteration:
                    continue
                pending[asyncio.ensure_future(anext(source))] = source
                yield delta
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for source in sources:
            await source.aclose()

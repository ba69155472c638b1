"""The text pipeline: a request becomes token requests, token outputs become pieces of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache, partial
from secrets import token_hex
from typing import Any

import msgspec
from msgspec.structs import replace

from ostro.core.chat import ChatTemplate, prompt_tokens
from ostro.core.engine.request import (
    DEFAULT,
    AdapterRef,
    Sampling,
    TokenLogprobs,
    TokenOutput,
    TokenRequest,
)
from ostro.core.errors import RequestError, TemplateError, Unsupported
from ostro.core.ipc.client import AsyncEngine
from ostro.core.media import Prompt
from ostro.core.media.fetch import fetch_all
from ostro.core.media.worker import MediaSource, MediaWorker, check_count
from ostro.core.preparation import EXECUTOR
from ostro.core.served import Served
from ostro.core.text import ChatRequest, CompletionRequest, GenerationRequest, TextDelta, Usage
from ostro.core.tokenizer import Tokenizer
from ostro.core.tokenizer.stop import Stop
from ostro.plugins.pipelines.text.choice import Choice
from ostro.plugins.pipelines.text.conversation import (
    Medium,
    names_media,
    options_of,
    prompts_of,
    tools_of,
    turns_of,
)
from ostro.plugins.pipelines.text.sampling import room_for, sampling_of

MAX_CHOICES = 1024
"""Choices of one request, over all its prompts."""


class Text:
    """Answers chats and completions with an engine. Makes its prompts outside the event loop."""

    def __init__(
        self,
        engine: AsyncEngine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        name: str,
        context: int,
        vocab: int,
        defaults: Mapping[str, Any] | None = None,
        model: str = DEFAULT,
        media_worker: MediaWorker | None = None,
    ) -> None:
        """`context` is the longest sequence in tokens, `vocab` how many ids the engine knows.

        `defaults` are sampling fields for requests that do not state them; `model` is what the
        engine calls it; `media_worker` prepares media, where it takes any.
        """
        self.model, self.media_worker = model, media_worker
        self.engine, self.tokenizer, self.template = engine, tokenizer, template
        self.name, self.context, self.vocab = name, context, vocab
        self.defaults = dict(defaults or {})
        self.spell = lru_cache(maxsize=65536)(self._spell)
        self.template_of = lru_cache(maxsize=64)(self._template_of)

    @classmethod
    def of(cls, served: Served) -> Text:
        """The pipeline of a served model."""
        return cls(
            served.engine,
            served.tokenizer,
            served.template,
            name=served.name,
            context=served.context,
            vocab=served.vocab,
            defaults=served.sampling,
            model=served.model,
            media_worker=served.media_worker,
        )

    async def chat(
        self,
        request: ChatRequest,
        *,
        adapters: Sequence[AdapterRef] = (),
        template: str | None = None,
    ) -> Answer:
        """Continue a conversation, under adapters, and with the source of a template in the place
        of the model's own. Raises RequestError before anything is generated.
        """
        work = partial(self._prepare_chat, request, tuple(adapters), template)
        if self.media_worker is not None and names_media(request):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.media_worker.threads, work)
        return await EXECUTOR.run(len(msgspec.json.encode(request)), work)

    async def complete(
        self, request: CompletionRequest, *, adapters: Sequence[AdapterRef] = ()
    ) -> Answer:
        """Continue prompts, under adapters. Raises RequestError before anything is generated."""
        work = partial(self._prepare_completion, request, tuple(adapters))
        return await EXECUTOR.run(len(msgspec.json.encode(request)), work)

    def _spell(self, token: int) -> str:
        return self.tokenizer.decode([token], skip_special=False)

    def _template_of(self, source: str) -> ChatTemplate:
        return ChatTemplate(source, tokens=self.tokenizer.special_tokens)

    def _prepare_chat(
        self, request: ChatRequest, adapters: tuple[AdapterRef, ...], source: str | None
    ) -> Answer:
        sampling = sampling_of(request, self.tokenizer, self.vocab, self.defaults)
        (turns, media), tools = turns_of(request), tools_of(request)
        if media and self.media_worker is None:
            raise Unsupported(f"{self.name} takes text only, no {media[0].kind}", param="messages")
        template = self.template if source is None else self.template_of(source)
        if template is None:
            raise TemplateError(
                "the model has no chat template; use /v1/completions, or start with --chat-template"
            )
        tokens = prompt_tokens(
            template,
            self.tokenizer,
            turns,
            tools,
            request.add_generation_prompt is not False,
            options_of(request),
            limit=self.context,
        )
        prompt = self._with_media(tokens, media) if media else Prompt(tokens=tokens)
        try:
            return Answer(self, [self._work(request, sampling, prompt, adapters)], request)
        except BaseException:
            prompt.drop()
            raise

    def _with_media(self, tokens: list[int], media: Sequence[Medium]) -> Prompt:
        """The prompt with its media fetched, read and put in their places."""
        assert self.media_worker is not None
        check_count(media)
        found = fetch_all([medium.address for medium in media])
        sources = [MediaSource(m.kind, data) for m, data in zip(media, found, strict=True)]
        return self.media_worker.prepare(tokens, sources)

    def _prepare_completion(
        self, request: CompletionRequest, adapters: tuple[AdapterRef, ...]
    ) -> Answer:
        sampling = sampling_of(request, self.tokenizer, self.vocab, self.defaults)
        prompts = prompts_of(request.prompt)
        if len(prompts) * sampling.n > MAX_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts with n={sampling.n}; at most {MAX_CHOICES} choices",
                param="n",
            )
        works = []
        for prompt in prompts:
            if isinstance(prompt, str):
                tokens = self.tokenizer.encode(prompt, limit=self.context)
            else:
                tokens = prompt
            work = self._work(request, sampling, Prompt(tokens=tokens), adapters)
            if request.echo:
                text = prompt if isinstance(prompt, str) else self.tokenizer.decode(tokens)
                work.echo = text
            works.append(work)
        return Answer(self, works, request)

    def _work(
        self,
        asked: GenerationRequest,
        sampling: Sampling,
        prompt: Prompt,
        adapters: tuple[AdapterRef, ...],
    ) -> Work:
        tokens = prompt.tokens
        if not tokens:
            raise RequestError("the prompt is empty", param="prompt")
        room = room_for(sampling, len(tokens), self.context)
        for token in tokens:
            if not 0 <= token < self.vocab:
                raise RequestError(
                    f"token id {token} is not within 0..{self.vocab - 1}", param="prompt"
                )
        return Work(
            TokenRequest(
                id=token_hex(12),
                model=self.model,
                tokens=tokens,
                sampling=replace(sampling, max_tokens=room, stop=()),
                priority=asked.priority or 0,
                salt=asked.cache_salt or "",
                adapters=adapters,
                items=prompt.items,
                positions=prompt.positions,
            ),
            sampling.stop,
        )


@dataclass
class Work:
    """One prompt of a request. `echo` is the prompt's text where it begins the answer."""

    request: TokenRequest
    stops: tuple[str, ...]
    echo: str | None = None


class Answer:
    """An answer under way: iterate its deltas once, close it to stop early.

    `usage` counts up while it goes; `choices` is how many there are, over all prompts;
    `generations` are those of the adapters that any of them runs with, once it has begun, and None
    where none were asked for.
    """

    def __init__(self, text: Text, works: Sequence[Work], asked: GenerationRequest) -> None:
        self._text, self._works, self._asked = text, works, asked
        n = works[0].request.sampling.n
        self.choices = n * len(works)
        self.usage = Usage(prompt=sum(len(work.request.tokens) for work in works))
        self.generations: list[str] | None = [] if works[0].request.adapters else None
        self._deltas = merged([self._generate(work, n * i) for i, work in enumerate(works)])

    def __aiter__(self) -> AsyncIterator[TextDelta]:
        return self._deltas

    async def aclose(self) -> None:
        """Stop generating; everything the request holds is given back."""
        await self._deltas.aclose()

    async def _generate(self, work: Work, first: int) -> AsyncGenerator[TextDelta, None]:
        """The deltas of one prompt, whose choices are numbered from `first`."""
        choices = [self._choice(work, first + i) for i in range(work.request.sampling.n)]
        outputs = self._text.engine.generate(work.request)
        told = False
        try:
            async for output in outputs:
                choice = choices[output.index]
                if not told and (output.prompt_tokens or output.finish):
                    told = True
                    for delta in self._begin(work, choices, output):
                        yield delta
                if choice.done:
                    continue
                before = choice.tokens
                delta = choice.add(output)
                self.usage.completion += choice.tokens - before
                if delta.text or delta.finish or delta.logprobs:
                    yield delta
                if all(choice.done for choice in choices):
                    return
                if choice.done and output.finish is None:  # the engine knows no stop strings
                    self._text.engine.abort(work.request.id, output.index)
        finally:
            await outputs.aclose()

    def _choice(self, work: Work, index: int) -> Choice:
        asked, sampling = self._asked, work.request.sampling
        return Choice(
            index,
            self._text.tokenizer.detokenizer(prompt=work.request.tokens),
            Stop(work.stops, keep=bool(asked.include_stop_str_in_output)),
            min_tokens=sampling.min_tokens,
            logprobs=sampling.logprobs is not None,
        )

    def _begin(self, work: Work, choices: Sequence[Choice], output: TokenOutput) -> list[TextDelta]:
        """What precedes the generated text: the prompt and its logprobs, where asked for."""
        self.usage.cached += output.cached
        if self.generations is not None:
            self.generations += [g for g in output.generations if g not in self.generations]
        known = prompt_logprobs(work, output)
        wanted = known if self._asked.prompt_logprobs is not None else None
        if work.echo is None:
            return [TextDelta(index=choices[0].index, prompt_logprobs=wanted)] if wanted else []
        tokens, pieces = work.request.tokens, self._pieces(work)
        deltas = [choice.echo(work.echo, tokens, pieces, known) for choice in choices]
        for delta in deltas:
            delta.prompt_logprobs = wanted
        return deltas

    def _pieces(self, work: Work) -> list[str]:
        """The text that each token of the prompt adds."""
        detokenizer = self._text.tokenizer.detokenizer()
        return [detokenizer.add([token]) for token in work.request.tokens]


def prompt_logprobs(work: Work, output: TokenOutput) -> list[TokenLogprobs | None] | None:
    """The prompt's logprobs as the engine reports them, one entry per token."""
    known = output.prompt_logprobs
    if known is None or work.request.sampling.prompt_logprobs is None:
        return None
    return [*known, *[None] * (len(work.request.tokens) - len(known))]


async def merged(
    sources: Sequence[AsyncGenerator[TextDelta, None]],
) -> AsyncGenerator[TextDelta, None]:
    """The items of several generators, each as soon as it is there."""
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

"""The operations of a server: what it does for a caller, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn

from ostro.core.errors import Unsupported
from ostro.core.pipeline import ModelTarget, TextPipeline, TextRequest
from ostro.core.preparation import EXECUTOR
from ostro.entrypoints.operations.caller import ANYONE, Caller
from ostro.entrypoints.operations.files import Files
from ostro.entrypoints.operations.media import (
    ImageEvent,
    ImageRequest,
    ImageVariationRequest,
    Speech,
    SpeechRequest,
    TranscriptEvent,
    TranscriptionRequest,
    image_event,
    image_options,
    speech_options,
    transcription_options,
)
from ostro.entrypoints.operations.models import ModelEntry, find_model, list_models
from ostro.entrypoints.operations.service import Admitted, Service
from ostro.entrypoints.operations.text import Generation
from ostro.entrypoints.operations.tokens import (
    MAX_CONTEXTS,
    TOKENIZING,
    DetokenizeRequest,
    TokenizeRequest,
    Tokens,
    decode,
)
from ostro.entrypoints.operations.vectors import (
    POOLING,
    Classification,
    ClassifyRequest,
    EmbeddingRequest,
    Embeddings,
    PoolRequest,
    RankedDocument,
    Ranking,
    RerankRequest,
    Rows,
    ScoreRequest,
    Scores,
    bounded,
    check_rerank,
    classify_inputs,
    embedding_inputs,
    score_pairs,
)


class Operations:
    """What a server does: typed requests and a caller go in, typed responses or events come out.

    Every operation raises what `Service.admit` raises, and RequestError for invalid fields.
    `chat_request` and `completion_request` are the types of the requests for text. `files` are
    those that chats may refer to, None without a store.
    """

    def __init__(self, service: Service, text: type[TextPipeline]) -> None:
        """text: the text pipeline's class; it defines requests before a model is loaded."""
        self.service = service
        self.files: Files | None = None
        self.chat_request, self.completion_request = text.chat_request, text.completion_request

    async def chat(self, request: TextRequest, caller: Caller = ANYONE) -> Generation:
        """Continue a conversation. The request is a `chat_request`."""
        if request.stream and request.prompt_logprobs is not None:
            raise Unsupported(
                "prompt_logprobs is not supported with stream", param="prompt_logprobs"
            )
        admitted = await self.service.admit(request, "text", caller)
        template = await self.service.template(admitted)
        request = await self._with_files(request, admitted, caller)
        answer = await admitted.pipeline.chat(
            request, adapters=admitted.adapters, template=template
        )
        return Generation(answer, admitted.name, admitted.pipeline)

    async def _with_files(self, request: TextRequest, admitted: Admitted, caller: Caller) -> Any:
        """The `chat_request` with the contents of its files in their places."""

        async def read(id: str, limit: int) -> tuple[str, bytes]:
            if self.files is None:
                raise Unsupported("a server without a store has no files", param="file_id")
            return await self.files.read(id, limit, caller)

        return await admitted.pipeline.attach_files(request, read)

    async def complete(
        self,
        request: TextRequest,
        caller: Caller = ANYONE,
        *,
        default_max_tokens: int | None = None,
    ) -> Generation:
        """Continue prompts. The request is a `completion_request`.

        default_max_tokens: that of a request without `max_tokens`; None: as many as fit.
        """
        admitted = await self.service.admit(request, "text", caller)
        answer = await admitted.pipeline.complete(
            request, adapters=admitted.adapters, default_max_tokens=default_max_tokens
        )
        return Generation(answer, admitted.name, admitted.pipeline)

    async def count(self, request: TextRequest, caller: Caller = ANYONE) -> int:
        """Count the prompt tokens of a `chat_request`, those of its media included."""
        return len((await self.tokenize(request, caller)).tokens)

    async def render(self, request: TextRequest, caller: Caller = ANYONE) -> str:
        """Return the prompt of a `chat_request` as text, with a placeholder for each medium."""
        admitted = await self.service.admit(request, "text", caller)
        template = await self.service.template(admitted)
        request = await self._with_files(request, admitted, caller)
        prompt: str = await admitted.pipeline.render(request, template=template)
        return prompt

    async def tokenize(
        self, request: TokenizeRequest | TextRequest, caller: Caller = ANYONE
    ) -> Tokens:
        """Convert a text, or the conversation of a `chat_request`, to token ids.

        Raises ContextLengthExceeded for more than `MAX_CONTEXTS` times the context.
        """
        if isinstance(request, TokenizeRequest):
            task = self.service.task_of(request, TOKENIZING, caller)
            admitted = await self.service.admit(request, task, caller)
        else:
            admitted = await self.service.admit(request, "text", caller)
        template = await self.service.template(admitted)
        pipeline = admitted.pipeline
        context, tokenizer = pipeline.model.context, pipeline.model.require_tokenizer()
        limit = MAX_CONTEXTS * context
        if isinstance(request, TokenizeRequest):
            work = partial(
                tokenizer.encode,
                request.text,
                special=request.add_special_tokens,
                parse_special=request.parse_special,
                limit=limit,
            )
            tokens = await EXECUTOR.run(len(request.text), work)
        else:
            request = await self._with_files(request, admitted, caller)
            tokens = await pipeline.tokenize(request, template=template, limit=limit)
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
        return await EXECUTOR.run(len(request.tokens), work)

    async def models(self, caller: Caller = ANYONE) -> list[ModelEntry]:
        """The models and adapters that the caller may use."""
        return await list_models(self.service, caller)

    def model(self, id: str, caller: Caller = ANYONE) -> ModelEntry:
        """The model or adapter of an id. Raises NotFound if the caller cannot use it."""
        return find_model(self.service, id, caller)

    async def embed(self, request: EmbeddingRequest, caller: Caller = ANYONE) -> Embeddings:
        """Compute the vectors of texts or token ids."""
        admitted = await self.service.admit(request, "embed", caller)
        read = await admitted.pipeline.embed(
            embedding_inputs(request.input),
            prompt=request.prompt,
            dimensions=request.dimensions,
            truncate=request.truncate_prompt_tokens,
            adapters=admitted.adapters,
        )
        return Embeddings(
            model=admitted.name,
            tokens=read.tokens,
            generations=read.generations,
            vectors=read.answer,
        )

    async def rerank(self, request: RerankRequest, caller: Caller = ANYONE) -> Ranking:
        """Rank documents by relevance to a query."""
        check_rerank(request)
        admitted = await self.service.admit(request, "rerank", caller)
        read = await admitted.pipeline.rerank(
            request.query,
            request.documents,
            max_tokens=request.max_tokens_per_doc,
            adapters=admitted.adapters,
        )
        best, texts = read.answer[: request.top_n], request.documents
        return Ranking(
            model=admitted.name,
            tokens=read.tokens,
            generations=read.generations,
            documents=[RankedDocument(x.index, x.score, texts[x.index]) for x in best],
        )

    async def score(self, request: ScoreRequest, caller: Caller = ANYONE) -> Scores:
        """Score pairs of texts: by relevance, or by cosine similarity of an embedding model."""
        pairs = score_pairs(request)
        task = self.service.task_of(request, ("rerank", "embed"), caller)
        admitted = await self.service.admit(request, task, caller)
        pipeline = admitted.pipeline
        compute = pipeline.relevance if task == "rerank" else pipeline.similarity
        read = await compute(pairs, adapters=admitted.adapters)
        return Scores(
            model=admitted.name,
            tokens=read.tokens,
            generations=read.generations,
            scores=read.answer.tolist(),
        )

    async def pool(self, request: PoolRequest, caller: Caller = ANYONE) -> Rows:
        """Compute the vector, or the probabilities of the labels, of each input."""
        task = request.task or self.service.task_of(request, POOLING, caller)
        if task not in POOLING:
            raise Unsupported(
                f"the task {task!r:.40} is not supported; expected {' or '.join(POOLING)}",
                param="task",
            )
        admitted = await self.service.admit(request, task, caller)
        if task == "embed":
            read = await admitted.pipeline.embed(
                embedding_inputs(request.input),
                prompt=request.prompt,
                dimensions=request.dimensions,
                adapters=admitted.adapters,
            )
        else:
            for name in ("dimensions", "prompt"):
                if getattr(request, name) is not None:
                    raise Unsupported(f"{name} is not supported with the task classify", param=name)
            texts = classify_inputs(request.input)
            read = await admitted.pipeline.label_probabilities(texts, adapters=admitted.adapters)
        return Rows(
            model=admitted.name, tokens=read.tokens, generations=read.generations, rows=read.answer
        )

    async def classify(self, request: ClassifyRequest, caller: Caller = ANYONE) -> Classification:
        """Compute the probabilities of a classifier's labels."""
        admitted = await self.service.admit(request, "classify", caller)
        texts = [request.input] if isinstance(request.input, str) else bounded(request.input)
        read = await admitted.pipeline.classify(texts, adapters=admitted.adapters)
        return Classification(
            model=admitted.name,
            tokens=read.tokens,
            generations=read.generations,
            probabilities=read.answer,
        )

    async def transcribe(
        self, request: TranscriptionRequest, audio: bytes, caller: Caller = ANYONE
    ) -> Any:
        """Transcribe an audio file. Returns the pipeline's transcript."""
        return await self._transcript(request, audio, "transcribe", caller)

    async def translate(
        self, request: TranscriptionRequest, audio: bytes, caller: Caller = ANYONE
    ) -> Any:
        """Transcribe an audio file in English. Returns the pipeline's transcript."""
        return await self._transcript(request, audio, "translate", caller)

    async def _transcript(
        self, request: TranscriptionRequest, audio: bytes, task: str, caller: Caller
    ) -> Any:
        admitted = await self.service.admit(request, "transcribe", caller)
        options = transcription_options(request, task)
        return await admitted.pipeline.transcribe(audio, adapters=admitted.adapters, **options)

    async def transcript_events(
        self, request: TranscriptionRequest, audio: bytes, task: str, caller: Caller = ANYONE
    ) -> AsyncGenerator[TranscriptEvent, None]:
        """Transcribe or translate an audio file: yield the segments, then the whole text.

        task: "transcribe" or "translate". Raises before the first event for an invalid request.
        """
        admitted = await self.service.admit(request, "transcribe", caller)
        pipeline = admitted.pipeline
        task_state = pipeline.new_task(transcription_options(request, task), admitted.adapters)

        async def events() -> AsyncGenerator[TranscriptEvent, None]:
            text, logprobs, tokens = "", list[Any](), 0
            async with aclosing(pipeline.stream(audio, task_state)) as segments:
                async for segment in segments:
                    text += segment.text
                    logprobs += segment.logprobs
                    tokens += len(segment.tokens)
                    yield TranscriptEvent(text=segment.text, logprobs=segment.logprobs)
            yield TranscriptEvent(
                text=text.strip(),
                final=True,
                logprobs=logprobs,
                language=task_state.language,
                audio_tokens=task_state.audio_tokens,
                prompt_tokens=len(task_state.prompt),
                output_tokens=tokens,
                generations=task_state.generations,
            )

        return events()

    async def speak(self, request: SpeechRequest, caller: Caller = ANYONE) -> Speech:
        """Speak a text."""
        admitted = await self.service.admit(request, "speak", caller)
        pipeline, options = admitted.pipeline, speech_options(request)
        pipeline.check_format(request.response_format)
        sound = await pipeline.speak(request.input, adapters=admitted.adapters, **options)
        data = await asyncio.to_thread(sound.encode, request.response_format)
        return Speech(
            data=data,
            rate=sound.rate,
            prompt_tokens=sound.prompt_tokens,
            output_tokens=sound.tokens,
            generations=sound.generations,
        )

    async def voices(self, target: ModelTarget, caller: Caller = ANYONE) -> list[str]:
        """The names of the voices of a model that speaks."""
        admitted = await self.service.admit(target, "speak", caller)
        found: list[str] = admitted.pipeline.voices
        return found

    async def draw(
        self, request: ImageRequest, caller: Caller = ANYONE, *, image: bytes | None = None
    ) -> ImageEvent:
        """Generate images; return the final event. Arguments as `draw_events`."""
        async with aclosing(await self.draw_events(request, caller, image=image)) as events:
            async for event in events:
                last = event
        return last

    async def draw_events(
        self, request: ImageRequest, caller: Caller = ANYONE, *, image: bytes | None = None
    ) -> AsyncGenerator[ImageEvent, None]:
        """Generate images: yield the progress with previews, then the images.

        image: the file of an image to start from. Raises before the first event for an invalid
        request.
        """
        options = image_options(request)
        admitted = await self.service.admit(request, "draw", caller)
        steps = admitted.pipeline.stream(
            request.prompt, image=image, adapters=admitted.adapters, **options
        )

        async def events() -> AsyncGenerator[ImageEvent, None]:
            async with aclosing(steps):
                async for step in steps:
                    yield await asyncio.to_thread(image_event, admitted.name, step, request)

        return events()

    async def vary(self, request: ImageVariationRequest, caller: Caller = ANYONE) -> NoReturn:
        """Raise Unsupported: no model generates images without a prompt."""
        admitted = await self.service.admit(request, "draw", caller)
        raise Unsupported(
            f"{admitted.model} does not generate variations without a prompt; send the image with "
            "a prompt to /v1/images/edits"
        )

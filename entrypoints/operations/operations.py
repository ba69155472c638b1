"""The operations of a server: what it does for a caller, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from ostro.core.errors import Unsupported
from ostro.core.messages.target import ModelTarget
from ostro.core.tasks import PoolingResult, TokenLogprob, Transcript
from ostro.entrypoints.operations.access.admin import Admin
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents.documents import Documents
from ostro.entrypoints.operations.models.models import ModelEntry, find_model, list_models
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.operations.tasks.media import (
    ImageEvent,
    ImageRequest,
    Speech,
    SpeechRequest,
    TranscriptEvent,
    TranscriptionRequest,
    image_event,
    options_of,
)
from ostro.entrypoints.operations.tasks.text_operations import TextOperations
from ostro.entrypoints.operations.tasks.vectors import (
    POOLING,
    SCORING,
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

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Operations(TextOperations):
    """What a server does: typed requests and a caller go in, typed responses or events come out.

    Every operation raises what `Service.admit` raises, and RequestError for invalid fields.
    `documents` are what the server stores; without a store, its operations raise Unsupported.
    `adapter_admin` and `model_admin` say what may be loaded over HTTP. With `strict_fields` unknown
    fields of requests are errors.
    """

    documents: Documents

    def __init__(
        self,
        service: Service,
        adapter_admin: Admin | None = None,
        model_admin: Admin | None = None,
        *,
        strict_fields: bool = False,
    ) -> None:
        super().__init__(service)
        self.strict_fields = strict_fields
        self.adapter_admin, self.model_admin = adapter_admin or Admin(), model_admin or Admin()

    def require_store(self) -> None:
        """Raise Unsupported on a server without a store; for `Route.requires`."""
        self.documents.state.require()

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
        task = self.service.task_of(request, SCORING, caller)
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
        read: PoolingResult[NDArray[np.float32]] | PoolingResult[NDArray[np.float64]]
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
    ) -> Transcript:
        """Transcribe or translate an audio file."""
        admitted = await self.service.admit(request, "transcribe", caller)
        options = options_of(request)
        return await admitted.pipeline.transcribe(audio, adapters=admitted.adapters, **options)

    async def transcript_events(
        self, request: TranscriptionRequest, audio: bytes, caller: Caller = ANYONE
    ) -> AsyncGenerator[TranscriptEvent, None]:
        """Transcribe or translate an audio file: yield the segments, then the whole text.

        The segments together are the text, so white space at its start and its end is left out.
        Raises before the first event for an invalid request.
        """
        admitted = await self.service.admit(request, "transcribe", caller)
        pipeline = admitted.pipeline
        task_state = pipeline.new_task(options_of(request), admitted.adapters)

        async def events() -> AsyncGenerator[TranscriptEvent, None]:
            text, space, logprobs, tokens = "", "", list[TokenLogprob](), 0
            async with aclosing(pipeline.stream(audio, task_state)) as segments:
                async for segment in segments:
                    added = space + segment.text if text else segment.text.lstrip()
                    piece = added.rstrip()
                    text, space = text + piece, added[len(piece) :]
                    logprobs += segment.logprobs
                    tokens += len(segment.tokens)
                    yield TranscriptEvent(text=piece, logprobs=segment.logprobs)
            yield TranscriptEvent(
                text=text,
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
        pipeline, options = admitted.pipeline, options_of(request, "text", "format")
        pipeline.check_format(request.format)
        sound = await pipeline.speak(request.text, adapters=admitted.adapters, **options)
        data = await asyncio.to_thread(sound.encode, request.format)
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
        return admitted.pipeline.voices

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
        options = options_of(request, "prompt", "format", "quality")
        admitted = await self.service.admit(request, "draw", caller)
        steps = admitted.pipeline.stream(
            request.prompt, image=image, adapters=admitted.adapters, **options
        )

        async def events() -> AsyncGenerator[ImageEvent, None]:
            async with aclosing(steps):
                async for step in steps:
                    yield await asyncio.to_thread(image_event, admitted.name, step, request)

        return events()

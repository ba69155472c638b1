"""The operations of a server: what it does for a caller, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from ostro.core.errors import Unsupported
from ostro.core.pipeline import TextPipeline, TextRequest
from ostro.entrypoints.operations.caller import ANYONE, Caller
from ostro.entrypoints.operations.media import (
    ImageEvent,
    ImageRequest,
    Images,
    Speech,
    SpeechRequest,
    TranscriptEvent,
    TranscriptionRequest,
    encode_image,
    image_options,
    speech_options,
    transcription_options,
)
from ostro.entrypoints.operations.models import ModelEntry, find_model, list_models
from ostro.entrypoints.operations.service import Service
from ostro.entrypoints.operations.text import Generation
from ostro.entrypoints.operations.vectors import (
    Classification,
    ClassifyRequest,
    EmbeddingRequest,
    Embeddings,
    RankedDocument,
    Ranking,
    RerankRequest,
    bounded,
    document_texts,
    embedding_inputs,
)


class Operations:
    """What a server does: typed requests and a caller go in, typed responses or events come out.

    Every operation raises what `Service.admit` raises, and RequestError for invalid fields.
    `chat_request` and `completion_request` are the types of the requests for text.
    """

    def __init__(self, service: Service, text: type[TextPipeline]) -> None:
        """text: the text pipeline's class; it defines requests before a model is loaded."""
        self.service = service
        self.chat_request, self.completion_request = text.chat_request, text.completion_request

    async def chat(self, request: TextRequest, caller: Caller = ANYONE) -> Generation:
        """Continue a conversation. The request is a `chat_request`."""
        if request.stream and request.prompt_logprobs is not None:
            raise Unsupported(
                "prompt_logprobs is not supported with stream", param="prompt_logprobs"
            )
        admitted = self.service.admit(request, "text", caller)
        template = await self.service.template(admitted)
        answer = await admitted.pipeline.chat(
            request, adapters=admitted.adapters, template=template
        )
        return Generation(answer, admitted.name, admitted.pipeline)

    async def complete(self, request: TextRequest, caller: Caller = ANYONE) -> Generation:
        """Continue prompts. The request is a `completion_request`."""
        admitted = self.service.admit(request, "text", caller)
        answer = await admitted.pipeline.complete(request, adapters=admitted.adapters)
        return Generation(answer, admitted.name, admitted.pipeline)

    async def models(self, caller: Caller = ANYONE) -> list[ModelEntry]:
        """The models and adapters that the caller may use."""
        return await list_models(self.service, caller)

    def model(self, id: str, caller: Caller = ANYONE) -> ModelEntry:
        """The model or adapter of an id. Raises NotFound if the caller cannot use it."""
        return find_model(self.service, id, caller)

    async def embed(self, request: EmbeddingRequest, caller: Caller = ANYONE) -> Embeddings:
        """Compute the vectors of texts or token ids."""
        admitted = self.service.admit(request, "embed", caller)
        read = await admitted.pipeline.embed(
            embedding_inputs(request.input),
            prompt=request.prompt,
            dimensions=request.dimensions,
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
        admitted = self.service.admit(request, "rerank", caller)
        documents = document_texts(request)
        read = await admitted.pipeline.rerank(request.query, documents, adapters=admitted.adapters)
        best = read.answer[: request.top_n]
        return Ranking(
            model=admitted.name,
            tokens=read.tokens,
            generations=read.generations,
            documents=[RankedDocument(x.index, x.score, documents[x.index]) for x in best],
        )

    async def classify(self, request: ClassifyRequest, caller: Caller = ANYONE) -> Classification:
        """Compute the probabilities of a classifier's labels."""
        admitted = self.service.admit(request, "classify", caller)
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

    def _transcript(
        self, request: TranscriptionRequest, audio: bytes, task: str, caller: Caller
    ) -> Coroutine[Any, Any, Any]:
        admitted = self.service.admit(request, "transcribe", caller)
        options = transcription_options(request, task)
        return admitted.pipeline.transcribe(audio, adapters=admitted.adapters, **options)

    def transcript_events(
        self, request: TranscriptionRequest, audio: bytes, task: str, caller: Caller = ANYONE
    ) -> AsyncGenerator[TranscriptEvent, None]:
        """Transcribe or translate an audio file: yield the segments, then the whole text.

        task: "transcribe" or "translate". Raises before the first event for an invalid request.
        """
        admitted = self.service.admit(request, "transcribe", caller)
        pipeline = admitted.pipeline
        task_state = pipeline.new_task(transcription_options(request, task), admitted.adapters)

        async def events() -> AsyncGenerator[TranscriptEvent, None]:
            text = ""
            async with aclosing(pipeline.stream(audio, task_state)) as segments:
                async for segment in segments:
                    text += segment.text
                    yield TranscriptEvent(text=segment.text)
            yield TranscriptEvent(text=text.strip(), final=True, generations=task_state.generations)

        return events()

    async def speak(self, request: SpeechRequest, caller: Caller = ANYONE) -> Speech:
        """Speak a text."""
        admitted = self.service.admit(request, "speak", caller)
        pipeline, options = admitted.pipeline, speech_options(request)
        pipeline.check_format(request.response_format)
        sound = await pipeline.speak(request.input, adapters=admitted.adapters, **options)
        data = await asyncio.to_thread(sound.encode, request.response_format)
        return Speech(data=data, rate=sound.rate, generations=sound.generations)

    async def draw(self, request: ImageRequest, caller: Caller = ANYONE) -> Images:
        """Generate images."""
        options = image_options(request)
        admitted = self.service.admit(request, "draw", caller)
        drawn = await admitted.pipeline.finish(
            request.prompt, adapters=admitted.adapters, **options
        )
        return Images(
            model=admitted.name,
            images=[encode_image(image, request.output_format) for image in drawn.images],
            generations=drawn.generations,
        )

    def draw_events(
        self, request: ImageRequest, caller: Caller = ANYONE
    ) -> AsyncGenerator[ImageEvent, None]:
        """Generate images: yield the progress with previews, then the images.

        Raises before the first event for an invalid request.
        """
        options = {**image_options(request), "previews": request.partial_images or 0}
        admitted = self.service.admit(request, "draw", caller)
        steps = admitted.pipeline.stream(request.prompt, adapters=admitted.adapters, **options)

        async def events() -> AsyncGenerator[ImageEvent, None]:
            async with aclosing(steps):
                async for step in steps:
                    yield ImageEvent(
                        done=step.done,
                        total=step.total,
                        final=step.final,
                        images=[encode_image(each, request.output_format) for each in step.images],
                        generations=step.generations,
                    )

        return events()

"""The transcription of one audio input.

The long-form algorithm of Radford et al. 2022, section 4.5, as transformers' WhisperGenerationMixin
has it: a window begins at the end of the last complete segment of the previous one, and is decoded
again at a higher temperature if the text is repetitive or improbable.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from secrets import token_hex
from typing import Any, Protocol

import msgspec

from ostro import Item, JobRequest
from ostro.errors import Unsupported
from ostro.pipelines import (
    AdapterRef,
    AsyncEngine,
    Samples,
    Sampling,
    Segment,
    ServedModel,
    TokenLogprob,
    TokenRequest,
    Word,
    token_name,
)
from ostro.plugins.pipelines.transcription.alignment import first_rows
from ostro.plugins.pipelines.transcription.controls import Controls
from ostro.plugins.pipelines.transcription.options import Options
from ostro.plugins.pipelines.transcription.request import TranscriptionRequest
from ostro.plugins.pipelines.transcription.window import (
    STEPS,
    TokenSegment,
    WindowResult,
    cut,
    prompt_tokens,
)
from ostro.plugins.pipelines.transcription.words import group_words

FORCING_BIAS = 100.0
"""The logit bias that forces a token, in order to get its probability."""
MAX_PROMPT_TEMPERATURE = 0.5
"""Text that was sampled at this temperature or above does not precede the next window."""
MAX_PROMPT = 16384
"""The number of characters at the end of a prompt that are tokenized."""


class AudioModel(Protocol):
    """The audio methods of an architecture's Inputs."""

    rate: int
    frames: int

    def spectrum(self, samples: Samples) -> Samples: ...

    def window(self, spectrum: Samples, start: int) -> Item: ...


class TranscriptionTask:
    """The transcription of one audio input.

    `language` is empty until it is detected, unless the options name it. `generations` are those of
    the adapters in use so far, None for a request without adapters. `audio_tokens` is the number of
    encoder rows of the audio, known once its first segment is there.
    """

    def __init__(
        self,
        model: ServedModel,
        engine: AsyncEngine,
        audio_model: AudioModel,
        controls: Controls,
        options: Options,
        adapters: tuple[AdapterRef, ...] = (),
    ) -> None:
        """Raises RequestError for options that the model does not support."""
        self.model, self.engine = model, engine
        self.audio_model, self.controls = audio_model, controls
        self.options, self.times, self.adapters = options, options.times, adapters
        self.generations: list[str] | None = [] if adapters else None
        self.audio_tokens = 0
        language = options.language or ("" if controls.languages else "en")
        self.language = controls.language(language) if language else ""
        self.languages = [controls.language(name) for name in options.languages]
        controls.check_task(options.task)
        if options.words and not controls.alignment_heads:
            raise Unsupported(
                "words have no times: the model's generation_config.json has no alignment_heads; "
                "use segment timestamps",
                param="timestamp_granularities",
            )
        self.prompt = self.encode_prompt(options.keywords, options.prompt)

    def encode_prompt(self, keywords: Sequence[str], prompt: str | None) -> list[int]:
        """The tokens of the keywords and a prompt."""
        texts = (", ".join(keywords).strip(), (prompt or "").strip())
        text = ". ".join(filter(None, texts))
        if not text:
            return []
        if self.controls.earlier is None:
            raise Unsupported("this model does not accept a prompt", param="prompt")
        # only the last tokens are used, less than half a context
        end = text[-MAX_PROMPT:]
        return self.model.require_tokenizer().encode(" " + end, special=False)

    async def segments(self, spectrum: Samples) -> AsyncGenerator[Segment, None]:
        """The segments of a spectrogram, in order; audio of several windows needs timestamps."""
        seek, previous, follow = 0, [self.prompt], self.options.follow
        total, width, count = spectrum.shape[1], self.audio_model.frames, 0
        self.times = self.options.times or total > width
        self.audio_tokens = -(-total // 2)
        while seek < total:
            item = await asyncio.to_thread(self.audio_model.window, spectrum, seek)
            frames = min(width, total - seek)
            if not self.language:
                self.language = await self.detect_language(item)
            result = await self.transcribe_window(item, previous if follow else previous[:1])
            follow = self.options.follow and result.temperature < MAX_PROMPT_TEMPERATURE
            if self.is_silent(result):
                seek += frames
                continue
            if self.options.words:
                result = replace(result, times=await self.align(item, result, frames))
            pieces, done = [TokenSegment(0, frames // 2, result.tokens)], frames
            if self.times:
                pieces, done = cut(result.tokens, self.controls.times, frames)
            first = 0
            for piece in pieces:
                yield self.segment(count, seek, piece, result, first)
                first += len(piece.tokens)
                count += 1
            previous += [piece.tokens for piece in pieces]
            seek += done

    def segment(
        self, id: int, seek: int, piece: TokenSegment, result: WindowResult, first: int
    ) -> Segment:
        """The segment of a piece of a window, whose tokens begin at index `first`."""
        offset, span = seek / (2 * STEPS), slice(first, first + len(piece.tokens))
        logprobs, times = result.logprobs[span], result.times[span]
        return Segment(
            id=id,
            seek=seek,
            start=round(offset + piece.start / STEPS, 3),
            end=round(offset + piece.end / STEPS, 3),
            text=self.text(piece.tokens),
            tokens=piece.tokens,
            temperature=result.temperature,
            avg_logprob=result.logprob,
            compression_ratio=result.ratio,
            no_speech_prob=result.silence,
            logprobs=self.token_logprobs(piece.tokens, logprobs) if self.options.logprobs else [],
            words=self.words(piece.tokens, times, offset) if self.options.words else [],
        )

    def words(
        self, tokens: Sequence[int], times: Sequence[tuple[float, float]], offset: float
    ) -> list[Word]:
        """The words of tokens with `times` in seconds after `offset`."""
        spell = self.model.require_tokenizer().piece
        parts = [
            (spell(token), round(offset + start, 3), round(offset + end, 3))
            for token, (start, end) in zip(tokens, times, strict=True)
            if token < self.controls.end
        ]
        return group_words(parts, self.language)

    def token_logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[float]
    ) -> list[TokenLogprob]:
        """The tokens of a text, without timestamps, with their log probabilities."""
        found = []
        for token, logprob in zip(tokens, logprobs, strict=True):
            if token < self.controls.end:
                piece = self.model.require_tokenizer().piece(token)
                name = token_name(piece)
                found.append(TokenLogprob(token=name, bytes=list(piece), logprob=logprob))
        return found

    def text(self, tokens: Sequence[int]) -> str:
        text_ids = [token for token in tokens if token < self.controls.end]
        return self.model.require_tokenizer().decode(text_ids)

    async def transcribe_window(
        self, item: Item, previous: Sequence[Sequence[int]]
    ) -> WindowResult:
        """Transcribe a window, with rising temperature while the text needs a fallback."""
        opening = self.controls.opening(self.language, self.options.task, self.times)
        limit = self.model.context // 2 - 1
        before = prompt_tokens(previous, self.controls.times, limit) if any(previous) else []
        if before and self.controls.earlier is not None:
            before.insert(0, self.controls.earlier)
        silence = await self.silence_probability(item, [*before, self.controls.start])
        for temperature in self.options.temperatures:
            result = await self.decode_window(item, [*before, *opening], temperature, silence)
            if self.is_silent(result) or not self.needs_fallback(result):
                break
        return result

    def needs_fallback(self, result: WindowResult) -> bool:
        """Whether a text is repetitive or improbable."""
        max_ratio, min_logprob = self.options.repetitive, self.options.improbable
        if max_ratio is not None and result.ratio > max_ratio:
            return True
        return min_logprob is not None and result.logprob < min_logprob

    def is_silent(self, result: WindowResult) -> bool:
        """Whether a window has no speech: its probability is high, and the text is improbable."""
        max_silence, min_logprob = self.options.silent, self.options.improbable
        if max_silence is None or result.silence <= max_silence:
            return False
        return min_logprob is None or result.logprob < min_logprob

    async def detect_language(self, item: Item) -> str:
        """The most probable language token after the start token, of those that are allowed."""
        allowed = self.languages or self.controls.languages
        languages = {self.controls.languages[code]: code for code in allowed}
        rules = TranscriptionRequest(only=tuple(languages))
        tokens, _ = await self.generate(item, [self.controls.start], rules, max_tokens=1)
        return languages[tokens[0]]

    async def silence_probability(self, item: Item, tokens: list[int]) -> float:
        """The probability of the no-speech token after these tokens."""
        silence = self.controls.silence
        drawn, logprobs = await self.generate(
            item, tokens, TranscriptionRequest(), max_tokens=1, logit_bias={silence: FORCING_BIAS}
        )
        return math.exp(logprobs[0]) if drawn == [silence] else 0.0

    async def decode_window(
        self, item: Item, tokens: list[int], temperature: float, silence: float
    ) -> WindowResult:
        """Decode a window at one temperature."""
        rules = self.controls.rules(self.times)
        drawn, logprobs = await self.generate(
            item, tokens, rules, temperature=temperature, seed=self.options.seed
        )
        if drawn[-1] == self.controls.end:
            drawn = drawn[:-1]
        return WindowResult(
            context=tokens,
            tokens=drawn,
            ended=len(drawn) < len(logprobs),
            logprobs=logprobs[: len(drawn)],
            text=self.text(drawn).strip(),
            logprob=sum(logprobs) / len(logprobs),
            temperature=temperature,
            silence=silence,
        )

    async def align(
        self, item: Item, result: WindowResult, frames: int
    ) -> list[tuple[float, float]]:
        """The start and end of each token of a window of `frames` frames, in seconds."""
        rows = max(1, frames // 2)
        # As in transformers: without the end token, the last token has no weights of its own.
        tokens = result.tokens if result.ended else result.tokens[:-1]
        starts = await self.first_rows(item, result.context, tokens, rows) if tokens else [0]
        starts = [*starts, starts[-1]][: len(result.tokens)]
        return [(start / STEPS, end / STEPS) for start, end in pairwise([*starts, rows])]

    async def first_rows(
        self, item: Item, context: list[int], tokens: list[int], rows: int
    ) -> list[int]:
        """The encoder row, of those of the audio, at which each token begins."""
        heads = self.controls.alignment_heads
        values = {"context": context, "tokens": tokens, "rows": rows, "heads": heads}
        request = JobRequest(
            id=token_hex(12),
            model=self.model.name,
            values=values,
            arrays=dict(item.arrays),
            adapters=self.adapters,
        )
        async with aclosing(self.engine.work(request)) as outputs:
            *_, last = [output async for output in outputs]
        return await asyncio.to_thread(first_rows, last.arrays["alignment"].numpy())

    async def generate(
        self, item: Item, tokens: list[int], rules: TranscriptionRequest, **sampling: Any
    ) -> tuple[list[int], list[float]]:
        """The tokens that the engine generates, with log probabilities, including the end.

        The engine reports no log probability of a stop token. It ignores the end token instead, and
        closing the stream stops the request after it.
        """
        request = TokenRequest(
            id=token_hex(12),
            model=self.model.name,
            tokens=tokens,
            items=[item],
            adapters=self.adapters,
            sampling=Sampling(
                **{"temperature": 0.0, **sampling},
                logprobs=0,
                ignore_eos=True,
                processors={"transcription": msgspec.to_builtins(rules)},
            ),
        )
        drawn, logprobs = list[int](), list[float]()
        async with aclosing(self.engine.generate(request)) as outputs:
            async for output in outputs:
                self.record_generations(output.generations)
                for token, entry in zip(output.tokens, output.logprobs or (), strict=True):
                    drawn.append(token)
                    logprobs.append(entry.logprob)
                    if token == self.controls.end:
                        return drawn, logprobs
        return drawn, logprobs

    def record_generations(self, generations: Sequence[str]) -> None:
        """Add the generations of the adapters of an output."""
        if self.generations is not None:
            self.generations += [g for g in generations if g not in self.generations]

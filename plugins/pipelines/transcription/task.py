"""One sound on its way to text.

The long-form algorithm of Radford et al. 2022, section 4.5, as transformers' WhisperGenerationMixin
has it: a window begins where the last complete segment of the one before ended, and is written
again at a higher temperature where the text repeats itself or seems improbable.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from secrets import token_hex
from typing import Any, Protocol

import msgspec

from ostro import Item
from ostro.errors import Unsupported
from ostro.pipelines import AdapterRef, AsyncEngine, Samples, Sampling, ServedModel, TokenRequest
from ostro.plugins.pipelines.transcription.controls import Controls
from ostro.plugins.pipelines.transcription.options import Options
from ostro.plugins.pipelines.transcription.request import TranscriptionRequest
from ostro.plugins.pipelines.transcription.transcript import Segment
from ostro.plugins.pipelines.transcription.window import STEPS, Piece, Written, carried, cut

SURE = 100.0
"""A bias by which a token is drawn whose probability is asked for."""
CALM = 0.5
"""From this temperature on, a text is no guide to the next window."""
MAX_PROMPT = 16384
"""Characters of a prompt that are tokenized, from its end."""


class AudioModel(Protocol):
    """What an architecture's inputs make of sound."""

    rate: int
    frames: int

    def spectrum(self, samples: Samples) -> Samples: ...

    def window(self, spectrum: Samples, start: int) -> Item: ...


class TranscriptionTask:
    """One sound under way. `language` is known once it has been heard or where it was asked for;
    `generations` are those of the adapters that it is written with so far, None where none were
    asked for.
    """

    def __init__(
        self,
        model: ServedModel,
        engine: AsyncEngine,
        hearing: AudioModel,
        controls: Controls,
        options: Options,
        adapters: tuple[AdapterRef, ...] = (),
    ) -> None:
        """Raises RequestError where the options ask for what the model does not know."""
        self.model, self.engine = model, engine
        self.hearing, self.controls = hearing, controls
        self.options, self.times, self.adapters = options, options.times, adapters
        self.generations: list[str] | None = [] if adapters else None
        asked = options.language or ("" if controls.languages else "en")
        self.language = controls.language(asked) if asked else ""
        controls.check_task(options.task)
        self.guide = self.guide_of(options.prompt)

    def guide_of(self, prompt: str | None) -> list[int]:
        """The tokens of a prompt."""
        if not prompt or not prompt.strip():
            return []
        if self.controls.earlier is None:
            raise Unsupported("this model takes no prompt", param="prompt")
        # Only the last tokens of a prompt are used, fewer than half a context.
        end = prompt.strip()[-MAX_PROMPT:]
        return self.model.require_tokenizer().encode(" " + end, special=False)

    async def segments(self, spectrum: Samples) -> AsyncGenerator[Segment, None]:
        """The segments of a spectrum, in order; one of several windows is cut by times."""
        seek, said, follow = 0, [self.guide], self.options.follow
        total, width, count = spectrum.shape[1], self.hearing.frames, 0
        self.times = self.options.times or total > width
        while seek < total:
            item = await asyncio.to_thread(self.hearing.window, spectrum, seek)
            frames = min(width, total - seek)
            if not self.language:
                self.language = await self.hear_language(item)
            written = await self.write(item, said if follow else said[:1])
            follow = self.options.follow and written.temperature < CALM
            if self.is_silent(written):
                seek += frames
                continue
            pieces, done = [Piece(0, frames // 2, written.tokens)], frames
            if self.times:
                pieces, done = cut(written.tokens, self.controls.times, frames)
            for piece in pieces:
                yield self.segment(count, seek, piece, written)
                count += 1
            said += [piece.tokens for piece in pieces]
            seek += done

    def segment(self, id: int, seek: int, piece: Piece, written: Written) -> Segment:
        offset = seek / (2 * STEPS)
        return Segment(
            id=id,
            seek=seek,
            start=round(offset + piece.start / STEPS, 3),
            end=round(offset + piece.end / STEPS, 3),
            text=self.text(piece.tokens),
            tokens=piece.tokens,
            temperature=written.temperature,
            avg_logprob=written.logprob,
            compression_ratio=written.ratio,
            no_speech_prob=written.silence,
        )

    def text(self, tokens: Sequence[int]) -> str:
        words = [token for token in tokens if token < self.controls.end]
        return self.model.require_tokenizer().decode(words)

    async def write(self, item: Item, said: Sequence[Sequence[int]]) -> Written:
        """Write down a window, again and again while the text looks wrong."""
        opening = self.controls.opening(self.language, self.options.task, self.times)
        most = self.model.context // 2 - 1
        before = carried(said, self.controls.times, most) if any(said) else []
        if before and self.controls.earlier is not None:
            before.insert(0, self.controls.earlier)
        silence = await self.probability(item, [*before, self.controls.start])
        for temperature in self.options.temperatures:
            written = await self.draw(item, [*before, *opening], temperature, silence)
            if self.is_silent(written) or not self.looks_wrong(written):
                break
        return written

    def looks_wrong(self, written: Written) -> bool:
        most, least = self.options.repetitive, self.options.improbable
        return (most is not None and written.ratio > most) or (
            least is not None and written.logprob < least
        )

    def is_silent(self, written: Written) -> bool:
        """Whether nobody speaks: no speech is likely, and what was written is not."""
        most, least = self.options.silent, self.options.improbable
        if most is None or written.silence <= most:
            return False
        return least is None or written.logprob < least

    async def hear_language(self, item: Item) -> str:
        """The language that is likeliest after the beginning of a text."""
        languages = {id: code for code, id in self.controls.languages.items()}
        rules = TranscriptionRequest(only=tuple(languages))
        tokens, _ = await self.generate(item, [self.controls.start], rules, max_tokens=1)
        return languages[tokens[0]]

    async def probability(self, item: Item, tokens: list[int]) -> float:
        """How likely no speech is after these tokens."""
        silence = self.controls.silence
        drawn, logprobs = await self.generate(
            item, tokens, TranscriptionRequest(), max_tokens=1, logit_bias={silence: SURE}
        )
        return math.exp(logprobs[0]) if drawn == [silence] else 0.0

    async def draw(
        self, item: Item, tokens: list[int], temperature: float, silence: float
    ) -> Written:
        """Write down a window, once."""
        rules = self.controls.rules(self.times)
        drawn, logprobs = await self.generate(
            item, tokens, rules, temperature=temperature, seed=self.options.seed
        )
        if drawn[-1] == self.controls.end:
            drawn = drawn[:-1]
        return Written(
            tokens=drawn,
            text=self.text(drawn).strip(),
            logprob=sum(logprobs) / len(logprobs),
            temperature=temperature,
            silence=silence,
        )

    async def generate(
        self, item: Item, tokens: list[int], rules: TranscriptionRequest, **sampling: Any
    ) -> tuple[list[int], list[float]]:
        """What the engine draws after these tokens, with log probabilities; the end counts too.

        The engine does not tell how likely the end was: it goes on behind it, and is left there.
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
                self.note(output.generations)
                for token, entry in zip(output.tokens, output.logprobs or (), strict=True):
                    drawn.append(token)
                    logprobs.append(entry.logprob)
                    if token == self.controls.end:
                        return drawn, logprobs
        return drawn, logprobs

    def note(self, generations: Sequence[str]) -> None:
        """Take in which adapters the engine has written something with."""
        if self.generations is not None:
            self.generations += [g for g in generations if g not in self.generations]

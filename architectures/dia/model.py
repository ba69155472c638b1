"""Dia: dialogues from text, by codes of a neural codec (Nari Labs 2025).

Reference class DiaForConditionalGeneration of transformers, with DiaProcessor around it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ostro import JobRequest, Slice, Step, nn
from ostro.architectures.dia.choice import Choice, Rules
from ostro.architectures.dia.codec import Codec
from ostro.architectures.dia.config import Config
from ostro.architectures.dia.delay import Delayed
from ostro.architectures.dia.request import Speech
from ostro.architectures.dia.transformer import EncoderCache, Transformer

STRIDE = 16
"""Frames that are written in one slice of work."""


class Model(nn.JobModel):
    layers = ("model.encoder.layers", "model.decoder.layers")

    def __init__(self, config: Config) -> None:
        super().__init__()
        decoder = config.decoder_config
        self.config = config
        self.model = Transformer(config)
        wide = decoder.num_channels * decoder.vocab_size
        self.logits_dense = nn.Linear(decoder.hidden_size, wide)
        self.choice = Choice(decoder.eos_token_id)
        self.codec = Codec(config.codec)

    @property
    def context(self) -> int:
        """The places that there are angles for."""
        return self.model.decoder.rope.context

    def work(self, request: JobRequest, step: Step) -> Iterator[Slice]:
        """The slices of a speech whose values are the fields of `Speech`.

        The last has "samples" [n] float32 within -1..1 and "rate" [1] int64, samples per second.
        The first row of `step` stands for the whole speech.
        """
        asked = Speech(**request.values)
        asked.check(self.config, self.context)
        track = Delayed(self.config, asked.frames(self.config, self.context), self.device)
        total = 1 + -(-track.length // STRIDE) + self.codec.pieces(track.length)
        done = 0
        for _ in self.write(asked, track, step):
            done += 1
            yield Slice(done=done, total=total)
        codes = track.frames()
        total = done + max(1, self.codec.pieces(codes.shape[1]))
        parts = [torch.empty(0, device=self.device)]
        for piece in self.codec.decode_pieces(codes[None]):
            done += 1
            parts.append(piece[0])
            if done < total:
                yield Slice(done=done, total=total)
        rate = torch.tensor([self.config.codec.sampling_rate])
        yield Slice(done=total, total=total, arrays={"samples": torch.cat(parts), "rate": rate})

    def write(self, asked: Speech, track: Delayed, step: Step) -> Iterator[None]:
        """Fill a track, in pieces of bounded work: the text, then `STRIDE` frames each."""
        texts = self.readings(asked)
        step = step.rows(torch.zeros(len(texts), dtype=torch.int64, device=self.device))
        memory = self.remember(texts, track.length, step)
        rules = Rules.of(asked, self.config.decoder_config.num_channels, self.device)
        yield
        for place in range(1, track.length):
            logits = self.logits(track.codes[place - 1], memory, place - 1, step)
            track.put(place, self.choice(logits, rules))
            if place % STRIDE == 0 or place == track.length - 1:
                yield
                if track.ended(place):
                    return

    def readings(self, asked: Speech) -> Tensor:
        """The text, and with guidance an empty text of its length: [n, T] int64."""
        text = torch.tensor([list(asked.tokens)], device=self.device)
        return text if asked.guidance == 1 else torch.cat((text, torch.zeros_like(text)))

    def remember(self, texts: Tensor, length: int, step: Step) -> list[EncoderCache]:
        """What the decoder knows of texts [n, T] before `length` places are written."""
        states = self.model.encoder(texts, step)
        return self.model.decoder.remember(states, len(texts), length, step)

    def logits(self, codes: Tensor, memory: list[EncoderCache], place: int, step: Step) -> Tensor:
        """codes [channels] int64 at a place -> logits [n, channels, V] of those at the next."""
        n = len(memory[0].keys)
        states = self.model.decoder(codes.expand(n, -1), memory, place, step)
        logits: Tensor = self.logits_dense(states, step)
        return logits.unflatten(1, (self.config.decoder_config.num_channels, -1))

    @property
    def device(self) -> torch.device:
        return self.codec.decoder.conv2.weight.device

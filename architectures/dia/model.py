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
"""Frames per slice of work."""


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
        """The positions in the rope table."""
        return self.model.decoder.rope.context

    def work(self, request: JobRequest, step: Step) -> Iterator[Slice]:
        """Generate speech in slices; the request's values are the fields of `Speech`.

        The last has "samples" [n] float32 within -1..1, "rate" [1] int64, samples per second, and
        "frames" [1] int64, the number of generated frames.
        The first row of `step` has the adapters of the request.
        """
        speech = Speech(**request.values)
        speech.check(self.config, self.context)
        track = Delayed(self.config, speech.frames(self.config, self.context), self.device)
        total = 1 + -(-track.length // STRIDE) + self.codec.pieces(track.length)
        done = 0
        for _ in self.write(speech, track, step):
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
        arrays = {"samples": torch.cat(parts), "rate": rate}
        arrays["frames"] = torch.tensor([codes.shape[1]])
        yield Slice(done=total, total=total, arrays=arrays)

    def write(self, speech: Speech, track: Delayed, step: Step) -> Iterator[None]:
        """Fill a track in slices of bounded work: the text, then `STRIDE` frames each."""
        texts = self.readings(speech)
        step = step.rows(torch.zeros(len(texts), dtype=torch.int64, device=self.device))
        memory = self.cache_states(texts, track.length, step)
        rules = Rules.of(speech, self.config.decoder_config.num_channels, self.device)
        yield
        for place in range(1, track.length):
            logits = self.logits(track.codes[place - 1], memory, place - 1, step)
            track.put(place, self.choice(logits, rules))
            if place % STRIDE == 0 or place == track.length - 1:
                yield
                if track.ended(place):
                    return

    def readings(self, speech: Speech) -> Tensor:
        """The text, and with guidance a padding text of the same length: [n, T] int64."""
        text = torch.tensor([list(speech.tokens)], device=self.device)
        return text if speech.guidance == 1 else torch.cat((text, torch.zeros_like(text)))

    def cache_states(self, texts: Tensor, length: int, step: Step) -> list[EncoderCache]:
        """Encode texts [n, T] into the decoder's caches, with space for `length` positions."""
        states = self.model.encoder(texts, step)
        return self.model.decoder.cache_states(states, len(texts), length, step)

    def logits(self, codes: Tensor, memory: list[EncoderCache], place: int, step: Step) -> Tensor:
        """codes [channels] int64 at a position -> logits [n, channels, V] of the next position."""
        n = len(memory[0].keys)
        states = self.model.decoder(codes.expand(n, -1), memory, place, step)
        logits: Tensor = self.logits_dense(states, step)
        return logits.unflatten(1, (self.config.decoder_config.num_channels, -1))

    @property
    def device(self) -> torch.device:
        return self.codec.decoder.conv2.weight.device

"""The delay pattern: each channel of a frame is generated some positions after the first.

A channel thus depends on the coarser channels of its own frame (Copet et al. 2023, MusicGen).
Position 0 and the positions before a channel's first code hold the bos code. A channel ends with
the eos code, as much later than the first channel as it began, followed by padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.architectures.dia.config import Config


class Delayed:
    """The codes of one request, with delays: [positions, channels] int64."""

    def __init__(self, config: Config, frames: int, device: torch.device) -> None:
        """Allocate the codes of at most `frames` frames."""
        decoder = config.decoder_config
        self.bos, self.eos, self.pad = (
            torch.tensor(mark, device=device)
            for mark in (decoder.bos_token_id, decoder.eos_token_id, decoder.pad_token_id)
        )
        self.delays = torch.tensor(config.delay_pattern, device=device)
        self.longest = max(config.delay_pattern)
        self.length = frames + self.longest + 2
        shape = (self.length, decoder.num_channels)
        self.codes = torch.full(shape, decoder.bos_token_id, device=device)
        # the end of the first channel is on the device, so that `put` needs no host sync
        self.end = torch.tensor(frames + 1, device=device)

    def put(self, place: int, drawn: Tensor) -> None:
        """Write a position: the sampled codes [channels], with special codes where they belong."""
        ends = self.end.clamp(max=place)
        self.end = torch.where(drawn[0] == self.eos, ends, self.end)
        since = place - self.end - self.delays
        codes = torch.where(since < 0, drawn, torch.where(since == 0, self.eos, self.pad))
        self.codes[place] = torch.where(self.delays >= place, self.bos, codes)

    def ended(self, place: int) -> bool:
        """Whether every channel has ended at a position or before it."""
        return place >= int(self.end) + self.longest

    def frames(self) -> Tensor:
        """The codes without delays and special codes: [channels, frames]."""
        places = torch.arange(1, int(self.end), device=self.codes.device)
        return self.codes.gather(0, places[:, None] + self.delays).t()

"""DAC's decoder: codes of several codebooks to samples (Kumar et al. 2023).

Reference class DacModel of transformers, whose names the modules have. All weights stay in float32:
rounding them causes audible noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import torch
from torch import Tensor

from ostro import nn
from ostro.architectures.dia.config import CodecConfig

DILATIONS = (1, 3, 9)
WIDTH = 7
"""The kernel size of convolutions that do not resample."""

PIECE = 128
"""Frames per piece: about 1.5 s at 44.1 kHz."""


class Conv(torch.nn.Conv1d):
    """A convolution with padding that keeps the length."""

    def __init__(self, n_in: int, n_out: int, width: int = WIDTH, *, dilation: int = 1) -> None:
        super().__init__(n_in, n_out, width, dilation=dilation, padding=width // 2 * dilation)
        self.requires_grad_(False)


class Upsample(torch.nn.ConvTranspose1d):
    """A transposed convolution that multiplies the length by `stride`, an even number."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__(n_in, n_out, 2 * stride, stride=stride, padding=stride // 2)
        self.requires_grad_(False)


class Snake(nn.Module):
    """x + sin(alpha x)^2 / alpha, with an alpha per channel (Ziyin et al. 2020)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, d, 1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.alpha * x).sin().square() / (self.alpha + 1e-9)


class Residual(nn.Module):
    def __init__(self, d: int, dilation: int) -> None:
        super().__init__()
        self.snake1, self.conv1 = Snake(d), Conv(d, d, dilation=dilation)
        self.snake2, self.conv2 = Snake(d), Conv(d, d, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.snake2(self.conv1(self.snake1(x))))


class Block(nn.Module):
    """Halves the channels and multiplies the length by `stride`."""

    def __init__(self, n_in: int, stride: int) -> None:
        super().__init__()
        n_out = n_in // 2
        self.snake1, self.conv_t1 = Snake(n_in), Upsample(n_in, n_out, stride)
        self.res_unit1, self.res_unit2, self.res_unit3 = (Residual(n_out, d) for d in DILATIONS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_t1(self.snake1(x))
        return self.res_unit3(self.res_unit2(self.res_unit1(x)))


class Decoder(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        d = config.decoder_hidden_size
        strides = config.downsampling_ratios[::-1]
        self.conv1 = Conv(config.latent_size, d)
        self.block = nn.ModuleList(Block(d >> i, stride) for i, stride in enumerate(strides))
        self.snake1, self.conv2 = Snake(d >> len(strides)), Conv(d >> len(strides), 1)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, latent, T] -> [n, 1, T * hop] within -1..1."""
        x = self.conv1(x)
        for block in self.block:
            x = block(x)
        return self.conv2(self.snake1(x)).tanh()


class Codebook(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.codebook = torch.nn.Embedding(config.codebook_size, config.codebook_dim)
        self.codebook.requires_grad_(False)
        self.out_proj = Conv(config.codebook_dim, config.latent_size, 1)

    def forward(self, codes: Tensor) -> Tensor:
        """codes [n, T] int64 -> [n, latent, T]."""
        return self.out_proj(self.codebook(codes).transpose(1, 2))


class Quantizer(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(Codebook(config) for _ in range(config.n_codebooks))

    def forward(self, codes: Tensor) -> Tensor:
        """codes [n, codebooks, T] int64 -> [n, latent, T]: each codebook refines those before."""
        parts = [book(codes[:, i]) for i, book in enumerate(self.quantizers)]
        return torch.stack(parts).sum(0)


class Codec(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.quantizer, self.decoder = Quantizer(config), Decoder(config)

    def decode(self, codes: Tensor) -> Tensor:
        """codes [n, codebooks, T] int64 -> samples [n, T * hop] float32."""
        return self.decoder(self.quantizer(codes))[:, 0]

    def decode_pieces(self, codes: Tensor) -> Iterator[Tensor]:
        """The samples of `decode`, in consecutive pieces of bounded work.

        Each piece is decoded with the neighbouring frames on which its samples depend.
        """
        length, around, hop = codes.shape[2], reach(self.config), self.config.hop
        for start in range(0, length, PIECE):
            first = max(0, start - around)
            samples = self.decode(codes[..., first : start + PIECE + around])
            skipped = (start - first) * hop
            yield samples[:, skipped : skipped + PIECE * hop]

    @staticmethod
    def pieces(length: int) -> int:
        """The number of pieces of `decode_pieces` for `length` frames."""
        return -(-length // PIECE)


def reach(config: CodecConfig) -> int:
    """The receptive field of a sample in frames, to each side."""
    half, rate = WIDTH // 2, 1
    frames = float(half)
    for stride in config.downsampling_ratios[::-1]:
        frames += 1 / rate
        rate *= stride
        frames += half * sum(DILATIONS) / rate
    return ceil(frames + half / rate)

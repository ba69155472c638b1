"""FLUX.1: text to image by a rectified flow (Black Forest Labs 2024).

Reference class FluxPipeline of diffusers. The components have the names of its folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import JobRequest, Slice, Step, nn
from ostro.architectures.clip import model as clip
from ostro.architectures.flux.batch import Batch
from ostro.architectures.flux.config import Config
from ostro.architectures.flux.request import Drawing
from ostro.architectures.flux.scheduler import sigmas
from ostro.architectures.flux.transformer import Transformer
from ostro.architectures.flux.vae import VAE
from ostro.architectures.t5 import model as t5

PREVIEW_SIDE = 32
"""Latents along the longer side of a preview."""

Progress = tuple[int, int, Tensor | None]
"""(slices done, all slices, a preview [n, h, w, 3] uint8 or None)."""


class Model(nn.JobModel):
    layers = (
        "transformer.transformer_blocks",
        "transformer.single_transformer_blocks",
        "text_encoder.text_model.encoder.layers",
        "text_encoder_2.encoder.layers",
    )

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config.transformer)
        self.vae = VAE(config.vae)
        # encoders have no logits
        self.text_encoder = clip.Model(config.text_encoder)
        self.text_encoder_2 = t5.Model(config.text_encoder_2)

    def work(self, request: JobRequest, step: Step) -> Iterator[Slice]:
        """Generate images in slices; the request's values are the fields of `Drawing`, with the
        number of `previews` instead of their interval.
        """
        values = dict(request.values)
        previews = values.pop("previews", 0)
        start = request.arrays.get("image")
        if start is not None:
            pixels = torch.from_numpy(start.numpy().copy())
            values["image"] = pixels.expand(len(values["seeds"]), -1, -1, -1)
        for name in ("clip_tokens", "t5_tokens"):
            values[name] = values[name] * len(values["seeds"])
        drawing = Drawing(**values)
        every = -(-drawing.steps // (previews + 1)) if previews else 0
        done, total = 0, 1
        for item in self.draw(replace(drawing, preview=every), step):
            if isinstance(item, Tensor):
                yield Slice(done=total, total=total, arrays={"images": item})
            else:
                done, count, preview = item
                total = count + 1
                shown = {} if preview is None else {"images": preview}
                yield Slice(done=done, total=total, arrays=shown)

    def draw(self, request: Drawing, step: Step) -> Iterator[Progress | Tensor]:
        """Generate images in slices of bounded work; the engine may stop between two slices.

        Yields `Progress` after the text, after every denoising step and after every tile of a
        tiled decoding, and last the images [n, height, width, 3] uint8. `step` has a row for each
        image; only its mixture matters. Raises RequestError for an invalid request, before any
        work.
        """
        request.check(self.config)
        pooled, text = self.encode_text(request, step)
        levels = self.levels(request)
        latents = self.start(request, levels[0], text, step)
        height, width = (size // 2 for size in latents.shape[2:])
        total = len(levels) + self.vae.tiles(latents)
        yield 1, total, None
        length = len(request.t5_tokens[0])
        batch = Batch.of(step, len(latents), length, (height, width), text.device)
        for i in range(len(levels) - 1):
            rows = pack(latents).to(text.dtype)
            velocity = self.transformer(rows, text, pooled, levels[i], request.guidance, batch)
            flow = unpack(velocity.float(), len(latents), height, width)
            latents = latents + (levels[i + 1] - levels[i]) * flow
            shown = request.preview > 0 and (i + 1) % request.preview == 0
            # the image to which the current velocity leads in a single step
            clean = latents - levels[i + 1] * flow
            yield i + 2, total, self.preview(clean.to(text.dtype), step) if shown else None
        for done, images in enumerate(self.vae.decode_tiled(latents.to(text.dtype), step), i + 3):
            if images is None:
                yield done, total, None
            else:
                yield to_bytes(images)

    def levels(self, request: Drawing) -> list[float]:
        """The noise level before every step, and 0."""
        rows = request.width * request.height // self.config.cell**2
        every = sigmas(self.config.scheduler, request.steps, rows)
        if request.image is None:
            return every
        # the rounding of the number of steps is that of diffusers
        return every[int(request.steps - min(request.steps * request.strength, request.steps)) :]

    def start(self, request: Drawing, level: float, like: Tensor, step: Step) -> Tensor:
        """The initial latents: noise, mixed with the initial image if given: [n, c, h, w] float32.

        Each image has a generator on the CPU, used in the same order as in diffusers.
        """
        vae = self.config.vae
        shape = (1, vae.latent_channels, request.height // vae.factor, request.width // vae.factor)
        generators = [torch.Generator().manual_seed(seed) for seed in request.seeds]

        def noise() -> Tensor:
            drawn = [torch.randn(shape, generator=g, dtype=like.dtype) for g in generators]
            return torch.cat(drawn).to(like.device)

        if request.image is None:
            return noise().float()
        pixels = request.image.to(like.device).permute(0, 3, 1, 2).to(like.dtype) / 127.5 - 1
        image = self.vae.encode(pixels, noise(), step).float()
        return level * noise().float() + (1 - level) * image

    def encode_text(self, request: Drawing, step: Step) -> tuple[Tensor, Tensor]:
        """CLIP's pooled states [n, p] and T5's states [n * text, d]; equal texts are
        encoded once.
        """
        device = next(self.parameters()).device
        found = []
        for encoder, texts in (
            (self.text_encoder, request.clip_tokens),
            (self.text_encoder_2, request.t5_tokens),
        ):
            distinct, images = once(texts)
            owners = [images.index(i) for i in range(len(distinct))]
            inputs = text_step(distinct, owners, step, device)
            states = encoder.hidden(inputs)
            if encoder is self.text_encoder:
                states = self.text_encoder.pooled(states, inputs)
            found.append(states.unflatten(0, (len(distinct), -1))[images].flatten(0, 1))
        return found[0], found[1]

    def preview(self, latents: Tensor, step: Step) -> Tensor:
        """A small image [n, h, w, 3] uint8 of latents [n, c, h, w], decoded after shrinking."""
        shrink = max(1.0, max(latents.shape[2:]) / PREVIEW_SIDE)
        size = [max(1, round(side / shrink)) for side in latents.shape[2:]]
        small = F.interpolate(latents.float(), size, mode="area").to(latents.dtype)
        return to_bytes(self.vae.decode(small, step))


def once(texts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """The distinct texts, and the index of each text among them."""
    distinct = list(dict.fromkeys(map(tuple, texts)))
    return distinct, [distinct.index(tuple(text)) for text in texts]


def text_step(
    texts: Sequence[Sequence[int]], owners: Sequence[int], step: Step, device: torch.device
) -> Step:
    """The step of an encoder over texts of one length; `owners` are the images of the texts."""
    n, length = len(texts), len(texts[0])
    tokens = torch.tensor(texts, device=device)
    index = torch.tensor(owners, device=device).repeat_interleave(length)
    positions = torch.arange(length, device=device).repeat(n)[None]
    bounds = range(0, n * length + 1, length)
    rows = step.rows(index)
    return replace(rows, tokens=tokens.flatten(), positions=positions, bounds=bounds)


def pack(latents: Tensor) -> Tensor:
    """[n, c, 2h, 2w] -> [n * h * w, 4c]: squares of four latents, channel by channel."""
    n, c, height, width = latents.shape
    squares = latents.view(n, c, height // 2, 2, width // 2, 2)
    return squares.permute(0, 2, 4, 1, 3, 5).reshape(n * height * width // 4, 4 * c)


def unpack(rows: Tensor, n: int, height: int, width: int) -> Tensor:
    """[n * height * width, 4c] -> [n, c, 2 * height, 2 * width]: the inverse of `pack`."""
    squares = rows.view(n, height, width, -1, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return squares.reshape(n, -1, 2 * height, 2 * width)


def to_bytes(images: Tensor) -> Tensor:
    """images [n, 3, H, W] within -1..1 -> [n, H, W, 3] uint8."""
    share = (images.float() / 2 + 0.5).clamp(0, 1)
    return (share * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()

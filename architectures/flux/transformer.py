"""FLUX.1's transformer: double-stream blocks with joint attention, then single-stream blocks.

Black Forest Labs 2024; reference class FluxTransformer2DModel of diffusers, whose names the modules
have. Linears take flat rows: those of all texts, of all images, or of both.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.flux.batch import Batch
from ostro.architectures.flux.config import TransformerConfig
from ostro.architectures.flux.naive import GATE_ADD, GATE_MODULATE, MODULATE
from ostro.ops import Op, varlen_attention

EPS = 1e-6
THETA = 10000.0
SIDE = 2048
"""The largest number of rows along a side of an image in the rope table."""

MLP_RATIO = 4
TIME_WIDTH = 256
TIME_SCALE = 1000.0
"""The factor of time and guidance in sinusoidal embeddings."""


Heads = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, each [T, heads, d]."""


class AxesRope(nn.Rope):
    """Rope over three axes, each of which rotates a share of every head."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        sections = [width // 2 for width in axes]
        super().__init__({}, sum(axes), SIDE, interleaved=True, sections=sections)
        self.widths = axes

    def finalize(self, context: int, device: torch.device) -> None:
        """Build the table of `SIDE` positions, independent of the text's context."""
        waves = [THETA ** (-torch.arange(0, a, 2, dtype=torch.float64) / a) for a in self.widths]
        angles = torch.arange(SIDE, dtype=torch.float64)[:, None] * torch.cat(waves)
        self.table = torch.cat((angles.cos(), angles.sin()), 1).float().to(device)


class Attention(nn.Module):
    """Apply norms and rope to q and k, and attend within the rows of each image."""

    def __init__(self, config: TransformerConfig, rope: AxesRope) -> None:
        super().__init__()
        d, self.heads = config.attention_head_dim, config.num_attention_heads
        self.norm_q, self.norm_k = nn.RMSNorm(d, EPS), nn.RMSNorm(d, EPS)
        self.rope, self.scale = rope, d**-0.5
        self.attend = Op(varlen_attention.KERNELS, head_dim=d)

    def split(self, qkv: Tensor, norm_q: nn.RMSNorm, norm_k: nn.RMSNorm) -> Heads:
        """qkv [T, 3 * heads * d] -> normed q and k, and v."""
        q, k, v = qkv.unflatten(1, (3, self.heads, -1)).unbind(1)
        return norm_q(q)[0], norm_k(k)[0], v

    def mix(self, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
        q, k = self.rope(q, k, batch.positions)
        return self.attend(q, k, v, batch.both.bounds, self.scale).flatten(1)

    def forward(self, qkv: Tensor, batch: Batch) -> Tensor:
        """qkv [n * (text + image), 3 * heads * d] -> [n * (text + image), heads * d]."""
        q, k, v = self.split(qkv, self.norm_q, self.norm_k)
        return self.mix(q, k, v, batch)


class JointAttention(Attention):
    """Attention with separate weights for text and image rows."""

    def __init__(self, config: TransformerConfig, rope: AxesRope) -> None:
        super().__init__(config, rope)
        d, width = config.hidden_size, config.attention_head_dim
        self.qkv = nn.Linear(d, dict.fromkeys(("to_q", "to_k", "to_v"), d), bias=True)
        added = ("add_q_proj", "add_k_proj", "add_v_proj")
        self.added_qkv = nn.Linear(d, dict.fromkeys(added, d), bias=True)
        self.norm_added_q, self.norm_added_k = nn.RMSNorm(width, EPS), nn.RMSNorm(width, EPS)
        self.to_out = nn.ModuleList([nn.Linear(d, d, bias=True, shard="rowwise")])
        self.to_add_out = nn.Linear(d, d, bias=True, shard="rowwise")

    def forward(self, text: Tensor, image: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        added = self.added_qkv(text, batch.texts)
        texts = self.split(added, self.norm_added_q, self.norm_added_k)
        images = self.split(self.qkv(image, batch.images), self.norm_q, self.norm_k)
        q, k, v = (batch.join(t, i) for t, i in zip(texts, images, strict=True))
        text, image = batch.part(self.mix(q, k, v, batch))
        return self.to_add_out(text, batch.texts), self.to_out[0](image, batch.images)


class Modulation(nn.Module):
    """Shift, scale and gate vectors from the conditioning vector."""

    def __init__(self, d: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.linear = nn.Linear(d, count * d, bias=True)

    def forward(self, vector: Tensor, step: Step) -> tuple[Tensor, ...]:
        """vector [n, d] -> count x [n, d]."""
        return self.linear(vector, step).chunk(self.count, 1)


class DoubleBlock(nn.Module):
    def __init__(self, config: TransformerConfig, rope: AxesRope) -> None:
        super().__init__()
        d = config.hidden_size
        self.norm1, self.norm1_context = Modulation(d, 6), Modulation(d, 6)
        self.attn = JointAttention(config, rope)
        self.ff = nn.MLP(d, MLP_RATIO * d, "gelu_tanh")
        self.ff_context = nn.MLP(d, MLP_RATIO * d, "gelu_tanh")
        self.modulate, self.gate_modulate = Op(MODULATE), Op(GATE_MODULATE)
        self.gate_add = Op(GATE_ADD)

    def forward(
        self, text: Tensor, image: Tensor, vector: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        shift, scale, *of_image = self.norm1(vector, batch.one)
        modulated_image = self.modulate(image, shift, scale, EPS)
        shift, scale, *of_text = self.norm1_context(vector, batch.one)
        modulated_text = self.modulate(text, shift, scale, EPS)
        modulated_text, modulated_image = self.attn(modulated_text, modulated_image, batch)
        text = self.feed_forward(text, modulated_text, of_text, self.ff_context, batch.texts)
        return text, self.feed_forward(image, modulated_image, of_image, self.ff, batch.images)

    def feed_forward(
        self, x: Tensor, y: Tensor, vectors: list[Tensor], ff: nn.Module, step: Step
    ) -> Tensor:
        gate, shift, scale, last = vectors
        y, x = self.gate_modulate(x, y, gate, shift, scale, EPS)
        return self.gate_add(x, ff(y, step), last)


def tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class SingleBlock(nn.Module):
    """Parallel attention and feed-forward with fused input and output linears."""

    def __init__(self, config: TransformerConfig, rope: AxesRope) -> None:
        super().__init__()
        d = config.hidden_size
        self.widths, self.act = (3 * d, MLP_RATIO * d), tanh_gelu
        self.norm = Modulation(d, 3)
        parts = {"attn.to_q": d, "attn.to_k": d, "attn.to_v": d, "proj_mlp": MLP_RATIO * d}
        self.qkv_mlp = nn.Linear(d, parts, bias=True)
        self.attn = Attention(config, rope)
        self.proj_out = nn.Linear((1 + MLP_RATIO) * d, d, bias=True, shard="rowwise")
        self.modulate, self.gate_add = Op(MODULATE), Op(GATE_ADD)

    def forward(self, x: Tensor, vector: Tensor, batch: Batch) -> Tensor:
        shift, scale, gate = self.norm(vector, batch.one)
        y = self.qkv_mlp(self.modulate(x, shift, scale, EPS), batch.both)
        qkv, mlp = y.split(self.widths, 1)
        y = torch.cat((self.attn(qkv, batch), self.act(mlp)), 1)
        return self.gate_add(x, self.proj_out(y, batch.both), gate)


class Embedder(nn.Module):
    def __init__(self, n: int, d: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(n, d, bias=True)
        self.linear_2 = nn.Linear(d, d, bias=True)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x, step)), step)


class Conditions(nn.Module):
    """The sum of the embeddings of time, guidance (if distilled) and pooled text."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.timestep_embedder = Embedder(TIME_WIDTH, d)
        self.guidance_embedder = Embedder(TIME_WIDTH, d) if config.guidance_embeds else None
        self.text_embedder = Embedder(config.pooled_projection_dim, d)

    def forward(self, pooled: Tensor, time: float, guidance: float, step: Step) -> Tensor:
        """pooled [n, p]; time within 0..1, guidance as in the request -> [n, d]."""
        x = self.text_embedder(pooled, step)
        x = x + self.timestep_embedder(waves(time, pooled), step)
        if self.guidance_embedder is not None:
            x = x + self.guidance_embedder(waves(guidance, pooled), step)
        return x


def waves(number: float, like: Tensor) -> Tensor:
    """The sinusoidal embedding of a number, cosines first: [len(like), TIME_WIDTH]."""
    half = TIME_WIDTH // 2
    places = torch.arange(half, dtype=torch.float32, device=like.device)
    angles = number * TIME_SCALE * torch.exp(-math.log(THETA) * places / half)
    return torch.cat((angles.cos(), angles.sin())).to(like.dtype).expand(len(like), -1)


class Transformer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        d, rope = config.hidden_size, AxesRope(config.axes_dims_rope)
        self.time_text_embed = Conditions(config)
        self.context_embedder = nn.Linear(config.joint_attention_dim, d, bias=True)
        self.x_embedder = nn.Linear(config.in_channels, d, bias=True)
        doubles = (DoubleBlock(config, rope) for _ in range(config.num_layers))
        self.transformer_blocks = nn.ModuleList(doubles)
        singles = (SingleBlock(config, rope) for _ in range(config.num_single_layers))
        self.single_transformer_blocks = nn.ModuleList(singles)
        self.norm_out = Modulation(d, 2)
        self.proj_out = nn.Linear(d, config.in_channels, bias=True)
        self.modulate = Op(MODULATE)

    def forward(
        self,
        latents: Tensor,
        text: Tensor,
        pooled: Tensor,
        time: float,
        guidance: float,
        batch: Batch,
    ) -> Tensor:
        """The velocity from image to noise: [n * image, c].

        latents [n * image, c] packed; text [n * text, joint] of T5; pooled [n, p] of CLIP; time is
        the share of noise in the latents, 0..1; models without guidance embedding ignore it.
        """
        image = self.x_embedder(latents, batch.images)
        text = self.context_embedder(text, batch.texts)
        vector = F.silu(self.time_text_embed(pooled, time, guidance, batch.one))
        for block in self.transformer_blocks:
            text, image = block(text, image, vector, batch)
        both = batch.join(text, image)
        for block in self.single_transformer_blocks:
            both = block(both, vector, batch)
        _, image = batch.part(both)
        scale, shift = self.norm_out(vector, batch.one)
        return self.proj_out(self.modulate(image, shift, scale, EPS), batch.images)

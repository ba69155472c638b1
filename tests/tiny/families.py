"""Families of models that represent all others in quick tests."""

from __future__ import annotations

REPRESENTATIVES = frozenset(
    {
        "bert",  # an encoder
        "deepseek_v2",  # latent attention
        "gemma2",  # windows and caps
        "lfm2",  # convolutions between layers of attention
        "llama",
        "llava",  # a tower
        "mamba2",  # states instead of pages
        "mixtral",  # experts
        "phi",  # layer norms and biases
        "qwen2_5_vl",  # positions of three axes
        "qwen3_next",  # linear attention
        "whisper",  # cross attention
    }
)
"""One family for each kind of cache, attention, norm and tower; all are trunks."""

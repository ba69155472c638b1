"""Qwen2-Audio in two GGUF files: the config and the names of text and projector (mmproj)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ostro import Container, Names, Pair
from ostro.architectures.llama import names as llama
from ostro.architectures.llava import projector as llava
from ostro.architectures.qwen2_audio import model as qwen2_audio
from ostro.architectures.whisper.spectrum import Mel
from ostro.errors import ConfigError

BLOCK = {
    "ln1": "self_attn_layer_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ln2": "final_layer_norm",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
POSITIONS = "mmproj.a.position_embd.weight"
EPSILON = 1e-5
"""The epsilon of the encoder's norms, which no config states."""

FRAMES = 2
"""Frames of the spectrogram per row of the encoder."""


@dataclass(frozen=True)
class Column:
    """GGUF files store a bias [d] as a column [d, 1]."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.flatten()

    def write(self, tensor: Tensor) -> Tensor:
        return tensor[:, None]


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json, with audio preprocessing; the window follows from the positions.

    Raises ConfigError for missing keys.
    """
    if POSITIONS not in container.tensors:
        raise ConfigError(
            f"{container.path.name}: its projector has no {POSITIONS}; convert it again"
        )
    rows, bins = (
        container.tensors[POSITIONS].shape[0],
        llava.stated(container, "audio.num_mel_bins"),
    )
    audio = {
        "num_mel_bins": bins,
        "d_model": llava.stated(container, "audio.embedding_length"),
        "encoder_layers": llava.stated(container, "audio.block_count"),
        "encoder_attention_heads": llava.stated(container, "audio.attention.head_count"),
        "encoder_ffn_dim": llava.stated(container, "audio.feed_forward_length"),
        "max_source_positions": rows,
    }
    preprocessor = {"feature_size": bins, "chunk_length": rows * FRAMES * Mel.hop // Mel.rate}
    return {
        "text_config": llama.gguf_config(container),
        "audio_config": audio,
        "audio_token_index": llava.token(container, "<|AUDIO|>"),
        "preprocessor_config": preprocessor,
    }


def gguf_metadata(config: qwen2_audio.Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the projector."""
    audio = config.audio
    found = {
        "projection_dim": config.text.hidden_size,
        "embedding_length": audio.d_model,
        "feed_forward_length": audio.encoder_ffn_dim,
        "block_count": audio.encoder_layers,
        "attention.head_count": audio.encoder_attention_heads,
        "attention.layer_norm_epsilon": EPSILON,
        "num_mel_bins": audio.num_mel_bins,
    }
    keys = {f"clip.audio.{key}": value for key, value in found.items()}
    return {"clip.has_audio_encoder": True, "clip.projector_type": "qwen2a", **keys}


def names(config: qwen2_audio.Config) -> Names:
    """The names on the hub, and in the two GGUF files."""
    tower, ends = "audio_tower", {"post_ln": "layer_norm", "position_embd": "embed_positions"}
    convolutions = (
        pair
        for i in (1, 2)
        for pair in (
            Pair(f"mmproj.a.conv1d.{i}.bias", f"{tower}.conv{i}.bias", Column()),
            Pair(f"mmproj.a.conv1d.{i}", f"{tower}.conv{i}"),
        )
    )
    layers = llava.pairs(BLOCK, "a.blk.{i}", f"{tower}.layers.{{i}}")
    projector = Pair("mmproj.mm.a.fc", "multi_modal_projector.linear")
    own = (*convolutions, *layers, *llava.pairs(ends, "a", tower), projector)
    return replace(qwen2_audio.names(config), gguf=(*own, *llama.GGUF))

"""Mamba 2's names in GGUF files, and the shapes of its tensors there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ostro import Container, Names, Pair
from ostro.architectures.llama.names import Get, dtype, quotient, under
from ostro.architectures.mamba2.model import Config

LAYER = "backbone.layers.{i}"


@dataclass(frozen=True)
class Filters:
    """GGUF files store the filters of a convolution [c, 1, w] as [c, w]."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.float().unsqueeze(1)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.squeeze(1)


@dataclass(frozen=True)
class Rows:
    """GGUF files store a vector as rows of `width`."""

    width: int
    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.flatten()

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (-1, self.width))


@dataclass(frozen=True)
class Rate:
    """GGUF files store -exp(A_log), as a column."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return (-tensor.float()).log().flatten()

    def write(self, tensor: Tensor) -> Tensor:
        return -tensor.float().exp()[:, None]


def names(config: Config) -> Names:
    return Names(
        gguf=(
            Pair("token_embd", "backbone.embeddings"),
            Pair("output_norm", "backbone.norm_f"),
            Pair("output", "lm_head"),
            Pair("blk.{i}.attn_norm", f"{LAYER}.norm"),
            *mixer_names(f"{LAYER}.mixer", config),
        )
    )


def mixer_names(mixer: str, config: Config) -> tuple[Pair, ...]:
    """The pairs of a Mamba 2 layer; `mixer` is the pattern of its name in the model."""
    group = config.intermediate_size // config.n_groups
    return (
        Pair("blk.{i}.ssm_in", f"{mixer}.in_proj"),
        Pair("blk.{i}.ssm_conv1d.weight", f"{mixer}.conv1d.weight", Filters()),
        Pair("blk.{i}.ssm_conv1d.bias", f"{mixer}.conv1d.bias"),
        Pair("blk.{i}.ssm_dt.bias", f"{mixer}.dt_bias"),
        Pair("blk.{i}.ssm_a", f"{mixer}.A_log", Rate()),
        Pair("blk.{i}.ssm_d", f"{mixer}.D", Rows(1)),
        Pair("blk.{i}.ssm_norm.weight", f"{mixer}.norm.weight", Rows(group)),
        Pair("blk.{i}.ssm_out", f"{mixer}.out_proj"),
    )


def state_sizes(get: Get) -> dict[str, Any]:
    """The fields of a Mamba 2 layer in a GGUF file; None for a missing key."""
    inner, heads = get("ssm.inner_size"), get("ssm.time_step_rank")
    return {
        "conv_kernel": get("ssm.conv_kernel"),
        "state_size": get("ssm.state_size"),
        "n_groups": get("ssm.group_count"),
        "num_heads": heads,
        "head_dim": quotient(inner, heads),
        "expand": quotient(inner, get("embedding_length")),
    }


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json of a GGUF file (gguf-py's constants.py lists its keys)."""
    tensors = container.tensors
    get = under("mamba2", container.metadata)
    raw = {
        "hidden_size": get("embedding_length"),
        "num_hidden_layers": get("block_count"),
        "max_position_embeddings": get("context_length"),
        "layer_norm_epsilon": get("attention.layer_norm_rms_epsilon"),
        **state_sizes(get),
    }
    raw = {key: value for key, value in raw.items() if value is not None}
    if "token_embd.weight" in tensors:
        raw["vocab_size"] = tensors["token_embd.weight"].shape[0]
    return raw | {
        "tie_word_embeddings": "output.weight" not in tensors,
        "use_bias": "blk.0.ssm_in.bias" in tensors,
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in tensors,
        "dtype": dtype(tensors.values()),
    }


def state_keys(config: Config) -> dict[str, Any]:
    """The keys of a Mamba 2 layer."""
    return {
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.state_size,
        "ssm.group_count": config.n_groups,
        "ssm.time_step_rank": config.num_heads,
        "ssm.inner_size": config.num_heads * config.head_dim,
    }


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the states; there is no attention, and no separate MLP."""
    return state_keys(config) | {
        "attention.head_count": 0,
        "attention.head_count_kv": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "attention.layer_norm_epsilon": None,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "feed_forward_length": 0,
        "rope.freq_base": None,
        "rope.dimension_count": None,
    }

"""T5's names on the hub and in GGUF files, and the config of GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.llama.names import dtype, under
from ostro.architectures.t5.model import GATED, Config

LAYER = "encoder.layers.{i}"
GGUF = (
    Pair("token_embd", "shared"),
    Pair("enc.output_norm", "encoder.norm"),
    Pair("enc.blk.0.attn_rel_b", "encoder.bias"),
    Pair("enc.blk.{i}.attn_norm", f"{LAYER}.attention_norm"),
    *(Pair(f"enc.blk.{{i}}.attn_{part}", f"{LAYER}.attention.{part}") for part in "qkvo"),
    Pair("enc.blk.{i}.ffn_norm", f"{LAYER}.mlp_norm"),
)


def names(config: Config) -> Names:
    """The names; checkpoints have the shared position bias in the first layer."""
    gated = (("gate_proj", "wi_0", "gate"), ("up_proj", "wi_1", "up"), ("down_proj", "wo", "down"))
    plain = (("wi", "wi", "up"), ("wo", "wo", "down"))
    mlp = gated if config.feed_forward_proj in GATED else plain
    block = "encoder.block.{i}.layer"
    hub = (
        Pair("encoder.block.0.layer.0.SelfAttention.relative_attention_bias", "encoder.bias"),
        *(Pair(f"{block}.0.SelfAttention.{part}", f"{LAYER}.attention.{part}") for part in "qkvo"),
        Pair(f"{block}.0.layer_norm", f"{LAYER}.attention_norm"),
        *(Pair(f"{block}.1.DenseReluDense.{hub}", f"{LAYER}.mlp.{ours}") for ours, hub, _ in mlp),
        Pair(f"{block}.1.layer_norm", f"{LAYER}.mlp_norm"),
        Pair("encoder.final_layer_norm", "encoder.norm"),
    )
    feed = (Pair(f"enc.blk.{{i}}.ffn_{gguf}", f"{LAYER}.mlp.{ours}") for ours, _, gguf in mlp)
    return Names(
        hub=hub,
        gguf=(*GGUF, *feed),
        tree=(Pair("encoder.embed_tokens", "shared"),),
        ignore=("encoder.embed_tokens.weight",),
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json of a GGUF file of an encoder.

    A gate tensor identifies the gated MLP. The largest distance, which no key stores, is 128 in
    llama.cpp and all published models.
    """
    get, tensors = under("t5encoder", container.metadata), container.tensors
    gated = "enc.blk.0.ffn_gate.weight" in tensors
    raw = {
        "d_model": get("embedding_length"),
        "d_kv": get("attention.key_length"),
        "d_ff": get("feed_forward_length"),
        "num_layers": get("block_count"),
        "num_heads": get("attention.head_count"),
        "relative_attention_num_buckets": get("attention.relative_buckets_count"),
        "layer_norm_epsilon": get("attention.layer_norm_rms_epsilon"),
        "feed_forward_proj": "gated-gelu" if gated else "relu",
    }
    if "token_embd.weight" in tensors:
        raw["vocab_size"] = tensors["token_embd.weight"].shape[0]
    raw = {key: value for key, value in raw.items() if value is not None}
    return raw | {"dtype": dtype(tensors.values())}


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The number of buckets of relative positions; both epsilons, as llama.cpp's converter."""
    return {
        "attention.head_count_kv": None,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "attention.relative_buckets_count": config.relative_attention_num_buckets,
        "context_length": raw.get("n_positions", 512),
    }

"""T5's names on the hub and in GGUF files, and what a file says of the model."""

from __future__ import annotations

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
    """One bias by position, which the hub's names and those of GGUF files give to the first layer.

    Each linear of the MLP: ours, the hub's name, that in GGUF files.
    """
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
    """A config.json out of a GGUF file of an encoder.

    That the MLP has a gate, its tensor says. No key tells how far positions are told apart, and
    llama.cpp takes 128, as every published T5 has it.
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

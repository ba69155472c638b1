"""LFM2's names, which differ from Llama's in attention and feed-forward layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ostro import Container, Names, Pair
from ostro.architectures.lfm2.model import Config
from ostro.architectures.llama import names as llama

LAYER = "model.layers.{i}"
HUB = (
    Pair(f"{LAYER}.self_attn.q_layernorm", f"{LAYER}.self_attn.q_norm"),
    Pair(f"{LAYER}.self_attn.k_layernorm", f"{LAYER}.self_attn.k_norm"),
    Pair(f"{LAYER}.self_attn.out_proj", f"{LAYER}.self_attn.o_proj"),
    Pair(f"{LAYER}.feed_forward.w1", f"{LAYER}.feed_forward.gate_proj"),
    Pair(f"{LAYER}.feed_forward.w3", f"{LAYER}.feed_forward.up_proj"),
    Pair(f"{LAYER}.feed_forward.w2", f"{LAYER}.feed_forward.down_proj"),
)


@dataclass(frozen=True)
class Filters:
    """GGUF files store the filters of a convolution [c, 1, w] as [c, w]."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.float().unsqueeze(1)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.squeeze(1)


OWN = {
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp": "feed_forward",
    "norm": "embedding_norm",
}
GGUF = (
    Pair("blk.{i}.shortconv.conv.weight", f"{LAYER}.conv.conv.weight", Filters()),
    Pair("blk.{i}.shortconv", f"{LAYER}.conv"),
    *(
        Pair(
            "token_embd_norm" if pair.theirs == "output_norm" else pair.theirs,
            ".".join(OWN.get(component, component) for component in pair.ours.split(".")),
        )
        for pair in llama.GGUF
    ),
)


def names(config: Config) -> Names:
    return Names(hub=HUB, gguf=GGUF)


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys and the filters' length; convolution layers have 0 key heads."""
    raw = llama.gguf_config(container)
    get = llama.under(container.metadata["general.architecture"], container.metadata)
    heads = get("attention.head_count_kv")
    if isinstance(heads, Iterable):
        counts = [int(n) for n in heads]
        raw["layer_types"] = ["full_attention" if n else "conv" for n in counts]
        raw["num_key_value_heads"] = max(counts, default=0)
    raw["norm_eps"] = raw.pop("rms_norm_eps", None)
    raw["conv_L_cache"] = get("shortconv.l_cache")
    raw["block_auto_adjust_ff_dim"] = False
    return raw


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The filters' length; a layer of convolution has no key heads."""
    heads = config.num_key_value_heads
    layers = range(config.num_hidden_layers)
    return {
        "attention.head_count_kv": [heads if config.attends(i) else 0 for i in layers],
        "feed_forward_length": config.feed_forward_size,
        "shortconv.l_cache": config.conv_L_cache,
    }

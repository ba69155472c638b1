"""Qwen3-Next's names; most norms store w, the model multiplies by 1 + w."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor

from ostro import Add, Container, ExpertNames, HeadRows, Names, Pair
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import names as mixtral
from ostro.architectures.qwen2_moe.names import SHARED
from ostro.architectures.qwen3_next.model import Config

LAYER = "model.layers.{i}"
ATTENTION = f"{LAYER}.self_attn"
SAME = tuple(f"{ATTENTION}.{part}_proj" for part in "qkvo")
NORMS = (
    f"{LAYER}.input_layernorm",
    f"{LAYER}.post_attention_layernorm",
    f"{ATTENTION}.q_norm",
    f"{ATTENTION}.k_norm",
    "model.norm",
)


def hub_pairs(root: str = "model") -> tuple[Pair, ...]:
    """The pairs of a decoder that a checkpoint has at `root`, without the inputs of delta nets."""

    def theirs(name: str) -> str:
        return root + name.removeprefix("model")

    return (
        *(Pair(theirs(norm), norm, Add(1.0)) for norm in NORMS),
        *(Pair(theirs(name), name) for name in SAME),
        Pair(theirs(f"{LAYER}.linear_attn"), ATTENTION),
    )


@dataclass(frozen=True)
class Filters:
    """GGUF files store the filters of a convolution [c, 1, w] as [c, w]."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.float().unsqueeze(1)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.squeeze(1)


@dataclass(frozen=True)
class Rate:
    """GGUF files store -exp(A_log)."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return (-tensor.float()).log()

    def write(self, tensor: Tensor) -> Tensor:
        return -tensor.float().exp()


GGUF = (
    *SHARED,
    Pair("blk.{i}.post_attention_norm", f"{LAYER}.post_attention_layernorm"),
    Pair("blk.{i}.attn_gate", f"{ATTENTION}.in_proj_z"),
    Pair("blk.{i}.ssm_ba", f"{ATTENTION}.in_proj_ba"),
    Pair("blk.{i}.ssm_conv1d.weight", f"{ATTENTION}.conv1d.weight", Filters()),
    Pair("blk.{i}.ssm_dt.bias", f"{ATTENTION}.dt_bias"),
    Pair("blk.{i}.ssm_a", f"{ATTENTION}.A_log", Rate()),
    Pair("blk.{i}.ssm_norm", f"{ATTENTION}.norm"),
    Pair("blk.{i}.ssm_out", f"{ATTENTION}.out_proj"),
    *llama.GGUF,
)


@dataclass(frozen=True, kw_only=True)
class LayerNames(ExpertNames):
    """Names that ignore the multi-token prediction layers after the last layer of GGUF files."""

    layers: int

    def read(self, names: Iterable[str], space: str = "hub") -> tuple[list[Any], list[str]]:
        found = ((name, re.match(r"blk\.(\d+)\.", name)) for name in names)
        kept = [name for name, layer in found if not layer or int(layer[1]) < self.layers]
        return super().read(kept, space)


def parts(theirs: str, names: str, heads: int, *sizes: int) -> tuple[Pair, ...]:
    """The pairs of a fused tensor: each head contains `sizes` rows of the linears `names`."""
    spans = pairwise(accumulate(sizes, initial=0))
    return tuple(
        Pair(theirs, f"{ATTENTION}.in_proj_{name}", HeadRows(heads, sum(sizes), *span))
        for name, span in zip(names, spans, strict=True)
    )


def names(config: Config) -> LayerNames:
    """Hub checkpoints and older GGUF files fuse q, k, v and z, grouped by key head.

    The multi-token prediction layers (mtp) are ignored.
    """
    heads, dk = config.linear_num_key_heads, config.linear_key_head_dim
    dv = config.linear_num_value_heads // heads * config.linear_value_head_dim
    mixed = (heads, dk, dk, dv, dv)
    return LayerNames(
        hub=(*parts(f"{LAYER}.linear_attn.in_proj_qkvz", "qkvz", *mixed), *hub_pairs()),
        gguf=(
            *parts("blk.{i}.attn_qkv", "qkv", 1, heads * dk, heads * dk, heads * dv),
            *GGUF,
            *parts("blk.{i}.ssm_in", "qkvz", *mixed),
        ),
        ignore=(*Names.ignore, "mtp.{any}"),
        experts=config.num_local_experts,
        layers=config.num_hidden_layers,
        stacks=mixtral.STACKS,
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Mixtral's keys and those of the states; tensors determine the attention layers.

    The block count may include multi-token prediction layers.
    """
    raw = mixtral.gguf_config(container)
    get = llama.under(container.metadata["general.architecture"], container.metadata)
    layers, guessing = get("block_count"), get("nextn_predict_layers", 0)
    if isinstance(layers, int) and isinstance(guessing, int):
        raw["num_hidden_layers"] = layers = layers - guessing
    attends = [
        f"blk.{i}.attn_q.weight" in container.tensors
        for i in range(min(layers, len(container.tensors)) if isinstance(layers, int) else 0)
    ]
    values = get("ssm.time_step_rank")
    sizes = {
        "num_experts": raw.pop("num_local_experts"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "shared_expert_intermediate_size": get("expert_shared_feed_forward_length"),
        "linear_num_key_heads": get("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_key_head_dim": get("ssm.state_size"),
        "linear_value_head_dim": llama.quotient(get("ssm.inner_size"), values),
        "linear_conv_kernel_dim": get("ssm.conv_kernel"),
    }
    return {
        **raw,
        **sizes,
        "layer_types": ["full_attention" if a else "linear_attention" for a in attends],
        "norm_topk_prob": True,
        "attention_bias": False,
        "rope_parameters": {"partial_rotary_factor": 1.0, **raw["rope_parameters"]},
    }


def gguf_metadata(config: Any, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of gated delta nets, and the layers that have them."""
    layers = range(config.num_hidden_layers)
    heads, width = config.linear_num_value_heads, config.linear_value_head_dim
    return {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * width,
        "attention.recurrent_layers": [not config.attends(i) for i in layers],
        "full_attention_interval": config.full_attention_interval,
    }

"""GLM-4 MoE's names; multi-token prediction layers are ignored: those after the last layer,
and in UQFF files `mtp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, ExpertNames, Names, Pair
from ostro.architectures.deepseek_v2.names import EXPERTS
from ostro.architectures.glm4_moe.model import Config
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import names as mixtral
from ostro.errors import ConfigError

GGUF = (
    *EXPERTS,
    Pair("blk.{i}.post_attention_norm", f"{llama.LAYER}.post_attention_layernorm"),
    *llama.GGUF,
)
SIGMOID = 2
"""The value of expert_gating_func."""


def names(config: Config) -> ExpertNames:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    first = config.num_hidden_layers
    further = range(first, first + config.num_mtp_layers)
    return ExpertNames(
        gguf=GGUF,
        experts=config.n_routed_experts,
        stacks=mixtral.STACKS,
        ignore=(
            *Names.ignore,
            "mtp.{any}",
            *(f"model.layers.{i}.{{any}}" for i in further),
            *(f"blk.{i}.{{any}}" for i in further),
        ),
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys and those of the experts. The block count includes the layers of multi-token
    prediction.
    """
    raw, get = llama.gguf_config(container), llama.under("glm4moe", container.metadata)
    if get("expert_gating_func", SIGMOID) != SIGMOID:
        raise ConfigError(f"{container.path.name}: glm4moe.expert_gating_func is not sigmoid")
    layers, further = get("block_count"), get("nextn_predict_layers", 0)
    if isinstance(layers, int) and isinstance(further, int):
        raw["num_hidden_layers"] = layers - further
    groups = get("expert_group_count", 1)
    return raw | {
        "num_mtp_layers": further,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in container.tensors,
        "first_k_dense_replace": get("leading_dense_block_count", 0),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "n_routed_experts": get("expert_count"),
        "n_shared_experts": get("expert_shared_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "n_group": groups,
        "topk_group": get("expert_group_used_count", groups),
        "norm_topk_prob": get("expert_weights_norm", False),
        "routed_scaling_factor": get("expert_weights_scale", 1.0),
        "rope_parameters": {"partial_rotary_factor": 1.0, **raw["rope_parameters"]},
    }


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The router's keys; the layers of multi-token prediction are not written."""
    return {
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": config.norm_topk_prob,
        "nextn_predict_layers": 0,
    }

"""DeepSeek's names: kv_b_proj holds, head by head, the rows of k_b_proj and v_b_proj."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, ExpertNames, HeadRows, Names, Pair
from ostro.architectures.deepseek_v2.model import Config
from ostro.architectures.deepseek_v2.transposed import StackedHeads, TransposedHeads
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral.names import GATE, STACKS

LAYER = "model.layers.{i}"
ATTENTION = f"{LAYER}.self_attn"
EXPERTS = (
    Pair("blk.{i}.exp_probs_b.bias", f"{LAYER}.mlp.gate.e_score_correction_bias"),
    GATE,
    *(
        Pair(f"blk.{{i}}.ffn_{part}_shexp", f"{LAYER}.mlp.shared_experts.{part}_proj")
        for part in ("gate", "up", "down")
    ),
)
"""The names of the router and the shared experts in GGUF files."""

GGUF = (
    *EXPERTS,
    Pair("blk.{i}.attn_q_a", f"{ATTENTION}.q_a_proj"),
    Pair("blk.{i}.attn_q_a_norm", f"{ATTENTION}.q_a_layernorm"),
    Pair("blk.{i}.attn_q_b", f"{ATTENTION}.q_b_proj"),
    Pair("blk.{i}.attn_kv_a_mqa", f"{ATTENTION}.kv_a_proj_with_mqa"),
    Pair("blk.{i}.attn_kv_a_norm", f"{ATTENTION}.kv_a_layernorm"),
    *llama.GGUF,
)


def names(config: Config) -> ExpertNames:
    """GGUF files hold k_b and v_b, the former transposed; files from before 2025 hold kv_b.

    The multi-token prediction layer after the last layer (V3), in UQFF files `mtp`, is ignored.
    """
    last = config.num_hidden_layers
    heads, k, v = config.num_attention_heads, config.qk_nope_head_dim, config.v_head_dim
    keys, values = HeadRows(heads, k + v, 0, k), HeadRows(heads, k + v, k, k + v)
    return ExpertNames(
        hub=(
            Pair(f"{ATTENTION}.kv_b_proj", f"{ATTENTION}.k_b_proj", keys),
            Pair(f"{ATTENTION}.kv_b_proj", f"{ATTENTION}.v_b_proj", values),
        ),
        gguf=(
            Pair("blk.{i}.attn_k_b", f"{ATTENTION}.k_b_proj", TransposedHeads(heads)),
            Pair("blk.{i}.attn_v_b", f"{ATTENTION}.v_b_proj", StackedHeads(heads)),
            Pair("blk.{i}.attn_kv_b", f"{ATTENTION}.k_b_proj", keys),
            Pair("blk.{i}.attn_kv_b", f"{ATTENTION}.v_b_proj", values),
            *GGUF,
        ),
        experts=config.n_routed_experts,
        stacks=STACKS,
        ignore=(
            *Names.ignore,
            "mtp.{any}",
            f"model.layers.{last}.{{any}}",
            f"blk.{last}.{{any}}",
        ),
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json of a GGUF file of V2 or V3, which are both "deepseek2".

    Without a key for expert groups all experts are candidates, as in llama.cpp. Without a key for
    the scoring function, the router's bias identifies V3. The block count includes the layers of
    multi-token prediction.
    """
    get = llama.under("deepseek2", container.metadata)
    rope_dim = get("rope.dimension_count", 64)
    key = get("attention.key_length_mla", get("attention.key_length"))
    if isinstance(key, int) and isinstance(rope_dim, int):
        key -= rope_dim
    groups = get("expert_group_count", 1)
    balanced = any(name.endswith(".exp_probs_b.bias") for name in container.tensors)
    scoring = get("expert_gating_func", 2 if balanced else 1)
    sizes = {
        "num_key_value_heads": get("attention.head_count"),
        "q_lora_rank": get("attention.q_lora_rank"),
        "kv_lora_rank": get("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": key,
        "v_head_dim": get("attention.value_length_mla", get("attention.value_length")),
        "first_k_dense_replace": get("leading_dense_block_count", 0),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "n_routed_experts": get("expert_count"),
        "n_shared_experts": get("expert_shared_count"),
        "num_experts_per_tok": get("expert_used_count"),
    }
    routing = {
        "n_group": groups,
        "topk_group": get("expert_group_used_count", groups),
        "topk_method": "greedy" if groups == 1 else "group_limited_greedy",
        "norm_topk_prob": get("expert_weights_norm", False),
        "routed_scaling_factor": get("expert_weights_scale", 1.0),
        "scoring_func": "softmax" if scoring == 1 else "sigmoid" if scoring == 2 else scoring,
    }
    raw = llama.gguf_config(container)
    layers, further = get("block_count"), get("nextn_predict_layers", 0)
    if isinstance(layers, int) and isinstance(further, int):
        raw["num_hidden_layers"] = layers - further
    return {
        **raw,
        **sizes,
        **routing,
        "rope_parameters": rope_parameters(container, get, rope_dim),
    }


def rope_parameters(container: Container, get: llama.Get, rope_dim: int) -> dict[str, Any]:
    """The rope parameters. GGUF files of this family store mscale_all_dim times 0.1, and no
    `mscale`, which is equal.
    """
    rule = llama.rope_parameters(container, get, rope_dim)
    if rule.get("mscale_all_dim"):
        rule["mscale"] = rule["mscale_all_dim"] = rule["mscale_all_dim"] / 0.1
    return rule


GATING = {"softmax": 1, "sigmoid": 2, "noaux_tc": 2}
"""The values of expert_gating_func."""


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of latent attention, in its absorbed form with one key head, and of the router."""
    rule = config.rope_parameters
    keys, values = config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    latent = config.kv_lora_rank
    sigmoid = getattr(config, "scoring_func", None) or raw.get("scoring_func")
    scale = rule.get("mscale_all_dim") if rule.get("rope_type") == "yarn" else None
    return {
        "general.architecture": "deepseek2",
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": latent,
        "attention.key_length": latent + config.qk_rope_head_dim,
        "attention.value_length": latent,
        "attention.key_length_mla": keys,
        "attention.value_length_mla": values,
        "expert_gating_func": GATING.get(str(sigmoid)),
        "expert_weights_norm": config.norm_topk_prob or None,
        "leading_dense_block_count": leading(config),
        "rope.dimension_count": config.qk_rope_head_dim,
        "rope.scaling.yarn_log_multiplier": 0.1 * scale if scale else None,
    }


def leading(config: Config) -> int:
    """The number of dense layers before those with experts."""
    types = getattr(config, "mlp_layer_types", None)
    return config.first_k_dense_replace if types is None else types.index("sparse")

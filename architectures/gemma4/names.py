"""Gemma 4's names and keys; norms store the factor itself, unlike in earlier Gemmas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostro import Container, ExpertNames, Pair, RowPart
from ostro.architectures.gemma2 import names as gemma2
from ostro.architectures.gemma4.config import FULL, ROPES, SLIDING, Config
from ostro.architectures.llama import names as llama
from ostro.checkpoints import Named
from ostro.errors import ConfigError

LAYER = "model.layers.{i}"
EACH = f"{LAYER}.experts.*"
KEYS = {"attn_k": "k_proj", "attn_v": "v_proj", "attn_k_norm": "k_norm"}
"""The tensors that only layers with keys and values of their own use, in GGUF and hub files."""

TREES = ("model", "model.language_model")
"""The paths of the decoder in checkpoints."""

STACKS = (
    Pair(f"{LAYER}.experts.gate_up_proj", f"{EACH}.gate_proj.weight", RowPart(0, 2)),
    Pair(f"{LAYER}.experts.gate_up_proj", f"{EACH}.up_proj.weight", RowPart(1, 2)),
    Pair(f"{LAYER}.experts.down_proj", f"{EACH}.down_proj.weight"),
    Pair("blk.{i}.ffn_gate_up_exps.weight", f"{EACH}.gate_proj.weight", RowPart(0, 2)),
    Pair("blk.{i}.ffn_gate_up_exps.weight", f"{EACH}.up_proj.weight", RowPart(1, 2)),
    Pair("blk.{i}.ffn_gate_exps.weight", f"{EACH}.gate_proj.weight"),
    Pair("blk.{i}.ffn_up_exps.weight", f"{EACH}.up_proj.weight"),
    Pair("blk.{i}.ffn_down_exps.weight", f"{EACH}.down_proj.weight"),
)
GGUF = (
    Pair("per_layer_token_embd", "model.embed_tokens_per_layer"),
    Pair("per_layer_model_proj", "model.per_layer_model_projection"),
    Pair("per_layer_proj_norm", "model.per_layer_projection_norm"),
    Pair("blk.{i}.inp_gate", f"{LAYER}.per_layer_input_gate"),
    Pair("blk.{i}.proj", f"{LAYER}.per_layer_projection"),
    Pair("blk.{i}.post_norm", f"{LAYER}.post_per_layer_input_norm"),
    Pair("blk.{i}.layer_output_scale.weight", f"{LAYER}.layer_scalar"),
    Pair("blk.{i}.post_ffw_norm_1", f"{LAYER}.post_feedforward_layernorm_1"),
    Pair("blk.{i}.post_ffw_norm_2", f"{LAYER}.post_feedforward_layernorm_2"),
    Pair("blk.{i}.pre_ffw_norm_2", f"{LAYER}.pre_feedforward_layernorm_2"),
    Pair("blk.{i}.ffn_gate_inp.scale", f"{LAYER}.router.scale"),
    Pair("blk.{i}.ffn_gate_inp", f"{LAYER}.router.proj"),
    Pair("blk.{i}.ffn_down_exps.scale", f"{LAYER}.router.per_expert_scale"),
    *(pair for pair in gemma2.GGUF if pair.theirs.rpartition(".")[2] not in KEYS),
)


class Gemma4Names(ExpertNames):
    """`ignore` takes precedence over the pairs."""

    def find(self, name: str, space: str) -> list[Named]:
        return [] if self.ignored(name) else super().find(name, space)


def names(config: Config) -> Gemma4Names:
    return text_names(config)


def text_names(config: Config, roots: Sequence[str] = ()) -> Gemma4Names:
    """The names of the decoder, which checkpoints have at one of `roots` or at `model`.

    Checkpoints also contain the keys and values of layers that read those of another layer; they
    are skipped.
    """
    own = range(config.first_shared)
    keys = [
        Pair(f"blk.{i}.{theirs}", f"model.layers.{i}.self_attn.{ours}")
        for i in own
        for theirs, ours in KEYS.items()
    ]
    unused = [
        name
        for i in range(config.first_shared, config.num_hidden_layers)
        for name in (
            *(f"blk.{i}.{theirs}.{{rest}}" for theirs in KEYS),
            *(f"{at}.layers.{i}.self_attn.{k}.{{rest}}" for at in TREES for k in KEYS.values()),
        )
    ]
    stacks = [
        Pair(pair.theirs.replace("model", root, 1), pair.ours, pair.transform)
        for pair in STACKS
        for root in ("model", *roots)
        if root == "model" or pair.theirs.startswith("model.")
    ]
    return Gemma4Names(
        hub=[Pair(root, "model") for root in roots],
        gguf=(*keys, *GGUF),
        experts=config.num_experts or 0,
        stacks=stacks,
        ignore=(*ExpertNames.ignore, *unused),
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys, those of both kinds of layers, of per-layer embeddings and of experts."""
    metadata, tensors = container.metadata, container.tensors
    get = llama.under(metadata["general.architecture"], metadata)
    raw = llama.gguf_config(container) | gemma2.windows(metadata)
    shared = get("attention.shared_kv_layers", 0)
    widths, heads = get("feed_forward_length"), get("attention.head_count_kv")
    kinds = raw.get("layer_types", [])
    raw |= {
        "model_type": "gemma4_text",
        "num_kv_shared_layers": shared,
        "final_logit_softcapping": get("final_logit_softcapping"),
        "head_dim": get("attention.key_length_swa"),
        "global_head_dim": get("attention.key_length"),
        "hidden_size_per_layer_input": get("embedding_length_per_layer_input", 0),
        "attention_k_eq_v": any(
            f"blk.{i}.attn_k.weight" in tensors and f"blk.{i}.attn_v.weight" not in tensors
            for i in range(raw["num_hidden_layers"] - shared)
        ),
        "rope_parameters": rope_parameters(container, get),
        **experts(get),
    }
    if "per_layer_token_embd.weight" in tensors:
        raw["vocab_size_per_layer_input"] = tensors["per_layer_token_embd.weight"].shape[0]
    if (each := numbers(widths)) is not None:
        raw |= {"intermediate_size": each[0], "use_double_wide_mlp": each[-1] != each[0]}
    if (each := numbers(heads)) is not None:
        found = dict(zip(kinds, each, strict=False))
        raw["num_key_value_heads"] = found.get(SLIDING, each[0])
        raw["num_global_key_value_heads"] = each[-1]
    return raw


def numbers(value: Any) -> list[int] | None:
    """The numbers of a key with one per layer; None if it is one for all layers."""
    if value is None or isinstance(value, int) or not len(value):
        return None
    return [int(each) for each in value]


def experts(get: llama.Get) -> dict[str, Any]:
    """The fields of experts; none for a dense model."""
    if not (count := get("expert_count", 0)):
        return {}
    return {
        "enable_moe_block": True,
        "num_experts": count,
        "top_k_experts": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
    }


def rope_parameters(container: Container, get: llama.Get) -> dict[str, Any]:
    """The ropes of both kinds. llama.cpp divides the angles of pairs of layers without a window
    by the tensor rope_freqs: 1 for those that rotate, 1e30 for the others.
    """
    sliding, full = (dict(ROPES[kind]) for kind in ROPES)
    full["rope_theta"] = get("rope.freq_base", full["rope_theta"])
    sliding["rope_theta"] = get("rope.freq_base_swa", sliding["rope_theta"])
    if "rope_freqs.weight" in container.tensors:
        factors = container.read("rope_freqs.weight").tolist()
        turning = factors.count(1.0)
        if (
            not turning
            or any(f != 1.0 for f in factors[:turning])
            or min(factors[turning:], default=1e30) < 1e29
        ):
            raise ConfigError(
                f"{container.path.name}: rope_freqs.weight has factors besides 1 and 1e30, which "
                "is not implemented"
            )
        full["partial_rotary_factor"] = turning / len(factors)
    return {"sliding_attention": sliding, "full_attention": full}


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of both kinds of layers, and of experts."""
    layers = range(config.num_hidden_layers)
    kinds, heads = [config.kind(i) for i in layers], [config.heads(i) for i in layers]
    size = {kind: each["head_dim"] for kind, each in zip(kinds, heads, strict=True)}
    return {
        "attention.head_count_kv": same([each["num_key_value_heads"] for each in heads]),
        "attention.key_length": size[FULL],
        "attention.value_length": size[FULL],
        "attention.key_length_swa": size.get(SLIDING),
        "attention.value_length_swa": size.get(SLIDING),
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "attention.sliding_window_pattern": [kind == SLIDING for kind in kinds],
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "feed_forward_length": same([config.width(i) for i in layers]),
        "expert_count": config.num_experts if config.enable_moe_block else None,
        "expert_used_count": config.top_k_experts if config.enable_moe_block else None,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "rope.dimension_count": size[FULL],
        "rope.dimension_count_swa": size.get(SLIDING),
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.add_bos_token": True,
    }


def same(numbers: list[int]) -> int | list[int]:
    """One number if all are equal, else the list."""
    return numbers[0] if len({*numbers}) == 1 else numbers

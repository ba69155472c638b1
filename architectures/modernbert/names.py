"""ModernBERT's names: q, k and v are one tensor, as are gate and up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, HeadRows, Names, Pair
from ostro.architectures.llama.names import dtype, under
from ostro.architectures.modernbert.model import FULL, SLIDING, Config

LAYER = "model.layers.{i}"
PARTS = ("embeddings", "layers", "final_norm")


def parts(theirs: str, ours: str, sides: tuple[str, ...], size: int) -> Iterator[Pair]:
    """Pairs of one tensor and the parts of a module, each of `size` rows."""
    for i, side in enumerate(sides):
        rows = HeadRows(1, len(sides) * size, i * size, (i + 1) * size)
        yield Pair(theirs, f"{LAYER}.{ours}.{side}_proj", rows)


def fused(config: Config, qkv: str, gate_up: str) -> Iterator[Pair]:
    """The parts of the fused tensors; the activated half of the MLP is first."""
    yield from parts(qkv, "attn", ("q", "k", "v"), config.hidden_size)
    yield from parts(gate_up, "mlp", ("gate", "up"), config.intermediate_size)


def hub(config: Config, prefix: str) -> Iterator[Pair]:
    """The names in checkpoints of the encoder alone (no prefix), or with a head."""
    layer = f"{prefix}layers.{{i}}"
    yield from fused(config, f"{layer}.attn.Wqkv", f"{layer}.mlp.Wi")
    yield Pair(f"{layer}.attn.Wo", f"{LAYER}.attn.o_proj")
    yield Pair(f"{layer}.mlp.Wo", f"{LAYER}.mlp.down_proj")
    for part in PARTS:
        yield Pair(f"{prefix}{part}", f"model.{part}")


GGUF = (
    Pair("token_embd", "model.embeddings.tok_embeddings"),
    Pair("token_embd_norm", "model.embeddings.norm"),
    Pair("output_norm", "model.final_norm"),
    Pair("blk.{i}.attn_norm", f"{LAYER}.attn_norm"),
    Pair("blk.{i}.attn_output", f"{LAYER}.attn.o_proj"),
    Pair("blk.{i}.ffn_norm", f"{LAYER}.mlp_norm"),
    Pair("blk.{i}.ffn_down", f"{LAYER}.mlp.down_proj"),
)
HEAD = (
    Pair("cls.output", "classifier"),
    Pair("cls.norm", "head.norm"),
    Pair("cls", "head.dense"),
)
UNUSED = ("head.{any}", "decoder.{any}", "classifier.{any}", "cls.{any}")
"""The heads of checkpoints that are loaded as an encoder."""


def names(config: Config) -> Names:
    return replace(classifier_names(config), ignore=UNUSED)


def classifier_names(config: Config) -> Names:
    return Names(
        hub=(*hub(config, "model."), *hub(config, "")),
        gguf=(*GGUF, *fused(config, "blk.{i}.attn_qkv", "blk.{i}.ffn_up"), *HEAD),
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json of a GGUF file; labels without names are LABEL_0 and so on."""
    get = under("modern-bert", container.metadata)
    rows = {name: info.shape[0] for name, info in container.tensors.items() if info.shape}
    pooling = {1: "mean", 2: "cls"}.get(get("classifier.pooling_type", 1), "mean")
    raw = {
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "norm_eps": get("attention.layer_norm_epsilon"),
        "vocab_size": rows.get("token_embd.weight"),
        "max_position_embeddings": get("context_length"),
        "hidden_activation": get("hidden_activation"),
        "local_attention": get("attention.sliding_window"),
        "global_attn_every_n_layers": get("attention.sliding_window_pattern"),
        "num_labels": rows.get("cls.output.weight"),
        "norm_bias": "output_norm.bias" in container.tensors,
        "attention_bias": "blk.0.attn_qkv.bias" in container.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in container.tensors,
        "classifier_bias": "cls.bias" in container.tensors,
    }
    raw = {key: value for key, value in raw.items() if value is not None}
    if isinstance(labels := get("classifier.output_labels"), list):
        raw["id2label"] = {str(i): str(label) for i, label in enumerate(labels)}
    theta = {FULL: get("rope.freq_base"), SLIDING: get("rope.freq_base_swa")}
    return raw | {
        "classifier_pooling": pooling,
        "rope_parameters": {k: {"rope_theta": t} for k, t in theta.items() if t is not None},
        "dtype": dtype(container.tensors.values()),
    }


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ModernBERT; labels are those of a classifier."""
    theta = {kind: rule.get("rope_theta") for kind, rule in config.rope_parameters.items()}
    labels = raw.get("id2label")
    return {
        "general.architecture": "modern-bert",
        "attention.causal": False,
        "attention.head_count_kv": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "attention.layer_norm_epsilon": config.norm_eps,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "attention.sliding_window": config.local_attention,
        "attention.sliding_window_pattern": config.global_attn_every_n_layers,
        "classifier.pooling_type": {"mean": 1, "cls": 2}.get(config.classifier_pooling),
        "hidden_activation": config.hidden_activation,
        "rope.freq_base": theta.get(FULL),
        "rope.freq_base_swa": theta.get(SLIDING),
        "rope.scaling.type": "none",
        "rope.dimension_count": None,
        "classifier.output_labels": list(labels.values()) if isinstance(labels, dict) else None,
    }

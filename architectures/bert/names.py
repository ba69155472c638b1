"""BERT's names on the hub and in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.bert.model import Config
from ostro.architectures.llama.names import dtype, under

LAYER = "encoder.layer.{i}"


def norm(theirs: str, ours: str) -> tuple[Pair, ...]:
    """The names of a norm; checkpoints converted from TensorFlow have "gamma" and "beta"."""
    parts = (("weight", "weight"), ("bias", "bias"), ("gamma", "weight"), ("beta", "bias"))
    return tuple(Pair(f"{theirs}.{a}", f"{ours}.{b}") for a, b in parts)


HUB = (
    *(
        Pair(f"embeddings.{table}", f"embeddings.{table}")
        for table in "word_embeddings position_embeddings token_type_embeddings".split()
    ),
    *norm("embeddings.LayerNorm", "embeddings.LayerNorm"),
    Pair(f"{LAYER}.attention.self.query", f"{LAYER}.attention.q_proj"),
    Pair(f"{LAYER}.attention.self.key", f"{LAYER}.attention.k_proj"),
    Pair(f"{LAYER}.attention.self.value", f"{LAYER}.attention.v_proj"),
    Pair(f"{LAYER}.attention.output.dense", f"{LAYER}.attention.o_proj"),
    *norm(f"{LAYER}.attention.output.LayerNorm", f"{LAYER}.attention_norm"),
    Pair(f"{LAYER}.intermediate.dense", f"{LAYER}.mlp.fc1"),
    Pair(f"{LAYER}.output.dense", f"{LAYER}.mlp.fc2"),
    *norm(f"{LAYER}.output.LayerNorm", f"{LAYER}.mlp_norm"),
)


def prefixed(prefix: str) -> tuple[Pair, ...]:
    """The names in checkpoints with a head."""
    return tuple(Pair(f"{prefix}.{pair.theirs}", pair.ours) for pair in HUB)


PREFIXED = prefixed("bert")

GGUF = (
    Pair("token_embd", "embeddings.word_embeddings"),
    Pair("position_embd", "embeddings.position_embeddings"),
    Pair("token_types", "embeddings.token_type_embeddings"),
    Pair("token_embd_norm", "embeddings.LayerNorm"),
    Pair("blk.{i}.attn_q", f"{LAYER}.attention.q_proj"),
    Pair("blk.{i}.attn_k", f"{LAYER}.attention.k_proj"),
    Pair("blk.{i}.attn_v", f"{LAYER}.attention.v_proj"),
    Pair("blk.{i}.attn_output", f"{LAYER}.attention.o_proj"),
    Pair("blk.{i}.attn_output_norm", f"{LAYER}.attention_norm"),
    Pair("blk.{i}.ffn_up", f"{LAYER}.mlp.fc1"),
    Pair("blk.{i}.ffn_down", f"{LAYER}.mlp.fc2"),
    Pair("blk.{i}.layer_output_norm", f"{LAYER}.mlp_norm"),
)
CLASSIFIER = (Pair("cls.output", "classifier"), Pair("cls", "pooler"))
UNUSED = ("embeddings.position_ids", "pooler.{any}", "cls.{any}")


def names(config: Config) -> Names:
    ignore = UNUSED + tuple(f"bert.{name}" for name in UNUSED)
    return Names(hub=HUB + PREFIXED, gguf=GGUF, ignore=ignore)


def classifier_names(config: Config) -> Names:
    """As `names`, with the pooler of a classifier."""
    return replace(
        names(config),
        hub=(*PREFIXED, Pair("bert.pooler.dense", "pooler")),
        gguf=(*GGUF, *CLASSIFIER),
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json of a GGUF file, from its keys and tensor shapes.

    Labels without names are LABEL_0 and so on, as in transformers.
    """
    get = under("bert", container.metadata)
    rows = {name: info.shape[0] for name, info in container.tensors.items() if info.shape}
    raw = {
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "layer_norm_eps": get("attention.layer_norm_epsilon"),
        "vocab_size": rows.get("token_embd.weight"),
        "type_vocab_size": rows.get("token_types.weight"),
        "max_position_embeddings": rows.get("position_embd.weight"),
        "num_labels": rows.get("cls.output.weight"),
    }
    raw = {key: value for key, value in raw.items() if value is not None}
    if isinstance(labels := get("classifier.output_labels"), list):
        raw["id2label"] = {str(i): str(label) for i, label in enumerate(labels)}
    return raw | {"dtype": dtype(container.tensors.values())}


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Attention is bidirectional; labels are those of a classifier."""
    labels = raw.get("id2label")
    return {
        "general.architecture": "bert",
        "attention.causal": False,
        "tokenizer.ggml.token_type_count": config.type_vocab_size,
        "attention.head_count_kv": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "classifier.output_labels": list(labels.values()) if isinstance(labels, dict) else None,
    }

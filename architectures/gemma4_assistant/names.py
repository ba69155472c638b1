"""The names of Gemma 4's assistants: those of its text models, and of their projections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.gemma4 import names as gemma4
from ostro.architectures.gemma4_assistant.config import Config
from ostro.architectures.llama import names as llama

GGUF = (
    Pair("nextn.pre_projection", "pre_projection"),
    Pair("nextn.post_projection", "post_projection"),
    Pair("masked_embd_centroids", "masked_embedding.centroids"),
    Pair("masked_embd_ordering", "masked_embedding.token_ordering"),
)
"""llama.cpp's converter drops the last two, and llama.cpp computes the logits of all tokens."""

TOP_K = "centroid_intermediate_top_k"
"""The field of a config, and the key that `ostro quantize` writes to GGUF files."""


def names(config: Config) -> Names:
    text = gemma4.text_names(config)
    return replace(text, gguf=(*GGUF, *text.gguf))


def gguf_config(container: Container) -> dict[str, Any]:
    """Those of a text model, and the hidden size of the target."""
    metadata, tensors = container.metadata, container.tensors
    get = llama.under(metadata["general.architecture"], metadata)
    centroids = tensors.get("masked_embd_centroids.weight")
    return gemma4.gguf_config(container) | {
        "model_type": "gemma4_assistant",
        "attention_k_eq_v": True,  # the heads of layers without a window are their own
        "backbone_hidden_size": get("embedding_length_out"),
        "use_ordered_embeddings": centroids is not None,
        "num_centroids": centroids.shape[0] if centroids is not None else None,
        TOP_K: get(TOP_K),
    }


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a text model, and the hidden size of the target."""
    return gemma4.gguf_metadata(config, raw) | {
        "attention.shared_kv_layers": config.num_hidden_layers,
        "embedding_length_out": config.backbone_hidden_size,
        "nextn_predict_layers": config.num_hidden_layers,
        TOP_K: config.centroid_intermediate_top_k if config.use_ordered_embeddings else None,
    }

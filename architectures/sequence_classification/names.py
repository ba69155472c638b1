"""The names of decoders, with those of their head of label scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.gemma import names as gemma_names
from ostro.architectures.llama import names as llama_names
from ostro.architectures.qwen2 import names as qwen2_names
from ostro.architectures.qwen3 import names as qwen3_names
from ostro.architectures.sequence_classification import model

HEAD = Pair("cls.output", "score")


def scored(names: Names) -> Names:
    return replace(names, gguf=(*names.gguf, HEAD))


def llama(config: model.LlamaConfig) -> Names:
    return scored(llama_names.names(config))


mistral = llama


def qwen2(config: model.Qwen2Config) -> Names:
    return scored(qwen2_names.names(config))


def qwen3(config: model.Qwen3Config) -> Names:
    return scored(qwen3_names.names(config))


def gemma(config: model.GemmaConfig) -> Names:
    return scored(gemma_names.names(config))


def reranker(config: model.RerankerConfig) -> Names:
    return qwen3_names.names(config)


def reward(config: model.RewardConfig) -> Names:
    head = (Pair("score.0", "score.fc1"), Pair("score.2", "score.fc2"))
    return replace(qwen2_names.names(config), hub=head)


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys and the number of labels, the rows of the head."""
    raw = llama_names.gguf_config(container)
    if info := container.tensors.get("cls.output.weight"):
        raw["num_labels"] = info.shape[0]
    labels = container.metadata.get(
        f"{container.metadata['general.architecture']}.classifier.output_labels"
    )
    if isinstance(labels, list):
        raw["id2label"] = {str(i): str(label) for i, label in enumerate(labels)}
    return raw


def gguf_metadata(config: Any, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The labels, and the architecture of the decoder."""
    kind = raw.get("model_type")
    labels = raw.get("id2label")
    return {
        "general.architecture": "llama" if kind == "mistral" else kind,
        "classifier.output_labels": list(labels.values()) if isinstance(labels, dict) else None,
    }

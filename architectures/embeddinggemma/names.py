"""EmbeddingGemma's names: those of Gemma, on the hub without the prefix "model."."""

from __future__ import annotations

from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.embeddinggemma.model import Config
from ostro.architectures.gemma2 import names as gemma2
from ostro.architectures.gemma3.names import gguf_config as gemma3_config

HUB = (
    *(Pair(pair.theirs.removeprefix("model."), pair.ours, pair.transform) for pair in gemma2.HUB),
    Pair("layers", "model.layers"),
    Pair("embed_tokens", "model.embed_tokens"),
)


def names(config: Config) -> Names:
    """Layers after the pooling (dense_2 and dense_3 in GGUF files) are not part of the model."""
    return Names(
        hub=HUB, gguf=gemma2.GGUF, ignore=(*Names.ignore, "dense_2.weight", "dense_3.weight")
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Gemma 3's keys, with bidirectional attention."""
    return gemma3_config(container) | {"use_bidirectional_attention": True}

"""The config of Gemma 4's assistants: that of a text model whose layers have no keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ostro.architectures.gemma4 import config as gemma4
from ostro.config import check_sizes
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(gemma4.Config):
    """The fields of `text_config`, and those beside it.

    `backbone_hidden_size` is the hidden size of the target. With `use_ordered_embeddings`, the
    vocabulary is divided into `num_centroids` clusters of equal size, and a pass computes the
    logits of `centroid_intermediate_top_k` of them.
    """

    hidden_size_per_layer_input: int = 0
    backbone_hidden_size: int = 1536
    use_ordered_embeddings: bool = False
    num_centroids: int = 2048
    centroid_intermediate_top_k: int = 32

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        text = raw.get("text_config", {})
        if not isinstance(text, Mapping):
            raise ConfigError(f"text_config={text!r:.80} is not an object")
        tied = raw.get("tie_word_embeddings", cls.tie_word_embeddings)
        return super().from_hf({**raw, **text, "tie_word_embeddings": tied}, allow=allow)

    @property
    def first_shared(self) -> int:
        return 0

    def source(self, layer: int) -> int:
        """The layer itself: `AssistantModel.sources` has the target's."""
        return layer

    def window(self, layer: int) -> int:
        """The rows of K/V that a layer reads, 0 = all: those of the window of the last token, apart
        from itself.
        """
        window = super().window(layer)
        return window - 1 if window else 0

    def sources(self, target: gemma4.Config) -> list[int]:
        """For each layer the last one of its kind in `target` with K/V of its own.

        Raises ConfigError if the K/V, the hidden states or the vocabulary have another shape.
        """
        for name, own, other in (
            ("hidden_size", self.backbone_hidden_size, target.hidden_size),
            ("vocab_size", self.vocab_size, target.vocab_size),
            ("sliding_window", self.sliding_window, target.sliding_window),
        ):
            if own != other:
                raise ConfigError(f"they have {name}={own}, and this one has {other}")
        sources = [target.last_source(self.kind(i)) for i in range(self.num_hidden_layers)]
        for layer, source in enumerate(sources):
            if source < 0 or self.heads(layer) != target.heads(source):
                raise ConfigError(f"its layer {layer} reads keys and values of another shape")
        return sources

    def check_layers(self) -> None:
        """Raise ConfigError for layers and heads that an assistant cannot have."""
        for name in ("hidden_size_per_layer_input", "enable_moe_block", "use_double_wide_mlp"):
            if value := getattr(self, name):
                raise ConfigError(f"{name}={value} is not implemented for assistants")
        if self.use_ordered_embeddings and not self.tie_word_embeddings:
            raise ConfigError("use_ordered_embeddings=true needs tie_word_embeddings=true")
        if (self.sliding_window or 0) < 2:
            raise ConfigError(f"sliding_window={self.sliding_window} is not above 1")
        check_sizes(self, "backbone_hidden_size num_centroids centroid_intermediate_top_k")
        if self.use_ordered_embeddings and (
            self.vocab_size % self.num_centroids
            or self.centroid_intermediate_top_k > self.num_centroids
        ):
            raise ConfigError(
                f"num_centroids={self.num_centroids} is no divisor of vocab_size={self.vocab_size}"
                f", or below centroid_intermediate_top_k={self.centroid_intermediate_top_k}"
            )
        self.check_heads()

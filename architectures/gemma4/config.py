"""Gemma 4's text config: two kinds of layers, each with its own heads and rope."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostro.config import MAX_EXPERTS, WindowConfig, check_sizes, check_type
from ostro.errors import ConfigError

ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1000000.0,
        "partial_rotary_factor": 0.25,
    },
}
SLIDING, FULL = ROPES


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig):
    """`head_dim` and `num_key_value_heads` are those of layers with a window. Layers without one
    have `global_head_dim` and, with `attention_k_eq_v`, `num_global_key_value_heads`. transformers
    5.23 writes both as `per_layer_config`, by layer.
    """

    num_key_value_heads: int = 4
    head_dim: int = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 131072
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    sliding_window: int | None = 512
    final_logit_softcapping: float | None = None
    pad_token_id: int = 0
    use_bidirectional_attention: str | None = None
    global_head_dim: int = 512
    num_global_key_value_heads: int | None = None
    per_layer_config: dict[str, Any] | None = None
    attention_k_eq_v: bool = False
    num_kv_shared_layers: int = 0
    use_double_wide_mlp: bool = False
    vocab_size_per_layer_input: int = 262144
    hidden_size_per_layer_input: int = 256
    enable_moe_block: bool = False
    num_experts: int | None = None
    top_k_experts: int | None = None
    moe_intermediate_size: int | None = None

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        if not any(raw.get(key) for key in ("rope_parameters", "rope_scaling")):
            values["rope_parameters"] = ROPES
        if "hidden_size_per_layer_input" in raw and not raw["hidden_size_per_layer_input"]:
            values["hidden_size_per_layer_input"] = 0
        if values.get("per_layer_config"):
            # transformers pads the numbers of layers with zeros ("05")
            values["per_layer_config"] = {
                str(layer_number(layer)) if layer_number(layer) >= 0 else layer: own
                for layer, own in values["per_layer_config"].items()
            }
        layers = values["num_hidden_layers"]
        types = values.get("layer_types") or tuple(
            SLIDING if (i + 1) % 6 else FULL for i in range(min(layers, 1 << 20))
        )
        # as in the reference, the last layer has no window whatever the list contains
        values["layer_types"] = (*types[:-1], FULL)
        return values

    @property
    def first_shared(self) -> int:
        """The first layer without keys and values of its own."""
        return self.num_hidden_layers - self.num_kv_shared_layers

    def kind(self, layer: int) -> str:
        assert self.layer_types is not None
        return self.layer_types[layer]

    def source(self, layer: int) -> int:
        """The layer whose keys and values a layer reads: itself, or the last one of its kind with
        keys and values.
        """
        return layer if layer < self.first_shared else self.last_source(self.kind(layer))

    def last_source(self, kind: str) -> int:
        """The last layer of a kind with keys and values of its own; -1 without one."""
        return max((i for i in range(self.first_shared) if self.kind(i) == kind), default=-1)

    def heads(self, layer: int) -> dict[str, int]:
        """The `head_dim` and `num_key_value_heads` of a layer."""
        own = {"head_dim": self.head_dim, "num_key_value_heads": self.num_key_value_heads}
        if self.per_layer_config is not None:
            return own | self.per_layer_config.get(str(layer), {})
        if self.kind(layer) == FULL:
            own["head_dim"] = self.global_head_dim
            if self.attention_k_eq_v and self.num_global_key_value_heads is not None:
                own["num_key_value_heads"] = self.num_global_key_value_heads
        return own

    def width(self, layer: int) -> int:
        """The hidden size of a layer's MLP."""
        double = self.use_double_wide_mlp and layer >= self.first_shared
        return self.intermediate_size * (2 if double else 1)

    def check(self) -> None:
        super().check()
        check_sizes(self, "global_head_dim")
        if self.sliding_window is None:
            raise ConfigError("sliding_window is missing")
        cap = self.final_logit_softcapping
        if cap is not None and not (math.isfinite(cap) and cap > 0):
            raise ConfigError(f"final_logit_softcapping={cap} is not a positive number")
        if self.use_bidirectional_attention not in (None, "vision"):
            raise ConfigError(
                f"use_bidirectional_attention={self.use_bidirectional_attention!r} is not "
                "implemented; expected null or 'vision'"
            )
        width, vocab = self.hidden_size_per_layer_input, self.vocab_size_per_layer_input
        if not 0 <= width < 1 << 20:
            raise ConfigError(f"hidden_size_per_layer_input={width} is not within 0..{1 << 20}")
        if width:
            check_sizes(self, "vocab_size_per_layer_input")
        if width and vocab < self.vocab_size:
            raise ConfigError(
                f"vocab_size_per_layer_input={vocab} is below vocab_size={self.vocab_size}"
            )
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise ConfigError(f"pad_token_id={self.pad_token_id} is no token of the vocabulary")
        self.check_layers()
        self.check_ropes()
        if self.enable_moe_block:
            self.check_experts()

    def check_layers(self) -> None:
        """Raise ConfigError for layers whose heads do not fit, or that have no source."""
        shared, layers = self.num_kv_shared_layers, self.num_hidden_layers
        if not 0 <= shared < layers:
            raise ConfigError(f"num_kv_shared_layers={shared} is not within 0..{layers - 1}")
        assert self.layer_types is not None
        if {*self.layer_types[: self.first_shared]} != {*self.layer_types}:
            raise ConfigError(
                f"num_kv_shared_layers={shared} leaves no layer of each kind in layer_types with "
                "keys and values of its own"
            )
        self.check_heads()

    def check_heads(self) -> None:
        """Raise ConfigError for heads that do not fit each other, or those of their source."""
        layers = self.num_hidden_layers
        for layer, own in (self.per_layer_config or {}).items():
            if not 0 <= layer_number(layer) < layers or not isinstance(own, Mapping):
                raise ConfigError(f"per_layer_config has {layer!r:.40}, expected layers by number")
            for name, value in own.items():
                if name not in ("head_dim", "num_key_value_heads"):
                    raise ConfigError(f"per_layer_config: {name!r:.40} is not implemented")
                check_type(f"per_layer_config: {name}", value, int)
        for i in range(layers):
            heads = self.heads(i)
            d, kv = heads["head_dim"], heads["num_key_value_heads"]
            if not 0 < d < 1 << 16 or d % 2 or kv < 1 or self.num_attention_heads % kv:
                raise ConfigError(
                    f"layer {i} has {kv} key heads of size {d}, expected a divisor of "
                    f"num_attention_heads={self.num_attention_heads} and an even size"
                )
            if heads != self.heads(self.source(i)):
                raise ConfigError(f"layer {i} reads keys and values of another shape than its own")

    def check_ropes(self) -> None:
        """Raise ConfigError unless each kind of layer has a rope."""
        for kind in {*(self.layer_types or ())}:
            rule = self.rope_parameters.get(kind)
            if not isinstance(rule, Mapping):
                raise ConfigError(f"rope_parameters has no entry {kind!r}")
            if rule["rope_type"] == "default" and rule.get("partial_rotary_factor", 1.0) != 1.0:
                raise ConfigError(
                    f"rope_parameters: {kind}: partial_rotary_factor is not implemented for "
                    "rope_type='default'"
                )

    def check_experts(self) -> None:
        """Raise ConfigError if the number of experts or their size is missing or out of range."""
        for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            if getattr(self, name) is None:
                raise ConfigError(f"enable_moe_block is true, but {name} is missing")
        check_sizes(self, "moe_intermediate_size")
        assert self.num_experts is not None and self.top_k_experts is not None
        if not 0 < self.num_experts <= MAX_EXPERTS:
            raise ConfigError(f"num_experts={self.num_experts} is not within 1..{MAX_EXPERTS}")
        if not 0 < self.top_k_experts <= self.num_experts:
            raise ConfigError(
                f"top_k_experts={self.top_k_experts} is not within 1..{self.num_experts}"
            )


def layer_number(key: Any) -> int:
    """The number of a layer in the keys of `per_layer_config`; -1 if it is none."""
    text = str(key)
    return int(text) if text.isdecimal() and len(text) < 10 else -1

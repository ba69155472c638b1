"""The reference of Mllama, with rows before the first image excluded from cross attention.

In transformers they attend to all images equally: a softmax over a fully masked row.
"""

from __future__ import annotations

from typing import Any

import transformers
from torch import Tensor


def seeing(config: transformers.MllamaConfig) -> Any:
    """MllamaForConditionalGeneration, with cross attention outputs of zero before the
    first image.
    """
    model: Any = transformers.MllamaForConditionalGeneration(config)
    model.unseeing = 0

    def look(module: Any, args: Any, named: dict[str, Any]) -> None:
        mask = named.get("cross_attention_mask")
        if mask is not None:
            model.unseeing = int(mask[0].flatten(1).any(1).int().argmax())

    def blind(module: Any, args: Any, out: tuple[Tensor, Any]) -> None:
        out[0][:, : model.unseeing] = 0

    model.register_forward_pre_hook(look, with_kwargs=True)
    for layer in model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            layer.cross_attn.register_forward_hook(blind)
    return model


seeing.config_class = transformers.MllamaConfig  # type: ignore[attr-defined]

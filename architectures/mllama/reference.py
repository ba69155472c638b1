"""The reference of Mllama, with two corrections of transformers.

Rows before the first image are excluded from cross attention; in transformers they attend to all
images equally: a softmax over a fully masked row. The intermediate states of the vision encoder
are those that enter the layers of `intermediate_layers_indices`, as in Meta's code and
transformers 4.45 to 4.51; later versions take those that leave them.
"""

from __future__ import annotations

from typing import Any

import transformers
from torch import Tensor


def seeing(config: transformers.MllamaConfig) -> Any:
    """MllamaForConditionalGeneration, with cross attention outputs of zero before the first image,
    and the vision encoder's states before each layer.
    """
    model: Any = transformers.MllamaForConditionalGeneration(config)
    model.unseeing = 0

    def look(module: Any, args: Any, named: dict[str, Any]) -> None:
        mask = named.get("cross_attention_mask")
        if mask is not None:
            model.unseeing = int(mask[0].flatten(1).any(1).int().argmax())

    def blind(module: Any, args: Any, out: tuple[Tensor, Any]) -> None:
        out[0][:, : model.unseeing] = 0

    def enter(module: Any, args: Any, out: Any) -> None:
        if len(out.hidden_states) == len(module.layers):
            out.hidden_states = (args[0], *out.hidden_states)

    model.model.vision_model.transformer.register_forward_hook(enter)
    model.register_forward_pre_hook(look, with_kwargs=True)
    for layer in model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            layer.cross_attn.register_forward_hook(blind)
    return model


seeing.config_class = transformers.MllamaConfig  # type: ignore[attr-defined]

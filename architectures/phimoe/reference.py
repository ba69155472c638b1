"""The reference of Phi-3.5-MoE, with the factors of longrope that belong to the model's context.

In transformers 5 they are always the short ones, since the class computes them without a length.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers


def scaled(config: transformers.PhimoeConfig) -> Any:
    """PhimoeForCausalLM with the factors of longrope for `max_position_embeddings`."""
    model: Any = transformers.PhimoeForCausalLM(config)
    rotary = model.model.rotary_emb
    if rotary.rope_type != "default":
        plain, length = rotary.rope_init_fn, config.max_position_embeddings

        def factors(config: Any, device: Any = None, **_: Any) -> tuple[torch.Tensor, float]:
            inverse: torch.Tensor
            inverse, factor = plain(config, device, seq_len=length)
            return inverse, factor

        rotary.rope_init_fn = factors
    return model


scaled.config_class = transformers.PhimoeConfig  # type: ignore[attr-defined]

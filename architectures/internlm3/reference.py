"""The reference of InternLM 3: transformers has its config, whose model is Llama."""

from __future__ import annotations

from transformers import InternLM3Config, LlamaForCausalLM


class InternLM3ForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """LlamaForCausalLM with InternLM 3's config, under the published class name."""

    config_class = InternLM3Config

"""The reference of Llama's variants: transformers' Llama under the name of one of them."""

from __future__ import annotations

from transformers import LlamaForCausalLM


class YiForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """LlamaForCausalLM whose config.json names this class."""

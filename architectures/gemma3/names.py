"""The config.json of a GGUF file of Gemma 3."""

from __future__ import annotations

from typing import Any

from ostro import Container
from ostro.architectures.gemma2 import names as gemma2_names
from ostro.architectures.llama import names as llama_names


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys and the windows; without a window there is no local rope."""
    metadata = container.metadata
    get = llama_names.under(metadata["general.architecture"], metadata)
    raw = llama_names.gguf_config(container) | gemma2_names.windows(metadata)
    raw["rope_local_base_freq"] = get("rope.freq_base_swa", 10000.0)
    raw["final_logit_softcapping"] = get("final_logit_softcapping")
    raw["query_pre_attn_scalar"] = gemma2_names.query_scalar(raw, 62)
    return raw

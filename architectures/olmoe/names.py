"""OLMoE's names: separate experts on the hub, stacked experts in GGUF files."""

from __future__ import annotations

from typing import Any

from ostro import Container, ExpertNames
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import names as mixtral
from ostro.architectures.mixtral.model import ExpertsConfig


def names(config: ExpertsConfig) -> ExpertNames:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    gguf = (mixtral.GATE, *llama.GGUF)
    return ExpertNames(gguf=gguf, experts=config.num_local_experts, stacks=mixtral.STACKS)


def gguf_config(container: Container) -> dict[str, Any]:
    """Mixtral's keys; llama.cpp neither renormalises nor clips for this family."""
    return mixtral.gguf_config(container) | {"norm_topk_prob": False}

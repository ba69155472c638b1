"""Classes that are Llama under another name: the fields that would make a difference, and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.llama import model
from ostro.architectures.llama import names as llama
from ostro.errors import ConfigError

NORMS = ("input_layernorm", "post_attention_layernorm")
HUB = (
    *(Pair(f"{llama.LAYER}.{norm}", f"{llama.LAYER}.{norm}") for norm in NORMS),
    *(Pair(f"{llama.LAYER}.ln{i}", f"{llama.LAYER}.{norm}") for i, norm in enumerate(NORMS, 1)),
)
"""The first checkpoints of Yi store the norms as ln1 and ln2."""


@dataclass(frozen=True, kw_only=True)
class Config(model.Config):
    """clip_qkv and use_sliding_window are fields of IQuest-Coder, num_loops one of Nanbeige 4.2.

    No other value of them is implemented.
    """

    clip_qkv: float | None = None
    use_sliding_window: bool = False
    num_loops: int = 1

    def check(self) -> None:
        super().check()
        for name, only in (("clip_qkv", None), ("use_sliding_window", False), ("num_loops", 1)):
            if (value := getattr(self, name)) != only:
                raise ConfigError(f"{name}={value} is not implemented; only {name}={only} is")


def names(config: Config) -> Names:
    return replace(llama.names(config), hub=HUB)


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys, and the number of passes through the layers."""
    get = llama.under(container.metadata["general.architecture"], container.metadata)
    return llama.gguf_config(container) | {"num_loops": get("num_loops", 1)}


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The architecture by the class; Yi and IQuest-Coder are "llama"."""
    kinds = {"XverseForCausalLM": "xverse", "NanbeigeForCausalLM": "nanbeige"}
    name = next((kinds[each] for each in raw.get("architectures") or [] if each in kinds), "llama")
    loops = {"num_loops": config.num_loops, "skip_loop_final_norm": False}
    return {"general.architecture": name} | (loops if name == "nanbeige" else {})

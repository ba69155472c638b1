"""Qwen3, dense."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

TINY = {**LLAMA, "head_dim": 32, "rms_norm_eps": 1e-6}
WIDE = {**LLAMA_WIDE, "rms_norm_eps": 1e-6}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen3",
        api=(0, 2),
        classes=("Qwen3ForCausalLM",),
        gguf=("qwen3",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config="ostro.architectures.llama.names:gguf_config",
        conformance=Conformance(tiny=TINY, wide=WIDE, reference="transformers:Qwen3ForCausalLM"),
        trunk=True,
    )

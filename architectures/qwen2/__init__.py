"""Qwen2 and Qwen2.5."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
SHAPE = ("head_dim",)
TINY = {k: v for k, v in {**LLAMA, **WINDOWS}.items() if k not in SHAPE}
WIDE = {k: v for k, v in {**LLAMA_WIDE, **WINDOWS}.items() if k not in SHAPE}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen2",
        api=(0, 2),
        classes=("Qwen2ForCausalLM",),
        gguf=("qwen2",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config="ostro.architectures.llama.names:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Qwen2ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )

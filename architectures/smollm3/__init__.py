"""SmolLM3."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

LAYERS = {
    "no_rope_layer_interval": 2,
    "use_sliding_window": True,
    "sliding_window": 8,
    "pad_token_id": 0,
}
SHAPE = ("head_dim",)
TINY = {k: v for k, v in {**LLAMA, **LAYERS}.items() if k not in SHAPE}
WIDE = {k: v for k, v in {**LLAMA_WIDE, **LAYERS}.items() if k not in SHAPE}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="smollm3",
        api=(0, 2),
        classes=("SmolLM3ForCausalLM",),
        gguf=("smollm3",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names="ostro.architectures.llama.names:names",
        gguf_config="ostro.architectures.llama.names:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:SmolLM3ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )

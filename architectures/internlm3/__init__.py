"""InternLM 3."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

BIASES = {"attention_bias": True, "mlp_bias": True}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="internlm3",
        api=(0, 2),
        classes=("InternLM3ForCausalLM",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny={**LLAMA, **BIASES},
            wide={**LLAMA_WIDE, **BIASES},
            reference=f"{__name__}.reference:InternLM3ForCausalLM",
        ),
    )

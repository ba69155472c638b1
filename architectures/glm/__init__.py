"""GLM-4-9b-chat-hf and GLM-Edge."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

SHAPE = {"rms_norm_eps": 1e-5, "pad_token_id": 0, "eos_token_id": 2}
TINY = {**LLAMA, **SHAPE}
WIDE = {**LLAMA_WIDE, **SHAPE}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="glm",
        api=(0, 2),
        classes=("GlmForCausalLM",),
        gguf=("chatglm",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:GlmForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )

"""StarCoder2."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

CHANGES = {
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-5,
    "sliding_window": 8,
    "use_bias": True,
}
TINY = {k: v for k, v in {**LLAMA, **CHANGES}.items() if k != "head_dim"}
WIDE = {k: v for k, v in {**LLAMA_WIDE, **CHANGES}.items() if k != "head_dim"}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="starcoder2",
        api=(0, 2),
        classes=("Starcoder2ForCausalLM",),
        gguf=("starcoder2",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Starcoder2ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )

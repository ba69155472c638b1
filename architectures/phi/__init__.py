"""Phi-1, Phi-1.5 and Phi-2; the trunk of decoders with layer norms and an ungated MLP."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

CHANGES = {
    "num_key_value_heads": 4,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
}
TINY = {k: v for k, v in {**LLAMA, "intermediate_size": 256, **CHANGES}.items() if k != "head_dim"}
WIDE = {
    k: v for k, v in {**LLAMA_WIDE, "intermediate_size": 1024, **CHANGES}.items() if k != "head_dim"
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="phi",
        api=(0, 2),
        classes=("PhiForCausalLM",),
        gguf=("phi2",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:PhiForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )

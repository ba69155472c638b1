"""LFM2 with experts."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

LFM2_MOE = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "conv_bias": True,
    "num_dense_layers": 2,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.7,
}
TINY = {k: v for k, v in LLAMA.items() if k != "head_dim"} | LFM2_MOE
WIDE = {k: v for k, v in LLAMA_WIDE.items() if k != "head_dim"} | {
    **LFM2_MOE,
    "moe_intermediate_size": 256,
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="lfm2_moe",
        api=(0, 2),
        classes=("Lfm2MoeForCausalLM",),
        gguf=("lfm2moe",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Lfm2MoeForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )

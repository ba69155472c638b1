"""Qwen3-Next."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

NEXT = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_only_layers": [2],
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
}
TINY = {**LLAMA, **NEXT, "rms_norm_eps": 1e-6}
WIDE = {
    **LLAMA_WIDE,
    **NEXT,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen3_next",
        api=(0, 2),
        classes=("Qwen3NextForCausalLM",),
        gguf=("qwen3next",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        mtp=f"{__name__}.mtp:Head",
        mtp_names=f"{__name__}.mtp:head_names",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Qwen3NextForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )

"""Qwen3.5 and 3.6, dense and with experts: the text models."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

DELTA = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
LARGE = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
LARGE_EXPERTS = {**EXPERTS, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
TINY = {**LLAMA, **DELTA, "rms_norm_eps": 1e-6}
WIDE = {**LLAMA_WIDE, **DELTA, **LARGE}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen3_5",
        api=(0, 2),
        classes=("Qwen3_5ForCausalLM",),
        gguf=("qwen35",),
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
            reference="transformers:Qwen3_5ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
    yield Architecture(
        name="qwen3_5_moe",
        api=(0, 2),
        classes=("Qwen3_5MoeForCausalLM",),
        gguf=("qwen35moe",),
        config=f"{__name__}.model:SparseConfig",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        mtp=f"{__name__}.mtp:Head",
        mtp_names=f"{__name__}.mtp:head_names",
        conformance=Conformance(
            tiny={**TINY, **EXPERTS},
            wide={**WIDE, **LARGE_EXPERTS},
            reference="transformers:Qwen3_5MoeForCausalLM",
            mutants=f"{__name__}.mutants:sparse_mutants",
        ),
    )

"""GLM-4.5, 4.6 and 4.7."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

MIXTURE = {
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "use_qk_norm": True,
    "attention_bias": True,
}
TINY = {**LLAMA, **MIXTURE}
WIDE = {**LLAMA_WIDE, **MIXTURE, "moe_intermediate_size": 256}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="glm4_moe",
        api=(0, 2),
        classes=("Glm4MoeForCausalLM",),
        gguf=("glm4moe",),
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
            reference="transformers:Glm4MoeForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )

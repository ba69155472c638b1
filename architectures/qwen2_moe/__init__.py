"""Qwen1.5-MoE and Qwen2-MoE."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.qwen2 import TINY as QWEN2
from ostro.architectures.qwen2 import WIDE as QWEN2_WIDE

MIXTURE = {
    "num_hidden_layers": 3,
    "max_window_layers": 2,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "mlp_only_layers": [1],
}
TINY = {**QWEN2, **MIXTURE}
WIDE = {
    **QWEN2_WIDE,
    **MIXTURE,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen2_moe",
        api=(0, 2),
        classes=("Qwen2MoeForCausalLM",),
        gguf=("qwen2moe",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Qwen2MoeForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )

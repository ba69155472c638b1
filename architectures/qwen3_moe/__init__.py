"""Qwen3 with experts."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.qwen3 import TINY as QWEN3
from ostro.architectures.qwen3 import WIDE as QWEN3_WIDE

MIXTURE = {
    "num_hidden_layers": 3,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "mlp_only_layers": [1],
}
TINY = {**QWEN3, **MIXTURE}
WIDE = {**QWEN3_WIDE, **MIXTURE, "moe_intermediate_size": 256}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen3_moe",
        api=(0, 2),
        classes=("Qwen3MoeForCausalLM",),
        gguf=("qwen3moe",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Qwen3MoeForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )

"""Qwen3-VL with experts."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.qwen2_5_vl import ALIGNED, shape
from ostro.architectures.qwen3 import TINY as QWEN3
from ostro.architectures.qwen3 import WIDE as QWEN3_WIDE
from ostro.architectures.qwen3_vl import TOWER

MIXTURE = {
    "num_hidden_layers": 3,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "mlp_only_layers": [1],
}
TINY = {**QWEN3, **MIXTURE}
WIDE = {**QWEN3_WIDE, **MIXTURE, "moe_intermediate_size": 256}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen3_vl_moe",
        api=(0, 2),
        classes=("Qwen3VLMoeForConditionalGeneration",),
        gguf=("qwen3vlmoe+qwen3vl_merger",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs="ostro.architectures.qwen3_vl.inputs:Inputs",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata="ostro.architectures.qwen3_vl.projector:gguf_metadata",
        conformance=Conformance(
            tiny=shape(TINY, TOWER, [8, 4, 4]),
            wide=shape(WIDE, {**TOWER, **ALIGNED}, [12, 10, 10]),
            reference="transformers:Qwen3VLMoeForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples="ostro.architectures.qwen3_vl.examples:examples",
        ),
    )
    # a GGUF file without a projector is a text model, equal to Qwen3-MoE
    yield Architecture(
        name="qwen3_vl_moe_text",
        api=(0, 2),
        gguf=("qwen3vlmoe",),
        config="ostro.architectures.qwen3_moe.model:Config",
        model="ostro.architectures.qwen3_moe.model:Model",
        names="ostro.architectures.qwen3_moe.names:names",
        gguf_config="ostro.architectures.qwen3_moe.names:gguf_config",
        conformance=Conformance(tiny=TINY, wide=WIDE, reference="transformers:Qwen3MoeForCausalLM"),
    )

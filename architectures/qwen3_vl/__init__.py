"""Qwen3-VL, dense."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.qwen2_5_vl import ALIGNED, shape
from ostro.architectures.qwen3 import TINY as QWEN3
from ostro.architectures.qwen3 import WIDE as QWEN3_WIDE

TOWER = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 25,
    "deepstack_visual_indexes": [0, 1],
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen3_vl",
        api=(0, 2),
        classes=("Qwen3VLForConditionalGeneration",),
        gguf=("qwen3vl+qwen3vl_merger",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.projector:names",
        gguf_config=f"{__name__}.projector:gguf_config",
        gguf_metadata=f"{__name__}.projector:gguf_metadata",
        conformance=Conformance(
            tiny=shape(QWEN3, TOWER, [8, 4, 4]),
            wide=shape(QWEN3_WIDE, {**TOWER, **ALIGNED}, [12, 10, 10]),
            reference="transformers:Qwen3VLForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
        trunk=True,
    )
    # a GGUF file without a projector is a text model, equal to Qwen3
    yield Architecture(
        name="qwen3_vl_text",
        api=(0, 2),
        gguf=("qwen3vl",),
        config="ostro.architectures.qwen3.model:Config",
        model="ostro.architectures.qwen3.model:Model",
        names="ostro.architectures.qwen3.names:names",
        gguf_config="ostro.architectures.llama.names:gguf_config",
        conformance=Conformance(
            tiny=QWEN3,
            wide=QWEN3_WIDE,
            reference="transformers:Qwen3ForCausalLM",
        ),
    )

"""Qwen3.5 and 3.6 with images and videos, dense and with experts."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.qwen2_5_vl import ALIGNED, shape
from ostro.architectures.qwen3_5 import EXPERTS, LARGE_EXPERTS, TINY, WIDE
from ostro.architectures.qwen3_vl import TOWER as DEEP

TOWER = {key: value for key, value in DEEP.items() if key != "deepstack_visual_indexes"}
SECTIONS = [3, 2, 1]
TEXT = {**TINY, "head_dim": 48}
"""A quarter of a head has six pairs."""


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="qwen3_5_vl",
        api=(0, 2),
        classes=("Qwen3_5ForConditionalGeneration",),
        gguf=("qwen35+qwen3vl_merger",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata="ostro.architectures.qwen3_vl.projector:tower_keys",
        mtp=f"{__name__}.mtp:head",
        mtp_names=f"{__name__}.mtp:head_names",
        conformance=Conformance(
            tiny=shape(TEXT, TOWER, SECTIONS),
            wide=shape(WIDE, {**TOWER, **ALIGNED}, [3, 3, 2]),
            reference="transformers:Qwen3_5ForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples="ostro.architectures.qwen3_vl.examples:examples",
        ),
    )
    yield Architecture(
        name="qwen3_5_moe_vl",
        api=(0, 2),
        classes=("Qwen3_5MoeForConditionalGeneration",),
        gguf=("qwen35moe+qwen3vl_merger",),
        config=f"{__name__}.model:SparseConfig",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata="ostro.architectures.qwen3_vl.projector:tower_keys",
        mtp=f"{__name__}.mtp:head",
        mtp_names=f"{__name__}.mtp:head_names",
        conformance=Conformance(
            tiny=shape({**TEXT, **EXPERTS}, TOWER, SECTIONS),
            wide=shape({**WIDE, **LARGE_EXPERTS}, {**TOWER, **ALIGNED}, [3, 3, 2]),
            reference="transformers:Qwen3_5MoeForConditionalGeneration",
            mutants=f"{__name__}.mutants:sparse_mutants",
            examples="ostro.architectures.qwen3_vl.examples:examples",
        ),
    )

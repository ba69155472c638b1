"""ViP-LLaVA."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llava import TINY as LLAVA
from ostro.architectures.llava import WIDE as LLAVA_WIDE

LAYERS = {"vision_feature_layer": [3, 4, 1, 2]}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="vipllava",
        api=(0, 2),
        tasks=("text",),
        classes=("VipLlavaForConditionalGeneration",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs="ostro.architectures.llava.inputs:Inputs",
        names="ostro.architectures.llava.model:names",
        conformance=Conformance(
            tiny={**LLAVA, **LAYERS},
            wide={**LLAVA_WIDE, **LAYERS},
            reference="transformers:VipLlavaForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples="ostro.architectures.llava.examples:examples",
        ),
    )

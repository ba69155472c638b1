"""LLaVA-OneVision."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llava_next import GRID
from ostro.architectures.qwen2 import TINY as QWEN2
from ostro.architectures.qwen2 import WIDE as QWEN2_WIDE
from ostro.architectures.siglip import TINY as SIGLIP
from ostro.architectures.siglip import WIDE as SIGLIP_WIDE

LONG = {"model_type": "qwen2", "max_position_embeddings": 512}
TOKENS = {"image_token_index": 1, "video_token_index": 2}
TILES = {**GRID, "vision_aspect_ratio": "anyres_max_2"}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="llava_onevision",
        api=(0, 2),
        tasks=("text",),
        classes=("LlavaOnevisionForConditionalGeneration",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names="ostro.architectures.llava_next.model:names",
        conformance=Conformance(
            tiny={**TOKENS, **TILES, "text_config": {**QWEN2, **LONG}, "vision_config": SIGLIP},
            wide={
                **TOKENS,
                **TILES,
                "text_config": {**QWEN2_WIDE, **LONG},
                "vision_config": SIGLIP_WIDE,
            },
            reference="transformers:LlavaOnevisionForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
    )

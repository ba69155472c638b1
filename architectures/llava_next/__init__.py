"""LLaVA-NeXT (1.6) and LLaVA-NeXT-Video."""

from collections.abc import Iterable
from dataclasses import replace

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE
from ostro.architectures.llava import TINY as LLAVA
from ostro.architectures.llava import WIDE as LLAVA_WIDE

GRID = {"image_grid_pinpoints": [[24, 48], [48, 24], [48, 48]]}
LONG = {"model_type": "llama", "max_position_embeddings": 512}
TINY = {**LLAVA, **GRID, "text_config": {**LLAMA, **LONG}}
WIDE = {**LLAVA_WIDE, **GRID, "text_config": {**LLAMA_WIDE, **LONG}}
VIDEO = {"video_token_index": 2}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    image = Architecture(
        name="llava_next",
        api=(0, 2),
        tasks=("text",),
        classes=("LlavaNextForConditionalGeneration",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.model:names",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:LlavaNextForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
        trunk=True,
    )
    yield image
    yield replace(
        image,
        name="llava_next_video",
        classes=("LlavaNextVideoForConditionalGeneration",),
        config=f"{__name__}.model:VideoConfig",
        model=f"{__name__}.model:VideoModel",
        inputs=f"{__name__}.inputs:VideoInputs",
        conformance=Conformance(
            tiny={**TINY, **VIDEO},
            wide={**WIDE, **VIDEO},
            reference="transformers:LlavaNextVideoForConditionalGeneration",
            mutants=f"{__name__}.mutants:video_mutants",
            examples=f"{__name__}.examples:video_examples",
        ),
        trunk=False,
    )

"""Mistral 3 with images: Mistral Small 3.1 and 3.2, Devstral, Magistral."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE
from ostro.architectures.pixtral import TINY as PIXTRAL
from ostro.architectures.pixtral import WIDE as PIXTRAL_WIDE

TEXT = {"model_type": "mistral", "max_position_embeddings": 512, "sliding_window": None}
TINY = {
    "image_token_index": 1,
    "image_break_token_id": 2,
    "image_end_token_id": 3,
    "spatial_merge_size": 2,
    "tie_word_embeddings": False,
    "text_config": {**LLAMA, **TEXT},
    "vision_config": PIXTRAL,
}
WIDE = {**TINY, "text_config": {**LLAMA_WIDE, **TEXT}, "vision_config": PIXTRAL_WIDE}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="mistral3",
        api=(0, 2),
        tasks=("text",),
        classes=("Mistral3ForConditionalGeneration",),
        gguf=("mistral3+pixtral", "llama+pixtral"),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        inputs=f"{__name__}.inputs:Inputs",
        names=f"{__name__}.projector:names",
        gguf_config=f"{__name__}.projector:gguf_config",
        gguf_metadata=f"{__name__}.projector:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Mistral3ForConditionalGeneration",
            mutants=f"{__name__}.mutants:mutants",
            examples=f"{__name__}.examples:examples",
        ),
    )
